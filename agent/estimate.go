package agent

import (
	"bobbin/thread"
)

// Estimates, where the provider has not counted. Prose has about four bytes a token, JSON and numbers about three: it is
// better to summarise early than to be refused. What surrounds a message or a call costs some as well.
const (
	bytesPerToken = 3
	perPicture    = 1600 // a large one, https://docs.anthropic.com/en/docs/build-with-claude/vision (evaluate image size)
	perItem       = 8
)

func tokens(s string) int64 { return int64((len(s) + bytesPerToken - 1) / bytesPerToken) }

func size(e thread.Entry) int64 {
	n := perItem + tokens(e.Text)
	for _, c := range e.Calls {
		n += 2*perItem + tokens(c.Name) + tokens(c.Arguments) + tokens(c.Result)
	}
	for _, f := range e.Files {
		if n += 4*perItem + tokens(f.Name) + tokens(f.Text) + tokens(f.Note); len(f.Image) > 0 {
			n += perPicture
		}
	}
	return n
}

func sizeOf(entries []thread.Entry) (n int64) {
	for _, e := range entries {
		n += size(e)
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
		total, plain = total+size(e), plain+size(e)
	}
	for _, note := range notes {
		total, plain = total+perItem+tokens(note), plain+perItem+tokens(note)
	}
	return total, plain
}

// fixed is what every prompt holds: the system prompt, the tools, the summary.
func (l *Loop) fixed() int64 {
	n := perItem + tokens(l.Spec.System)
	for _, t := range l.Spec.Tools {
		n += perItem + tokens(t.Name) + tokens(t.Description) + int64(len(t.Parameters)/bytesPerToken)
	}
	for _, e := range l.summary() {
		n += size(e)
	}
	return n
}
