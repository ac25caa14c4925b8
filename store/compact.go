package store

import (
	"context"
	"encoding/json"

	"github.com/jackc/pgx/v5"

	"bobbin/thread"
)

// A Summary stands for the older part of a turn's session. The entries stay; only what the model is shown changes.
type Summary struct {
	N       int          // of the session, from 1: the one before it and the entries between are what it was made from
	Last    thread.Entry // the newest entry that it stands for
	Text    string
	Model   string // that wrote it; empty: it only names what was left out
	Entries int
	Tokens  int64        // estimate of those entries
	Usage   thread.Usage // of its model call, which is settled by itself
}

// The titles of a summary's step.
const (
	summaryTitle   = "Earlier conversation summarised"
	inventoryTitle = "Earlier conversation left out"
)

// Compact keeps a summary once, under the turn's fence, and shows it as a step. ErrMoved: another holder's of that number
// stands.
func (db *DB) Compact(ctx context.Context, ref TurnRef, s Summary) error {
	s.Text, s.Model = clean(s.Text), clean(s.Model)
	var n int
	var turn *turnRow
	end := int64(-1)
	reads := func(b *pgx.Batch) {
		queueTurn(b, ref.ID, &turn)
		b.Queue(`
			SELECT (SELECT COALESCE(max(n), 0) FROM summaries WHERE session_id = $1),
				(SELECT COALESCE(max(pos), -1) FROM entries WHERE session_id = $1)`, ref.session()).QueryRow(func(r pgx.Row) error {
			return r.Scan(&n, &end)
		})
	}
	return db.fenced(ctx, "compact", ref, PointRound, reads, func(t *tx, b *pgx.Batch) error {
		if n != s.N-1 {
			return thread.ErrMoved
		}
		turn.steps++
		step := s.step(t, turn)
		writeStep(b, step)
		t.emitStep(thread.EventStepCreated, &step)
		upto, historyUpto := s.upto(ref, turn)
		b.Queue(`
			INSERT INTO summaries (session_id, n, upto, history_upto, base, text, turn_id, step, model, entries, tokens,
				input_tokens, output_tokens)
			VALUES (@session, @n, @upto, @history, @base, @text, @turn, @step, @model, @entries, @tokens, @in, @out)`, pgx.NamedArgs{
			"session": ref.session(), "n": s.N, "upto": upto, "history": historyUpto, "base": end, "text": s.Text, "turn": ref.ID,
			"step": step.N, "model": s.Model, "entries": s.Entries, "tokens": s.Tokens,
			"in": s.Usage.InputTokens, "out": s.Usage.OutputTokens,
		})
		b.Queue(`
			UPDATE turns
			SET steps = @steps, driven_at = @now, barren = 0, model_failures = 0
			WHERE id = @turn`, pgx.NamedArgs{"turn": ref.ID, "steps": turn.steps, "now": t.now})
		return nil
	})
}

func (s Summary) step(t *tx, turn *turnRow) thread.Step {
	title := summaryTitle
	if s.Model == "" {
		title = inventoryTitle
	}
	detail, err := json.Marshal(map[string]any{"summary": s.Text, "entries": s.Entries, "tokens": s.Tokens})
	if err != nil {
		panic(err) // our own types
	}
	return thread.Step{
		TurnID: turn.ID, N: turn.steps, Kind: thread.StepNote, Title: title, Status: thread.StepDone, StartedAt: t.now,
		FinishedAt: &t.now, Detail: detail,
	}
}

// upto returns the last position that the summary stands for of the turn's session, and for a background turn of the
// conversation as well, which it is shown first.
func (s Summary) upto(ref TurnRef, turn *turnRow) (own, history int64) {
	switch {
	case !ref.Background:
		return s.Last.Pos, -1
	case s.Last.TurnID == ref.ID:
		return s.Last.Pos, turn.historyEnd
	}
	return -1, s.Last.Pos
}

// Summarising tells who watches that a turn summarises, which takes as long as a model call.
func (db *DB) Summarising(ctx context.Context, ref TurnRef) error {
	return db.fenced(ctx, "summarising", ref, PointRound, nil, func(t *tx, b *pgx.Batch) error {
		b.Queue(`UPDATE turns SET driven_at = $2 WHERE id = $1`, ref.ID, t.now)
		t.phase(ref.ID, thread.PhaseSummarising)
		return nil
	})
}

// Recover keeps what a turn does once until a message is loaded: that the provider refused a prompt of so many tokens as
// too long (0: none), and that no summary could be had, after which the failures of model calls count from none.
func (db *DB) Recover(ctx context.Context, ref TurnRef, refused int64, noSummary bool) error {
	return db.fenced(ctx, "recover", ref, PointRound, nil, func(t *tx, b *pgx.Batch) error {
		b.Queue(`
			UPDATE turns
			SET refused_tokens = GREATEST(refused_tokens, @refused), summary_failed = summary_failed OR @none, driven_at = @now,
				model_failures = CASE WHEN @none THEN 0 ELSE model_failures END
			WHERE id = @turn`, pgx.NamedArgs{"turn": ref.ID, "refused": refused, "none": noSummary, "now": t.now})
		return nil
	})
}
