package agent

import (
	"cmp"
	"context"
	"errors"
	"strings"

	"bobbin/thread"
)

// A Compaction is a summary, ready to be kept.
type Compaction struct {
	N       int          // of the session, from 1
	Last    thread.Entry // the newest entry that it stands for
	Text    string
	Model   string // that wrote it; empty: it only names what was left out
	Entries int    // that it was made from, beside the summary before it
	Tokens  int64  // estimate of those entries
	Usage   thread.Usage
}

// compact summarises the older part of a session that has become too long. done: it did, or found that it cannot; the round
// head begins again.
func (l *Loop) compact(ctx context.Context, p plan) (done bool, res Result, err error) {
	k := l.cut(p.notes)
	if k == 0 {
		return false, Result{}, nil
	}
	s := l.state.Session
	part := s.Entries[s.Pinned:k]
	c := Compaction{N: s.Summary.N + 1, Last: s.Entries[k-1], Entries: len(part), Tokens: estimateOf(part)}
	if l.state.Counters.SummaryFailed {
		c.Text = clip(l.inventory(part), int(l.textTokens())*thread.BytesPerToken)
	} else {
		reply, res, err := l.summarise(ctx, part)
		text := strings.TrimSpace(reply.Text)
		switch {
		case res.Fail == thread.FailUsageLimit:
			return true, res, nil
		case errors.Is(err, ErrTimeUp), res.Kind == Failed, err == nil && res.Kind == "" && text == "":
			return true, Result{}, l.recover(ctx, Recovery{NoSummary: true})
		case err != nil || res.Kind != "":
			return true, res, err
		}
		c.Text, c.Model, c.Usage = clip(text, 2*int(l.textTokens())*thread.BytesPerToken), cmp.Or(reply.Model, "unnamed"), reply.Usage
	}
	if err := l.Hooks.Compact(ctx, c); err != nil {
		return true, Result{}, err
	}
	return true, Result{}, l.load(ctx)
}

// cut returns how many of the oldest entries are to be summarised before the next model call; 0: none. They are at most
// what one call can read.
func (l *Loop) cut(notes []string) int {
	total, plain := l.estimate(notes)
	if float64(total) < l.limit() {
		return 0
	}
	s := l.state.Session
	dense := float64(plain) / float64(max(total, plain)) // the text has more tokens than its bytes say
	keep := int64(l.Spec.Window.Keep * l.window() * dense)
	k := l.latest()
	kept := estimateOf(s.Entries[min(k, len(s.Entries)):])
	for i := k - 1; i > s.Pinned && kept <= keep; i-- {
		if kept += s.Entries[i].Estimate(); kept <= keep && begins(s.Entries, i) {
			k = i
		}
	}
	if k <= s.Pinned || float64(l.gain(s.Entries[s.Pinned:k])) < minGain*l.window()*dense {
		return 0
	}
	return l.readable(k)
}

// begins reports whether a cut may stand before an entry, which is not the first: before a message, before a round with
// the notes that it was given, and where another turn goes on. A note that no round made belongs to what stands before it,
// a call and its result are one entry.
func begins(entries []thread.Entry, i int) bool {
	e, before := entries[i], entries[i-1]
	return e.Kind == thread.EntryUser || e.TurnID != before.TurnID || e.Round > 0 && e.Round != before.Round
}

// latest is where begins what the model has not answered yet, with the last round of the turn that runs: it is never cut.
func (l *Loop) latest() int {
	entries := l.state.Session.Entries
	i := len(entries)
	for i > 0 && entries[i-1].Kind != thread.EntryAssistant {
		i--
	}
	if i > 0 && entries[i-1].TurnID == l.state.TurnID {
		for i--; i > 0 && !begins(entries, i); i-- { // the round's notes
		}
		return i
	}
	for i > 0 && i < len(entries) && !begins(entries, i) { // notes on the answer before
		i++
	}
	return i
}

// minGain is the share of the window below which a summary is not worth its call.
const minGain = 0.05

// gain is what a prompt is shorter by without entries. What was asked in the turn stays.
func (l *Loop) gain(part []thread.Entry) (n int64) {
	for _, e := range part {
		if e.TurnID != l.state.TurnID || e.Round > 0 || e.Kind == thread.EntryAssistant {
			n += e.Estimate()
		}
	}
	return n
}

// readable returns the last place up to k where a cut may stand and what is summarised fits into one call; the first
// such place, if none does.
func (l *Loop) readable(k int) int {
	s := l.state.Session
	first, last, read := 0, 0, int64(0)
	for i := s.Pinned; i < k; i++ {
		read += thread.Estimate(transcript(s.Entries[i : i+1]))
		if i+1 < k && !begins(s.Entries, i+1) {
			continue
		}
		if first == 0 {
			first = i + 1
		}
		if read <= l.readTokens() {
			last = i + 1
		}
	}
	return max(first, last)
}
