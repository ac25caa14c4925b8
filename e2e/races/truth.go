package races

import (
	"maps"
	"slices"
	"strings"

	"bobbin/thread"
)

// A truth is a thread as DESIGN's sections 3 to 6 have it: the run row, the steering row, the turns that wait, and what
// became of each message. Its methods are the operations on it, and are pure: each returns what the thread is afterwards,
// what the client is told, and which events tell of it. An operation that changes nothing has no events.
//
// It knows the web's channel: everything plain that waits merges, and a failed turn is not retried by itself.
type truth struct {
	limit    int // attachments of a message
	archived bool

	running  string // the turn that the run row names
	stopping bool
	steering string // the message on the steering row
	newest   string // what became of the last message there: queued, delivered, withdrawn, moved; empty: there was none

	line     []seat // what waits, in the order in which it will be claimed
	turns    map[string]thread.TurnStatus
	messages map[string]message
	loaded   []string // messages, in the order in which the model has them
}

// A seat is a turn that waits.
type seat struct {
	turn, message string // no message: a replay, which has its request already
	urgent        bool   // an interrupt made it
}

type message struct {
	text     string
	parts    int
	files    []string
	mentions []string
	reply    string
	state    thread.MessageState
	turn     string // that it waits as, steers or was loaded by
}

// told is an answer. It is comparable.
type told struct {
	code        string // of a problem; then nothing else is set
	disposition thread.Disposition
	message     string
	turn        string
	stopped     string // turns, in no order
	withdrawn   string // text, files and mentions
}

// fresh are the ids that an operation gives to what it makes.
type fresh struct{ message, turn, moved string }

// outcome is what an operation comes to.
type outcome struct {
	next   truth
	told   told
	events []string
}

// said is a message as it is sent.
type said struct {
	text     string
	delivery thread.Delivery
	files    []string
	mentions []string
	reply    string
	mode     string // chat, or not said, which here is the same
}

func (in said) plain() bool { return len(in.files) == 0 && len(in.mentions) == 0 && in.reply == "" }

func newTruth(limit int) truth {
	return truth{limit: limit, turns: map[string]thread.TurnStatus{}, messages: map[string]message{}}
}

func (t truth) clone() truth {
	t.line, t.loaded = slices.Clone(t.line), slices.Clone(t.loaded)
	t.turns, t.messages = maps.Clone(t.turns), maps.Clone(t.messages)
	return t
}

func refused(t truth, code string) outcome { return outcome{next: t, told: told{code: code}} }

// An effort is an operation under way on a clone.
type effort struct {
	truth
	events []string
}

func (t truth) begin() *effort { return &effort{truth: t.clone()} }

func (e *effort) tell(name thread.EventName, id string) {
	e.events = append(e.events, string(name)+" "+id)
}

func (e *effort) done(answer told) outcome { return outcome{e.truth, answer, e.events} }

// accept is the table of section 3.
func (t truth) accept(in said, ids fresh) outcome {
	o := t.decide(in, ids)
	if o.told.code != "" {
		return refused(t, o.told.code) // too many files are seen when they have been added
	}
	return o
}

// decide is the table, from top to bottom.
func (t truth) decide(in said, ids fresh) outcome {
	if t.archived {
		return refused(t, "thread_archived")
	}
	if _, there := t.messages[in.reply]; in.reply != "" && !there {
		return refused(t, "invalid_reply_to")
	}
	if len(in.files) > t.limit {
		return refused(t, "limit_exceeded")
	}
	interrupts := in.delivery == thread.DeliverInterrupt
	e := t.begin()
	switch {
	case in.delivery == thread.DeliverSteer && t.running == "":
		return refused(t, "no_running_turn")
	case in.delivery == thread.DeliverSteer && t.stopping:
		return refused(t, "stopping")
	case in.delivery == thread.DeliverSteer && !t.steers(in):
		return refused(t, "not_steerable")
	case interrupts && t.running != "":
		return e.interrupt(in, ids)
	case t.running == "" && (len(t.line) == 0 || interrupts):
		return e.startTurn(in, ids)
	case t.steers(in):
		return e.steer(in, ids)
	case len(t.line) > 0 && t.joins(in, t.line[len(t.line)-1]):
		return e.join(in, len(e.line)-1)
	}
	return e.wait(in, ids, len(e.line))
}

