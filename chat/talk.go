package chat

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"bobbin/thread"
)

// talk is what the thread shows. It is fed history, events and what the person does, and returns what is to be done.
type talk struct {
	threadID string
	blocks   []*block // in the order of the conversation: messages as the model read them, steps as they happened
	waiting  []*thread.Message
	sending  []*sending // in order; the first may be under way

	turn     string // the conversation turn that runs
	phase    thread.Phase
	stopping bool
	answer   partial

	wanted   map[string]bool // messages whose text is to come back, by id
	returned map[string]bool // messages whose text has come back
	lost     string          // why the connection is lost; empty: it is there
	loaded   int64           // number of the last event that the loaded history holds
}

// A block is one thing in the conversation.
type block struct {
	kind    blockKind
	id      string // of a message, or TURN/STEP
	text    string
	stopped bool // an answer that is not finished
	status  thread.StepStatus

	wrapped []string // text as it was last wrapped, at width
	width   int
}

type blockKind int

const (
	person blockKind = iota
	agent
	notice // of the server
	step
	remark // of the client
)

// sending is a message that the server has not confirmed.
type sending struct {
	key      string
	draft    Draft
	underway bool
	id       string // of the message, once the answer is there
	read     bool   // the answer says that the model has it
	back     bool   // it is to be taken back as soon as that can be
}

// partial is an answer while it is written.
type partial struct {
	turnID         string
	round, attempt int
	text           string
	headless       bool // its beginning was not seen
}

// An effect is something the talk wants done.
type effect struct {
	kind  effectKind
	id    string // send: the key; withdraw: the message
	draft Draft  // send: what; giveBack: what goes into the input line
}

type effectKind string

const (
	doSend     effectKind = "send"
	doWithdraw effectKind = "withdraw"
	doStop     effectKind = "stop"
	doGiveBack effectKind = "give back"
	doReload   effectKind = "reload"
)

func newTalk() *talk {
	return &talk{wanted: map[string]bool{}, returned: map[string]bool{}}
}

// load shows a thread as it was read, and keeps what is being sent.
func (t *talk) load(th *thread.Thread, messages []*thread.Message, steps []*thread.Step) {
	fresh := t.threadID != "" && t.threadID != th.ID
	*t = talk{
		threadID: th.ID, turn: th.RunningTurn, stopping: th.Stopping, loaded: th.LastEvent,
		sending: t.sending, wanted: t.wanted, returned: t.returned, lost: t.lost,
	}
	if fresh {
		t.remark("The thread was reset. This is the fresh one.")
	}
	var request int // the running turn's steps go behind what it had read when it began
	for _, m := range messages {
		t.see(m)
		if m.TurnID == t.turn && t.turn != "" && request == 0 {
			request = len(t.blocks)
		}
	}
	if t.turn != "" {
		t.phase = thread.PhaseTools
	}
	for _, s := range steps {
		t.step(s)
	}
	t.settleSteps(request)
	for _, m := range messages {
		t.confirm(m)
	}
}

// settleSteps moves steps that were loaded behind all messages to the places that their boundaries say.
func (t *talk) settleSteps(request int) {
	first := slices.IndexFunc(t.blocks, func(b *block) bool { return b.kind == step })
	if request == 0 || first < 0 {
		return
	}
	later, steps := t.blocks[request:first], t.blocks[first:]
	out := slices.Clone(t.blocks[:request])
	for _, b := range steps {
		if message, ok := strings.CutPrefix(b.text, boundaryMark); ok {
			if i := slices.IndexFunc(later, func(m *block) bool { return m.id == message }); i >= 0 {
				out = append(out, later[:i+1]...)
				later = later[i+1:]
			}
			continue
		}
		out = append(out, b)
	}
	t.blocks = append(out, later...)
}

