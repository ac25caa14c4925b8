package workflows_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	sdkpb "go.temporal.io/api/sdk/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/workflow"

	"bobbin/contract"
	"bobbin/thread"
)

// A bench is a desk and the SDK's test environment, whose time passes by itself while nothing runs.
type bench struct {
	*desk
	t   *testing.T
	env *testsuite.TestWorkflowEnvironment

	cancelled chan struct{} // an activity was cancelled: the environment tells the workflow, but not the activity
}

func setup(t *testing.T) *bench {
	t.Helper()
	t.Parallel()
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(quiet{})
	b := &bench{newDesk(), t, suite.NewTestWorkflowEnvironment(), make(chan struct{}, 10)}
	b.env.SetTestTimeout(time.Minute)
	b.env.SetOnActivityCanceledListener(func(*activity.Info) { b.cancelled <- struct{}{} })
	b.register(b.env)
	return b
}

// run runs the thread's workflow to its end and returns its error.
func (b *bench) run(in contract.ThreadInput) error {
	b.t.Helper()
	in.ThreadID = "thr_1"
	b.env.ExecuteWorkflow(contract.ThreadWorkflow, in)
	require.True(b.t, b.env.IsWorkflowCompleted())
	return b.env.GetWorkflowError()
}

func (b *bench) nudge(kind contract.NudgeKind, turnID string) {
	b.env.SignalWorkflow(contract.NudgeSignal, contract.Nudge{Kind: kind, TurnID: turnID})
}

func (b *bench) logged(want ...string) {
	b.t.Helper()
	require.Empty(b.t, cmp.Diff(want, b.noted()))
}

// details are what the workflow shows in Temporal's UI.
func (b *bench) details() string {
	b.t.Helper()
	v, err := b.env.QueryWorkflow("__temporal_workflow_metadata")
	require.NoError(b.t, err)
	var m sdkpb.WorkflowMetadata
	require.NoError(b.t, v.Get(&m))
	return m.GetCurrentDetails()
}

// stints makes each turn's stints come back with one outcome after the other.
func (b *bench) stintsOf(outcomes ...contract.StintResult) {
	b.stint = func(_ context.Context, _ contract.TurnRef, n int) (contract.StintResult, error) {
		return outcomes[n-1], nil
	}
}

var answered = contract.StintResult{Outcome: contract.StintAnswered}

func TestThreadRunsTurnsInOrderAndThenRests(t *testing.T) {
	b := setup(t)
	b.waiting = conversation("a", "b", "c")
	require.NoError(t, b.run(contract.ThreadInput{}))
	b.logged("claim", "stint a 1", "end a succeeded ", "stint b 1", "end b succeeded ", "stint c 1", "end c succeeded ")
}

func TestThreadRestsOnlyAfterItsIdleTime(t *testing.T) {
	b := setup(t)
	began := b.env.Now()
	require.NoError(t, b.run(contract.ThreadInput{}))
	require.Equal(t, b.settings.Idle, b.env.Now().Sub(began).Round(time.Second))
}

func TestThreadTakesUpWhatComesWhileItIsIdle(t *testing.T) {
	b := setup(t)
	b.env.RegisterDelayedCallback(func() {
		b.add(func() { b.waiting = conversation("a") })
		b.nudge(contract.NudgeWork, "a")
	}, time.Minute)
	require.NoError(t, b.run(contract.ThreadInput{}))
	b.logged("claim", "claim", "stint a 1", "end a succeeded ")
}

func TestThreadGoesOnStintAfterStint(t *testing.T) {
	b := setup(t)
	b.waiting = conversation("a")
	budget := contract.StintResult{Outcome: contract.StintBudget}
	b.stintsOf(budget, budget, answered)
	require.NoError(t, b.run(contract.ThreadInput{}))
	b.logged("claim", "stint a 1", "stint a 2", "stint a 3", "end a succeeded ")
}

func TestThreadPassesAStintsFailureToTheEnd(t *testing.T) {
	b := setup(t)
	b.waiting = conversation("a")
	b.stintsOf(contract.StintResult{Outcome: contract.StintFailed, Fail: thread.FailModelQuota})
	require.NoError(t, b.run(contract.ThreadInput{}))
	b.logged("claim", "stint a 1", "end a failed model_quota")
}