// steers: one runs, is not stopping, nothing waits behind it, and the message has no reply target.
func (t truth) steers(in said) bool {
	return t.running != "" && !t.stopping && len(t.line) == 0 && in.delivery != thread.DeliverTurn && in.reply == ""
}

// joins: a plain message joins the last of those that wait, unless that answers a message or is a replay.
func (t truth) joins(in said, s seat) bool {
	return in.plain() && s.message != "" && t.messages[s.message].reply == ""
}

func (e *effort) write(in said, id, turn string) {
	e.messages[id] = message{
		text: in.text, parts: 1, files: unique(in.files), mentions: unique(in.mentions), reply: in.reply,
		state: thread.MessageQueued, turn: turn,
	}
	e.tell(thread.EventMessageCreated, id)
}

func (e *effort) load(id, turn string) {
	m := e.messages[id]
	m.state, m.turn = thread.MessageDelivered, turn
	e.messages[id] = m
	e.loaded = append(e.loaded, id)
	e.tell(thread.EventMessageDelivered, id)
}

// add makes in a further part of a message that waits. false: it would have too many files.
func (e *effort) add(in said, id string) bool {
	m := e.messages[id]
	m.text, m.parts = m.text+"\n\n"+in.text, m.parts+1
	m.files, m.mentions = unique(m.files, in.files), unique(m.mentions, in.mentions)
	e.messages[id] = m
	e.tell(thread.EventMessageUpdated, id)
	return len(m.files) <= e.limit
}

func (e *effort) startTurn(in said, ids fresh) outcome {
	e.write(in, ids.message, ids.turn)
	e.run(seat{turn: ids.turn, message: ids.message})
	return e.done(told{disposition: thread.DisposedTurn, message: ids.message, turn: ids.turn})
}

func (e *effort) steer(in said, ids fresh) outcome {
	if e.steering == "" {
		e.write(in, ids.message, e.running)
		e.steering, e.newest = ids.message, "queued"
	} else if !e.add(in, e.steering) {
		return refused(e.truth, "limit_exceeded")
	}
	return e.done(told{disposition: thread.DisposedSteering, message: e.steering, turn: e.running})
}

func (e *effort) join(in said, at int) outcome {
	s := e.line[at]
	if !e.add(in, s.message) {
		return refused(e.truth, "limit_exceeded")
	}
	return e.done(told{disposition: thread.DisposedQueued, message: s.message, turn: s.turn})
}

func (e *effort) wait(in said, ids fresh, at int) outcome {
	e.write(in, ids.message, ids.turn)
	e.seat(at, seat{turn: ids.turn, message: ids.message, urgent: in.delivery == thread.DeliverInterrupt})
	return e.done(told{disposition: thread.DisposedQueued, message: ids.message, turn: ids.turn})
}

func (e *effort) seat(at int, s seat) {
	e.line = slices.Insert(e.line, at, s)
	e.turns[s.turn] = thread.TurnQueued
	e.tell(thread.EventTurnQueued, s.turn)
}

// interrupt: the running turn is told to stop, the steering message becomes a waiting turn, and the message joins it or
// waits behind it, ahead of all that no interrupt put there.
func (e *effort) interrupt(in said, ids fresh) outcome {
	e.halt()
	at := -1
	for i, s := range e.line {
		if s.urgent {
			at = i
		}
	}
	if e.steering != "" {
		e.move(ids.moved, true)
		at = 0
	}
	if at >= 0 && e.joins(in, e.line[at]) {
		return e.join(in, at)
	}
	return e.wait(in, ids, at+1)
}