// event shows what happened. Of what the loaded history holds already, only the answer that is being written is news.
func (t *talk) event(e thread.Event) []effect {
	var d struct {
		Message *thread.Message `json:"message"`
		Turn    *thread.Turn    `json:"turn"`
		Step    *thread.Step    `json:"step"`
		Phase   thread.Phase    `json:"phase"`
		thread.Delta
	}
	if json.Unmarshal(e.Data, &d) != nil {
		return nil
	}
	answers := e.Name == thread.EventAnswerDelta || e.Name == thread.EventAnswerRestarted || e.Name == thread.EventTurnPhase
	switch {
	case e.Name != thread.EventGap && e.Seq <= t.loaded && !answers:
	case e.Name == thread.EventGap:
		return []effect{{kind: doReload}}
	case e.Name == thread.EventThreadReset:
		t.remark("The thread was reset.")
		return []effect{{kind: doReload}}
	case d.Message != nil:
		return t.message(e.Name, d.Message)
	case d.Turn != nil:
		t.turned(e.Name, d.Turn)
	case d.Step != nil && d.Step.TurnID == t.turn:
		t.step(d.Step)
	case e.Name == thread.EventTurnPhase && e.TurnID == t.turn:
		t.phase = d.Phase
	case e.Name == thread.EventAnswerDelta && e.TurnID == t.turn:
		t.answer.add(d.Delta)
	case e.Name == thread.EventAnswerRestarted && e.TurnID == t.turn:
		t.answer = partial{}
	}
	return nil
}

func (t *talk) message(name thread.EventName, m *thread.Message) []effect {
	back := t.confirm(m)
	if name == thread.EventAnswerCompleted {
		t.answer = partial{}
	}
	if name != thread.EventMessageWithdrawn {
		t.see(m)
		return back
	}
	t.forget(m.ID)
	if !t.wanted[m.ID] {
		return back
	}
	return append(back, t.giveBack(m.ID, Draft{Text: m.Text, Attachments: m.Attachments, Mentions: m.Mentions})...)
}

// confirm drops what was being sent and is now seen to have arrived.
func (t *talk) confirm(m *thread.Message) []effect {
	var out []effect
	t.sending = slices.DeleteFunc(t.sending, func(s *sending) bool {
		arrived := s.id == m.ID || slices.ContainsFunc(m.Parts, func(p thread.Part) bool { return p.ClientID == s.key })
		if arrived && s.back && m.State == thread.MessageQueued {
			t.wanted[m.ID] = true
			out = append(out, effect{kind: doWithdraw, id: m.ID})
		}
		return arrived
	})
	return append(out, t.nextSend()...)
}

// see shows a message in its present state.
func (t *talk) see(m *thread.Message) {
	if m.State == thread.MessageQueued {
		if i := slices.IndexFunc(t.waiting, func(w *thread.Message) bool { return w.ID == m.ID }); i >= 0 {
			t.waiting[i] = m
		} else if t.find(m.ID) == nil {
			t.waiting = append(t.waiting, m)
		}
		return
	}
	t.waiting = slices.DeleteFunc(t.waiting, func(w *thread.Message) bool { return w.ID == m.ID })
	b := t.find(m.ID)
	if b == nil {
		b = &block{id: m.ID}
		t.blocks = append(t.blocks, b)
	}
	kinds := map[thread.Role]blockKind{thread.RoleAssistant: agent, thread.RoleNotice: notice}
	b.kind, b.stopped, b.width = kinds[m.Role], m.Stopped, 0
	b.text = clean(m.Text) + enclosed(m.Attachments, m.Mentions)
}

func enclosed(attachments, mentions []string) string {
	var list []string
	if len(attachments) > 0 {
		list = append(list, "files: "+strings.Join(attachments, ", "))
	}
	if len(mentions) > 0 {
		list = append(list, "mentions: "+strings.Join(mentions, ", "))
	}
	if len(list) == 0 {
		return ""
	}
	return "\n(" + clean(strings.Join(list, "; ")) + ")"
}

func (t *talk) find(id string) *block {
	if i := slices.IndexFunc(t.blocks, func(b *block) bool { return b.id == id }); i >= 0 {
		return t.blocks[i]
	}
	return nil
}

