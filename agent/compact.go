package agent

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"bobbin/thread"
)

// A Window says how long prompts may be. Where a prompt would be longer, the older part of the session is summarised: by
// model calls of their own, at round heads, each of at most one prompt's length, until it fits.
type Window struct {
	Tokens int     // the model's context window
	At     float64 // share of it above which a prompt is too long; the rest is for the answer, and for what estimates miss
	Keep   float64 // share of it that is kept word for word of the newest entries, less than At
}

// DefaultWindow suits most models. That of gpt-5-mini is larger: https://platform.openai.com/docs/models/gpt-5-mini
var DefaultWindow = Window{Tokens: 128_000, At: 0.75, Keep: 0.25}

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

// A Recovery is what a turn does once, until a message is loaded.
type Recovery struct {
	Refused   int64 // estimated tokens of a prompt that the provider refused as too long; 0: none
	NoSummary bool  // no summary could be had; the failures of the call under way are forgotten
}

//go:embed prompts/summary.md
var summaryPrompt string

// What the model is shown in place of what was left out, and in front of it.
const (
	summaryIntro = "The beginning of this conversation is too long to be shown. In its place, a summary that was made of it " +
		"for you; what follows the summary is word for word.\n\n"
	shortenedMark = "\n[Bobbin] %d bytes are not shown here, to make room.\n"
	hiddenArgs    = `{"shortened":"%d bytes are not shown here, to make room"}`
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

// window is the model's, or what is left of it: a provider that has refused a prompt takes less than that.
func (l *Loop) window() float64 {
	w := float64(l.Spec.Window.Tokens)
	if refused := l.state.Counters.Refused; refused > 0 {
		w = min(w, float64(refused))
	}
	return w
}

// limit is how many tokens a prompt may have. Where no summary can be had some of what is set aside is used up first.
func (l *Loop) limit() float64 {
	at := l.Spec.Window.At
	if l.state.Counters.SummaryFailed {
		at = (at + 1) / 2
	}
	return at * l.window()
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

// summary is the entry that the summary is shown as, if there is one.
func (l *Loop) summary() []thread.Entry {
	if text := l.state.Session.Summary.Text; text != "" {
		return []thread.Entry{{Kind: thread.EntryNote, Text: summaryIntro + text}}
	}
	return nil
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
	kept := sizeOf(s.Entries[min(k, len(s.Entries)):])
	for i := k - 1; i > s.Pinned && kept <= keep; i-- {
		if kept += size(s.Entries[i]); kept <= keep && begins(s.Entries, i) {
			k = i
		}
	}
	if k <= s.Pinned || float64(l.gain(s.Entries[s.Pinned:k])) < minGain*l.window()*dense {
		return 0
	}
	return l.readable(k)
}

// gain is what a prompt is shorter by without entries. What was asked in the turn stays.
func (l *Loop) gain(part []thread.Entry) (n int64) {
	for _, e := range part {
		if e.TurnID != l.state.TurnID || e.Round > 0 || e.Kind == thread.EntryAssistant {
			n += size(e)
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
		read += tokens(transcript(s.Entries[i : i+1]))
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

// readTokens is how much one call for a summary reads, beside the summary before it.
func (l *Loop) readTokens() int64 {
	w := l.window()
	return int64(max(l.Spec.Window.At*w-float64(2*l.textTokens()+tokens(summaryPrompt)), w/4))
}

// textTokens is how long a summary is to be.
func (l *Loop) textTokens() int64 { return int64(min(l.window()/10, 4000)) }

// compact summarises the older part of a session that has become too long. done: it did, or found that it cannot; the round
// head begins again.
func (l *Loop) compact(ctx context.Context, p plan) (done bool, res Result, err error) {
	k := l.cut(p.notes)
	if k == 0 {
		return false, Result{}, nil
	}
	s := l.state.Session
	part := s.Entries[s.Pinned:k]
	c := Compaction{N: s.Summary.N + 1, Last: s.Entries[k-1], Entries: len(part), Tokens: sizeOf(part)}
	if l.state.Counters.SummaryFailed {
		c.Text = clip(l.inventory(part), int(l.textTokens())*bytesPerToken)
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
		c.Text, c.Model, c.Usage = clip(text, 2*int(l.textTokens())*bytesPerToken), cmp.Or(reply.Model, "unnamed"), reply.Usage
	}
	if err := l.Hooks.Compact(ctx, c); err != nil {
		return true, Result{}, err
	}
	return true, Result{}, l.load(ctx)
}

// maxHalvings is how often a call for a summary that the provider refuses as too long is made half as long.
const maxHalvings = 4

func (l *Loop) summarise(ctx context.Context, part []thread.Entry) (thread.Reply, Result, error) {
	read := int(max(0, l.readTokens())) * bytesPerToken
	for n := 0; ; n++ {
		prompt := l.askSummary(part, read>>n)
		reply, res, err := l.attempts(ctx, l.Spec.Limits.Duration, func(limit time.Duration) (thread.Reply, error) {
			return l.Hooks.Summarise(ctx, prompt, limit)
		})
		if res.Fail != thread.FailContextTooLong || n == maxHalvings {
			return reply, res, err
		}
	}
}

// askSummary is the prompt that asks for a summary of what is left of part in so many bytes.
func (l *Loop) askSummary(part []thread.Entry, bytes int) thread.Prompt {
	const wordsOfTen = 6 // words in ten tokens of prose, with some room
	system := strings.ReplaceAll(summaryPrompt, "{words}", fmt.Sprint(l.textTokens()*wordsOfTen/10))
	var b strings.Builder
	if before := l.state.Session.Summary.Text; before != "" {
		fmt.Fprintf(&b, "# Summary so far\n\n%s\n\n", clip(before, max(bytes, mostShown)))
	}
	fmt.Fprintf(&b, "# What followed\n\n%s", clip(transcript(part), max(bytes, mostShown)))
	return thread.Prompt{System: strings.TrimSpace(system), Entries: []thread.Entry{{Kind: thread.EntryUser, Text: b.String()}}}
}

// How much of one item a call for a summary is shown, in bytes.
const (
	maxSaid   = 12_000
	maxResult = 4_000
	maxArgs   = 1_000
)

// transcript tells entries as text.
func transcript(entries []thread.Entry) string {
	var b strings.Builder
	for _, e := range entries {
		switch {
		case e.Kind == thread.EntryUser:
			fmt.Fprintf(&b, "Person: %s\n\n", clip(e.Text, maxSaid))
		case e.Kind == thread.EntryNote:
			fmt.Fprintf(&b, "Note: %s\n\n", clip(e.Text, maxSaid))
		case e.Text != "":
			fmt.Fprintf(&b, "Assistant: %s\n\n", clip(e.Text, maxSaid))
		}
		for _, f := range e.Files {
			fmt.Fprintf(&b, "File %q %s %s %s\n\n", f.Name, f.ID, f.Note, clip(f.Text, maxResult))
		}
		for _, c := range e.Calls {
			fmt.Fprintf(&b, "Tool %s %s\nResult (%s): %s\n\n", c.Name, clip(c.Arguments, maxArgs), c.State, clip(c.Result, maxResult))
		}
	}
	return b.String()
}

// inventory stands in for a summary that could not be had: what people wrote, and which tools were used how often.
func (l *Loop) inventory(part []thread.Entry) string {
	const maxLine = 300
	var b strings.Builder
	if before := l.state.Session.Summary.Text; before != "" {
		fmt.Fprintf(&b, "%s\n\n", clip(before, int(l.textTokens())*bytesPerToken/2))
	}
	fmt.Fprintf(&b, "No summary could be made of the next %d entries, which are left out. People wrote in them:\n", len(part))
	var tools []string
	times := map[string]int{}
	for _, e := range part {
		if e.Kind == thread.EntryUser {
			fmt.Fprintf(&b, "- %s\n", clip(strings.Join(strings.Fields(e.Text), " "), maxLine))
		}
		for _, c := range e.Calls {
			if times[c.Name]++; times[c.Name] == 1 {
				tools = append(tools, c.Name)
			}
		}
	}
	for _, name := range tools {
		fmt.Fprintf(&b, "Calls of %s: %d.\n", name, times[name])
	}
	return b.String()
}

// refused makes the prompt that the provider refused as too long shorter, once: at the next round head the window is less
// than it was. A prompt that cannot be made shorter ends the turn.
func (l *Loop) refused(ctx context.Context, notes []string) (Result, error) {
	total, _ := l.estimate(notes)
	before := l.state.Session.Entries
	l.state.Counters.Refused = total
	if l.cut(notes) == 0 && sizeOf(l.fit(slices.Clone(before), notes)) == sizeOf(before) {
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

// What is left, in bytes, of an item that is shortened, by what the window has room for.
const (
	leastShown = 200
	mostShown  = 2_000
)

// fit shortens what a prompt shows until it is within the limit, where nothing is left to summarise: tool results first,
// then files, then arguments, then what was said, the oldest first and the newest message last; then messages of the turn that the
// summary has as well are left out. The record stays as it is.
func (l *Loop) fit(entries []thread.Entry, notes []string) []thread.Entry {
	total, plain := l.estimate(notes)
	if float64(total) < l.limit() {
		return entries
	}
	target := int64(l.limit() * float64(plain) / float64(max(total, plain)))
	f := fitting{over: plain - target, floor: min(max(int(target)*bytesPerToken/20, leastShown), mostShown)}
	for i := range entries {
		entries[i].Calls = slices.Clone(entries[i].Calls)
		for j := range entries[i].Calls {
			f.shorten(&entries[i].Calls[j].Result)
		}
	}
	for i := range entries {
		entries[i].Files = slices.Clone(entries[i].Files)
		for j := range entries[i].Files {
			f.shorten(&entries[i].Files[j].Text)
		}
	}
	for i := range entries {
		for j := range entries[i].Calls {
			f.hide(&entries[i].Calls[j].Arguments)
		}
	}
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
	for pinned := l.state.Session.Pinned; f.over > 0 && pinned > 1; pinned-- {
		f.over -= size(entries[1])
		entries = slices.Delete(entries, 1, 2) // the request stays
	}
	return entries
}

// fitting counts the tokens that are still too many.
type fitting struct {
	over  int64
	floor int // bytes that stay of each item
}

func (f *fitting) shorten(s *string) {
	if f.over <= 0 || len(*s) <= f.floor {
		return
	}
	const rounding = 4
	before := tokens(*s)
	if short := clip(*s, max(f.floor, len(*s)-int(f.over+rounding)*bytesPerToken-len(shortenedMark))); len(short) < len(*s) {
		*s = short
	}
	f.over -= before - tokens(*s)
}

func (f *fitting) hide(arguments *string) {
	if f.over <= 0 || len(*arguments) <= f.floor {
		return
	}
	before := tokens(*arguments)
	*arguments = fmt.Sprintf(hiddenArgs, len(*arguments))
	f.over -= before - tokens(*arguments)
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
