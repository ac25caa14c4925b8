package workflows

import (
	"errors"
	"strings"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"bobbin/contract"
	"bobbin/thread"
)

// turnRun drives one turn: stint after stint, tools with side effects between them, and the end.
type turnRun struct {
	turn     contract.TurnRef
	settings contract.Settings
	changed  func()      // called when there is something new to show
	long     func()      // called when the turn takes long
	full     func() bool // reports whether the workflow's history should start afresh

	stop    func() // cancels what runs; the turn's stop flag is set already
	started time.Time
	stints  int
	waiting int
	now     string // what it does now, for the UI
	round   int    // under way
	rounds  []contract.RoundLine
}

func newTurnRun(turn contract.TurnRef, settings contract.Settings) *turnRun {
	return &turnRun{turn: turn, settings: settings, round: 1, stop: func() {}, changed: func() {}, long: func() {}, full: func() bool { return false }}
}

// drive returns when the turn has ended, or errRollOver between two stints. Else only the end of the workflow itself makes
// it fail.
func (r *turnRun) drive(ctx workflow.Context) (contract.Ended, error) {
	r.started = workflow.Now(ctx)
	work, cancel := workflow.WithCancel(ctx)
	defer cancel()
	r.stop = cancel
	for {
		res, err := r.stint(work)
		if err != nil { // cancelled, or given up by Temporal: the end knows from Postgres which
			return r.end(ctx, thread.FailInternal)
		}
		if res.Outcome.GoesOn() {
			r.long()
		}
		switch res.Outcome {
		case contract.StintTools:
			r.tools(work, res.Tools)
		case contract.StintWait:
			r.show("waits for the model's provider")
			_ = workflow.NewTimerWithOptions(work, res.Wait, workflow.TimerOptions{Summary: "The model's provider asks to wait"}).Get(work, nil)
		case contract.StintBudget:
		default:
			return r.end(ctx, res.Fail)
		}
		switch {
		case work.Err() != nil:
			return r.end(ctx, thread.FailInternal)
		case r.full():
			return contract.Ended{}, errRollOver
		}
	}
}

// errRollOver means that the turn goes on in the workflow's next run. Everything it needs stands in Postgres.
var errRollOver = errors.New("the history is full")

// stint runs the agent loop until it needs the workflow. A stint whose worker died is retried; it goes on at the same
// round.
func (r *turnRun) stint(ctx workflow.Context) (contract.StintResult, error) {
	r.stints++
	r.show("works")
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		StartToCloseTimeout: 2 * time.Hour, // far beyond its budget: a round is bounded by its own limits
		HeartbeatTimeout:    r.settings.Heartbeat,
		WaitForCancellation: true,
		Summary:             stintSummary(r.turn, r.stints, r.round),
		RetryPolicy:         &temporal.RetryPolicy{InitialInterval: 200 * time.Millisecond, BackoffCoefficient: 2, MaximumInterval: 10 * time.Second},
	})
	var res contract.StintResult
	err := workflow.ExecuteActivity(ctx, contract.StintActivity, contract.StintInput{Turn: r.turn}).Get(ctx, &res)
	r.rounds = append(r.rounds, res.Rounds...)
	if n := len(r.rounds); n > 0 {
		r.round = r.rounds[n-1].Round + 1
	}
	r.waiting = res.Waiting
	return res, err
}