func (t *talk) forget(id string) {
	t.waiting = slices.DeleteFunc(t.waiting, func(m *thread.Message) bool { return m.ID == id })
}

func (t *talk) turned(name thread.EventName, turn *thread.Turn) {
	switch {
	case turn.Kind != thread.Conversation:
	case name == thread.EventTurnStarted:
		t.turn, t.phase, t.stopping, t.answer = turn.ID, "", false, partial{}
	case turn.ID == t.turn:
		t.turn, t.phase, t.stopping, t.answer = "", "", false, partial{}
		t.endSteps(turn.ID)
		if turn.Status == thread.TurnCancelled {
			t.remark("Stopped.")
		}
		if turn.Status == thread.TurnFailed && turn.Error != nil {
			t.remark("Failed: " + turn.Error.Detail)
		}
	}
}

func (t *talk) endSteps(turnID string) {
	for _, b := range t.blocks {
		if b.kind == step && b.status == thread.StepRunning && strings.HasPrefix(b.id, turnID+"/") {
			b.status, b.width = thread.StepInterrupted, 0
		}
	}
}

// boundaryMark begins the text of a step that shows nothing itself: the message that it loaded stands there.
const boundaryMark = "\x00boundary "

func (t *talk) step(s *thread.Step) {
	id := fmt.Sprintf("%s/%d", s.TurnID, s.N)
	b := t.find(id)
	if b == nil {
		b = &block{kind: step, id: id}
		t.blocks = append(t.blocks, b)
	}
	b.status, b.width, b.text = s.Status, 0, stepText(s)
}

func stepText(s *thread.Step) string {
	var d struct {
		Text      string `json:"text"`
		Arguments string `json:"arguments"`
	}
	_ = json.Unmarshal(s.Detail, &d) // what is not there is not shown
	switch s.Kind {
	case thread.StepBoundary:
		return boundaryMark + s.MessageID
	case thread.StepReasoning:
		return oneLine(d.Text, 200)
	case thread.StepTool:
		return strings.TrimSpace(clean(s.Title) + " " + oneLine(d.Arguments, 100))
	}
	return clean(s.Title)
}

func (p *partial) add(d thread.Delta) {
	if p.turnID != d.TurnID || p.round != d.Round || p.attempt != d.Attempt {
		*p = partial{turnID: d.TurnID, round: d.Round, attempt: d.Attempt, headless: d.Offset > 0}
	}
	p.text += d.Text
}

func (t *talk) remark(text string) {
	t.blocks = append(t.blocks, &block{kind: remark, text: clean(text)})
}

// submit sends a message after those that are being sent.
func (t *talk) submit(key string, d Draft) []effect {
	t.sending = append(t.sending, &sending{key: key, draft: d})
	return t.nextSend()
}

// nextSend sends one at a time, so that they arrive in their order.
func (t *talk) nextSend() []effect {
	for _, s := range t.sending {
		switch {
		case s.id != "": // it has arrived; its event is on the way
		case s.underway:
			return nil
		default:
			s.underway = true
			return []effect{{kind: doSend, id: s.key, draft: s.draft}}
		}
	}
	return nil
}

// sent notes the answer to a message.
func (t *talk) sent(key string, s Sent, err error) []effect {
	i := slices.IndexFunc(t.sending, func(s *sending) bool { return s.key == key })
	if i < 0 {
		return nil // an event was faster
	}
	out := t.sending[i]
	if err != nil {
		t.sending = slices.Delete(t.sending, i, i+1)
		t.remark("Not sent: " + err.Error())
		return append([]effect{{kind: doGiveBack, draft: out.draft}}, t.nextSend()...)
	}
	out.id, out.read = s.Message.ID, s.Message.State != thread.MessageQueued
	known := t.find(out.id) != nil || slices.ContainsFunc(t.waiting, func(m *thread.Message) bool { return m.ID == out.id && len(m.Parts) >= s.Message.Parts })
	if known || s.Message.State == thread.MessageWithdrawn {
		t.sending = slices.Delete(t.sending, i, i+1)
	}
	var more []effect
	if out.back && s.Message.State == thread.MessageQueued {
		t.wanted[out.id] = true
		more = append(more, effect{kind: doWithdraw, id: out.id})
	}
	return append(more, t.nextSend()...)
}

