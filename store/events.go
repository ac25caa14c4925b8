package store

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"bobbin/thread"
)

// lockStream queues the lock on the thread's event counter, always the last lock of a transaction.
func (t *tx) lockStream(b *pgx.Batch, threadID string) {
	t.stream = threadID
	b.Queue(`
		SELECT last_seq, clock_timestamp()
		FROM streams
		WHERE thread_id = @thread
		FOR NO KEY UPDATE`, named{"thread": threadID}).QueryRow(func(r pgx.Row) error {
		err := r.Scan(&t.seq, &t.now)
		return err
	})
}

// emit adds an event to the transaction and returns its sequence number.
func (t *tx) emit(name thread.EventName, turnID string, data any) int64 {
	raw, err := json.Marshal(data)
	if err != nil {
		panic(err) // our own types
	}
	t.seq++
	t.events = append(t.events, thread.Event{Seq: t.seq, Name: name, TurnID: turnID, Data: raw})
	return t.seq
}

func (t *tx) emitMessage(name thread.EventName, m *thread.Message) int64 {
	return t.emit(name, m.TurnID, map[string]any{"message": m})
}

func (t *tx) emitTurn(name thread.EventName, turn *thread.Turn) {
	t.emit(name, turn.ID, map[string]any{"turn": turn})
}

func (t *tx) emitStep(name thread.EventName, s *thread.Step) {
	t.emit(name, s.TurnID, map[string]any{"step": s})
}

func (t *tx) phase(turnID string, p thread.Phase) {
	t.emit(thread.EventTurnPhase, turnID, map[string]any{"turn_id": turnID, "phase": p})
}

func (t *tx) queueEvents(b *pgx.Batch) {
	if len(t.events) == 0 {
		return
	}
	var names, turns, data []string
	for _, e := range t.events {
		names, turns, data = append(names, string(e.Name)), append(turns, e.TurnID), append(data, string(e.Data))
	}
	b.Queue(`
		WITH counter AS (UPDATE streams SET last_seq = @last WHERE thread_id = @thread)
		INSERT INTO events (thread_id, seq, name, turn_id, data, created_at)
		SELECT @thread, @last - @n + e.n, e.name, NULLIF(e.turn, ''), e.data::json, @now
		FROM unnest(@names::text[], @turns::text[], @data::text[]) WITH ORDINALITY AS e (name, turn, data, n)`,
		named{
			"thread": t.stream, "last": t.seq, "n": len(t.events), "names": names, "turns": turns, "data": data, "now": t.now,
		})
}

// Events returns at most limit events of a thread after a sequence number, in order. gap is true if events after it are
// no longer kept; the list then starts with the oldest that is.
func (db *DB) Events(ctx context.Context, threadID string, after int64, limit int) (list []thread.Event, gap bool, err error) {
	rows, _ := db.pool.Query(ctx, `
		SELECT thread_id, seq, name, COALESCE(turn_id, ''), data, created_at
		FROM events
		WHERE thread_id = $1 AND seq > $2
		ORDER BY seq
		LIMIT $3`, threadID, after, limit)
	list, err = pgx.CollectRows(rows, func(r pgx.CollectableRow) (e thread.Event, err error) {
		err = r.Scan(&e.ThreadID, &e.Seq, &e.Name, &e.TurnID, &e.Data, &e.CreatedAt)
		return e, err
	})
	if err != nil {
		return nil, false, wrap("read events", err)
	}
	// Numbers have no holes and the newest event stays, so what is missing is missing in front of this very list.
	return list, len(list) > 0 && list[0].Seq > after+1, nil
}

// PruneEvents deletes events older than the retention, the oldest first, about limit of them, and returns how many went. A thread's newest event stays, so that its stream can always be resumed from the end.
func (db *DB) PruneEvents(ctx context.Context, limit int) (int64, error) {
	tag, err := db.pool.Exec(ctx, `
		WITH old AS (
			SELECT e.thread_id, max(e.seq) AS seq
			FROM (
				SELECT e.thread_id, e.seq
				FROM events e
				JOIN streams s USING (thread_id)
				WHERE e.created_at < clock_timestamp() - @keep::interval AND e.seq < s.last_seq
				ORDER BY e.created_at
				LIMIT @limit
			) e
			GROUP BY e.thread_id
		)
		DELETE FROM events e USING old WHERE e.thread_id = old.thread_id AND e.seq <= old.seq`,
		named{"keep": db.cfg.EventRetention.Round(time.Second), "limit": limit})
	return tag.RowsAffected(), wrap("prune events", err)
}
