package activities

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"go.temporal.io/sdk/activity"

	"bobbin/agent"
	"bobbin/contract"
	"bobbin/store"
	"bobbin/thread"
	"bobbin/tracing"
)

// Stint runs the agent loop of a turn, round after round, until the workflow is needed. Should its worker die, another
// attempt goes on at the same round.
func (a *Activities) Stint(ctx context.Context, in contract.StintInput) (res contract.StintResult, err error) {
	s := &stint{Activities: a, turn: in.Turn, ref: refOf(in.Turn), began: time.Now(), drain: activity.GetWorkerStopChannel(ctx)}
	defer func() {
		if p := recover(); p != nil { // every attempt would break the same way
			activity.GetLogger(ctx).Error("stint broke", "turn", in.Turn.ID, "panic", fmt.Sprintf("%T", p), "stack", string(debug.Stack()))
			res, err = contract.StintResult{Outcome: contract.StintFailed, Fail: thread.FailInternal, Rounds: s.lines}, nil
		}
	}()
	return s.run(ctx)
}

type stint struct {
	*Activities
	turn  contract.TurnRef
	ref   store.TurnRef
	began time.Time
	drain <-chan struct{} // closed when the worker stops

	attempt  store.Attempt
	begun    bool
	loadedAt time.Time // when the counters were read
	model    int       // number of the model attempt, which deltas carry
	waiting  int
	head     head         // of the round to come
	limited  bool         // the owner has a spending limit
	read     reading      // of the last model call
	charge   store.Charge // of the model call whose round is to be committed

	line  contract.RoundLine // of the round under way
	since time.Time
	lines []contract.RoundLine
	now   phase

	span   tracing.Span // of round inSpan
	inSpan int          // 0: of none
}

func (s *stint) run(outer context.Context) (contract.StintResult, error) {
	defer s.metrics.use(slotStint)()
	s.attempt = s.Activities.attempt(outer, s.turn.ID)
	defer s.leave(outer, s.attempt)
	ctx, cancel := s.untilStopped(outer, s.turn.ID)
	defer cancel()
	go s.beat(ctx)
	go s.tell(ctx)

	ctx, span := tracing.Start(traced(s.turn).Within(ctx), "stint", tracing.ThreadID.String(s.turn.ThreadID), tracing.TurnID.String(s.turn.ID))
	loop := agent.Loop{Spec: s.spec(), Hooks: s.hooks()}
	res, err := loop.Run(ctx)
	s.endRound()
	span.Set(tracing.Outcome.String(string(res.Kind)))
	span.End(s.kindOf(ctx, err))
	out := contract.StintResult{Rounds: s.lines, Waiting: s.waiting}
	switch {
	case errors.Is(err, thread.ErrFenced), err != nil && errors.Is(context.Cause(ctx), thread.ErrFenced):
		out.Outcome = contract.StintFenced
		return out, nil
	case errors.Is(err, errBarren):
		out.Outcome, out.Fail = contract.StintFailed, thread.FailInternal
		return out, nil
	case err != nil:
		return out, failure(err)
	}
	s.result(&out, res)
	return out, nil
}

func (s *stint) result(out *contract.StintResult, res agent.Result) {
	switch res.Kind {
	case agent.Answered:
		out.Outcome = contract.StintAnswered
	case agent.HandBack:
		out.Outcome = contract.StintBudget
	case agent.Wait:
		out.Outcome, out.Wait = contract.StintWait, res.Wait
	case agent.Failed:
		out.Outcome, out.Fail = contract.StintFailed, res.Fail
	case agent.Outside:
		out.Outcome = contract.StintTools
		for _, c := range res.Calls {
			t, _ := s.Tools.Lookup(c.Name)
			out.Tools = append(out.Tools, contract.ToolRef{Turn: s.turn, Round: c.Round, Index: c.Index, Name: c.Name, Limit: t.Timeout})
		}
	}
}

func (s *stint) spec() agent.Spec {
	spec := agent.Chat(s.Tools.Specs(), s.Limits)
	if s.ref.Background {
		spec = agent.Background(s.Tools.Specs(), s.Limits)
	}
	spec.Window = s.Window
	return spec
}

func (s *stint) hooks() agent.Hooks {
	return agent.Hooks{
		Load: s.load, Take: s.take, Model: s.call, Failed: s.failed, Wait: s.wait, Commit: s.commit, Run: s.runCalls,
		Summarise: s.summarise, Compact: s.compact, Recover: s.recover, HandBack: s.handBack, Elapsed: func() time.Duration { return time.Since(s.loadedAt) },
	}
}

// maxBarren is how many stints in a row may write nothing: what ends every one of them would go on for ever.
const maxBarren = 20

var errBarren = errors.New("the turn gets nowhere")

func (s *stint) load(ctx context.Context) (agent.State, error) {
	var w *store.Work
	var err error
	s.head = headUnknown
	if s.begun {
		w, err = s.Store.Load(ctx, s.ref, s.turn.Attempt)
	} else if w, err = s.Store.Begin(ctx, s.ref, s.turn.Attempt, s.attempt); err == nil {
		s.begun, s.model = true, w.ModelAttempt // a later one is another holder's: what we show is no longer wanted
	}
	if err != nil {
		return agent.State{}, err
	}
	if w.Barren > maxBarren {
		return agent.State{}, errBarren
	}
	for i := range w.Open {
		if t, _ := s.Tools.Lookup(w.Open[i].Name); w.Open[i].RunningFor > t.Timeout+insistFor {
			w.Open[i].RunningFor = 0 // it had its time, and a minute to record what came of it
		}
	}
	s.loadedAt, s.waiting, s.limited = time.Now(), w.Waiting, w.Spending.Limit != nil
	if s.line.Round != w.Turn.Rounds+1 {
		s.newLine(w.Turn.Rounds + 1)
	}
	if err := s.prepare(ctx, w); err != nil {
		return agent.State{}, err
	}
	return agent.State{
		TurnID: s.turn.ID, Session: w.Session, Counters: w.Counters, Round: w.Turn.Rounds, Last: agent.Outcome(w.LastRound), Open: w.Open,
	}, nil
}

