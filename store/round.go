package store

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/jackc/pgx/v5"

	"bobbin/thread"
)

// Round is one model call as it enters the step log.
type Round struct {
	N       int   // of the turn, from 1
	Base    int64 // session end that it was built from
	Notes   []string
	Reply   thread.Reply
	Outcome RoundOutcome
	Calls   []RoundCall // Reply's calls, in order
	WrapUp  bool        // the notes told the model to wrap up
	Charge  Charge      // of its model call; Reply's usage counts, and Round is N
}

// RoundCall is a tool call as it enters the step log.
type RoundCall struct {
	thread.Asked
	SideEffects bool
}

// RoundOutcome says what a round came to.
type RoundOutcome string

// The outcomes. An empty or malformed reply is counted and leaves nothing in the session.
const (
	RoundCalls     RoundOutcome = "calls"
	RoundAnswer    RoundOutcome = "answer"
	RoundEmpty     RoundOutcome = "empty"
	RoundMalformed RoundOutcome = "malformed"
)

// CommitRound writes a round, its notes and its calls once, under the turn's fence, and returns the entries that it
// appended to the session. Its model call is settled in the same transaction. ErrMoved: the session grew since the round was
// built, or another holder wrote this round; then the call is still to be settled.
func (db *DB) CommitRound(ctx context.Context, ref TurnRef, r Round) ([]thread.Entry, error) {
	r.clean()
	var entries []thread.Entry
	var shown bool
	end := int64(-1)
	reads := func(b *pgx.Batch) {
		queueShown(b, ref.ID, &shown)
		b.Queue(`SELECT COALESCE(max(pos), -1) FROM entries WHERE session_id = $1`, ref.session()).QueryRow(func(row pgx.Row) error {
			return row.Scan(&end)
		})
	}
	err := db.fenced(ctx, "commit round", ref, PointRound, reads, func(t *tx, b *pgx.Batch, turn *turnRow) error {
		if end != r.Base || turn.Rounds != r.N-1 {
			return thread.ErrMoved
		}
		c := &roundCommit{tx: t, b: b, turn: turn, r: r, ref: ref, shown: shown}
		entries = c.write()
		return nil
	})
	return entries, err
}

func (r *Round) clean() {
	r.Reply.Text, r.Reply.Reasoning, r.Reply.Model = clean(r.Reply.Text), clean(r.Reply.Reasoning), clean(r.Reply.Model)
	r.Notes, r.Calls = cleanAll(r.Notes), slices.Clone(r.Calls)
	for i := range r.Calls {
		c := &r.Calls[i]
		c.ID, c.Name, c.Arguments = clean(c.ID), clean(c.Name), clean(c.Arguments)
	}
}

func (r TurnRef) session() string {
	if r.Background {
		return r.ID
	}
	return r.ThreadID
}

type roundCommit struct {
	*tx
	b    *pgx.Batch
	turn *turnRow
	r    Round
	ref  TurnRef

	shown bool // text of this round was shown as deltas
}

func (c *roundCommit) write() []thread.Entry {
	entries := c.entries()
	c.writeRound(entries)
	c.writeSteps(entries)
	c.writeCounters()
	charge := c.r.Charge
	charge.Round, charge.Model, charge.Usage, charge.Estimated = c.r.N, c.r.Reply.Model, c.r.Reply.Usage, c.r.Reply.Estimated
	charge.Outcome = ChargeOK
	queueCharge(c.b, c.ref, charge)
	return entries
}

func (c *roundCommit) entries() []thread.Entry {
	var list []thread.Entry
	for _, note := range c.r.Notes {
		list = append(list, thread.Entry{Kind: thread.EntryNote, TurnID: c.turn.ID, Round: c.r.N, Text: note})
	}
	if c.r.Outcome == RoundCalls || c.r.Outcome == RoundAnswer {
		list = append(list, thread.Entry{
			Kind: thread.EntryAssistant, TurnID: c.turn.ID, Round: c.r.N, Text: c.r.Reply.Text, Reasoning: c.r.Reply.Reasoning,
			Input: c.r.Reply.Counted(),
		})
	}
	for i := range list {
		list[i].Pos = c.r.Base + 1 + int64(i)
	}
	return list
}

func (c *roundCommit) writeRound(entries []thread.Entry) {
	var pos *int64
	for i := range entries {
		e := entries[i]
		if e.Kind == thread.EntryAssistant {
			pos = &entries[i].Pos
		}
		c.b.Queue(`
			INSERT INTO entries (session_id, pos, kind, turn_id, round, text, reasoning)
			VALUES (@session, @pos, @kind, @turn, @round, @text, @reasoning)`, pgx.NamedArgs{
			"session": c.ref.session(), "pos": e.Pos, "kind": string(e.Kind), "turn": c.turn.ID, "round": e.Round, "text": e.Text,
			"reasoning": e.Reasoning,
		})
	}
	c.b.Queue(`
		INSERT INTO rounds (turn_id, n, outcome, entry_pos, model, finish, input_tokens, output_tokens, attempts, finished_at)
		VALUES (@turn, @n, @outcome, @pos, @model, @finish, @in, @out, @attempts, @now)`, pgx.NamedArgs{
		"turn": c.turn.ID, "n": c.r.N, "outcome": string(c.r.Outcome), "pos": pos, "model": c.r.Reply.Model,
		"finish": string(c.r.Reply.Finish), "in": c.r.Reply.Counted(), "out": c.r.Reply.Usage.OutputTokens,
		"attempts": c.turn.limit.ModelFailures + 1, "now": c.now,
	})
}