func TestThreadWaitsAsLongAsTheProviderAsks(t *testing.T) {
	b := setup(t)
	b.waiting = conversation("a")
	b.stintsOf(contract.StintResult{Outcome: contract.StintWait, Wait: 3 * time.Minute}, answered)
	began := b.env.Now()
	var again time.Duration
	b.env.SetOnTimerFiredListener(func(string) {
		if again == 0 {
			again = b.env.Now().Sub(began).Round(time.Second)
		}
	})
	require.NoError(t, b.run(contract.ThreadInput{}))
	require.Equal(t, 3*time.Minute, again)
	b.logged("claim", "stint a 1", "stint a 2", "end a succeeded ")
}

func TestThreadRetriesAStintWhoseWorkerDied(t *testing.T) {
	b := setup(t)
	b.waiting = conversation("a")
	b.stint = func(_ context.Context, _ contract.TurnRef, n int) (contract.StintResult, error) {
		if n < 4 {
			return contract.StintResult{}, temporal.NewApplicationError("the worker died", contract.WorkerGone)
		}
		return answered, nil
	}
	require.NoError(t, b.run(contract.ThreadInput{}))
	b.logged("claim", "stint a 1", "stint a 2", "stint a 3", "stint a 4", "end a succeeded ")
}

func TestThreadRunsToolsOfARoundAtOnceAndOnceEach(t *testing.T) {
	b := setup(t)
	b.waiting = conversation("a")
	turn := b.waiting[0]
	b.stintsOf(contract.StintResult{Outcome: contract.StintTools, Tools: []contract.ToolRef{
		{Turn: turn, Round: 1, Index: 0, Name: "send", Limit: time.Minute}, {Turn: turn, Round: 1, Index: 1, Name: "book", Limit: time.Minute},
	}}, answered)
	var both sync.WaitGroup
	both.Add(2)
	b.tool = func(contract.ToolRef) error { // each waits for the other: one after the other would hang
		both.Done()
		both.Wait()
		return errors.New("its worker died: the next stint decides")
	}
	require.NoError(t, b.run(contract.ThreadInput{}))
	require.Len(t, only(b.noted(), "tool"), 2)
	require.Equal(t, []string{"stint a 1", "stint a 2", "end a succeeded "}, only(b.noted(), "stint", "end"))
}

func TestThreadEndsAStoppedTurnAndRunsTheNext(t *testing.T) {
	b := setup(t)
	b.waiting = conversation("a", "b")
	b.stint = func(ctx context.Context, turn contract.TurnRef, _ int) (contract.StintResult, error) {
		if turn.ID == "b" {
			return answered, nil
		}
		b.add(func() { b.stopping["a"] = true })
		b.nudge(contract.NudgeStop, "a")
		<-b.cancelled
		return contract.StintResult{}, ctx.Err()
	}
	require.NoError(t, b.run(contract.ThreadInput{}))
	require.Equal(t, []string{"stint a 1", "end a cancelled internal", "stint b 1", "end b succeeded "}, only(b.noted(), "stint", "end"))
}

func TestThreadStopsATurnThatWaitsForTheProvider(t *testing.T) {
	b := setup(t)
	b.waiting = conversation("a")
	b.stintsOf(contract.StintResult{Outcome: contract.StintWait, Wait: time.Hour})
	began := b.env.Now()
	b.env.RegisterDelayedCallback(func() {
		b.add(func() { b.stopping["a"] = true })
		b.nudge(contract.NudgeStop, "a")
	}, time.Minute)
	require.NoError(t, b.run(contract.ThreadInput{}))
	b.logged("claim", "stint a 1", "end a cancelled internal", "claim")
	require.Less(t, b.env.Now().Sub(began), 30*time.Minute)
}

func TestThreadIgnoresAStopOfATurnThatRunsNoMore(t *testing.T) {
	b := setup(t)
	b.waiting = conversation("a")
	b.stint = func(context.Context, contract.TurnRef, int) (contract.StintResult, error) {
		b.nudge(contract.NudgeStop, "before")
		return answered, nil
	}
	require.NoError(t, b.run(contract.ThreadInput{}))
	require.Equal(t, []string{"stint a 1", "end a succeeded "}, only(b.noted(), "stint", "end"))
}