// take loads the message that waits. When it cannot be had the round goes on without it; it stays queued.
func (s *stint) take(ctx context.Context) ([]thread.Entry, error) {
	if s.ref.Background {
		return nil, nil
	}
	began := time.Now()
	ctx, span := tracing.Start(ctx, "take")
	entries, err := s.takeAt(ctx, s.head)
	s.head = headUnknown
	s.metrics.took(began, len(entries), err)
	span.Set(tracing.Loaded.Bool(len(entries) > 0))
	span.End(s.kindOf(ctx, err))
	switch {
	case err == nil:
		s.line.Loaded = s.line.Loaded || len(entries) > 0
	case errors.Is(err, thread.ErrFenced), ctx.Err() != nil:
		return nil, err
	default:
		activity.GetLogger(ctx).Warn("take failed, the message stays queued", "turn", s.turn.ID, "error", err)
	}
	return entries, nil
}

// head says what is known of the steering row at a round head. The result of a call tells it, as of its commit.
type head int

const (
	headUnknown head = iota
	headEmpty
	headWaits
)

func (s *stint) takeAt(ctx context.Context, h head) ([]thread.Entry, error) {
	switch h {
	case headEmpty:
		return nil, nil
	case headWaits:
		return s.Store.TakeSeen(ctx, s.ref)
	}
	return s.Store.Take(ctx, s.turn.ID)
}

func (s *stint) call(ctx context.Context, round int, p thread.Prompt, limit time.Duration) (thread.Reply, error) {
	s.enter(ctx, round, nil)
	ctx = s.round(ctx, round)
	limited, cancel := context.WithTimeoutCause(ctx, limit, agent.ErrTimeUp)
	defer cancel()
	delta := thread.Delta{TurnID: s.turn.ID, Round: round, Attempt: s.model}
	var show func(string)
	if !s.ref.Background {
		show = func(text string) {
			delta.Text = text
			s.Deltas.Write(s.ref, delta)
			delta.Offset += len(text)
		}
	}
	reply, charge, err := s.ask(limited, round, p, show)
	s.charge = charge
	if delta.Offset > 0 {
		s.Deltas.Flush(ctx, s.turn.ID)
	}
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		return reply, agent.ErrTimeUp
	}
	if failed := thread.AsModelError(err); failed != nil {
		activity.GetLogger(ctx).Warn("model call failed", "turn", s.turn.ID, "round", round, "kind", string(failed.Kind),
			"status", failed.Status, "code", failed.Code, "cause", causeOf(failed))
	}
	return reply, err
}

// causeOf names what went wrong on the way to the provider, such as a refused connection; addresses, and nothing that was
// said, are in such errors.
func causeOf(e *thread.ModelError) string {
	if e.Err == nil {
		return ""
	}
	return e.Err.Error()
}

func (s *stint) failed(ctx context.Context) error {
	return insist(ctx, func(ctx context.Context) error {
		attempt, err := s.Store.FailAttempt(ctx, s.ref, s.model)
		if err == nil {
			s.model = attempt
		}
		return err
	})
}

func (s *stint) wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

func (s *stint) commit(ctx context.Context, r agent.Round) (entries []thread.Entry, err error) {
	row := store.Round{
		N: r.N, Base: r.Base, Notes: r.Notes, Reply: r.Reply, Outcome: store.RoundOutcome(r.Outcome), WrapUp: r.WrapUp,
		Charge: s.charge,
	}
	for _, c := range r.Reply.Calls {
		t, _ := s.Tools.Lookup(c.Name)
		row.Calls = append(row.Calls, store.RoundCall{Asked: c, SideEffects: t.Name != "" && t.SideEffects()})
		s.line.Tools = append(s.line.Tools, s.known(c.Name))
	}
	err = insist(ctx, func(ctx context.Context) error {
		entries, err = s.Store.CommitRound(ctx, s.ref, row)
		return err
	})
	if err != nil {
		s.settle(ctx, s.charge) // the round is lost, and paid for
		return nil, err
	}
	s.metrics.rounds.WithLabelValues(string(r.Outcome)).Inc()
	s.line.InputTokens, s.line.OutputTokens = r.Reply.Usage.InputTokens, r.Reply.Usage.OutputTokens
	s.closeLine()
	s.newLine(r.N + 1)
	return entries, nil
}

func (s *stint) newLine(round int) { s.line, s.since = contract.RoundLine{Round: round}, time.Now() }

func (s *stint) closeLine() {
	s.line.Duration = time.Since(s.since)
	s.lines = append(s.lines, s.line)
}

// handBack: the stint's rounds or time are used up, or its worker drains.
func (s *stint) handBack() bool {
	return closed(s.drain) || len(s.lines) >= s.StintRounds || time.Since(s.began) >= s.StintDuration
}
