package store

import (
	"context"
	"io/fs"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"bobbin/migrations"
	"bobbin/thread"
)

// Gauges is what waits and runs in the whole database.
type Gauges struct {
	Turns    []TurnCount // that run or wait; a combination that no turn has is left out
	Turn     Waiting     // turns in line, but for those that wait for the time of their retry
	Undriven Waiting     // turns that were started and that no living worker drives: most of them stand between two stints for a moment
	Steering Waiting     // messages that wait for the next round head
	Outbox   Waiting     // nudges that should have gone out
	Workers  int         // that live
}

// Waiting is how many wait, and for how long the first of them has; zero: none.
type Waiting struct {
	Count  int
	Oldest time.Duration
}

// TurnCount is how many turns there are of a status and a source.
type TurnCount struct {
	Status thread.TurnStatus
	Source thread.Source
	Count  int
}

// undriven is true of a running turn t that no living worker drives; @class is workerLockClass. What a dead worker held
// counts as undriven before another has noticed that it died.
const undriven = `t.status = 'running' AND NOT EXISTS (
	SELECT FROM attempts a JOIN workers w ON w.id = a.worker_id WHERE a.turn_id = t.id AND ` + lives + `)`

// Gauges reads all of them in one flush. It reads indexes of what is live only, and gives up after limit, so that it
// costs the database little whatever its size.
func (db *DB) Gauges(ctx context.Context, limit time.Duration) (Gauges, error) {
	var g Gauges
	err := db.transact(ctx, "read gauges", func(ctx context.Context, t *tx) error {
		g, t.timeout = Gauges{}, limit
		b := &pgx.Batch{}
		class := pgx.NamedArgs{"class": workerLockClass}
		b.Queue(`
			SELECT t.status, t.source, count(*)
			FROM turns t
			WHERE t.status IN ('queued', 'running')
			GROUP BY t.status, t.source
			ORDER BY t.status, t.source`).Query(func(rows pgx.Rows) (err error) {
			g.Turns, err = pgx.CollectRows(rows, pgx.RowToStructByPos[TurnCount])
			return err
		})
		for _, q := range []struct {
			to          *Waiting
			since, from string
		}{
			{&g.Turn, "GREATEST(t.created_at, t.retry_at)", `turns t WHERE t.status = 'queued' AND (t.retry_at IS NULL OR t.retry_at <= clock_timestamp())`},
			{&g.Undriven, "t.driven_at", `turns t WHERE t.status IN ('queued', 'running') AND ` + undriven},
			{&g.Steering, "s.created_at", `steering s WHERE s.state = 'queued'`},
			{&g.Outbox, "o.created_at", `outbox o WHERE o.due_at <= clock_timestamp()`},
		} {
			b.Queue(`SELECT count(*), COALESCE(clock_timestamp() - min(`+q.since+`), '0') FROM `+q.from, class).QueryRow(func(r pgx.Row) error {
				return r.Scan(&q.to.Count, &q.to.Oldest)
			})
		}
		b.Queue(`SELECT count(*) FROM workers w WHERE `+lives, class).QueryRow(func(r pgx.Row) error { return r.Scan(&g.Workers) })
		return t.flush(ctx, b)
	})
	return g, err
}

// Pool is what the connections of this process do.
type Pool struct {
	InUse, Idle, Max int
	Waits            int64         // how often all were in use, or one had to be opened
	Waited           time.Duration // in all, for any connection
}

// Pool reads the state of the connections. It asks nobody.
func (db *DB) Pool() Pool {
	s := db.pool.Stat()
	return Pool{
		InUse: int(s.AcquiredConns()), Idle: int(s.IdleConns()), Max: int(s.MaxConns()),
		Waits: s.EmptyAcquireCount(), Waited: s.AcquireDuration(),
	}
}

// Schema returns the numbers of the last migration that the database has and of the last that this binary knows.
func (db *DB) Schema(ctx context.Context) (have, want int64, err error) {
	err = db.pool.QueryRow(ctx, `SELECT COALESCE(max(version_id), 0) FROM goose_db_version WHERE is_applied`).Scan(&have)
	return have, lastMigration(), wrap("read schema version", err)
}

var lastMigration = sync.OnceValue(func() (last int64) {
	names, err := fs.Glob(migrations.FS, "*.sql")
	if err != nil {
		panic(err) // the pattern is ours
	}
	for _, name := range names {
		number, _, _ := strings.Cut(name, "_")
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			panic(err) // goose takes no other names
		}
		last = max(last, n)
	}
	return last
})

// StoppedFor returns how long ago, by the database's clock, a conversation turn was told to stop. ok is false of one that
// was not, and of background turns, whose stop leaves no event.
func (db *DB) StoppedFor(ctx context.Context, ref TurnRef) (d time.Duration, ok bool, err error) {
	rows, _ := db.pool.Query(ctx, `
		SELECT clock_timestamp() - created_at
		FROM (
			SELECT name, turn_id, data, created_at
			FROM events
			WHERE thread_id = @thread
			ORDER BY seq DESC
			LIMIT 200
		) e
		WHERE turn_id = @turn AND name = 'turn.phase' AND data ->> 'phase' = @phase
		LIMIT 1`, pgx.NamedArgs{"thread": ref.ThreadID, "turn": ref.ID, "phase": string(thread.PhaseStopping)})
	list, err := pgx.CollectRows(rows, pgx.RowTo[time.Duration])
	if err != nil || len(list) == 0 {
		return 0, false, wrap("read stop", err)
	}
	return list[0], true, nil
}
