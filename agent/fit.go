package agent

import (
	"fmt"
	"slices"
	"strings"

	"bobbin/thread"
)

// What the model is shown in place of what was left out.
const (
	shortenedMark = "\n[Bobbin] %d bytes are not shown here, to make room.\n"
	hiddenArgs    = `{"shortened":"%d bytes are not shown here, to make room"}`
)

// What is left, in bytes, of an item that is shortened, by what the window has room for.
const (
	leastShown = 200
	mostShown  = 2_000
)

// fit shortens what a prompt shows until it is within the limit, where nothing is left to summarise: tool results first,
// then files, then arguments, then what was said, the oldest first and the newest message last; then messages of the turn
// that the summary has as well are left out. The record stays as it is.
func (l *Loop) fit(entries []thread.Entry, notes []string) []thread.Entry {
	total, plain := l.estimate(notes)
	if float64(total) < l.limit() {
		return entries
	}
	target := int64(l.limit() * float64(plain) / float64(max(total, plain)))
	f := fitting{over: plain - target, floor: min(max(int(target)*thread.BytesPerToken/20, leastShown), mostShown)}
	f.results(entries)
	f.files(entries)
	f.arguments(entries)
	f.texts(entries)
	for pinned := l.state.Session.Pinned; f.over > 0 && pinned > 1; pinned-- {
		f.over -= entries[1].Estimate()
		entries = slices.Delete(entries, 1, 2) // the request stays
	}
	return entries
}

// fitting counts the tokens that are still too many.
type fitting struct {
	over  int64
	floor int // bytes that stay of each item
}

// results shortens what calls came to. It copies the calls: the session's own stay whole.
func (f *fitting) results(entries []thread.Entry) {
	for i := range entries {
		entries[i].Calls = slices.Clone(entries[i].Calls)
		for j := range entries[i].Calls {
			f.shorten(&entries[i].Calls[j].Result)
		}
	}
}

func (f *fitting) files(entries []thread.Entry) {
	for i := range entries {
		entries[i].Files = slices.Clone(entries[i].Files)
		for j := range entries[i].Files {
			f.shorten(&entries[i].Files[j].Text)
		}
	}
}

// arguments come after results, which copied the calls.
func (f *fitting) arguments(entries []thread.Entry) {
	for i := range entries {
		for j := range entries[i].Calls {
			f.hide(&entries[i].Calls[j].Arguments)
		}
	}
}

// texts shortens the newest message last.
func (f *fitting) texts(entries []thread.Entry) {
	newest := len(entries) - 1
	for newest > 0 && entries[newest].Kind != thread.EntryUser {
		newest--
	}
	for i := range entries {
		if i != newest {
			f.shorten(&entries[i].Text)
		}
	}
	if len(entries) > 0 {
		f.shorten(&entries[newest].Text)
	}
}

func (f *fitting) shorten(s *string) {
	if f.over <= 0 || len(*s) <= f.floor {
		return
	}
	const rounding = 4
	before := thread.Estimate(*s)
	if short := clip(*s, max(f.floor, len(*s)-int(f.over+rounding)*thread.BytesPerToken-len(shortenedMark))); len(short) < len(*s) {
		*s = short
	}
	f.over -= before - thread.Estimate(*s)
}

func (f *fitting) hide(arguments *string) {
	if f.over <= 0 || len(*arguments) <= f.floor {
		return
	}
	before := thread.Estimate(*arguments)
	*arguments = fmt.Sprintf(hiddenArgs, len(*arguments))
	f.over -= before - thread.Estimate(*arguments)
}

// clip returns s in at most about n bytes, its beginning and its end, with a line between them that says what is missing.
func clip(s string, n int) string {
	if n = max(n, 0); len(s) <= n {
		return s
	}
	head := strings.ToValidUTF8(s[:n*2/3], "")
	tail := strings.ToValidUTF8(s[len(s)-n/3:], "")
	return head + fmt.Sprintf(shortenedMark, len(s)-len(head)-len(tail)) + tail
}