// writeSteps writes the round's reasoning and calls. Text beside tool calls is not the answer: it moves from the answer to
// the Thinking.
func (c *roundCommit) writeSteps(entries []thread.Entry) {
	thought := c.r.Reply.Reasoning
	if c.r.Outcome == RoundCalls {
		thought = joinTexts(thought, c.r.Reply.Text)
	}
	if thought != "" {
		c.step(thread.StepReasoning, "Thinking", thread.StepDone, map[string]any{"text": thought})
	}
	if c.r.Outcome != RoundAnswer {
		c.void(c.ref, c.shown, string(c.r.Outcome))
	}
	if c.r.Outcome == RoundCalls {
		c.phase(c.ref.ID, thread.PhaseTools)
	}
	for i, call := range c.r.Calls {
		n := c.step(thread.StepTool, call.Name, thread.StepRunning, map[string]any{
			"round": c.r.N, "index": i, "arguments": call.Arguments, "side_effects": call.SideEffects,
		})
		c.b.Queue(`
			INSERT INTO calls (turn_id, round, idx, provider_id, name, arguments, side_effects, state, step)
			VALUES (@turn, @round, @idx, @id, @name, @arguments, @effects, 'pending', @step)`, pgx.NamedArgs{
			"turn": c.turn.ID, "round": c.r.N, "idx": i, "id": call.ID, "name": call.Name, "arguments": call.Arguments,
			"effects": call.SideEffects, "step": n,
		})
		if last := len(entries) - 1; last >= 0 {
			entries[last].Calls = append(entries[last].Calls, thread.Call{
				TurnID: c.turn.ID, Round: c.r.N, Index: i, ID: call.ID, Name: call.Name, Arguments: call.Arguments, State: thread.CallPending,
			})
		}
	}
}

func (c *roundCommit) step(kind thread.StepKind, title string, status thread.StepStatus, detail map[string]any) int {
	c.turn.steps++
	raw, err := json.Marshal(detail)
	if err != nil {
		panic(err) // our own types
	}
	s := thread.Step{
		TurnID: c.turn.ID, N: c.turn.steps, Kind: kind, Title: title, Status: status, StartedAt: c.now, Detail: raw,
	}
	if status != thread.StepRunning {
		s.FinishedAt = &c.now
	}
	writeStep(c.b, s)
	c.emitStep(thread.EventStepCreated, &s)
	return s.N
}

func (c *roundCommit) writeCounters() {
	empty, malformed := 0, 0
	switch c.r.Outcome {
	case RoundEmpty:
		empty = 1
	case RoundMalformed:
		malformed = 1
	}
	c.b.Queue(`
		UPDATE turns
		SET rounds = @n, tool_calls = tool_calls + @calls, steps = @steps, driven_at = @now, model_failures = 0, barren = 0,
			limit_rounds = limit_rounds + 1, limit_tool_calls = limit_tool_calls + @calls,
			empty_retries = empty_retries + @empty, malformed_retries = malformed_retries + @malformed,
			wrap_up_warned = wrap_up_warned OR @warned
		WHERE id = @turn`, pgx.NamedArgs{
		"turn": c.turn.ID, "n": c.r.N, "calls": len(c.r.Calls), "steps": c.turn.steps, "now": c.now,
		"empty": empty, "malformed": malformed, "warned": c.r.WrapUp,
	})
}

// FailAttempt counts a failed model call of the round under way, voids what it had shown of an answer, and returns the
// number of the next attempt, for its deltas. attempt is the number of the one that failed: where another holder has taken
// the turn over, or this is a repeat, nothing is written and the number stays, so that its deltas are refused.
func (db *DB) FailAttempt(ctx context.Context, ref TurnRef, attempt int) (next int, err error) {
	var partial bool
	reads := func(b *pgx.Batch) { queueShown(b, ref.ID, &partial) }
	err = db.fenced(ctx, "fail attempt", ref, PointRound, reads, func(t *tx, b *pgx.Batch, turn *turnRow) error {
		if next = attempt; turn.modelAttempts != attempt {
			return nil
		}
		next++
		b.Queue(`
			UPDATE turns
			SET model_failures = model_failures + 1, model_attempts = model_attempts + 1, driven_at = $2
			WHERE id = $1`, ref.ID, t.now)
		t.void(ref, partial, "attempt failed")
		return nil
	})
	return next, err
}

// queueShown reads whether a turn has shown text of an answer, since its claim, that is not yet void.
func queueShown(b *pgx.Batch, turnID string, shown *bool) {
	b.Queue(`
		SELECT COALESCE((
			SELECT name = 'answer.delta'
			FROM events
			WHERE turn_id = $1 AND name IN ('answer.delta', 'answer.restarted', 'turn.started')
			ORDER BY seq DESC
			LIMIT 1), false)`, turnID).QueryRow(func(r pgx.Row) error { return r.Scan(shown) })
}

func (t *tx) void(ref TurnRef, shown bool, reason string) {
	if shown {
		t.emit(thread.EventAnswerRestarted, ref.ID, map[string]any{"turn_id": ref.ID, "reason": reason})
	}
}
