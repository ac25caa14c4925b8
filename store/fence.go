package store

import (
	"context"

	"github.com/jackc/pgx/v5"

	"bobbin/thread"
)

// fenced runs a write of a turn under its fence. fn is called with the locks held, after the reads that reads queued. They
// are statements of their own, as other writers of the same turn share the fence: what was read before the event counter was
// held would be from before their commit. ErrFenced: the turn runs no more, is stopping, or its thread is archived.
func (db *DB) fenced(ctx context.Context, op string, ref TurnRef, p Point, reads func(*pgx.Batch), fn func(*tx, *pgx.Batch) error) error {
	return db.transact(ctx, op, func(ctx context.Context, t *tx) error {
		b := &pgx.Batch{}
		var open bool
		t.stream = ref.ThreadID
		b.Queue(fence[ref.Background], ref.ThreadID, ref.ID).Query(func(rows pgx.Rows) error {
			_, err := pgx.ForEachRow(rows, []any{&t.seq, &t.now}, func() error {
				open = true
				return nil
			})
			return err
		})
		if reads != nil {
			reads(b)
		}
		if err := t.flush(ctx, b); err != nil {
			return err
		}
		t.point(ctx, p)
		if !open {
			return thread.ErrFenced
		}
		b = &pgx.Batch{}
		if err := fn(t, b); err != nil {
			return err
		}
		return t.commit(ctx, b)
	})
}

// fence by kind of turn, with the event counter, in that order. Rows are locked in the order of the clauses, and one that
// another transaction changed meanwhile is looked at again. A background turn's own row is locked exclusively, as its writers
// update it afterwards: two that shared it would wait for each other.
var fence = map[bool]string{
	false: `
		SELECT s.last_seq, clock_timestamp()
		FROM runs r
		JOIN streams s ON s.thread_id = r.thread_id
		WHERE r.thread_id = $1 AND r.turn_id = $2 AND NOT r.stopping
		FOR SHARE OF r
		FOR NO KEY UPDATE OF s`,
	true: `
		SELECT s.last_seq, clock_timestamp()
		FROM turns t
		JOIN streams s ON s.thread_id = t.thread_id
		WHERE t.thread_id = $1 AND t.id = $2 AND t.status = 'running' AND NOT t.stopping
		FOR NO KEY UPDATE OF t
		FOR NO KEY UPDATE OF s`,
}

func queueTurn(b *pgx.Batch, turnID string, turn **turnRow) {
	b.Queue(`SELECT`+turnColumns+`FROM turns t WHERE t.id = $1`, turnID).Query(first(turn, scanTurn))
}

// TurnRef names a turn to its writers.
type TurnRef struct {
	ID         string
	ThreadID   string
	Background bool
}
