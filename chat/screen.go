package chat

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	"charm.land/bubbles/v2/textarea"
	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"

	"bobbin/thread"
)

// screen is the bubbletea program: the conversation, the input line under it, and a hint under that.
type screen struct {
	ctx    context.Context
	client *Client
	name   string // of the thread, as it was asked for
	newKey func() string
	style  styles

	talk   *talk
	input  textarea.Model
	extra  Draft  // what came back beside text, to go out with what is sent next
	shown  string // what the input line made of exact
	exact  string // text that came back: sent as it was unless it is edited
	width  int
	height int
	scroll int // lines below the screen; 0: the end is seen
	total  int // lines of the conversation when it was last seen
	stream *Stream
	news   chan tea.Msg
	err    error // why it ended; nil: the person wanted it
}

type (
	loadedMsg struct {
		thread   *thread.Thread
		messages []*thread.Message
		steps    []*thread.Step
		err      error
	}
	eventsMsg struct {
		stream *Stream
		list   []thread.Event
		err    error
	}
	lostMsg struct{ err error }
	sentMsg struct {
		key  string
		sent Sent
		err  error
	}
	withdrewMsg struct {
		id   string
		what thread.Withdrawn
		err  error
	}
	stoppedMsg struct {
		what Stopped
		err  error
	}
)

const (
	historyLength = 100  // messages
	answerEvents  = 2000 // events that are read again for the answer under way
	inputLines    = 8
	inputLimit    = 10_000 // lines of a message
)

func newScreen(ctx context.Context, c *Client, name string) *screen {
	in := textarea.New()
	in.Prompt, in.ShowLineNumbers, in.Placeholder = "> ", false, "Write a message"
	in.DynamicHeight, in.MinHeight, in.MaxHeight, in.MaxContentHeight = true, 1, inputLines, inputLimit
	in.KeyMap.InsertNewline.SetKeys("alt+enter", "shift+enter", "ctrl+j")
	in.KeyMap.DeleteWordBackward.SetKeys("alt+backspace", "ctrl+backspace")
	in.Focus()
	s := &screen{
		ctx: ctx, client: c, name: name, newKey: rand.Text, talk: newTalk(), input: in, news: make(chan tea.Msg, 256), style: colours(),
	}
	s.resize(80, 24)
	return s
}

func colours() styles {
	grey := lipgloss.NewStyle().Foreground(lipgloss.BrightBlack)
	return styles{
		person: lipgloss.NewStyle().Bold(true).Render, step: grey.Render, waiting: grey.Italic(true).Render,
		notice: lipgloss.NewStyle().Foreground(lipgloss.Yellow).Render,
	}
}

// Init reads the thread.
func (s *screen) Init() tea.Cmd { return tea.Batch(s.load(1), s.listen) }

// Update takes what the person did and what came from the server.
func (s *screen) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		s.resize(msg.Width, msg.Height)
		return s, nil
	case tea.KeyPressMsg:
		return s, s.press(msg)
	case loadedMsg:
		return s, s.loaded(msg)
	case eventsMsg:
		return s, tea.Batch(s.happened(msg), s.listen)
	case lostMsg:
		s.talk.lost = ""
		if msg.err != nil {
			s.talk.lost = oneLine(msg.err.Error(), 60)
		}
		return s, s.listen
	case sentMsg:
		return s, s.perform(s.talk.sent(msg.key, msg.sent, msg.err))
	case withdrewMsg:
		return s, s.perform(s.talk.withdrew(msg.id, msg.what, msg.err))
	case stoppedMsg:
		return s, s.perform(s.talk.stopped(msg.what, msg.err))
	}
	return s, s.typed(msg)
}

func (s *screen) press(k tea.KeyPressMsg) tea.Cmd {
	switch name := k.String(); {
	case name == "ctrl+c":
		return tea.Quit
	case name == "enter":
		return s.submit()
	case name == "esc":
		return s.perform(s.talk.stop())
	case name == "ctrl+w": // never a word of what is typed: the message may be loaded while the key goes down
		return s.perform(s.talk.takeBack())
	case name == "pgup":
		s.scroll += s.room() - 1
	case name == "pgdown":
		s.scroll = max(s.scroll-s.room()+1, 0)
	default:
		return s.typed(k)
	}
	return nil
}

func (s *screen) typed(msg tea.Msg) tea.Cmd {
	var cmd tea.Cmd
	s.input, cmd = s.input.Update(msg)
	return cmd
}

func (s *screen) submit() tea.Cmd {
	d := s.draft()
	if strings.TrimSpace(d.Text) == "" && len(d.Attachments) == 0 {
		return nil
	}
	s.put(Draft{})
	s.scroll = 0
	return s.perform(s.talk.submit(s.newKey(), d))
}

// draft is what the input line holds.
func (s *screen) draft() Draft {
	d := s.extra
	d.Text = s.input.Value()
	if d.Text == s.shown && s.shown != "" {
		d.Text = s.exact
	}
	return d
}

// put replaces what the input line holds. The line shows no tabs and ends after inputLimit lines; the text is kept whole
// until it is edited.
func (s *screen) put(d Draft) {
	s.input.SetValue(d.Text)
	s.exact, s.shown = d.Text, s.input.Value()
	d.Text = ""
	s.extra = d
}