func TestThreadLosesNoNudgeThatComesWhileATurnRuns(t *testing.T) {
	b := setup(t)
	b.waiting = conversation("a")
	b.stint = func(_ context.Context, turn contract.TurnRef, _ int) (contract.StintResult, error) {
		if turn.ID == "a" {
			for i := range 5 {
				id := fmt.Sprint("b", i)
				b.add(func() { b.waiting = append(b.waiting, conversation(id)...) })
				b.nudge(contract.NudgeWork, id)
			}
		}
		return answered, nil
	}
	require.NoError(t, b.run(contract.ThreadInput{}))
	require.Len(t, only(b.noted(), "end"), 6)
}

func TestThreadLooksOnceMoreForWhatCameWhileItsLastTurnEnded(t *testing.T) {
	b := setup(t)
	b.waiting = conversation("a")
	b.stint = func(_ context.Context, turn contract.TurnRef, _ int) (contract.StintResult, error) {
		if turn.ID == "a" {
			b.nudge(contract.NudgeWork, "b") // heard while a runs
		}
		return answered, nil
	}
	b.after = func(turnID string) {
		if turnID == "a" {
			b.waiting = conversation("b")
		}
	}
	require.NoError(t, b.run(contract.ThreadInput{}))
	require.Equal(t, []string{"end a succeeded ", "end b succeeded "}, only(b.noted(), "end"))
}

func TestThreadStartsBackgroundTurnsWhileItsOwnTurnRuns(t *testing.T) {
	b := setup(t)
	b.waiting = conversation("a")
	started := make(chan struct{})
	b.stint = func(_ context.Context, turn contract.TurnRef, _ int) (contract.StintResult, error) {
		if turn.ID == "bg" {
			close(started)
			return answered, nil
		}
		b.add(func() { b.background = append(b.background, background("bg")) })
		b.nudge(contract.NudgeBackground, "bg")
		<-started
		return answered, nil
	}
	require.NoError(t, b.run(contract.ThreadInput{}))
	require.Contains(t, b.noted(), "end bg succeeded ")
	require.Contains(t, b.noted(), "end a succeeded ")
}

func TestThreadPassesAStopToItsBackgroundTurn(t *testing.T) {
	b := setup(t)
	b.background = append(b.background, background("bg"))
	b.stint = func(ctx context.Context, _ contract.TurnRef, _ int) (contract.StintResult, error) {
		b.add(func() { b.stopping["bg"] = true })
		b.nudge(contract.NudgeWork, "") // a sweep before it does not hide the child
		b.nudge(contract.NudgeStop, "bg")
		<-b.cancelled
		return contract.StintResult{}, ctx.Err()
	}
	require.NoError(t, b.run(contract.ThreadInput{}))
	require.Contains(t, b.noted(), "end bg cancelled internal")
}

// The nudge starts the thread's workflow, which knows of no child yet.
func TestThreadPassesOnAStopThatCameBeforeItsFirstClaim(t *testing.T) {
	b := setup(t)
	b.background = append(b.background, background("bg"), background("other"))
	b.stint = func(ctx context.Context, turn contract.TurnRef, _ int) (contract.StintResult, error) {
		if turn.ID == "other" {
			return answered, nil
		}
		<-b.cancelled
		return contract.StintResult{}, ctx.Err()
	}
	b.env.RegisterDelayedCallback(func() {
		b.add(func() { b.stopping["bg"] = true })
		b.nudge(contract.NudgeStop, "bg")
		b.nudge(contract.NudgeStop, "ended long ago")
	}, 0)
	require.NoError(t, b.run(contract.ThreadInput{}))
	require.Equal(t, "claim", b.noted()[0])
	require.ElementsMatch(t, []string{"end bg cancelled internal", "end other succeeded "}, only(b.noted(), "end"))
}

