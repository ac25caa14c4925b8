package activities

import (
	"context"
	"sync"
	"time"

	"go.temporal.io/sdk/activity"

	"bobbin/contract"
)

// phase is what a stint does at the moment.
type phase struct {
	mu    sync.Mutex
	round int
	tools []string
	since time.Time
	told  bool
}

// enter says what the stint does from now on; no tools means that the model writes.
func (s *stint) enter(ctx context.Context, round int, tools []string) {
	if ctx.Err() != nil {
		return
	}
	s.now.mu.Lock()
	defer s.now.mu.Unlock()
	s.now.round, s.now.tools, s.now.since, s.now.told = round, tools, time.Now(), false
}

// tell tells the workflow once of each phase that takes long, for Temporal's UI. Short ones stand in the stint's result.
func (s *stint) tell(ctx context.Context) {
	tick := time.NewTicker(s.ProgressAfter / 2)
	defer tick.Stop()
	workflow := activity.GetInfo(ctx).WorkflowExecution
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		p, long := s.long()
		if !long {
			continue
		}
		p.Waiting, _ = s.Store.Waiting(ctx, s.ref.ThreadID)
		if err := s.Temporal.SignalWorkflow(ctx, workflow.ID, workflow.RunID, contract.ProgressSignal, p); err != nil && ctx.Err() == nil {
			activity.GetLogger(ctx).Debug("progress not told", "turn", s.turn.ID, "error", err)
		}
	}
}

func (s *stint) long() (contract.Progress, bool) {
	s.now.mu.Lock()
	defer s.now.mu.Unlock()
	if s.now.told || s.now.since.IsZero() || time.Since(s.now.since) < s.ProgressAfter {
		return contract.Progress{}, false
	}
	s.now.told = true
	return contract.Progress{TurnID: s.turn.ID, Round: s.now.round, Tools: s.now.tools}, true
}
