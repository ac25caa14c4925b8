package agent

import (
	"context"
	"slices"

	"bobbin/thread"
)

// A Recovery is what a turn does once, until a message is loaded.
type Recovery struct {
	Refused   int64 // estimated tokens of a prompt that the provider refused as too long; 0: none
	NoSummary bool  // no summary could be had; the failures of the call under way are forgotten
}

// refused makes the prompt that the provider refused as too long shorter, once: at the next round head the window is less
// than it was. A prompt that cannot be made shorter ends the turn.
func (l *Loop) refused(ctx context.Context, notes []string) (Result, error) {
	total, _ := l.estimate(notes)
	before := l.state.Session.Entries
	l.state.Counters.Refused = total
	if l.cut(notes) == 0 && estimateOf(l.fit(slices.Clone(before), notes)) == estimateOf(before) {
		return Result{Kind: Failed, Fail: thread.FailContextTooLong}, nil
	}
	return Result{}, l.recover(ctx, Recovery{Refused: total})
}

// recover keeps what the turn may do once, and remembers it.
func (l *Loop) recover(ctx context.Context, r Recovery) error {
	if err := l.Hooks.Recover(ctx, r); err != nil {
		return err
	}
	c := &l.state.Counters
	c.Refused = max(c.Refused, r.Refused)
	if r.NoSummary {
		c.SummaryFailed, c.ModelFailures = true, 0
	}
	return nil
}
