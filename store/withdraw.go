package store

import (
	"context"

	"github.com/jackc/pgx/v5"

	"bobbin/thread"
)

// WithdrawSteering takes the message on the steering row back. Where none waits there the error speaks of the last one
// that did: ErrAlreadyDelivered or ErrAlreadyWithdrawn, ErrNotFound if there never was one. ErrKeyReused is the repeat's.
func (db *DB) WithdrawSteering(ctx context.Context, ownerID, threadID string, repeat ...*Repeat) (thread.Withdrawn, error) {
	var out thread.Withdrawn
	r := repeatOf(repeat, ownerID, "withdraw steering", threadID)
	err := db.onThread(ctx, "withdraw", ownerID, threadID, func(ctx context.Context, t *tx, threadID string) error {
		var last *string
		h, err := t.lock(ctx, threadID, func(b *pgx.Batch) {
			b.Queue(`SELECT state FROM steering WHERE thread_id = $1 ORDER BY id DESC LIMIT 1`, threadID).Query(first(&last, scanText))
			r.queueRead(b)
		})
		if err != nil {
			return err
		}
		t.point(ctx, PointWithdraw)
		if h.ownerID != ownerID {
			return thread.ErrNotFound
		}
		if known, err := r.answered(&out); known || err != nil {
			return err
		}
		switch {
		case last == nil:
			return thread.ErrNotFound
		case *last == "withdrawn":
			return thread.ErrAlreadyWithdrawn
		case *last != "queued": // delivered to the turn, or to the turn that it became
			return thread.ErrAlreadyDelivered
		}
		b := &pgx.Batch{}
		out = t.withdrawSteering(b, h)
		if err := r.remember(b, out); err != nil {
			return err
		}
		return t.commit(ctx, b)
	})
	return out, err
}

// WithdrawMessage takes back any message that still waits, on the steering row or as a turn, which is then cancelled. It
// returns ErrNotFound, ErrAlreadyDelivered or ErrAlreadyWithdrawn; ErrKeyReused is the repeat's.
func (db *DB) WithdrawMessage(ctx context.Context, ownerID, messageID string, repeat ...*Repeat) (thread.Withdrawn, error) {
	var out thread.Withdrawn
	r := repeatOf(repeat, ownerID, "withdraw message", messageID)
	threadID, err := db.threadOf(ctx, "messages", ownerID, messageID)
	if err != nil {
		return out, wrap("withdraw", err)
	}
	err = db.transact(ctx, "withdraw", func(ctx context.Context, t *tx) error {
		var m *thread.Message
		var turn *turnRow
		h, err := t.lock(ctx, threadID, func(b *pgx.Batch) {
			b.Queue(`SELECT`+messageColumns+`FROM messages m WHERE m.id = $1`, messageID).Query(first(&m, scanMessage))
			b.Queue(`SELECT`+turnColumns+`FROM messages m JOIN turns t ON t.id = m.turn_id WHERE m.id = $1`, messageID).Query(first(&turn, scanTurn))
			r.queueRead(b)
		})
		if err != nil {
			return err
		}
		t.point(ctx, PointWithdraw)
		if known, err := r.answered(&out); known || err != nil {
			return err
		}
		switch {
		case m.State == thread.MessageDelivered:
			return thread.ErrAlreadyDelivered
		case m.State == thread.MessageWithdrawn:
			return thread.ErrAlreadyWithdrawn
		}
		b := &pgx.Batch{}
		if h.steering != nil && h.steering.ID == m.ID {
			out = t.withdrawSteering(b, h)
		} else {
			out = t.withdraw(b, m)
			t.cancel(b, h, turn)
		}
		if err := r.remember(b, out); err != nil {
			return err
		}
		return t.commit(ctx, b)
	})
	return out, err
}

func (t *tx) withdrawSteering(b *pgx.Batch, h *held) thread.Withdrawn {
	b.Queue(`UPDATE steering SET state = 'withdrawn', settled_at = $2 WHERE id = $1`, h.steeringID, t.now)
	out := t.withdraw(b, h.steering)
	h.steering, h.steeringID = nil, 0
	return out
}

func (t *tx) withdraw(b *pgx.Batch, m *thread.Message) thread.Withdrawn {
	m.State = thread.MessageWithdrawn
	b.Queue(`UPDATE messages SET state = 'withdrawn' WHERE id = $1 AND state = 'queued'`, m.ID)
	t.emitMessage(thread.EventMessageWithdrawn, m)
	return thread.Withdrawn{MessageID: m.ID, Text: m.Text, Attachments: m.Attachments, Mentions: m.Mentions}
}

// cancel ends a turn that waits. Where nothing runs it may have held back the turn behind it, which is due now.
func (t *tx) cancel(b *pgx.Batch, h *held, turn *turnRow) {
	if turn.Attempt > 0 { // it waits for a retry: its calls are open
		t.interrupt(b, turn.ID)
	}
	if h.runningID == "" && h.last != nil && h.last.ID != turn.ID {
		t.nudge(NudgeWork, turn.ID)
	}
	turn.Status, turn.FinishedAt = thread.TurnCancelled, &t.now
	b.Queue(`
		UPDATE turns
		SET status = 'cancelled', finished_at = $2, retry_at = NULL
		WHERE id = $1 AND status IN ('queued', 'waiting')`, turn.ID, t.now)
	t.emitTurn(thread.EventTurnCancelled, &turn.Turn)
}
