package activities

import (
	"context"
	"time"

	"bobbin/contract"
	"bobbin/thread"
	"bobbin/tracing"
)

// Claim starts what is due in a thread and says what is to be driven. It is a local activity.
func (a *Activities) Claim(ctx context.Context, threadID string) (contract.Claimed, error) {
	c, err := a.Store.Claim(ctx, threadID)
	if err != nil {
		return contract.Claimed{}, failure(err)
	}
	out := contract.Claimed{
		OwnerID: c.OwnerID, Conversation: turnRef(c.Conversation), Waiting: c.Waiting, Archived: c.Archived, Settings: a.Settings,
	}
	for _, t := range c.Background {
		out.Background = append(out.Background, *turnRef(&t))
	}
	if c.RetryAt != nil {
		out.RetryIn = max(time.Millisecond, c.RetryAt.Sub(c.Now))
	}
	return out, nil
}

func turnRef(t *thread.Turn) *contract.TurnRef {
	if t == nil {
		return nil
	}
	return &contract.TurnRef{ID: t.ID, ThreadID: t.ThreadID, Kind: t.Kind, Source: t.Source, Mode: t.Mode, Attempt: t.Attempt, Trace: t.Trace}
}

// traced is the turn in its trace.
func traced(t contract.TurnRef) tracing.Turn {
	return tracing.Turn{ID: t.ID, ThreadID: t.ThreadID, Parent: t.Trace}
}
