package scripted

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A turn is what the demo sees in a request. A turn begins after the assistant's last message without calls, or after a call
// that a stop cut off.
type turn struct {
	req      Request
	ask      string   // what began the turn: of the messages before the assistant's first in it the last that asks for work, else the last; or the note
	steering []string // what was loaded later in the turn, or came right behind the ask
	news     []string // the part of steering that the assistant has not seen before
	earlier  []string // what people wrote before ask
	before   string   // the summary of what came before that
	rounds   int      // how often the assistant has called tools in the turn
}

func turnOf(r Request) turn {
	start := 0
	for i, m := range r.Messages {
		if m.Role == "assistant" && len(m.Calls) == 0 || m.Role == "tool" && strings.Contains(m.Text, "turn ended") {
			start = i + 1
		}
	}
	t, note := turn{req: r}, ""
	var people []string // what was written outside of the turn's rounds
	fresh := 0          // how many of them since the turn began
	for i, m := range r.Messages {
		if !m.isPerson() && len(people) == 0 && strings.Contains(m.Text, "a summary") {
			_, t.before, _ = strings.Cut(m.Text, "\n\n")
			continue
		}
		switch {
		case m.Role == "assistant" && i >= start:
			t.rounds++
			t.news = nil
		case m.Role == "user" && !m.isPerson() && i >= start && t.rounds == 0:
			note = strings.TrimSpace(strings.TrimPrefix(m.Text, NoteTag))
		case !m.isPerson():
		case t.rounds > 0:
			t.steering, t.news = append(t.steering, m.Text), append(t.news, m.Text)
		default:
			if people = append(people, strings.TrimSpace(m.Text)); i >= start {
				fresh++
			}
		}
	}
	t.earlier = people
	if fresh > 0 {
		t.begin(people, len(people)-fresh)
	}
	t.ask = or(t.ask, note)
	return t
}

// begin finds the ask among the people's messages from first on. Those behind it came while it waited for its first round.
func (t *turn) begin(people []string, first int) {
	at := len(people) - 1
	for i := len(people) - 1; i >= first; i-- {
		if asksForWork.MatchString(people[i]) {
			at = i
			break
		}
	}
	t.ask, t.earlier = people[at], people[:at]
	behind := people[at+1:]
	t.steering = append(slices.Clone(behind), t.steering...)
	if t.rounds == 0 {
		t.news = append(slices.Clone(behind), t.news...)
	}
}

// lines splits messages at their blank lines, where Bobbin joined what came in a row.
func (t turn) lines(messages []string) []string {
	var lines []string
	for _, m := range messages {
		for line := range strings.SplitSeq(m, "\n\n") {
			if line = strings.TrimRight(cut(oneLine(line), 160), "."); line != "" {
				lines = append(lines, line)
			}
		}
	}
	return lines
}

// limits names what was taken in, for headings and steps.
func (t turn) limits() string {
	var limits []string
	for _, line := range t.lines(t.steering) {
		if !enough.MatchString(line) {
			limits = append(limits, lowerFirst(line))
		}
	}
	if len(limits) == 0 {
		return ""
	}
	return " (" + strings.Join(limits, "; ") + ")"
}

// takenIn is the part of an answer that lists what was taken in on the way; empty if nothing was.
func (t turn) takenIn() string {
	lines := t.lines(t.steering)
	if len(lines) == 0 {
		return ""
	}
	return "\n\n### Taken in on the way\n\n" + bullets(lines)
}

// results quotes the last results.
func (t turn) results(what string) string {
	results := t.req.Results()
	if len(results) == 0 {
		return "There is no result to show."
	}
	var b strings.Builder
	for i, m := range results {
		if i > 0 {
			b.WriteString("\n\n")
		}
		fmt.Fprintf(&b, "%s says:\n\n%s", what, quote(cut(m.Text, 800)))
	}
	return b.String()
}

// wantsSummary recognises a request for a summary of the conversation, which offers no tools.
func (t turn) wantsSummary() bool {
	if len(t.req.Tools) > 0 {
		return false
	}
	last := t.req.Messages[len(t.req.Messages)-1]
	system := strings.Join(t.req.Texts("system"), "\n")
	return (last.Role == "user" && !last.isPerson() && mentionsSummary(last.Text)) || mentionsSummary(cut(firstLine(system), 60))
}

func mentionsSummary(s string) bool {
	s = strings.ToLower(s)
	return strings.Contains(s, "summarise") || strings.Contains(s, "summarize") || strings.Contains(s, "summary")
}

// summary lists what people said: the request's own messages, or in a transcript the lines of the person and those of the
// summary before it.
func (t turn) summary() string {
	var said []string
	for _, m := range t.req.Messages {
		switch {
		case !m.isPerson():
		case strings.HasPrefix(m.Text, "# "):
			for line := range strings.Lines(m.Text) {
				if item, ok := cutAny(line, "Person: ", "- "); ok {
					said = append(said, item)
				}
			}
		default:
			said = append(said, m.Text)
		}
	}
	if len(said) == 0 {
		return "Nothing was said yet."
	}
	return "What was said so far:\n\n" + bullets(said)
}

func cutAny(s string, prefixes ...string) (rest string, ok bool) {
	for _, p := range prefixes {
		if rest, ok = strings.CutPrefix(s, p); ok {
			return rest, true
		}
	}
	return s, false
}

func bullets(items []string) string {
	var b strings.Builder
	for _, item := range items {
		b.WriteString("- " + cut(oneLine(item), 200) + "\n")
	}
	return strings.TrimRight(b.String(), "\n")
}

func quote(s string) string {
	return "> " + strings.ReplaceAll(strings.TrimSpace(s), "\n", "\n> ")
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return strings.TrimSpace(line)
}

// cut shortens s to n characters.
func cut(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n-1]) + "…"
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

func lowerFirst(s string) string { return mapFirst(s, unicode.ToLower) }

func upperFirst(s string) string { return mapFirst(s, unicode.ToUpper) }

func mapFirst(s string, f func(rune) rune) string {
	r, size := utf8.DecodeRuneInString(s)
	if size == 0 {
		return s
	}
	return string(f(r)) + s[size:]
}
