package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"bobbin/thread"
)

// Take loads the message on the steering row into a running turn, at its round head. Being taken and being loaded are
// one commit: it marks the message delivered, appends it to the session, moves its time to now, writes the boundary
// step and event, and starts the turn's counters over. It returns the entries it appended, with their positions, and
// nothing if no message waits, the one that does has attachments or mentions, or another holder of the turn has written
// its answer: the end makes it a follow-up turn then.
//
// ErrFenced: the turn runs no more or is stopping. Any other error, a time-out of Config.TakeTimeout among them, leaves
// the message queued; the round goes on without it.
func (db *DB) Take(ctx context.Context, turnID string) ([]thread.Entry, error) {
	ctx, cancel := context.WithTimeout(ctx, db.cfg.TakeTimeout+time.Second)
	defer cancel()
	threadID, waits, err := db.waits(ctx, turnID)
	if err != nil || !waits {
		return nil, err
	}
	return db.TakeSeen(ctx, TurnRef{ID: turnID, ThreadID: threadID})
}

// TakeSeen is Take where a message is known to wait, as FinishCall tells: it does not look first.
func (db *DB) TakeSeen(ctx context.Context, ref TurnRef) ([]thread.Entry, error) {
	ctx, cancel := context.WithTimeout(ctx, db.cfg.TakeTimeout+time.Second)
	defer cancel()
	var entries []thread.Entry
	err := db.transact(ctx, "take", func(ctx context.Context, t *tx) (err error) {
		t.timeout = db.cfg.TakeTimeout
		entries, err = t.take(ctx, ref.ThreadID, ref.ID)
		return err
	})
	return entries, err
}

// waits looks without a lock whether there is anything to take, in one round trip: a message that is appended after it
// is taken at the next round head.
func (db *DB) waits(ctx context.Context, turnID string) (threadID string, waits bool, err error) {
	var fenced bool
	err = db.pool.QueryRow(ctx, `
		SELECT t.thread_id, t.status <> 'running' OR t.stopping OR COALESCE(r.turn_id = t.id AND r.stopping, false),
		       EXISTS (SELECT FROM steering s WHERE s.thread_id = t.thread_id AND s.state = 'queued') AND t.kind = 'conversation'
		FROM turns t
		JOIN runs r ON r.thread_id = t.thread_id
		WHERE t.id = $1`, turnID).Scan(&threadID, &fenced, &waits)
	if err == nil && fenced {
		err = thread.ErrFenced
	}
	return threadID, waits, wrap("take", err)
}

func (t *tx) take(ctx context.Context, threadID, turnID string) ([]thread.Entry, error) {
	end := int64(-1)
	var answered bool
	h, err := t.lock(ctx, threadID, func(b *pgx.Batch) {
		b.Queue(`
			SELECT COALESCE((SELECT max(pos) FROM entries WHERE session_id = $1), -1),
				EXISTS (SELECT FROM rounds WHERE turn_id = $2 AND outcome = 'answer')`, threadID, turnID).QueryRow(func(r pgx.Row) error {
			return r.Scan(&end, &answered)
		})
	})
	if err != nil {
		return nil, err
	}
	t.point(ctx, PointTake)
	if h.runningID != turnID || h.stopping || h.archived {
		return nil, thread.ErrFenced
	}
	if m := h.steering; answered || m == nil || len(m.Attachments) > 0 || len(m.Mentions) > 0 {
		return nil, nil
	}
	b := &pgx.Batch{}
	entries := t.load(b, h)
	for i := range entries {
		entries[i].Pos = end + 1 + int64(i)
	}
	if err := t.commit(ctx, b); err != nil {
		return nil, err
	}
	return entries, nil
}

// load writes what a take decided.
func (t *tx) load(b *pgx.Batch, h *held) []thread.Entry {
	turn, m := h.running, h.steering
	b.Queue(`UPDATE steering SET state = 'delivered', settled_at = $2 WHERE id = $1`, h.steeringID, t.now)
	entries := t.deliver(b, m, turn)
	if turn.limit.WrapUpWarned {
		note := thread.Entry{Kind: thread.EntryNote, TurnID: turn.ID, Text: unwarn}
		t.appendEntries(b, turn, []thread.Entry{note})
		entries = append(entries, note)
	}
	turn.steps++
	step := thread.Step{
		TurnID: turn.ID, N: turn.steps, Kind: thread.StepBoundary, Title: "Message loaded", Status: thread.StepDone,
		StartedAt: t.now, FinishedAt: &t.now, MessageID: m.ID, Detail: []byte("{}"),
	}
	b.Queue(`
		UPDATE turns
		SET steps = @steps, driven_at = @now, barren = 0,
			limit_since = @now, limit_rounds = 0, limit_tool_calls = 0, empty_retries = 0, malformed_retries = 0,
			tool_failures = '{}', wrap_up_warned = false, refused_tokens = 0, summary_failed = false
		WHERE id = @turn`, named{"turn": turn.ID, "steps": turn.steps, "now": t.now})
	writeStep(b, step)
	t.emitStep(thread.EventStepCreated, &step)
	t.emit(thread.EventTurnBoundary, turn.ID, map[string]any{"turn_id": turn.ID, "n": step.N, "message_id": m.ID})
	return entries
}

// unwarn follows what starts a turn's limits over after the model was told to wrap up.
const unwarn = "The limits of this turn have started over. " +
	"What was said before about wrapping up no longer applies."

func writeStep(b *pgx.Batch, s thread.Step) {
	b.Queue(`
		INSERT INTO steps (turn_id, n, kind, title, status, started_at, finished_at, message_id, detail)
		VALUES (@turn, @n, @kind, @title, @status, @started, @finished, NULLIF(@message, ''), @detail)`,
		named{
			"turn": s.TurnID, "n": s.N, "kind": string(s.Kind), "title": s.Title, "status": string(s.Status), "started": s.StartedAt,
			"finished": s.FinishedAt, "message": s.MessageID, "detail": s.Detail,
		})
}
