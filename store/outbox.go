package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// A Nudge tells a thread's workflow that there is something to look at. It carries ids only.
type Nudge struct {
	ID       int64 // of the outbox row; 0: the sweep's, which has none
	ThreadID string
	Kind     NudgeKind
	TurnID   string // may be empty
}

// NudgeKind says what a nudge is about.
type NudgeKind string

// The kinds of nudge.
const (
	NudgeWork       NudgeKind = "work"       // a conversation turn waits to be claimed or driven
	NudgeBackground NudgeKind = "background" // a background turn waits to be claimed, or has ended
	NudgeStop       NudgeKind = "stop"       // TurnID has been told to stop
)

// nudge queues a nudge for after the commit. One to look for work says it for all.
func (t *tx) nudge(kind NudgeKind, turnID string) {
	for _, n := range t.nudges {
		if kind == NudgeWork && n.Kind == NudgeWork {
			return
		}
	}
	t.nudges = append(t.nudges, Nudge{ThreadID: t.stream, Kind: kind, TurnID: turnID})
}

func (t *tx) queueNudges(b *pgx.Batch) {
	for i := range t.nudges {
		n := &t.nudges[i]
		b.Queue(`
			INSERT INTO outbox (thread_id, kind, turn_id)
			VALUES ($1, $2, NULLIF($3, ''))
			RETURNING id`, n.ThreadID, string(n.Kind), n.TurnID).QueryRow(func(r pgx.Row) error { return r.Scan(&n.ID) })
	}
}

// NudgesDue returns at most limit nudges that are not known to have gone out, and puts each off by delay, so that other
// relays leave them alone meanwhile.
func (db *DB) NudgesDue(ctx context.Context, limit int, delay time.Duration) ([]Nudge, error) {
	rows, _ := db.pool.Query(ctx, `
		UPDATE outbox
		SET due_at = clock_timestamp() + @delay::interval
		WHERE id IN (
			SELECT id FROM outbox WHERE due_at <= clock_timestamp() ORDER BY due_at LIMIT @limit FOR UPDATE SKIP LOCKED)
		RETURNING id, thread_id, kind, COALESCE(turn_id, '')`, pgx.NamedArgs{"delay": delay, "limit": limit})
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Nudge])
	return list, wrap("read outbox", err)
}

// NudgesSent removes nudges that went out. Ids that are gone are no error.
func (db *DB) NudgesSent(ctx context.Context, ids []int64) error {
	_, err := db.pool.Exec(ctx, `DELETE FROM outbox WHERE id = ANY ($1)`, ids)
	return wrap("clear outbox", err)
}

// Sweep returns threads that have work which nobody has moved for longer than idle: a running turn without a live
// attempt (or with one that has written nothing for longer than any model call may take), or a waiting one that is due. It marks them as moved, so that several sweeps share the work.
func (db *DB) Sweep(ctx context.Context, idle time.Duration) ([]Nudge, error) {
	rows, _ := db.pool.Query(ctx, `
		WITH still AS (
			SELECT t.id
			FROM turns t
			WHERE t.driven_at < clock_timestamp() - @idle::interval
			  AND (t.status = 'running' AND (NOT EXISTS (SELECT FROM attempts a WHERE a.turn_id = t.id)
			                                 OR t.driven_at < clock_timestamp() - interval '15 minutes')
			       OR t.status = 'queued' AND (t.retry_at IS NULL OR t.retry_at <= clock_timestamp())
			          AND NOT EXISTS (SELECT FROM runs r WHERE r.thread_id = t.thread_id AND r.turn_id IS NOT NULL
			                          AND t.kind = 'conversation'))
			ORDER BY t.driven_at
			LIMIT 1000
			FOR NO KEY UPDATE SKIP LOCKED
		), moved AS (
			UPDATE turns t SET driven_at = clock_timestamp() FROM still WHERE t.id = still.id RETURNING t.thread_id
		)
		SELECT DISTINCT 0::bigint, thread_id, 'work', '' FROM moved`, pgx.NamedArgs{"idle": idle})
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Nudge])
	return list, wrap("sweep", err)
}
