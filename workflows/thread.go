// Package workflows is the deterministic side: one small workflow function per kind, which claims, runs stints, waits and
// ends. What it decides from stands in Postgres and is read by local activities; what it remembers is a hint.
package workflows

import (
	"errors"
	"slices"
	"time"

	"go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"bobbin/contract"
	"bobbin/thread"
)

const (
	shownTurns = 5 // ended turns that the UI shows

	// A worker that dies in a workflow task is noticed after so long: half of Temporal's default.
	taskTimeout = 5 * time.Second
)

// Thread runs the conversation turns of one thread, one after the other, and starts its background turns as children. It
// ends when nothing has been left to do for a while; the next nudge starts it again.
func Thread(ctx workflow.Context, in contract.ThreadInput) error {
	t := &threadRun{in: in, nudges: workflow.GetSignalChannel(ctx, contract.NudgeSignal)}
	t.progress = workflow.GetSignalChannel(ctx, contract.ProgressSignal)
	return t.run(ctx)
}

type threadRun struct {
	in       contract.ThreadInput
	nudges   workflow.ReceiveChannel
	progress workflow.ReceiveChannel

	claimed contract.Claimed
	running *turnRun // the conversation turn
	nudged  bool     // a nudge came that no claim has followed
	swept   bool     // one of them was a sweep's: what is believed to run may not
	stops   []string // turns told to stop that were not known to run: the next claim may know them
	moved   bool     // this run drove a turn or waited, so that it may end for another
}

func (t *threadRun) run(ctx workflow.Context) error {
	for {
		t.drain(ctx)
		if err := t.claim(ctx); err != nil {
			return err
		}
		for next := t.claimed.Conversation; next != nil; {
			if t.moved && t.full(ctx) {
				return t.rollOver(ctx)
			}
			t.moved = true
			var err error
			next, err = t.turn(ctx, *next)
			if errors.Is(err, errRollOver) {
				return t.rollOver(ctx)
			}
			if err != nil {
				return err
			}
		}
		if t.moved && t.full(ctx) {
			return t.rollOver(ctx)
		}
		if more := t.nudged || t.wait(ctx); !more {
			return nil
		}
		t.moved = true
	}
}

// drain drops the nudges that have arrived. A claim follows, which sees everything that they could have said.
func (t *threadRun) drain(ctx workflow.Context) {
	var n contract.Nudge
	for t.nudges.ReceiveAsync(&n) {
		t.heard(ctx, n)
	}
}

// heard acts on what a nudge says beyond "look again".
func (t *threadRun) heard(ctx workflow.Context, n contract.Nudge) {
	t.nudged = true
	switch {
	case n.Kind == contract.NudgeStop && t.running != nil && n.TurnID == t.running.turn.ID:
		t.running.stop()
	case n.Kind == contract.NudgeStop && slices.Contains(t.in.Children, n.TurnID):
		stopChild(ctx, n.TurnID)
	case n.Kind == contract.NudgeStop && !slices.Contains(t.stops, n.TurnID):
		t.stops = append(t.stops, n.TurnID)
	case n.Kind == contract.NudgeWork && n.TurnID == "":
		t.swept = true
	}
}

// stopChild passes a stop on. The turn's flag stands in Postgres; this is the backup of the notification.
func stopChild(ctx workflow.Context, turnID string) {
	n := contract.Nudge{Kind: contract.NudgeStop, TurnID: turnID}
	workflow.SignalExternalWorkflow(ctx, contract.TurnWorkflowID(turnID), "", contract.NudgeSignal, n)
}

// claim reads what is to be done, and starts the background turns that are not known to run.
func (t *threadRun) claim(ctx workflow.Context) error {
	t.nudged = false
	var claimed contract.Claimed
	step := local(ctx, "Claim the next turn")
	if err := workflow.ExecuteLocalActivity(step, contract.ClaimActivity, t.in.ThreadID).Get(step, &claimed); err != nil {
		return err
	}
	t.claimed = claimed
	swept := t.swept
	t.swept = false
	var live []string
	for _, turn := range t.claimed.Background {
		live = append(live, turn.ID)
		if swept || !slices.Contains(t.in.Children, turn.ID) {
			t.startChild(ctx, turn)
		}
	}
	t.in.Children = live
	for _, id := range t.stops {
		if slices.Contains(live, id) {
			stopChild(ctx, id)
		}
	}
	t.stops = nil
	return nil
}

// startChild starts a background turn. It outlives this run, so it is abandoned to itself and reports by a nudge. One
// that is already there is as good.
func (t *threadRun) startChild(ctx workflow.Context, turn contract.TurnRef) {
	ctx = workflow.WithChildOptions(ctx, workflow.ChildWorkflowOptions{
		WorkflowID:            contract.TurnWorkflowID(turn.ID),
		ParentClosePolicy:     enums.PARENT_CLOSE_POLICY_ABANDON,
		WorkflowIDReusePolicy: enums.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE,
		StaticSummary:         "Background turn from " + string(turn.Source),
		WorkflowTaskTimeout:   taskTimeout,
		TypedSearchAttributes: attributes(t.in.ThreadID, t.claimed.OwnerID, turn, string(thread.TurnRunning)),
		Priority:              temporal.Priority{PriorityKey: contract.BackgroundPriority, FairnessKey: contract.FairnessKey(t.claimed.OwnerID)},
	})
	in := contract.BackgroundInput{Turn: turn, Settings: t.claimed.Settings}
	child := workflow.ExecuteChildWorkflow(ctx, contract.BackgroundWorkflow, in)
	if err := child.GetChildWorkflowExecution().Get(ctx, nil); err != nil && !temporal.IsWorkflowExecutionAlreadyStartedError(err) {
		workflow.GetLogger(ctx).Warn("background turn not started; the sweep tries again", "turn", turn.ID, "error", err)
	}
}

