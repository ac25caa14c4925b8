package store

import (
	"context"

	"github.com/jackc/pgx/v5"

	"bobbin/thread"
)

// fenced runs a write of a turn under its fence. fn is called with the locks held, after the reads that it queued in
// reads. They and the turn are read under the event counter's lock: other writers of the same turn share the fence, and
// what was read before the counter was held would be from before their commit. ErrFenced: the turn runs no more, is stopping, or its thread is archived.
func (db *DB) fenced(
	ctx context.Context, op string, ref TurnRef, p Point, reads func(*pgx.Batch), fn func(*tx, *pgx.Batch, *turnRow) error,
) error {
	return db.transact(ctx, op, func(ctx context.Context, t *tx) error {
		b := &pgx.Batch{}
		var open bool
		var turn *turnRow
		b.Queue(fence[ref.Background], ref.ThreadID, ref.ID).Query(func(rows pgx.Rows) error {
			open = rows.Next()
			rows.Close()
			return rows.Err()
		})
		t.lockStream(b, ref.ThreadID)
		b.Queue(`SELECT`+turnColumns+`FROM turns t WHERE t.id = $1`, ref.ID).Query(first(&turn, scanTurn))
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
		if err := fn(t, b, turn); err != nil {
			return err
		}
		return t.commit(ctx, b)
	})
}

// fence by kind of turn. A background turn's own row is locked exclusively, as its writers update it afterwards: two that
// shared it would wait for each other.
var fence = map[bool]string{
	false: `SELECT 1 FROM runs WHERE thread_id = $1 AND turn_id = $2 AND NOT stopping FOR SHARE`,
	true:  `SELECT 1 FROM turns WHERE thread_id = $1 AND id = $2 AND status = 'running' AND NOT stopping FOR NO KEY UPDATE`,
}

// TurnRef names a turn to its writers.
type TurnRef struct {
	ID         string
	ThreadID   string
	Background bool
}
