package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"bobbin/thread"
)

// Loop runs one agent. Spec and all Hooks must be set.
type Loop struct {
	Spec  Spec
	Hooks Hooks

	state State
}

// Hooks are what the loop acts through. An error that a hook does not explain here ends the run and is returned as it is;
// thread.ErrFenced and the context's are such.
type Hooks struct {
	// Load reads the step log.
	Load func(context.Context) (State, error)
	// Take loads the message that waits, and returns the entries it appended to the session; none: nothing waited. Any
	// error but ErrFenced has been dealt with before.
	Take func(context.Context) ([]thread.Entry, error)
	// Model makes one model call, within limit, which may be 0. ErrTimeUp: the limit came first. ErrSpent: the owner may spend no
	// more. Beside any error the reply says what a failed call used.
	Model func(ctx context.Context, round int, p thread.Prompt, limit time.Duration) (thread.Reply, error)
	// Summarise makes one model call that nobody is shown and that is no round, within limit. ErrTimeUp: likewise.
	Summarise func(ctx context.Context, p thread.Prompt, limit time.Duration) (thread.Reply, error)
	// Compact keeps a summary. ErrMoved: another holder's of that number is there.
	Compact func(context.Context, Compaction) error
	// Recover keeps what a turn does once.
	Recover func(context.Context, Recovery) error
	// Failed records a failed model call of the round, or of the summary, under way.
	Failed func(context.Context) error
	// Wait waits before a retry.
	Wait func(context.Context, time.Duration) error
	// Commit writes a round to the step log and returns the entries that it appended, calls included. ErrMoved: the
	// session has grown since Base.
	Commit func(context.Context, Round) ([]thread.Entry, error)
	// Run runs calls, within limit, and records each result. A call that comes with a result is only recorded. It
	// returns all of them; those that must run elsewhere are still open. ErrMoved: the step log holds other results.
	Run func(ctx context.Context, calls []thread.Call, limit time.Duration) ([]thread.Call, error)
	// HandBack reports whether to return at this round head.
	HandBack func() bool
	// Elapsed is the time since the state's Counters were read.
	Elapsed func() time.Duration
}

// ErrTimeUp means that a limit of time came before the end of what a hook did.
var ErrTimeUp = errors.New("out of time")

// ErrSpent means that the owner's spending limit leaves no room for a model call.
var ErrSpent = errors.New("the spending limit is reached")

// State is where a turn stands.
type State struct {
	TurnID   string
	Session  thread.Session
	Counters thread.Counters
	Round    int           // the last round in the step log; 0: none
	Last     Outcome       // of that round
	Open     []thread.Call // calls without a result
}

// Round is one model call, ready for the step log.
type Round struct {
	N       int
	Base    int64 // the session's end that it was built from
	Notes   []string
	Reply   thread.Reply
	Outcome Outcome
	WrapUp  bool // Notes tell the model to come to an end
}

// Outcome says what a round came to.
type Outcome string

// The outcomes. An empty or malformed reply leaves nothing in the session.
const (
	Calls     Outcome = "calls"
	Answer    Outcome = "answer"
	Empty     Outcome = "empty"
	Malformed Outcome = "malformed"
)

// Result says why the loop returned.
type Result struct {
	Kind  ResultKind
	Calls []thread.Call   // with Outside
	Wait  time.Duration   // with Wait
	Fail  thread.FailCode // with Failed
}

// ResultKind says why the loop returned.
type ResultKind string

// The results.
const (
	Answered ResultKind = "answered" // the last round is the answer
	Outside  ResultKind = "outside"  // Calls must run elsewhere before the loop goes on
	HandBack ResultKind = "handback" // at a round head, because the hook said so
	Wait     ResultKind = "wait"     // the provider asks for a long wait
	Failed   ResultKind = "failed"
)