// takeBack withdraws what was sent last and not yet loaded.
func (t *talk) takeBack() []effect {
	for i := len(t.sending) - 1; i >= 0; i-- {
		s := t.sending[i]
		switch {
		case s.back || s.read:
		case s.id != "":
			s.back, t.wanted[s.id] = true, true
			return []effect{{kind: doWithdraw, id: s.id}}
		case s.underway:
			s.back = true
			return nil
		default:
			t.sending = slices.Delete(t.sending, i, i+1)
			return []effect{{kind: doGiveBack, draft: s.draft}}
		}
	}
	for i := len(t.waiting) - 1; i >= 0; i-- {
		if id := t.waiting[i].ID; !t.wanted[id] {
			t.wanted[id] = true
			return []effect{{kind: doWithdraw, id: id}}
		}
	}
	return nil
}

// withdrew notes the answer to a withdrawal. After an error that is no refusal the event may still bring the text.
func (t *talk) withdrew(id string, w thread.Withdrawn, err error) []effect {
	switch {
	case err == nil:
		t.forget(id)
		t.sending = slices.DeleteFunc(t.sending, func(s *sending) bool { return s.id == id })
		return t.giveBack(id, Draft{Text: w.Text, Attachments: w.Attachments, Mentions: w.Mentions})
	case !t.wanted[id]: // the event was faster
	default:
		t.remark("Not taken back: " + err.Error())
		if !passing(err) {
			delete(t.wanted, id)
		}
	}
	return nil
}

// giveBack returns the text of a message to the input line, once.
func (t *talk) giveBack(id string, d Draft) []effect {
	delete(t.wanted, id)
	if t.returned[id] {
		return nil
	}
	t.returned[id] = true
	return []effect{{kind: doGiveBack, draft: d}}
}

// stop stops the turn that runs. What waits to be loaded into it comes back.
func (t *talk) stop() []effect {
	if t.turn == "" && len(t.waiting) == 0 {
		return nil
	}
	for _, m := range t.waiting {
		if m.TurnID == t.turn {
			t.wanted[m.ID] = true
		}
	}
	t.stopping = t.turn != ""
	return []effect{{kind: doStop}}
}

// stopped notes the answer to a stop.
func (t *talk) stopped(s Stopped, err error) []effect {
	if err != nil {
		t.stopping = false
		t.remark("Not stopped: " + err.Error())
		return nil
	}
	w := s.Withdrawn
	if w == nil || w.MessageID == "" {
		return nil
	}
	t.forget(w.MessageID)
	return t.giveBack(w.MessageID, Draft{Text: w.Text, Attachments: w.Attachments, Mentions: w.Mentions})
}

// merge puts what comes back above what is being typed.
func merge(back, typed Draft) Draft {
	out := typed
	out.Text = back.Text
	if strings.TrimSpace(typed.Text) != "" {
		out.Text = strings.TrimRight(back.Text, "\n") + "\n\n" + typed.Text
	}
	if back.Text == "" {
		out.Text = typed.Text
	}
	out.Attachments, out.Mentions = union(back.Attachments, typed.Attachments), union(back.Mentions, typed.Mentions)
	return out
}

func union(a, b []string) []string {
	out := slices.Clone(a)
	for _, v := range b {
		if !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	return out
}

// clean removes what would move the cursor or change the terminal.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n':
			return r
		case r == '\t':
			return ' '
		case r < ' ', r >= 0x7f && r < 0xa0, r == '\u202e', r == '\u202d', r == '\u2066', r == '\u2067':
			return -1
		}
		return r
	}, s)
}

func oneLine(s string, longest int) string {
	s = strings.Join(strings.Fields(clean(s)), " ")
	if r := []rune(s); len(r) > longest {
		return string(r[:longest]) + "…"
	}
	return s
}
