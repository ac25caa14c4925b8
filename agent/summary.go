package agent

import (
	"context"
	_ "embed"
	"fmt"
	"strings"
	"time"

	"bobbin/thread"
)

//go:embed prompts/summary.md
var summaryPrompt string

// summaryIntro is what the model is shown in front of a summary.
const summaryIntro = "The beginning of this conversation is too long to be shown. In its place, a summary that was made of it " +
	"for you; what follows the summary is word for word.\n\n"

// summary is the entry that the summary is shown as, if there is one.
func (l *Loop) summary() []thread.Entry {
	if text := l.state.Session.Summary.Text; text != "" {
		return []thread.Entry{{Kind: thread.EntryNote, Text: summaryIntro + text}}
	}
	return nil
}

// readTokens is how much one call for a summary reads, beside the summary before it.
func (l *Loop) readTokens() int64 {
	w := l.window()
	return int64(max(l.Spec.Window.At*w-float64(2*l.textTokens()+thread.Estimate(summaryPrompt)), w/4))
}

// textTokens is how long a summary is to be.
func (l *Loop) textTokens() int64 { return int64(min(l.window()/10, 4000)) }

// maxHalvings is how often a call for a summary that the provider refuses as too long is made half as long.
const maxHalvings = 4

func (l *Loop) summarise(ctx context.Context, part []thread.Entry) (thread.Reply, Result, error) {
	read := int(max(0, l.readTokens())) * thread.BytesPerToken
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
		fmt.Fprintf(&b, "%s\n\n", clip(before, int(l.textTokens())*thread.BytesPerToken/2))
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