func TestThreadStartsAChildAgainThatASweepFindsStandingStill(t *testing.T) {
	b := setup(t)
	b.background = append(b.background, background("bg"))
	b.env.RegisterDelayedCallback(func() { b.nudge(contract.NudgeBackground, "bg") }, time.Second)
	b.env.RegisterDelayedCallback(func() { b.nudge(contract.NudgeWork, "") }, time.Minute)
	require.NoError(t, b.run(contract.ThreadInput{Children: []string{"bg"}})) // its workflow was terminated
	require.Equal(t, []string{"claim", "claim", "claim", "stint bg 1", "end bg succeeded "}, b.noted())
}

func TestThreadTriesAFailedTurnAgainWhenItsTimeHasCome(t *testing.T) {
	b := setup(t)
	b.waiting, b.retryIn = conversation("a"), 10*time.Minute // longer than it idles
	began := b.env.Now()
	var tried time.Duration
	b.stint = func(context.Context, contract.TurnRef, int) (contract.StintResult, error) {
		tried = b.env.Now().Sub(began).Round(time.Second)
		return answered, nil
	}
	require.NoError(t, b.run(contract.ThreadInput{}))
	require.Equal(t, 10*time.Minute, tried)
	b.logged("claim", "claim", "stint a 1", "end a succeeded ")
}

func TestThreadContinuesAsNewBetweenTurns(t *testing.T) {
	b := setup(t)
	b.waiting = conversation("a", "b")
	b.stint = func(_ context.Context, turn contract.TurnRef, _ int) (contract.StintResult, error) {
		if turn.ID == "a" {
			b.env.SetCurrentHistoryLength(b.settings.RollOver)
		}
		return answered, nil
	}
	in := continued(t, b.run(contract.ThreadInput{}))
	b.logged("claim", "stint a 1", "end a succeeded ") // b is claimed: the run row names it
	require.Equal(t, "thr_1", in.ThreadID)
	require.Len(t, in.Lines, 1)

	next := setupAgain(t, b)
	require.NoError(t, next.run(in))
	require.Equal(t, []string{"claim", "stint b 1", "end b succeeded "}, next.noted()[3:])
}

func TestThreadDrivesAStintBeforeItContinuesAsNew(t *testing.T) {
	b := setup(t)
	b.waiting = conversation("a")
	b.settings.RollOver = 1
	b.stint = func(context.Context, contract.TurnRef, int) (contract.StintResult, error) { return budget, nil }
	b.env.SetCurrentHistoryLength(b.settings.RollOver)
	continued(t, b.run(contract.ThreadInput{}))
	b.logged("claim", "stint a 1")
}

func TestThreadThatHasNothingToDoWaitsBeforeItContinuesAsNew(t *testing.T) {
	b := setup(t)
	b.settings.RollOver = 1
	b.env.SetCurrentHistoryLength(b.settings.RollOver)
	require.NoError(t, b.run(contract.ThreadInput{}))
	b.logged("claim")
}

func TestThreadContinuesAsNewBetweenStints(t *testing.T) {
	b := setup(t)
	b.waiting = conversation("a")
	b.background = append(b.background, background("bg"))
	b.stint = func(_ context.Context, turn contract.TurnRef, n int) (contract.StintResult, error) {
		switch {
		case turn.ID == "bg":
			return answered, nil
		case n == 1:
			b.env.SetContinueAsNewSuggested(true)
			return contract.StintResult{Outcome: contract.StintBudget}, nil
		}
		return answered, nil
	}
	in := continued(t, b.run(contract.ThreadInput{}))
	require.Equal(t, []string{"bg"}, in.Children)
	require.NotContains(t, b.noted(), "end a succeeded ")

	next := setupAgain(t, b)
	require.NoError(t, next.run(in))
	require.Contains(t, next.noted(), "stint a 2")
	require.Contains(t, next.noted(), "end a succeeded ")
}

func TestBackgroundContinuesAsNewBetweenStints(t *testing.T) {
	b := setup(t)
	b.stint = func(context.Context, contract.TurnRef, int) (contract.StintResult, error) {
		b.env.SetContinueAsNewSuggested(true)
		return contract.StintResult{Outcome: contract.StintBudget}, nil
	}
	in := contract.BackgroundInput{Turn: background("bg"), Settings: b.settings}
	b.env.ExecuteWorkflow(contract.BackgroundWorkflow, in)
	var got contract.BackgroundInput
	decode(t, b.env.GetWorkflowError(), &got)
	require.Empty(t, cmp.Diff(in, got))
	b.logged("stint bg 1")
}