// perform does what the talk wants done.
func (s *screen) perform(list []effect) tea.Cmd {
	var cmds []tea.Cmd
	threadID := s.talk.threadID
	for _, e := range list {
		switch e.kind {
		case doGiveBack:
			s.put(merge(e.draft, s.draft()))
		case doReload:
			s.stream.Close()
			cmds = append(cmds, s.load(0))
		case doSend:
			cmds = append(cmds, func() tea.Msg {
				sent, err := s.client.Send(s.ctx, threadID, e.draft, e.id)
				return sentMsg{e.id, sent, err}
			})
		case doWithdraw:
			cmds = append(cmds, func() tea.Msg {
				w, err := s.client.Withdraw(s.ctx, e.id)
				return withdrewMsg{e.id, w, err}
			})
		case doStop:
			cmds = append(cmds, func() tea.Msg {
				what, err := s.client.Stop(s.ctx, threadID, "")
				return stoppedMsg{what, err}
			})
		}
	}
	return tea.Batch(cmds...)
}

// load reads the thread, its last messages and the steps of the turn that runs. It tries tries times, for ever if that is
// 0.
func (s *screen) load(tries int) tea.Cmd {
	return func() tea.Msg {
		for n := 1; ; n++ {
			m := s.read()
			if m.err == nil || !passing(m.err) || n == tries || s.client.wait(s.ctx, n) != nil {
				return m
			}
		}
	}
}

func (s *screen) read() (m loadedMsg) {
	if m.thread, m.err = s.client.Thread(s.ctx, s.name); m.err != nil {
		return m
	}
	if m.messages, _, m.err = s.client.Messages(s.ctx, m.thread.ID, "", historyLength); m.err != nil {
		return m
	}
	for more := m.thread.RunningTurn != ""; more && m.err == nil; {
		var list []*thread.Step
		after := 0
		if len(m.steps) > 0 {
			after = m.steps[len(m.steps)-1].N
		}
		list, more, m.err = s.client.Steps(s.ctx, m.thread.RunningTurn, after, 500)
		m.steps = append(m.steps, list...)
	}
	return m
}

func (s *screen) loaded(m loadedMsg) tea.Cmd {
	if m.err != nil {
		s.err = m.err
		return tea.Quit
	}
	s.talk.load(m.thread, m.messages, m.steps)
	after := m.thread.LastEvent
	if m.thread.RunningTurn != "" {
		after = max(after-answerEvents, 0)
	}
	s.follow(after)
	return nil
}

// follow reads events into news until the stream is closed.
func (s *screen) follow(after int64) {
	stream := s.client.Stream(s.ctx, s.talk.threadID, after)
	stream.Lost = func(err error) { s.tell(lostMsg{err}) }
	s.stream = stream
	go func() {
		for {
			e, err := stream.Next()
			if err != nil {
				s.tell(eventsMsg{stream: stream, err: err})
				return
			}
			s.tell(eventsMsg{stream: stream, list: []thread.Event{e}})
		}
	}()
}

func (s *screen) tell(m tea.Msg) {
	select {
	case s.news <- m:
	case <-s.ctx.Done():
	}
}

// listen waits for news, and takes what else is there of the same stream with it.
func (s *screen) listen() tea.Msg {
	select {
	case m := <-s.news:
		return m
	case <-s.ctx.Done():
		return nil
	}
}

func (s *screen) happened(m eventsMsg) tea.Cmd {
	if m.stream != s.stream {
		return nil // of before a reload
	}
	if m.err != nil && !errors.Is(m.err, context.Canceled) {
		s.err = m.err
		return tea.Quit
	}
	var cmds []tea.Cmd
	for _, e := range m.list {
		cmds = append(cmds, s.perform(s.talk.event(e)))
	}
	return tea.Batch(cmds...)
}

func (s *screen) resize(width, height int) {
	s.width, s.height = max(width, 10), max(height, 4)
	s.input.SetWidth(s.width)
}

// room is how many lines the conversation has.
func (s *screen) room() int { return max(s.height-s.input.Height()-2, 1) }

// View shows the end of the conversation, or where it was scrolled to.
func (s *screen) View() tea.View {
	v := tea.NewView(s.content())
	v.AltScreen = true
	return v
}

func (s *screen) content() string {
	lines := s.talk.lines(s.width, s.style)
	if s.scroll > 0 { // what is read stays where it is
		s.scroll += len(lines) - s.total
	}
	s.total = len(lines)
	room := s.room()
	s.scroll = max(min(s.scroll, len(lines)-room), 0)
	end := len(lines) - s.scroll
	seen := lines[max(end-room, 0):end]
	out := append([]string{}, seen...)
	for len(out) < room {
		out = append(out, "")
	}
	return strings.Join(append(out, s.style.step(s.rule()), s.input.View(), s.style.step(oneLine(s.talk.hint(), s.width-1))), "\n")
}

func (s *screen) rule() string {
	var note string
	if s.scroll > 0 {
		note = fmt.Sprintf(" %d more lines · pgdown ", s.scroll)
	}
	if more := strings.TrimSpace(enclosed(s.extra.Attachments, s.extra.Mentions)); more != "" {
		note += " " + oneLine(more, s.width/2) + " "
	}
	return note + strings.Repeat("─", max(s.width-lipgloss.Width(note), 0))
}

// unsent is what would be lost with the program.
func (s *screen) unsent() []string {
	var out []string
	for _, x := range s.talk.sending {
		if x.id == "" {
			out = append(out, x.draft.Text)
		}
	}
	if d := s.draft(); strings.TrimSpace(d.Text) != "" {
		out = append(out, d.Text)
	}
	return out
}