// turn drives one conversation turn to its end and returns the next, which the end claimed.
func (t *threadRun) turn(ctx workflow.Context, turn contract.TurnRef) (*contract.TurnRef, error) {
	root := ctx
	ctx = workflow.WithEventGroups(root, turnGroup(turn))
	t.running = newTurnRun(turn, t.claimed.Settings)
	defer func() { t.running = nil }()
	t.running.changed = func() { t.show(ctx) }
	t.running.full = func() bool { return t.full(ctx) }
	t.running.waiting = t.claimed.Waiting
	t.running.long = func() { t.mark(ctx, turn, thread.TurnRunning) }
	t.show(ctx)

	ended := workflow.NewBufferedChannel(ctx, 1)
	var out contract.Ended
	var failed error
	workflow.Go(ctx, func(ctx workflow.Context) {
		out, failed = t.running.drive(ctx)
		ended.Send(ctx, nil)
	})
	t.follow(root, ended)
	if failed != nil {
		return nil, failed
	}
	t.remember(ctx, out)
	if out.Next == nil {
		t.mark(ctx, turn, out.Status)
	}
	return out.Next, nil
}

// follow listens while a turn runs: for a stop of the turn, for background turns, and for what the stint tells of itself.
func (t *threadRun) follow(ctx workflow.Context, ended workflow.ReceiveChannel) {
	done := false
	claim := false
	s := workflow.NewSelector(ctx).
		AddReceive(ended, func(c workflow.ReceiveChannel, _ bool) {
			c.Receive(ctx, nil)
			done = true
		}).
		AddReceive(t.nudges, func(c workflow.ReceiveChannel, _ bool) {
			var n contract.Nudge
			c.Receive(ctx, &n)
			t.heard(ctx, n)
			switch {
			case n.Kind == contract.NudgeBackground, n.TurnID == "":
				claim = true
			case n.Kind == contract.NudgeWork && n.TurnID != t.running.turn.ID:
				t.running.waiting++
				t.show(ctx)
			}
		}).
		AddReceive(t.progress, func(c workflow.ReceiveChannel, _ bool) {
			var p contract.Progress
			c.Receive(ctx, &p)
			t.running.heard(p)
		})
	for !done {
		if s.Select(ctx); claim {
			claim = false
			if err := t.claim(ctx); err != nil {
				workflow.GetLogger(ctx).Warn("claim failed; the next turn's end tries again", "error", err)
			}
		}
	}
}

// wait returns when there is something to look at, and false when the thread has been idle for long enough.
func (t *threadRun) wait(ctx workflow.Context) (more bool) {
	t.show(ctx)
	idle, retry := t.claimed.Settings.Idle, t.claimed.RetryIn
	timeout := idle
	if retry > 0 {
		timeout = retry
	}
	timer, cancel := workflow.WithCancel(ctx)
	defer cancel()
	fired := false
	s := workflow.NewSelector(ctx).
		AddReceive(t.nudges, func(c workflow.ReceiveChannel, _ bool) {
			var n contract.Nudge
			c.Receive(ctx, &n)
			t.heard(ctx, n)
		}).
		AddFuture(workflow.NewTimerWithOptions(timer, timeout, workflow.TimerOptions{Summary: waitSummary(retry)}), func(workflow.Future) {
			fired = true
		})
	s.Select(ctx)
	return !fired || retry > 0 || t.nudges.Len() > 0
}

func waitSummary(retry time.Duration) string {
	if retry > 0 {
		return "Until a failed turn is tried again"
	}
	return "Until the thread's workflow rests"
}

func (t *threadRun) full(ctx workflow.Context) bool { return full(ctx, t.claimed.Settings) }

// full reports whether a workflow's history should start afresh.
func full(ctx workflow.Context, s contract.Settings) bool {
	info := workflow.GetInfo(ctx)
	return info.GetContinueAsNewSuggested() || info.GetCurrentHistoryLength() >= s.RollOver
}

// rollOver continues as new. The nudges that have arrived are dropped: the new run starts with a claim.
func (t *threadRun) rollOver(ctx workflow.Context) error {
	t.drain(ctx)
	if t.swept {
		t.in.Children = nil
	}
	var p contract.Progress
	for t.progress.ReceiveAsync(&p) {
		continue
	}
	return workflow.NewContinueAsNewError(ctx, contract.ThreadWorkflow, t.in)
}

func (t *threadRun) remember(ctx workflow.Context, out contract.Ended) {
	t.in.Lines = append(t.in.Lines, t.running.line(ctx, out))
	t.in.Lines = t.in.Lines[max(0, len(t.in.Lines)-shownTurns):]
}