// Run goes on from where the step log ends. At least one round is tried before it hands back.
func (l *Loop) Run(ctx context.Context) (Result, error) {
	if err := l.load(ctx); err != nil {
		return Result{}, err
	}
	for tried := false; ; tried = true {
		if res := l.over(); res.Kind != "" {
			return res, nil
		}
		outside, err := l.runOpen(ctx)
		if errors.Is(err, thread.ErrMoved) {
			if err := l.load(ctx); err != nil {
				return Result{}, err
			}
			continue
		}
		if err != nil || len(outside) > 0 {
			return Result{Kind: Outside, Calls: outside}, err
		}
		if tried && l.Hooks.HandBack() {
			return Result{Kind: HandBack}, nil
		}
		res, err := l.round(ctx)
		if errors.Is(err, thread.ErrMoved) {
			err = l.load(ctx)
		}
		if err != nil || res.Kind != "" {
			return res, err
		}
	}
}

// over says whether the step log already settles how the turn ends.
func (l *Loop) over() Result {
	switch c := l.state.Counters; {
	case l.state.Last == Answer:
		return Result{Kind: Answered}
	case slices.ContainsFunc(l.state.Open, lost):
		return Result{Kind: Failed, Fail: thread.FailToolUnknown}
	case slices.ContainsFunc(l.state.Open, running):
		return Result{Kind: Wait, Wait: runningWait}
	case l.state.Last == Empty && c.EmptyRetries > 1:
		return Result{Kind: Failed, Fail: thread.FailEmptyResponse}
	case l.state.Last == Malformed && c.MalformedRetries > 1:
		return Result{Kind: Failed, Fail: thread.FailMalformedAnswer}
	}
	return Result{}
}

// A call that was started may still be running on a worker that lost its task and lives; then its result comes.
func running(c thread.Call) bool { return c.State == thread.CallStarted && c.RunningFor > 0 }
func lost(c thread.Call) bool    { return c.State == thread.CallStarted && c.RunningFor == 0 }

// runningWait is between looks whether such a call has a result.
const runningWait = 2 * time.Second

func (l *Loop) load(ctx context.Context) (err error) {
	l.state, err = l.Hooks.Load(ctx)
	if l.state.Counters.ToolFailures == nil {
		l.state.Counters.ToolFailures = map[string]int{}
	}
	return err
}

func (l *Loop) elapsed() time.Duration { return l.state.Counters.Elapsed + l.Hooks.Elapsed() }

// runOpen runs the calls that have no result yet, and returns those that must run elsewhere.
func (l *Loop) runOpen(ctx context.Context) (outside []thread.Call, err error) {
	if len(l.state.Open) == 0 {
		return nil, nil
	}
	calls := slices.Clone(l.state.Open)
	for i := range calls {
		if !l.usable(calls[i].Name) {
			calls[i].State = thread.CallFailed
			calls[i].Result = fmt.Sprintf("There is no tool %q that you may use now.", calls[i].Name)
		}
	}
	calls, err = l.Hooks.Run(ctx, calls, max(0, l.Spec.Limits.Duration-l.elapsed()))
	if err != nil {
		return nil, err
	}
	l.state.Open = nil
	for _, c := range calls {
		if c.State.Open() {
			l.state.Open = append(l.state.Open, c)
			continue
		}
		l.finished(c)
	}
	return l.state.Open, nil
}

// finished puts a call's result beside the call, and counts failures.
func (l *Loop) finished(c thread.Call) {
	failures := l.state.Counters.ToolFailures
	if failures[c.Name]++; c.State != thread.CallFailed {
		failures[c.Name] = 0
	}
	for i := range slices.Backward(l.state.Session.Entries) {
		if e := &l.state.Session.Entries[i]; e.TurnID == c.TurnID && e.Round == c.Round && e.Kind == thread.EntryAssistant {
			e.Calls[c.Index] = c
			return
		}
	}
}

// usable reports whether a tool is offered and has not been taken away.
func (l *Loop) usable(name string) bool {
	return slices.ContainsFunc(l.tools(), func(t thread.ToolSpec) bool { return t.Name == name })
}

func (l *Loop) tools() []thread.ToolSpec {
	return slices.DeleteFunc(slices.Clone(l.Spec.Tools), func(t thread.ToolSpec) bool {
		return l.state.Counters.ToolFailures[t.Name] >= l.Spec.Limits.ToolFailures
	})
}

