package store

import (
	"context"
	"encoding/json"
	"maps"
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
	var at *progress
	reads := func(b *pgx.Batch) { queueProgress(b, ref, &at) }
	err := db.fenced(ctx, "commit round", ref, PointRound, reads, func(t *tx, b *pgx.Batch) error {
		if at.end != r.Base || at.rounds != r.N-1 {
			return thread.ErrMoved
		}
		c := &roundCommit{tx: t, ref: ref, r: r, at: at}
		entries = c.write(b)
		return nil
	})
	return entries, err
}

// progress is where a turn stands before a round is written.
type progress struct {
	rounds, steps int
	modelFailures int
	end           int64 // last position of its session; -1: none
	shown         bool  // text of this round was shown as deltas
}

func queueProgress(b *pgx.Batch, ref TurnRef, at **progress) {
	b.Queue(`
		SELECT t.rounds, t.steps, t.model_failures, COALESCE((SELECT max(pos) FROM entries WHERE session_id = $2), -1),`+shownColumn+`
		FROM turns t
		WHERE t.id = $1`, ref.ID, ref.session()).Query(first(at, func(r pgx.Row) (*progress, error) {
		var p progress
		return &p, r.Scan(&p.rounds, &p.steps, &p.modelFailures, &p.end, &p.shown)
	}))
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

// roundCommit gathers the rows of a round and writes them with one statement.
type roundCommit struct {
	*tx
	ref TurnRef
	r   Round
	at  *progress

	list  []thread.Entry
	steps []thread.Step
	asked []int // number of each call's step
}

func (c *roundCommit) write(b *pgx.Batch) []thread.Entry {
	c.entries()
	c.think()
	c.ask()
	c.queue(b)
	return c.list
}

func (c *roundCommit) entries() {
	for _, note := range c.r.Notes {
		c.list = append(c.list, thread.Entry{Kind: thread.EntryNote, TurnID: c.ref.ID, Round: c.r.N, Text: note})
	}
	if c.r.Outcome == RoundCalls || c.r.Outcome == RoundAnswer {
		c.list = append(c.list, thread.Entry{
			Kind: thread.EntryAssistant, TurnID: c.ref.ID, Round: c.r.N, Text: c.r.Reply.Text, Reasoning: c.r.Reply.Reasoning,
			Input: c.r.Reply.Counted(),
		})
	}
	for i := range c.list {
		c.list[i].Pos = c.r.Base + 1 + int64(i)
	}
}

// think makes a step of what the model thought. Text beside tool calls is not the answer: it moves from the answer to the
// Thinking.
func (c *roundCommit) think() {
	thought := c.r.Reply.Reasoning
	if c.r.Outcome == RoundCalls {
		thought = joinTexts(thought, c.r.Reply.Text)
	}
	if thought != "" {
		c.step(thread.StepReasoning, "Thinking", thread.StepDone, map[string]any{"text": thought})
	}
	if c.r.Outcome != RoundAnswer {
		c.void(c.ref, c.at.shown, string(c.r.Outcome))
	}
	if c.r.Outcome == RoundCalls {
		c.phase(c.ref.ID, thread.PhaseTools)
	}
}

func (c *roundCommit) ask() {
	for i, call := range c.r.Calls {
		n := c.step(thread.StepTool, call.Name, thread.StepRunning, map[string]any{
			"round": c.r.N, "index": i, "arguments": call.Arguments, "side_effects": call.SideEffects,
		})
		c.asked = append(c.asked, n)
		if last := len(c.list) - 1; last >= 0 {
			c.list[last].Calls = append(c.list[last].Calls, thread.Call{
				TurnID: c.ref.ID, Round: c.r.N, Index: i, ID: call.ID, Name: call.Name, Arguments: call.Arguments, State: thread.CallPending,
			})
		}
	}
}

func (c *roundCommit) step(kind thread.StepKind, title string, status thread.StepStatus, detail map[string]any) int {
	raw, err := json.Marshal(detail)
	if err != nil {
		panic(err) // our own types
	}
	s := thread.Step{
		TurnID: c.ref.ID, N: c.at.steps + len(c.steps) + 1, Kind: kind, Title: title, Status: status, StartedAt: c.now, Detail: raw,
	}
	if status != thread.StepRunning {
		s.FinishedAt = &c.now
	}
	c.steps = append(c.steps, s)
	c.emitStep(thread.EventStepCreated, &s)
	return s.N
}

// queue writes it all with one statement, the charge and the turn's counters among it: two updates of the turn's row would be
// two versions of it.
func (c *roundCommit) queue(b *pgx.Batch) {
	charge := c.r.Charge
	charge.Round, charge.Model, charge.Usage, charge.Estimated = c.r.N, c.r.Reply.Model, c.r.Reply.Usage, c.r.Reply.Estimated
	charge.Outcome = ChargeOK
	args := charge.args(c.ref)
	maps.Copy(args, c.rows())
	maps.Copy(args, named{
		"session": c.ref.session(), "base": c.r.Base, "came_to": string(c.r.Outcome), "finish": string(c.r.Reply.Finish),
		"counted": c.r.Reply.Counted(), "model_name": c.r.Reply.Model, "attempts": c.at.modelFailures + 1, "now": c.now,
		"calls": len(c.r.Calls), "steps": c.at.steps + len(c.steps), "empty": c.r.Outcome == RoundEmpty,
		"malformed": c.r.Outcome == RoundMalformed, "warned": c.r.WrapUp,
	})
	b.Queue(commitRound, args)
}

// rows are the arguments with many values.
func (c *roundCommit) rows() named {
	var kinds, texts, reasonings []string
	var pos *int64
	for i := range c.list {
		e := &c.list[i]
		kinds, texts, reasonings = append(kinds, string(e.Kind)), append(texts, e.Text), append(reasonings, e.Reasoning)
		if e.Kind == thread.EntryAssistant {
			pos = &e.Pos
		}
	}
	var stepKinds, titles, statuses, details []string
	for _, s := range c.steps {
		stepKinds, titles = append(stepKinds, string(s.Kind)), append(titles, s.Title)
		statuses, details = append(statuses, string(s.Status)), append(details, string(s.Detail))
	}
	var ids, names, arguments []string
	var effects []bool
	for _, call := range c.r.Calls {
		ids, names, arguments = append(ids, call.ID), append(names, call.Name), append(arguments, call.Arguments)
		effects = append(effects, call.SideEffects)
	}
	return named{
		"kinds": kinds, "texts": texts, "reasonings": reasonings, "pos": pos,
		"step_kinds": stepKinds, "titles": titles, "statuses": statuses, "details": details,
		"ids": ids, "names": names, "arguments": arguments, "effects": effects, "asked": c.asked,
	}
}

const commitRound = `
	WITH said AS (
		INSERT INTO entries (session_id, pos, kind, turn_id, round, text, reasoning)
		SELECT @session, @base::bigint + e.n, e.kind, @turn, @round, e.text, e.reasoning
		FROM unnest(@kinds::text[], @texts::text[], @reasonings::text[]) WITH ORDINALITY AS e (kind, text, reasoning, n)
	), round AS (
		INSERT INTO rounds (turn_id, n, outcome, entry_pos, model, finish, input_tokens, output_tokens, attempts, finished_at)
		VALUES (@turn, @round, @came_to, @pos, @model_name, @finish, @counted, @output, @attempts, @now)
	), thought AS (
		INSERT INTO steps (turn_id, n, kind, title, status, started_at, finished_at, detail)
		SELECT @turn, @steps::integer - cardinality(@details::text[]) + s.n, s.kind, s.title, s.status, @now,
			CASE WHEN s.status <> 'running' THEN @now::timestamptz END, s.detail::json
		FROM unnest(@step_kinds::text[], @titles::text[], @statuses::text[], @details::text[]) WITH ORDINALITY
			AS s (kind, title, status, detail, n)
	), asked AS (
		INSERT INTO calls (turn_id, round, idx, provider_id, name, arguments, side_effects, state, step)
		SELECT @turn, @round, c.n - 1, c.id, c.name, c.arguments, c.effects, 'pending', c.step
		FROM unnest(@ids::text[], @names::text[], @arguments::text[], @effects::boolean[], @asked::integer[]) WITH ORDINALITY
			AS c (id, name, arguments, effects, step, n)
	), ` + chargeLine + `
	UPDATE turns t
	SET rounds = @round, tool_calls = t.tool_calls + @calls, steps = @steps, driven_at = @now, model_failures = 0, barren = 0,
		limit_rounds = t.limit_rounds + 1, limit_tool_calls = t.limit_tool_calls + @calls,
		empty_retries = t.empty_retries + @empty::boolean::integer,
		malformed_retries = t.malformed_retries + @malformed::boolean::integer,
		wrap_up_warned = t.wrap_up_warned OR @warned, ` + chargeCounts + `
	FROM (SELECT) one
	LEFT JOIN line ON true
	LEFT JOIN was ON true
	WHERE t.id = @turn`

// FailAttempt counts a failed model call of the round under way, voids what it had shown of an answer, and returns the
// number of the next attempt, for its deltas. attempt is the number of the one that failed: where another holder has taken
// the turn over, or this is a repeat, nothing is written and the number stays, so that its deltas are refused.
func (db *DB) FailAttempt(ctx context.Context, ref TurnRef, attempt int) (next int, err error) {
	var now *present
	var partial bool
	reads := func(b *pgx.Batch) {
		b.Queue(`SELECT t.rounds + 1, t.model_attempts,`+shownColumn+` FROM turns t WHERE t.id = $1`, ref.ID).Query(
			first(&now, func(r pgx.Row) (*present, error) {
				var p present
				return &p, r.Scan(&p.round, &p.attempt, &partial)
			}))
	}
	err = db.fenced(ctx, "fail attempt", ref, PointRound, reads, func(t *tx, b *pgx.Batch) error {
		if next = attempt; now.attempt != attempt {
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

// shownColumn says whether turn t has shown text of an answer, since its claim, that is not yet void.
const shownColumn = `
	COALESCE((
		SELECT name = 'answer.delta'
		FROM events
		WHERE turn_id = t.id AND name IN ('answer.delta', 'answer.restarted', 'turn.started')
		ORDER BY seq DESC
		LIMIT 1), false)`

func (t *tx) void(ref TurnRef, shown bool, reason string) {
	if shown {
		t.emit(thread.EventAnswerRestarted, ref.ID, map[string]any{"turn_id": ref.ID, "reason": reason})
	}
}
