package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"bobbin/thread"
)

// held is what the run row's lock protects, read after it was taken.
type held struct {
	threadID string
	ownerID  string
	home     bool
	archived bool

	runningID string // the conversation turn that the run row names
	stopping  bool
	running   *turnRow

	steeringID      int64 // 0: nothing is queued
	steeringMessage string
	steering        *thread.Message

	head    *turnRow // the waiting turn that is next
	headMsg *thread.Message
	last    *turnRow // the waiting turn at the end of the line; may be head
	lastMsg *thread.Message
}

// lock takes the locks of the five operations on a thread, in one flush, and reads what they protect. extra may queue
// more reads; they run under the locks. It returns ErrNotFound if there is no such thread.
func (t *tx) lock(ctx context.Context, threadID string, extra func(*pgx.Batch)) (*held, error) {
	h := &held{threadID: threadID}
	b := &pgx.Batch{}
	h.queueLocks(b)
	h.queueReads(b)
	if extra != nil {
		extra(b)
	}
	t.lockStream(b, threadID)
	if err := t.flush(ctx, b); err != nil {
		return nil, err
	}
	t.owner = h.ownerID
	return h, nil
}

func (h *held) queueLocks(b *pgx.Batch) {
	b.Queue(`
		SELECT COALESCE(turn_id, ''), stopping
		FROM runs
		WHERE thread_id = $1
		FOR NO KEY UPDATE`, h.threadID).QueryRow(func(r pgx.Row) error { return r.Scan(&h.runningID, &h.stopping) })
	b.Queue(`
		SELECT id, message_id
		FROM steering
		WHERE thread_id = $1 AND state = 'queued'
		FOR UPDATE`, h.threadID).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			if err := rows.Scan(&h.steeringID, &h.steeringMessage); err != nil {
				return err
			}
		}
		return rows.Err()
	})
}

func (h *held) queueReads(b *pgx.Batch) {
	b.Queue(`SELECT owner_id, home, status = 'archived' FROM threads WHERE id = $1`, h.threadID).QueryRow(func(r pgx.Row) error {
		return r.Scan(&h.ownerID, &h.home, &h.archived)
	})
	// The turn that the run row names, the first and the last of those that wait, and the message that waits with each. One
	// statement reads all that may be there; more often than not it is nothing. The message's thread is named, as with
	// that its index is sure to be read there alone.
	b.Queue(`SELECT`+turnColumns+`,`+messageColumns+`
		FROM turns t
		LEFT JOIN messages m ON m.thread_id = $1 AND m.turn_id = t.id AND m.state = 'queued'
		WHERE t.id = ANY (ARRAY(
			SELECT turn_id FROM runs WHERE thread_id = $1
			UNION ALL
			(SELECT id FROM turns WHERE thread_id = $1 AND kind = 'conversation' AND status = 'queued' ORDER BY rank LIMIT 1)
			UNION ALL
			(SELECT id FROM turns WHERE thread_id = $1 AND kind = 'conversation' AND status = 'queued' ORDER BY rank DESC LIMIT 1)))
		ORDER BY t.rank`, h.threadID).Query(h.readLine)
}

func (h *held) readLine(rows pgx.Rows) error {
	for rows.Next() {
		turn, m, err := scanWaiting(rows)
		if err != nil {
			return err
		}
		if m != nil && m.ID == h.steeringMessage {
			h.steering, m = m, nil
		}
		switch {
		case turn.ID == h.runningID:
			h.running = turn
		case h.head == nil:
			h.head, h.headMsg, h.last, h.lastMsg = turn, m, turn, m
		default:
			h.last, h.lastMsg = turn, m
		}
	}
	return rows.Err()
}

// queueWaiting reads the first waiting conversation turn of those that which is true of, by rank, and the message that
// waits with it.
func queueWaiting(b *pgx.Batch, threadID, which, order string, turn **turnRow, m **thread.Message) {
	b.Queue(`SELECT`+turnColumns+`,`+messageColumns+`
		FROM turns t
		LEFT JOIN messages m ON m.thread_id = $1 AND m.turn_id = t.id AND m.state = 'queued'
		WHERE t.thread_id = $1 AND t.kind = 'conversation' AND t.status = 'queued' AND `+which+`
		ORDER BY t.rank `+order+`
		LIMIT 1`, threadID).Query(func(rows pgx.Rows) (err error) {
		for rows.Next() {
			if *turn, *m, err = scanWaiting(rows); err != nil {
				return err
			}
		}
		return rows.Err()
	})
}

// due returns the waiting turn that may start now, or nil.
func (h *held) due(now time.Time) *turnRow {
	if h.head == nil || h.head.retryAt != nil && h.head.retryAt.After(now) {
		return nil
	}
	return h.head
}

// rankGap leaves room behind a turn at the front for those that interrupts put there.
const rankGap = 1 << 20

// frontRank is a rank before all waiting turns; backRank one behind them.
func (h *held) frontRank() int64 {
	if h.head == nil {
		return 0
	}
	return h.head.rank - rankGap
}

func (h *held) backRank() int64 {
	if h.last == nil {
		return 0
	}
	return h.last.rank + rankGap
}