// plan is what a round is to be.
type plan struct {
	tools  bool // false: it only writes the answer, and takes nothing
	wrapUp bool // the limit is reached
	warned bool // notes speak of the limit
	notes  []string
}

func (l *Loop) plan() plan {
	c, limits := l.state.Counters, l.Spec.Limits
	notes := l.offNotes()
	switch left := limits.Rounds - c.Rounds; {
	case l.state.Last == Empty && c.EmptyRetries > 0: // else another claim goes on after it, which starts over
		return plan{notes: append(notes, emptyNote)}
	case l.state.Last == Malformed && c.MalformedRetries > 0:
		return plan{notes: append(notes, malformedNote)}
	case left <= 0, c.ToolCalls >= limits.ToolCalls, l.elapsed() >= limits.Duration, limits.spent(c.Used):
		return plan{wrapUp: true, warned: true, notes: append(notes, wrapNote)}
	case left <= limits.warnRounds() && !c.WrapUpWarned && c.Rounds > 0:
		return plan{tools: true, warned: true, notes: append(notes, fmt.Sprintf(warnNote, left))}
	default:
		return plan{tools: true, notes: notes}
	}
}

// round takes, calls the model and commits. A result with a Kind ends the run.
func (l *Loop) round(ctx context.Context) (Result, error) {
	p := l.plan()
	if p.tools {
		taken, err := l.take(ctx)
		if err != nil {
			return Result{}, err
		}
		if taken {
			p = l.plan()
		}
	}
	if done, res, err := l.compact(ctx, p); done || err != nil {
		return res, err
	}
	reply, res, err := l.call(ctx, p)
	switch {
	case errors.Is(err, ErrTimeUp) && p.tools:
		return Result{}, l.timeUp(ctx)
	case res.Fail == thread.FailContextTooLong && l.state.Counters.Refused == 0:
		return l.refused(ctx, p.notes)
	}
	if err != nil || res.Kind != "" {
		return res, err
	}
	outcome := l.judge(&reply, p)
	return Result{}, l.commit(ctx, p, reply, outcome)
}

// timeUp gives up a model call that the time limit cut off; the next round wraps up.
func (l *Loop) timeUp(ctx context.Context) error {
	if err := l.Hooks.Failed(ctx); err != nil {
		return err
	}
	return l.load(ctx)
}

// take loads the message that waits. What it starts over is what the store starts over in the same commit.
func (l *Loop) take(ctx context.Context) (bool, error) {
	entries, err := l.Hooks.Take(ctx)
	if err != nil || len(entries) == 0 {
		return false, err
	}
	l.append(entries)
	l.state.Counters = thread.Counters{
		ToolFailures: map[string]int{}, Elapsed: -l.Hooks.Elapsed(), ModelFailures: l.state.Counters.ModelFailures,
		Used: l.state.Counters.Used,
	}
	return true, nil
}

func (l *Loop) append(entries []thread.Entry) {
	s := &l.state.Session
	s.Entries = append(s.Entries, entries...)
	if len(entries) > 0 {
		s.End = entries[len(entries)-1].Pos
	}
}

// call makes a round's model call, with retries. It returns a reply, or a result that ends the run.
func (l *Loop) call(ctx context.Context, p plan) (thread.Reply, Result, error) {
	deadline := l.Spec.Limits.Duration // for all attempts together
	if wrapUp := l.elapsed() + l.Spec.Limits.WrapUp; !p.tools && wrapUp > deadline {
		deadline = wrapUp
	}
	prompt := l.prompt(p)
	reply, res, err := l.attempts(ctx, deadline, func(limit time.Duration) (thread.Reply, error) {
		return l.Hooks.Model(ctx, l.state.Round+1, prompt, limit)
	})
	if errors.Is(err, ErrTimeUp) && !p.tools {
		return thread.Reply{}, Result{Kind: Failed, Fail: thread.FailTimeLimit}, nil
	}
	return reply, res, err
}

