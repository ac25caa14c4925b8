package agent

import (
	"bobbin/thread"
)

func estimateOf(entries []thread.Entry) (n int64) {
	for _, e := range entries {
		n += e.Estimate()
	}
	return n
}

// estimate returns the tokens of the next prompt: what the provider counted for the last round's, and an estimate of what
// came since. plain is the estimate of all of it. What was counted of a prompt that had to be shortened does not hold for
// the whole.
func (l *Loop) estimate(notes []string) (total, plain int64) {
	limit := l.limit()
	total = l.fixed()
	plain = total
	for _, e := range l.state.Session.Entries {
		if e.Input > 0 && float64(total) < limit {
			total = e.Input
		}
		total, plain = total+e.Estimate(), plain+e.Estimate()
	}
	for _, note := range notes {
		n := thread.Entry{Text: note}.Estimate()
		total, plain = total+n, plain+n
	}
	return total, plain
}

// fixed is what every prompt holds: the system prompt, the tools, the summary.
func (l *Loop) fixed() int64 {
	return thread.Prompt{System: l.Spec.System, Entries: l.summary(), Tools: l.Spec.Tools}.Estimate()
}
