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
	OwnerID  string // of the thread
	Trace    string // of what it tells of, see thread.Turn; may be empty
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
	t.nudges = append(t.nudges, Nudge{ThreadID: t.stream, Kind: kind, TurnID: turnID, OwnerID: t.owner, Trace: t.trace})
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

// dueWindow is how many nudges, those longest due, NudgesDue looks at to be fair: enough for every owner to be among them.
const dueWindow = 10_000

// NudgesDue returns at most limit nudges that are not known to have gone out, of each owner the oldest first and then of
// each the next, and puts each off by delay, so that other relays leave them alone meanwhile.
func (db *DB) NudgesDue(ctx context.Context, limit int, delay time.Duration) ([]Nudge, error) {
	rows, _ := db.pool.Query(ctx, `
		WITH due AS (
			SELECT id, thread_id, due_at FROM outbox WHERE due_at <= clock_timestamp() ORDER BY due_at LIMIT @window
		), fair AS (
			SELECT d.id
			FROM due d
			JOIN threads t ON t.id = d.thread_id
			ORDER BY row_number() OVER (PARTITION BY t.owner_id ORDER BY d.due_at, d.id), d.due_at
			LIMIT @limit
		), free AS (
			SELECT id FROM outbox WHERE id IN (SELECT id FROM fair) AND due_at <= clock_timestamp() FOR UPDATE SKIP LOCKED
		)
		UPDATE outbox o
		SET due_at = clock_timestamp() + @delay::interval
		FROM free, threads t
		WHERE o.id = free.id AND t.id = o.thread_id
		RETURNING o.id, o.thread_id, o.kind, COALESCE(o.turn_id, ''), t.owner_id,
			COALESCE((SELECT made.trace FROM turns made WHERE made.id = o.turn_id), '')`,
		pgx.NamedArgs{"delay": delay, "limit": limit, "window": dueWindow})
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Nudge])
	return list, wrap("read outbox", err)
}

// NudgesHeld puts nudges off that are about to be sent, so that they come due after delay at the earliest. Ids that are gone are
// no error.
func (db *DB) NudgesHeld(ctx context.Context, ids []int64, delay time.Duration) error {
	_, err := db.pool.Exec(ctx, `
		UPDATE outbox
		SET due_at = greatest(due_at, clock_timestamp() + $2::interval)
		WHERE id = ANY ($1)`, ids, delay)
	return wrap("hold nudges", err)
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
		SELECT DISTINCT 0::bigint, m.thread_id, 'work', '', t.owner_id, ''
		FROM moved m
		JOIN threads t ON t.id = m.thread_id`, pgx.NamedArgs{"idle": idle})
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Nudge])
	return list, wrap("sweep", err)
}