// halt sets the flag of the run row.
func (e *effort) halt() {
	if !e.stopping {
		e.stopping = true
		e.tell(thread.EventTurnPhase, e.running)
	}
}

// move makes the steering message a turn of its own, first in the line.
func (e *effort) move(turn string, urgent bool) {
	id := e.steering
	m := e.messages[id]
	m.turn = turn
	e.messages[id] = m
	e.tell(thread.EventMessageUpdated, id)
	e.seat(0, seat{turn: turn, message: id, urgent: urgent})
	e.steering, e.newest = "", "moved"
}

// run makes the run row name a turn.
func (e *effort) run(s seat) {
	e.running, e.stopping = s.turn, false
	e.turns[s.turn] = thread.TurnRunning
	e.tell(thread.EventTurnStarted, s.turn)
	if s.message != "" {
		e.load(s.message, s.turn)
	}
}

// claim starts the first of those that wait. false: none may start.
func (t truth) claim() (outcome, bool) {
	if t.running != "" || len(t.line) == 0 || t.archived {
		return outcome{}, false
	}
	e := t.begin()
	e.next()
	return e.done(told{}), true
}

func (e *effort) next() {
	if len(e.line) > 0 {
		s := e.line[0]
		e.line = e.line[1:]
		e.run(s)
	}
}

// take is section 5. false: nothing may be loaded.
func (t truth) take() (outcome, bool) {
	m := t.messages[t.steering]
	if t.running == "" || t.stopping || t.archived || t.steering == "" || len(m.files) > 0 || len(m.mentions) > 0 {
		return outcome{}, false
	}
	e := t.begin()
	e.load(t.steering, t.running)
	e.tell(thread.EventTurnBoundary, t.steering)
	e.steering, e.newest = "", "delivered"
	return e.done(told{}), true
}

// end settles the running turn, makes the follow-up turn from what could not be loaded, and claims the next. false: it
// cannot end so.
func (t truth) end(turn string, status thread.TurnStatus, ids fresh) (outcome, bool) {
	if t.running != turn || t.stopping != (status == thread.TurnCancelled) {
		return outcome{}, false
	}
	e := t.begin()
	e.running, e.stopping = "", false
	e.turns[turn] = status
	e.tell(endEvents[status], turn)
	if e.steering != "" {
		e.move(ids.moved, false)
	}
	e.next()
	return e.done(told{}), true
}

var endEvents = map[thread.TurnStatus]thread.EventName{
	thread.TurnSucceeded: thread.EventTurnSucceeded, thread.TurnFailed: thread.EventTurnFailed, thread.TurnCancelled: thread.EventTurnCancelled,
}

// back gives messages back, in the order in which they would have been loaded.
func (e *effort) back(ids ...string) string {
	var given message
	for i, id := range ids {
		m := e.messages[id]
		m.state = thread.MessageWithdrawn
		e.messages[id] = m
		e.tell(thread.EventMessageWithdrawn, id)
		if i > 0 {
			given.text += "\n\n"
		}
		given.text += m.text
		given.files, given.mentions = unique(given.files, m.files), unique(given.mentions, m.mentions)
	}
	return back(given.text, given.files, given.mentions)
}

// back is what a client gets back, as one text.
func back(text string, files, mentions []string) string {
	return strings.Join([]string{text, set(files), set(mentions)}, "|")
}

func (t truth) withdrawSteering() outcome {
	switch t.newest {
	case "":
		return refused(t, "not_found")
	case "withdrawn":
		return refused(t, "already_withdrawn")
	case "delivered", "moved":
		return refused(t, "already_delivered")
	}
	e := t.begin()
	given := e.clear()
	return e.done(told{withdrawn: e.back(given)})
}

// clear empties the steering row.
func (e *effort) clear() (id string) {
	id = e.steering
	e.steering, e.newest = "", "withdrawn"
	return id
}