// tools runs tools with side effects in parallel, each an activity of its own with one attempt. Whether one succeeded
// stands in the step log, which the next stint reads: a tool whose worker died there is not run again.
func (r *turnRun) tools(ctx workflow.Context, list []contract.ToolRef) {
	names := make([]string, 0, len(list))
	futures := make([]workflow.Future, 0, len(list))
	for _, tool := range list {
		names = append(names, tool.Name)
		options := workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
			TaskQueue:           contract.ToolQueue,
			StartToCloseTimeout: tool.Limit + time.Minute, // the tool's own limit comes first
			HeartbeatTimeout:    r.settings.Heartbeat,
			WaitForCancellation: true,
			Summary:             toolSummary(tool),
			RetryPolicy:         &temporal.RetryPolicy{MaximumAttempts: 1},
		})
		futures = append(futures, workflow.ExecuteActivity(options, tool.Name, tool))
	}
	r.show("runs " + strings.Join(names, ", "))
	var failed error
	for _, f := range futures {
		failed = errors.Join(failed, f.Get(ctx, nil))
	}
	if failed != nil { // perhaps before it could say that it starts: the next stint would ask for it again at once
		_ = workflow.NewTimerWithOptions(ctx, toolPause, workflow.TimerOptions{Summary: "A tool's worker failed"}).Get(ctx, nil)
	}
}

// toolPause keeps a tool whose activity fails again and again from turning in circles.
const toolPause = time.Second

// end settles the turn. It is not cancelled with the turn's work.
func (r *turnRun) end(ctx workflow.Context, fail thread.FailCode) (contract.Ended, error) {
	ctx = local(ctx, "End the turn")
	var out contract.Ended
	err := workflow.ExecuteLocalActivity(ctx, contract.EndActivity, contract.EndInput{Turn: r.turn, Fail: fail}).Get(ctx, &out)
	return out, err
}

func (r *turnRun) show(now string) {
	r.now = now
	r.changed()
}

// heard takes what a stint tells of itself while it works for long.
func (r *turnRun) heard(p contract.Progress) {
	if p.TurnID != r.turn.ID {
		return
	}
	r.waiting, r.round = p.Waiting, p.Round
	r.long()
	r.show(progressText(p))
}

func (r *turnRun) line(ctx workflow.Context, out contract.Ended) contract.TurnLine {
	return contract.TurnLine{
		TurnID: r.turn.ID, Source: r.turn.Source, Status: out.Status, Rounds: out.Rounds, Tokens: out.Tokens, CostUSD: out.CostUSD,
		Duration: workflow.Now(ctx).Sub(r.started),
	}
}

// local is for steps that only touch Postgres. They are repeated until they succeed.
func local(ctx workflow.Context, summary string) workflow.Context {
	return workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{
		StartToCloseTimeout: 10 * time.Second,
		Summary:             summary,
		RetryPolicy:         &temporal.RetryPolicy{InitialInterval: 50 * time.Millisecond, BackoffCoefficient: 2, MaximumInterval: 5 * time.Second},
	})
}

var (
	threadKey = temporal.NewSearchAttributeKeyKeyword(contract.ThreadAttribute)
	ownerKey  = temporal.NewSearchAttributeKeyKeyword(contract.OwnerAttribute)
	turnKey   = temporal.NewSearchAttributeKeyKeyword(contract.TurnAttribute)
	sourceKey = temporal.NewSearchAttributeKeyKeyword(contract.SourceAttribute)
	statusKey = temporal.NewSearchAttributeKeyKeyword(contract.StatusAttribute)
)

func attributes(threadID, ownerID string, turn contract.TurnRef, status string) temporal.SearchAttributes {
	return temporal.NewSearchAttributes(
		threadKey.ValueSet(threadID), ownerKey.ValueSet(ownerID), turnKey.ValueSet(turn.ID),
		sourceKey.ValueSet(string(turn.Source)), statusKey.ValueSet(status))
}

// mark writes a turn's status to the search attributes where they say another. Each write costs Temporal more than a round
// costs the rest, so a turn that is short and succeeds leaves none.
func (t *threadRun) mark(ctx workflow.Context, turn contract.TurnRef, status thread.TurnStatus) {
	if status == t.in.Status || status == thread.TurnSucceeded && t.in.Status == "" {
		return
	}
	t.in.Status = status
	err := workflow.UpsertTypedSearchAttributes(ctx, statusKey.ValueSet(string(status)), turnKey.ValueSet(turn.ID), sourceKey.ValueSet(string(turn.Source)))
	if err != nil {
		workflow.GetLogger(ctx).Warn("search attributes not written", "error", err)
	}
}
