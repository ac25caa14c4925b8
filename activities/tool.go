package activities

import (
	"context"
	"errors"
	"sync"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"

	"bobbin/contract"
	"bobbin/store"
	"bobbin/thread"
)

// Tool runs one call of a tool with side effects. It is registered for every activity type that has no other, as its type
// is the tool's name. It has one attempt: that it starts is recorded before it runs, and a call that was started is not run
// again, whoever asks. What came of it stands in the step log.
func (a *Activities) Tool(ctx context.Context, args converter.EncodedValues) (struct{}, error) {
	var in contract.ToolRef
	if err := args.Get(&in); err != nil {
		return struct{}{}, err
	}
	at := a.attempt(ctx, in.Turn.ID)
	if err := a.Store.BeginAttempt(ctx, at); err != nil {
		return struct{}{}, failure(err)
	}
	defer a.leave(ctx, at)
	defer a.metrics.use(slotTool)()
	ref := refOf(in.Turn)
	ctx = traced(in.Turn).Within(ctx)
	var call thread.Call
	var ok bool
	start := &store.Start{WorkerID: a.WorkerID}
	err := insist(ctx, func(ctx context.Context) (err error) { // one that stands unknown would keep the turn waiting for nobody
		call, ok, err = a.Store.StartCall(ctx, ref, in.Round, in.Index, start)
		return err
	})
	if err != nil || !ok {
		return struct{}{}, failure(quiet(err))
	}
	stop := make(chan struct{})
	forget := a.Store.OnStop(in.Turn.ID, sync.OnceFunc(func() { close(stop) }))
	defer forget()
	beating, cancel := context.WithCancel(ctx)
	defer cancel()
	go a.beat(beating)
	// That ctx ends is no reason to let go: a worker that drains, or that Temporal gave up, still holds the outcome.
	select {
	case err = <-a.act(ctx, ref, call):
		return struct{}{}, failure(quiet(err))
	case <-stop: // the turn ends now; what has begun outside goes on to its end
		return struct{}{}, nil
	}
}

// act runs a call that was started, to its own time limit, whatever becomes of the turn, and records the outcome.
func (a *Activities) act(ctx context.Context, ref store.TurnRef, call thread.Call) <-chan error {
	done := make(chan error, 1)
	ctx = context.WithoutCancel(ctx)
	a.detached.Go(func() {
		err := a.runTool(ctx, ref, &call)
		if err == nil {
			err = insist(ctx, func(ctx context.Context) error {
				_, err := a.Store.FinishCall(ctx, ref, call)
				return err
			})
		}
		if quiet(err) != nil {
			activity.GetLogger(ctx).Error("a tool's outcome was not recorded", "turn", ref.ID, "tool", call.Name, "error", err)
		}
		done <- err
	})
	return done
}

// quiet drops the fence's error: that the turn has ended is no failure of the tool.
func quiet(err error) error {
	if errors.Is(err, thread.ErrFenced) {
		return nil
	}
	return err
}
