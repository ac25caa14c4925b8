package chat

import (
	"strings"

	"github.com/charmbracelet/x/ansi"

	"bobbin/thread"
)

// styles colour what is shown. The zero value shows it plainly.
type styles struct {
	person, step, waiting, notice func(...string) string
}

func plain(s ...string) string { return strings.Join(s, " ") }

func plainStyles() styles { return styles{plain, plain, plain, plain} }

// lines returns the whole conversation, wrapped.
func (t *talk) lines(width int, st styles) []string {
	var out []string
	for _, b := range t.blocks {
		if strings.HasPrefix(b.text, boundaryMark) {
			continue
		}
		out = append(out, b.lines(width, st)...)
	}
	if t.answer.text != "" {
		text := clean(t.answer.text)
		if t.answer.headless {
			text = "…" + text
		}
		out = append(out, (&block{kind: agent, text: text}).lines(width, st)...)
	}
	for _, m := range t.waiting {
		out = append(out, pending(m.Text+enclosed(m.Attachments, m.Mentions), t.waitingNote(m), width, st)...)
	}
	for _, s := range t.sending {
		out = append(out, pending(s.draft.Text+enclosed(s.draft.Attachments, s.draft.Mentions), "sending", width, st)...)
	}
	return out
}

func (t *talk) waitingNote(m *thread.Message) string {
	if t.wanted[m.ID] {
		return "waiting · being taken back"
	}
	return "waiting · ctrl-w takes it back"
}

func pending(text, note string, width int, st styles) []string {
	out := prefixed(clean(text), "> ", "  ", width)
	out = append(out, "  ("+note+")")
	for i := range out {
		out[i] = st.waiting(out[i])
	}
	return append(out, "")
}

func (b *block) lines(width int, st styles) []string {
	if b.width == width {
		return b.wrapped
	}
	switch b.kind {
	case person:
		b.wrapped = styled(prefixed(b.text, "> ", "  ", width), st.person)
	case agent:
		b.wrapped = prefixed(b.text, "", "", width)
		if b.stopped {
			b.wrapped = append(b.wrapped, st.step("(stopped here)"))
		}
	case step:
		b.wrapped = styled(prefixed(b.text+stepNote[b.status], "· ", "  ", width), st.step)
	default:
		b.wrapped = styled(prefixed(b.text, "! ", "  ", width), st.notice)
	}
	if b.kind != step {
		b.wrapped = append(b.wrapped, "")
	}
	b.width = width
	return b.wrapped
}

var stepNote = map[thread.StepStatus]string{
	thread.StepRunning: " …", thread.StepFailed: " (failed)", thread.StepInterrupted: " (interrupted)",
}

func styled(lines []string, style func(...string) string) []string {
	for i := range lines {
		lines[i] = style(lines[i])
	}
	return lines
}

func prefixed(text, first, rest string, width int) []string {
	width = max(width-len(first), 1)
	lines := strings.Split(ansi.Wrap(strings.TrimRight(text, "\n"), width, ""), "\n")
	for i := range lines {
		if i == 0 {
			lines[i] = first + lines[i]
		} else {
			lines[i] = rest + lines[i]
		}
	}
	return lines
}

// hint is the line under the input, for what the turn does at the moment.
func (t *talk) hint() string {
	switch {
	case t.lost != "":
		return "The connection is lost (" + t.lost + "). Trying again …"
	case t.turn == "":
		return "Enter sends · alt+enter starts a line · ctrl-c quits"
	case t.stopping:
		return "Stopping …"
	case t.phase == thread.PhaseAnswering:
		return "Anything to add? It is sent as a new question after this answer. · Esc stops"
	case t.phase == thread.PhaseSummarising:
		return "Summarising what was said so far … Anything to add? · Esc stops"
	case t.phase == thread.PhasePlanReview:
		return "Write to change the plan. · Esc stops"
	}
	return "Anything to add? · Esc stops"
}
