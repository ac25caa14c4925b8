package store

import (
	"context"

	"github.com/jackc/pgx/v5"

	"bobbin/thread"
)

// Reset archives a thread: its turns are cancelled, what waits is withdrawn and returned, messages and turns are kept.
// The owner's next message to "home" opens a fresh thread. ErrArchived: it was reset before. ErrKeyReused is the
// repeat's.
func (db *DB) Reset(ctx context.Context, ownerID, threadID string, repeat ...*Repeat) (Stopped, error) {
	var out Stopped
	r := repeatOf(repeat, ownerID, "reset", threadID)
	if threadID == Home {
		var err error
		if threadID, err = db.homeID(ctx, ownerID); err != nil {
			return out, wrap("reset", err)
		}
	}
	err := db.transact(ctx, "reset", func(ctx context.Context, t *tx) error {
		out = Stopped{}
		var turns []*turnRow
		var messages []*thread.Message
		e := &end{tx: t, b: &pgx.Batch{}}
		h, err := t.lock(ctx, threadID, func(b *pgx.Batch) {
			queueLive(b, threadID, &turns, &messages)
			r.queueRead(b)
		})
		if err != nil {
			return err
		}
		e.held = h
		t.point(ctx, PointReset)
		if h.ownerID != ownerID {
			return thread.ErrNotFound
		}
		if known, err := r.answered(&out); known || err != nil {
			return err
		}
		if h.archived {
			return thread.ErrArchived
		}
		return e.reset(ctx, turns, messages, r, &out)
	})
	return out, err
}

func (e *end) reset(ctx context.Context, turns []*turnRow, messages []*thread.Message, r *Repeat, out *Stopped) error {
	if e.steering != nil {
		out.give(e.withdrawSteering(e.b, e.held))
	}
	for _, m := range messages {
		out.give(e.withdraw(e.b, m))
	}
	for _, turn := range turns {
		out.Turns = append(out.Turns, turn.ID)
		if turn.Status != thread.TurnRunning {
			e.cancel(e.b, e.held, turn)
			continue
		}
		e.answer = nil
		reads := &pgx.Batch{}
		e.queueReads(reads, turn.ID)
		if err := e.flush(ctx, reads); err != nil {
			return err
		}
		e.settle(thread.TurnCancelled, nil)
		e.nudge(NudgeStop, turn.ID)
		e.stops = append(e.stops, turn.ID)
	}
	e.b.Queue(`UPDATE runs SET turn_id = NULL, stopping = false WHERE thread_id = $1`, e.threadID)
	e.b.Queue(`UPDATE threads SET status = 'archived', archived_at = $2 WHERE id = $1`, e.threadID, e.now)
	e.emit(thread.EventThreadReset, "", map[string]any{"thread_id": e.threadID})
	if err := r.remember(e.b, out); err != nil {
		return err
	}
	return e.commit(ctx, e.b)
}
