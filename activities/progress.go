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
	told  bool      // of this phase
	last  time.Time // that anything was told
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

// A signal costs the workflow a task of its own, so they are kept apart.
const progressEvery = 10 * time.Second

// tell tells the workflow of a phase that takes long, for Temporal's UI. Short ones stand in the stint's result.
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
	if s.now.told || s.now.since.IsZero() || time.Since(s.now.since) < s.ProgressAfter || time.Since(s.now.last) < progressEvery {
		return contract.Progress{}, false
	}
	s.now.told, s.now.last = true, time.Now()
	return contract.Progress{TurnID: s.turn.ID, Round: s.now.round, Tools: s.now.tools}, true
}
