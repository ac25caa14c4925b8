package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"bobbin/thread"
)

// Turns lists a thread's turns, newest first.
func (db *DB) Turns(ctx context.Context, ownerID, threadID string, p Page) ([]*thread.Turn, error) {
	t, err := db.Thread(ctx, ownerID, threadID)
	if err != nil {
		return nil, err
	}
	var list []*thread.Turn
	b := &pgx.Batch{}
	entry := p.queueEntry(b, `SELECT FROM turns WHERE id = $1 AND thread_id = $2`, t.ID)
	b.Queue(`SELECT`+turnColumns+`
		FROM turns t
		WHERE t.thread_id = $1 AND ($2 = '' OR t.id < $2)
		ORDER BY t.id DESC
		LIMIT $3`, t.ID, p.Before, p.Limit).Query(collect(&list, scanPlainTurn))
	return list, wrap("list turns", entry(db.pool.SendBatch(ctx, b).Close()))
}

func scanPlainTurn(r pgx.Row) (*thread.Turn, error) {
	t, err := scanTurn(r)
	if err != nil {
		return nil, err
	}
	return &t.Turn, nil
}

// Turn returns one turn.
func (db *DB) Turn(ctx context.Context, ownerID, turnID string) (*thread.Turn, error) {
	t, err := scanPlainTurn(db.pool.QueryRow(ctx, `SELECT`+turnColumns+`
		FROM turns t
		JOIN threads o ON o.id = t.thread_id
		WHERE t.id = $1 AND o.owner_id = $2`, turnID, ownerID))
	return t, wrap("read turn", err)
}

const stepColumns = `
	s.turn_id, s.n, s.kind, s.title, s.status, s.started_at, s.finished_at, COALESCE(s.message_id, ''), s.detail`

func scanStep(r pgx.Row) (*thread.Step, error) {
	var s thread.Step
	err := r.Scan(&s.TurnID, &s.N, &s.Kind, &s.Title, &s.Status, &s.StartedAt, &s.FinishedAt, &s.MessageID, &s.Detail)
	return &s, err
}

// Steps lists at most limit steps of a turn after step number after, in order.
func (db *DB) Steps(ctx context.Context, ownerID, turnID string, after, limit int) ([]*thread.Step, error) {
	if _, err := db.Turn(ctx, ownerID, turnID); err != nil {
		return nil, err
	}
	rows, _ := db.pool.Query(ctx, `SELECT`+stepColumns+`
		FROM steps s
		WHERE s.turn_id = $1 AND s.n > $2
		ORDER BY s.n
		LIMIT $3`, turnID, after, limit)
	list, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (*thread.Step, error) { return scanStep(r) })
	return list, wrap("list steps", err)
}

// Replay puts a failed turn at the end of its thread's line, with the same id. It goes on from the session that it has.
// ErrConflict: it has not failed. ErrArchived: its thread is archived.
func (db *DB) Replay(ctx context.Context, ownerID, turnID string) (*thread.Turn, error) {
	var out *thread.Turn
	threadID, err := db.threadOf(ctx, "turns", ownerID, turnID)
	if err != nil {
		return nil, wrap("replay", err)
	}
	err = db.transact(ctx, "replay", func(ctx context.Context, t *tx) error {
		var turn *turnRow
		h, err := t.lock(ctx, threadID, func(b *pgx.Batch) {
			b.Queue(`SELECT`+turnColumns+`FROM turns t WHERE t.id = $1 FOR NO KEY UPDATE`, turnID).Query(first(&turn, scanTurn))
		})
		if err != nil {
			return err
		}
		t.point(ctx, PointReplay)
		switch {
		case h.archived:
			return thread.ErrArchived
		case !turn.Status.CanBecome(thread.TurnQueued) || turn.Status == thread.TurnRunning:
			return thread.ErrConflict
		}
		b := &pgx.Batch{}
		turn.Status, turn.FinishedAt, turn.Error, turn.Answer = thread.TurnQueued, nil, nil, ""
		b.Queue(`
			UPDATE turns
			SET status = 'queued', rank = @rank, failures = 0, retry_at = NULL, finished_at = NULL, driven_at = @now,
				answer_id = NULL, next_turn_id = NULL, error_code = NULL, error_detail = NULL
			WHERE id = @turn AND status = 'failed'`, pgx.NamedArgs{"turn": turnID, "rank": h.backRank(), "now": t.now})
		t.emitTurn(thread.EventTurnQueued, &turn.Turn)
		kind := NudgeWork
		if turn.Kind == thread.Background {
			kind = NudgeBackground
		}
		t.nudge(kind, turnID)
		out = &turn.Turn
		return t.commit(ctx, b)
	})
	return out, err
}

// Backlog is what waits and what went wrong, over all of an owner's threads. Where work is there and Workers is 0, nobody
// does it.
type Backlog struct {
	Waiting       int           `json:"waiting"`
	Undriven      int           `json:"undriven"`                 // of those that run: started, and no living worker drives them at the moment
	OldestWaiting *time.Time    `json:"oldest_waiting,omitempty"` // since when the first of the waiting or undriven has been so
	Running       int           `json:"running"`
	Workers       int           `json:"workers"` // that live, of the whole server
	Failed        []thread.Turn `json:"failed"`  // the newest 20
}

// Backlog reads an owner's backlog.
func (db *DB) Backlog(ctx context.Context, ownerID string) (Backlog, error) {
	out := Backlog{Failed: []thread.Turn{}}
	b := &pgx.Batch{}
	b.Queue(`
		SELECT count(*) FILTER (WHERE t.status = 'queued'), count(*) FILTER (WHERE t.undriven), count(*) FILTER (WHERE t.status = 'running'),
			min(CASE WHEN t.undriven THEN t.driven_at ELSE t.created_at END) FILTER (WHERE t.status = 'queued' OR t.undriven),
			(SELECT count(*) FROM workers w WHERE `+lives+`)
		FROM (
			SELECT t.status, t.created_at, t.driven_at, `+undriven+` AS undriven
			FROM turns t
			JOIN threads o ON o.id = t.thread_id
			WHERE o.owner_id = @owner AND t.status IN ('queued', 'running')
		) t`, pgx.NamedArgs{"owner": ownerID, "class": workerLockClass}).QueryRow(func(r pgx.Row) error {
		return r.Scan(&out.Waiting, &out.Undriven, &out.Running, &out.OldestWaiting, &out.Workers)
	})
	b.Queue(`SELECT`+turnColumns+`
		FROM turns t
		JOIN threads o ON o.id = t.thread_id
		WHERE o.owner_id = $1 AND t.status = 'failed'
		ORDER BY t.finished_at DESC
		LIMIT 20`, ownerID).Query(func(rows pgx.Rows) error {
		list, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (*thread.Turn, error) { return scanPlainTurn(r) })
		for _, t := range list {
			out.Failed = append(out.Failed, *t)
		}
		return err
	})
	return out, wrap("read backlog", db.pool.SendBatch(ctx, b).Close())
}
