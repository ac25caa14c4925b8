package activities

import (
	"context"
	"time"

	"go.temporal.io/sdk/activity"

	"bobbin/agent"
	"bobbin/store"
	"bobbin/thread"
)

// summarise makes, and pays for, the model call that summarises the older part of a session. It is no round: nothing of it is shown while
// it is written, and people see the phase.
func (s *stint) summarise(ctx context.Context, p thread.Prompt, limit time.Duration) (thread.Reply, error) {
	s.enter(ctx, s.line.Round, nil)
	if err := s.Store.Summarising(ctx, s.ref); err != nil {
		return thread.Reply{}, err
	}
	limited, cancel := context.WithTimeoutCause(ctx, limit, agent.ErrTimeUp)
	defer cancel()
	reply, charge, err := s.ask(limited, s.line.Round, p, nil)
	if err == nil {
		s.settle(ctx, charge)
	}
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		return reply, agent.ErrTimeUp
	}
	if failed := thread.AsModelError(err); failed != nil {
		activity.GetLogger(ctx).Warn("summary failed", "turn", s.turn.ID, "kind", string(failed.Kind), "status", failed.Status,
			"code", failed.Code, "cause", causeOf(failed))
	}
	return reply, err
}

func (s *stint) compact(ctx context.Context, c agent.Compaction) error {
	row := store.Summary{
		N: c.N, Last: c.Last, Text: c.Text, Model: c.Model, Entries: c.Entries, Tokens: c.Tokens, Usage: c.Usage,
	}
	return insist(ctx, func(ctx context.Context) error { return s.Store.Compact(ctx, s.ref, row) })
}

func (s *stint) recover(ctx context.Context, r agent.Recovery) error {
	return insist(ctx, func(ctx context.Context) error { return s.Store.Recover(ctx, s.ref, r.Refused, r.NoSummary) })
}
