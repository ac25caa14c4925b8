package agent

import (
	"fmt"
	"slices"

	"bobbin/thread"
)

// What the loop tells the model, beside what people said.
const (
	warnNote = "This turn is near its limit; rounds left: %d. Gather only what you still need, then write the answer."
	wrapNote = "This turn has reached its limit. Write the answer now from what you have, without tools, " +
		"and say what is missing."
	emptyNote     = "Your last response was empty. Write the answer now."
	malformedNote = "Your last response had no usable form. Write the answer now, as plain Markdown text."
	toolOffNote   = "The tool %s failed %d times in a row and cannot be used in this turn any more."
)

// warnRounds is how many rounds before the limit the model is warned: a tenth of them, at least one.
func (l Limits) warnRounds() int { return max(1, l.Rounds/10) }

// offNotes names the tools that were taken away since the last message, each once.
func (l *Loop) offNotes() []string {
	var notes []string
	for _, t := range l.Spec.Tools {
		if n := l.state.Counters.ToolFailures[t.Name]; n >= l.Spec.Limits.ToolFailures {
			if note := fmt.Sprintf(toolOffNote, t.Name, l.Spec.Limits.ToolFailures); !l.noted(note) {
				notes = append(notes, note)
			}
		}
	}
	return notes
}

// noted reports whether the session holds a note since its last user entry.
func (l *Loop) noted(note string) bool {
	for _, e := range slices.Backward(l.state.Session.Entries) {
		if e.Kind == thread.EntryUser {
			return false
		}
		if e.Kind == thread.EntryNote && e.Text == note {
			return true
		}
	}
	return false
}
