package store

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"bobbin/thread"
)

// Worker is this process's entry among the workers. While it lives it holds an advisory lock on a connection of its own:
// when the process dies, by whatever means, Postgres frees the lock at once and others see that its attempts are dead.
type Worker struct {
	ID   string
	db   *DB
	stop context.CancelFunc
	done sync.WaitGroup
}

const (
	workerLockClass = 1
	reconnectDelay  = time.Second
)

// RegisterWorker enters this process among the workers. Close ends the entry.
func (db *DB) RegisterWorker(ctx context.Context) (*Worker, error) {
	w := &Worker{ID: newID("wrk"), db: db}
	conn, err := w.enter(ctx)
	if err != nil {
		return nil, wrap("register worker", err)
	}
	ctx, w.stop = context.WithCancel(context.WithoutCancel(ctx))
	w.done.Go(func() { w.hold(ctx, conn) })
	return w, nil
}

// Close frees the lock and removes the entry.
func (w *Worker) Close() {
	w.stop()
	w.done.Wait()
}

// enter inserts the row and takes the lock in one transaction, so that no one sees the one without the other.
func (w *Worker) enter(ctx context.Context) (*pgx.Conn, error) {
	conn, err := pgx.ConnectConfig(ctx, w.db.pool.Config().ConnConfig)
	if err != nil {
		return nil, err
	}
	_, err = conn.Exec(ctx, `
		WITH entry AS (
			INSERT INTO workers (id) VALUES ($1)
			ON CONFLICT (id) DO UPDATE SET id = EXCLUDED.id
			RETURNING lock_key
		)
		SELECT pg_advisory_lock($2, lock_key) FROM entry`, w.ID, workerLockClass)
	if err != nil {
		_ = conn.Close(ctx)
		return nil, err
	}
	return conn, nil
}

// hold keeps the connection alive, and enters again when it is lost.
func (w *Worker) hold(ctx context.Context, conn *pgx.Conn) {
	for {
		_, err := waitOrPing(ctx, conn) // it listens to nothing, so it returns when the connection ends
		if ctx.Err() != nil {
			w.leave(conn)
			return
		}
		slog.Warn("worker lock lost, entering again", "worker", w.ID, "error", err)
		_ = conn.Close(ctx)
		for {
			if conn, err = w.enter(ctx); err == nil {
				break
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(reconnectDelay):
			}
		}
	}
}

func (w *Worker) leave(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), reconnectDelay)
	defer cancel()
	_ = conn.Close(ctx)
	_, _ = w.db.pool.Exec(ctx, `DELETE FROM workers WHERE id = $1 AND NOT EXISTS (SELECT FROM attempts WHERE worker_id = $1)`, w.ID)
}

func queueAttempt(b *pgx.Batch, a Attempt) {
	b.Queue(`
		INSERT INTO attempts (worker_id, turn_id, workflow_id, run_id, activity_id, number)
		VALUES ($1, $2, $3, $4, $5, $6)
		ON CONFLICT (run_id, activity_id) DO UPDATE
		SET worker_id = EXCLUDED.worker_id, number = EXCLUDED.number, started_at = EXCLUDED.started_at
		WHERE attempts.number <= EXCLUDED.number`, a.WorkerID, a.TurnID, a.WorkflowID, a.RunID, a.ActivityID, a.Number)
}

// lives is true of a worker w that holds its lock; @class is workerLockClass.
const lives = `EXISTS (
	SELECT FROM pg_locks l
	WHERE l.locktype = 'advisory' AND l.classid = @class AND l.objid = w.lock_key AND l.objsubid = 2
	  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()))`

// running sets how long each started call of a turn has been running, by round and index, where its worker lives.
func (db *DB) running(ctx context.Context, turnID string, calls []thread.Call) error {
	rows, _ := db.pool.Query(ctx, `
		SELECT c.round, c.idx, clock_timestamp() - c.started_at
		FROM calls c
		JOIN workers w ON w.id = c.worker_id
		WHERE c.turn_id = @turn AND c.state = 'started' AND `+lives, pgx.NamedArgs{"turn": turnID, "class": workerLockClass})
	var round, index int
	var since time.Duration
	_, err := pgx.ForEachRow(rows, []any{&round, &index, &since}, func() error {
		for i := range calls {
			if calls[i].Round == round && calls[i].Index == index {
				calls[i].RunningFor = max(since, 1)
			}
		}
		return nil
	})
	return err
}

// BeginAttempt records that an activity drives a turn.
func (db *DB) BeginAttempt(ctx context.Context, a Attempt) error {
	b := &pgx.Batch{}
	queueAttempt(b, a)
	return wrap("begin attempt", db.pool.SendBatch(ctx, b).Close())
}

// EndAttempt removes what Begin or BeginAttempt recorded.
func (db *DB) EndAttempt(ctx context.Context, a Attempt) error {
	_, err := db.pool.Exec(ctx, `
		WITH gone AS (
			DELETE FROM attempts WHERE run_id = $1 AND activity_id = $2 AND worker_id = $3 AND number = $4
		)
		UPDATE turns SET driven_at = clock_timestamp() WHERE id = $5`, a.RunID, a.ActivityID, a.WorkerID, a.Number, a.TurnID)
	return wrap("end attempt", err)
}

// DeadAttempts removes and returns the attempts of workers that died, or that have no entry any more. Each is returned to
// one caller only; one that is lost after that is found by Temporal's heartbeat time-out. Right after a start of Postgres it
// returns none: all locks are gone with the old server, and the workers that live take theirs again.
func (db *DB) DeadAttempts(ctx context.Context) ([]Attempt, error) {
	rows, _ := db.pool.Query(ctx, `
		WITH settled AS (
			SELECT pg_postmaster_start_time() < clock_timestamp() - @again::interval AS ok
		), dead AS (
			SELECT w.id
			FROM workers w
			WHERE NOT `+lives+` AND (SELECT ok FROM settled)
			FOR UPDATE SKIP LOCKED
		), gone AS (
			DELETE FROM workers w USING dead WHERE w.id = dead.id
		)
		DELETE FROM attempts a
		WHERE a.worker_id IN (SELECT id FROM dead)
		   OR NOT EXISTS (SELECT FROM workers w WHERE w.id = a.worker_id) AND (SELECT ok FROM settled)
		RETURNING a.worker_id, a.turn_id, a.workflow_id, a.run_id, a.activity_id, a.number`,
		pgx.NamedArgs{"again": 3 * reconnectDelay, "class": workerLockClass})
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Attempt])
	return list, wrap("find dead attempts", err)
}