// attempts makes a model call, again after temporary errors, until the time that limits the turn is deadline.
func (l *Loop) attempts(
	ctx context.Context, deadline time.Duration, call func(limit time.Duration) (thread.Reply, error),
) (thread.Reply, Result, error) {
	for {
		reply, err := call(max(0, deadline-l.elapsed()))
		if err == nil {
			return reply, Result{}, nil
		}
		l.state.Counters.Used = l.state.Counters.Used.Add(reply.Usage)
		if errors.Is(err, ErrSpent) {
			return thread.Reply{}, Result{Kind: Failed, Fail: thread.FailUsageLimit}, nil
		}
		failure := thread.AsModelError(err)
		if failure == nil {
			return thread.Reply{}, Result{}, err
		}
		n := l.state.Counters.ModelFailures
		if failure.Kind != thread.ModelTemporary || n >= l.Spec.Limits.ModelRetries {
			return thread.Reply{}, Result{Kind: Failed, Fail: failCode(failure.Kind)}, nil
		}
		if err := l.Hooks.Failed(ctx); err != nil {
			return thread.Reply{}, Result{}, err
		}
		l.state.Counters.ModelFailures++
		wait := Backoff(n, failure.RetryAfter)
		// A deadline beyond the turn's, which a round has that only writes, would start over with the next stint.
		if ownTime := deadline > l.Spec.Limits.Duration; wait > l.Spec.Limits.LongWait && (!ownTime || wait > writingWait) {
			return thread.Reply{}, Result{Kind: Wait, Wait: wait}, nil
		}
		if err := l.Hooks.Wait(ctx, wait); err != nil {
			return thread.Reply{}, Result{}, err
		}
	}
}

// writingWait is the longest wait that a round makes here that only writes the answer.
const writingWait = 10 * time.Second

func (l *Loop) prompt(p plan) thread.Prompt {
	prompt := thread.Prompt{System: l.Spec.System, Entries: l.summary()}
	prompt.Entries = append(prompt.Entries, l.fit(slices.Clone(l.state.Session.Entries), p.notes)...)
	for _, note := range p.notes {
		prompt.Entries = append(prompt.Entries, thread.Entry{Kind: thread.EntryNote, Text: note})
	}
	if p.tools {
		prompt.Tools = l.tools()
	}
	return prompt
}

// judge says what a reply comes to. A round that only writes the answer has no use for calls.
func (l *Loop) judge(r *thread.Reply, p plan) Outcome {
	if len(r.Calls) > 0 && p.tools {
		return Calls
	}
	r.Calls = nil
	switch {
	case l.Spec.Check(*r) != nil:
		return Malformed
	case strings.TrimSpace(r.Text) == "":
		return Empty
	}
	return Answer
}

func (l *Loop) commit(ctx context.Context, p plan, reply thread.Reply, outcome Outcome) error {
	r := Round{
		N: l.state.Round + 1, Base: l.state.Session.End, Notes: p.notes, Reply: reply, Outcome: outcome, WrapUp: p.warned,
	}
	entries, err := l.Hooks.Commit(ctx, r)
	if err != nil {
		return err
	}
	l.append(entries)
	l.state.Round, l.state.Last = r.N, outcome
	for _, e := range entries {
		l.state.Open = append(l.state.Open, e.Calls...)
	}
	c := &l.state.Counters
	c.Rounds++
	c.ToolCalls += len(reply.Calls)
	c.Used = c.Used.Add(reply.Usage)
	c.ModelFailures = 0
	c.WrapUpWarned = c.WrapUpWarned || p.warned
	switch outcome {
	case Empty:
		c.EmptyRetries++
	case Malformed:
		c.MalformedRetries++
	}
	return nil
}

// Backoff is the wait before retry n (from 0) of a model call: 1 s, 2 s, 4 s, or what the provider asks for, at most five
// minutes.
func Backoff(n int, retryAfter time.Duration) time.Duration {
	return min(max(time.Second<<n, retryAfter), 5*time.Minute)
}

func failCode(k thread.ModelErrorKind) thread.FailCode {
	switch k {
	case thread.ModelTooLong:
		return thread.FailContextTooLong
	case thread.ModelInvalid:
		return thread.FailModelInvalid
	case thread.ModelFiltered:
		return thread.FailModelFiltered
	case thread.ModelQuota:
		return thread.FailModelQuota
	default:
		return thread.FailModelUnavailable
	}
}
