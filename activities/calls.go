package activities

import (
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"bobbin/agent"
	"bobbin/store"
	"bobbin/thread"
	"bobbin/tools"
)

// cutOff is what the model reads of a call that the turn's time limit ended.
const cutOff = "The turn's time limit was reached before this call had a result."

// noApproval is what the model reads of a tool that a person must agree to.
const noApproval = "This tool needs a person's approval, and this server cannot ask for one. It did not run; say what you would have done."

// runCalls runs the calls of a round in parallel, each result recorded as it comes. Those with side effects are left open
// for the workflow. ErrMoved: another holder's result of a call stands.
func (s *stint) runCalls(ctx context.Context, calls []thread.Call, limit time.Duration) ([]thread.Call, error) {
	limited, cancel := context.WithTimeoutCause(ctx, limit, agent.ErrTimeUp)
	defer cancel()
	if len(calls) > 0 {
		limited = s.round(limited, calls[0].Round)
	}
	var inside []*thread.Call
	var names []string
	for i := range calls {
		c := &calls[i]
		if t, ok := s.Tools.Lookup(c.Name); ok && t.Approval == tools.ApprovalAsk && c.State.Open() {
			c.State, c.Result = thread.CallFailed, noApproval
		} else if ok && t.SideEffects() && c.State.Open() {
			continue
		}
		inside = append(inside, c)
		names = append(names, s.known(c.Name))
	}
	if len(inside) > 0 {
		s.enter(ctx, calls[0].Round, names)
	}
	var moved, waits atomic.Bool
	group, limited := errgroup.WithContext(limited)
	for _, c := range inside {
		group.Go(func() error {
			if c.State.Open() {
				if err := s.runTool(limited, s.ref, c); err != nil {
					return err
				}
			}
			err := insist(ctx, func(ctx context.Context) error {
				steered, err := s.Store.FinishCall(ctx, s.ref, *c)
				if steered {
					waits.Store(true)
				}
				return err
			})
			if errors.Is(err, thread.ErrMoved) { // the others may go on
				moved.Store(true)
				return nil
			}
			return err
		})
	}
	err := group.Wait()
	switch {
	case err == nil && moved.Load():
		err = thread.ErrMoved
	case waits.Load():
		s.head = headWaits
	case len(inside) > 0:
		s.head = headEmpty // the last of them was written with nothing on the steering row
	}
	return calls, err
}

// runTool runs a call and puts its result in c. The error is the cause of ctx's end, but for the turn's time limit, which
// is a result.
func (a *Activities) runTool(ctx context.Context, ref store.TurnRef, c *thread.Call) error {
	defer a.metrics.ran(a.known(c.Name), c, time.Now())
	ctx, span := a.execute(ctx, c)
	defer func() { span.End(executed(c)) }()
	res, err := a.Tools.Run(ctx, c.Name, tools.Call{
		Key: c.Key(), ThreadID: ref.ThreadID, TurnID: ref.ID, Arguments: json.RawMessage(c.Arguments),
	})
	switch {
	case errors.Is(err, agent.ErrTimeUp):
		c.State, c.Result = thread.CallFailed, cutOff
	case err != nil:
		return err
	case res.Failed:
		c.State, c.Result = thread.CallFailed, res.Text
	default:
		c.State, c.Result = thread.CallSucceeded, res.Text
	}
	return nil
}