func TestBackgroundEndsAStoppedTurn(t *testing.T) {
	b := setup(t)
	b.stint = func(ctx context.Context, _ contract.TurnRef, _ int) (contract.StintResult, error) {
		b.add(func() { b.stopping["bg"] = true })
		b.nudge(contract.NudgeStop, "bg")
		<-b.cancelled
		return contract.StintResult{}, ctx.Err()
	}
	b.env.ExecuteWorkflow(contract.BackgroundWorkflow, contract.BackgroundInput{Turn: background("bg"), Settings: b.settings})
	require.NoError(t, b.env.GetWorkflowError())
	b.logged("stint bg 1", "end bg cancelled internal")
}

// An operator who cancels a workflow in Temporal's UI ends the workflow, not the turn: it still runs in Postgres, and the
// sweep has another workflow go on with it. To stop a turn there is the API.
func TestThreadThatAnOperatorCancelsLeavesItsTurnToTheSweep(t *testing.T) {
	b := setup(t)
	b.waiting = conversation("a")
	b.stint = func(ctx context.Context, _ contract.TurnRef, n int) (contract.StintResult, error) {
		if n == 1 {
			b.env.CancelWorkflow()
			<-b.cancelled
		}
		return answered, ctx.Err()
	}
	var cancelled *temporal.CanceledError
	require.ErrorAs(t, b.run(contract.ThreadInput{}), &cancelled)
	b.logged("claim", "stint a 1")

	next := setupAgain(t, b)
	require.NoError(t, next.run(contract.ThreadInput{}))
	require.Contains(t, next.noted(), "end a succeeded ")
}

func TestThreadThatAnOperatorCancelsWhileItIsIdleEnds(t *testing.T) {
	b := setup(t)
	b.retryIn = time.Hour
	b.env.RegisterDelayedCallback(b.env.CancelWorkflow, time.Minute)
	require.Error(t, b.run(contract.ThreadInput{}))
	b.logged("claim")
}

func TestThreadShowsTheLastTurns(t *testing.T) {
	b := setup(t)
	b.waiting = conversation("a", "b")
	b.stint = func(_ context.Context, turn contract.TurnRef, _ int) (contract.StintResult, error) {
		if turn.ID == "a" {
			return answered, nil
		}
		return contract.StintResult{Outcome: contract.StintFailed, Fail: thread.FailInternal}, nil
	}
	require.NoError(t, b.run(contract.ThreadInput{}))
	require.Empty(t, cmp.Diff(`**Idle**

| turn | source | status | rounds | tokens | cost | took |
| --- | --- | --- | --- | --- | --- | --- |
| b | user | failed | 2 | 350 | $0.0120 | 0s |
| a | user | succeeded | 2 | 350 | $0.0120 | 0s |
`, b.details()))
}

// continued returns the input of the run that a workflow continues as.
func continued(t *testing.T, err error) (in contract.ThreadInput) {
	t.Helper()
	decode(t, err, &in)
	return in
}

func decode(t *testing.T, err error, in any) {
	t.Helper()
	var c *workflow.ContinueAsNewError
	require.ErrorAs(t, err, &c)
	require.NoError(t, converter.GetDefaultDataConverter().FromPayloads(c.Input, in))
}

// setupAgain runs on with what b's desk holds, in another workflow.
func setupAgain(t *testing.T, b *bench) *bench {
	t.Helper()
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(quiet{})
	next := &bench{b.desk, t, suite.NewTestWorkflowEnvironment(), b.cancelled}
	next.env.SetTestTimeout(time.Minute)
	next.register(next.env)
	return next
}

// quiet logs nothing.
type quiet struct{}

func (quiet) Debug(string, ...any) {}
func (quiet) Info(string, ...any)  {}
func (quiet) Warn(string, ...any)  {}
func (quiet) Error(string, ...any) {}