func (t truth) withdrawMessage(id string) outcome {
	switch m := t.messages[id]; {
	case m.state == thread.MessageDelivered:
		return refused(t, "already_delivered")
	case m.state == thread.MessageWithdrawn:
		return refused(t, "already_withdrawn")
	case id == t.steering && id != "":
		return t.withdrawSteering()
	case m.state == "":
		return refused(t, "not_found")
	}
	e := t.begin()
	given := e.back(id)
	e.leave(t.messages[id].turn)
	return e.done(told{withdrawn: given})
}

// leave cancels a turn that waits, and returns its message.
func (e *effort) leave(turn string) (message string) {
	i := slices.IndexFunc(e.line, func(s seat) bool { return s.turn == turn })
	message = e.line[i].message
	e.line = slices.Delete(e.line, i, i+1)
	e.turns[turn] = thread.TurnCancelled
	e.tell(thread.EventTurnCancelled, turn)
	return message
}

// stopRunning is a stop of the conversation turn: the flag first, then what waits to be loaded.
func (e *effort) stopRunning() (stopped, given []string) {
	if e.running != "" {
		e.halt()
		stopped = append(stopped, e.running)
	}
	if e.steering != "" {
		given = append(given, e.clear())
	}
	return stopped, given
}

// empty cancels all that waits.
func (e *effort) empty(stopped, given []string) (turns, messages []string) {
	for _, s := range slices.Clone(e.line) {
		stopped = append(stopped, s.turn)
		if m := e.leave(s.turn); m != "" {
			given = append(given, m)
		}
	}
	return stopped, given
}

func (e *effort) halted(stopped, given []string) outcome {
	answer := told{stopped: set(stopped)}
	if len(given) > 0 {
		answer.withdrawn = e.back(given...)
	}
	return e.done(answer)
}

func (t truth) stop(all bool) outcome {
	e := t.begin()
	stopped, given := e.stopRunning()
	if all {
		stopped, given = e.empty(stopped, given)
	}
	return e.halted(stopped, given)
}

func (t truth) cancel(turn string) outcome {
	e := t.begin()
	switch {
	case turn == t.running && turn != "":
		return e.halted(e.stopRunning())
	case t.turns[turn] == thread.TurnQueued:
		if m := e.leave(turn); m != "" {
			return e.halted([]string{turn}, []string{m})
		}
		return e.halted([]string{turn}, nil)
	case t.turns[turn] == "":
		return refused(t, "not_found")
	}
	return refused(t, "conflict")
}

func (t truth) replay(turn string) outcome {
	switch {
	case t.turns[turn] == "":
		return refused(t, "not_found")
	case t.archived:
		return refused(t, "thread_archived")
	case t.turns[turn] != thread.TurnFailed:
		return refused(t, "conflict")
	}
	e := t.begin()
	e.seat(len(e.line), seat{turn: turn})
	return e.done(told{turn: turn})
}

func (t truth) reset() outcome {
	if t.archived {
		return refused(t, "thread_archived")
	}
	e := t.begin()
	var stopped, given []string
	if e.steering != "" {
		given = append(given, e.clear())
	}
	if e.running != "" {
		stopped = append(stopped, e.running)
		e.turns[e.running] = thread.TurnCancelled
		e.tell(thread.EventTurnCancelled, e.running)
		e.running, e.stopping = "", false
	}
	stopped, given = e.empty(stopped, given)
	o := e.halted(stopped, given)
	o.next.archived = true
	o.events = append(o.events, string(thread.EventThreadReset)+" ")
	return o
}

// set is a list in no order, as one text.
func set(list []string) string { return strings.Join(slices.Sorted(slices.Values(list)), " ") }

// unique joins lists, each value once.
func unique(lists ...[]string) []string {
	var out []string
	for _, v := range slices.Concat(lists...) {
		if !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	return out
}
