package races

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"bobbin/thread"
)

// slack is how far apart the clocks of the clients and of Postgres may be. They are one machine's.
const slack = 2 * time.Millisecond

// history replays a thread's events through the truth, one transaction after the other: each must be what an operation does
// to the thread as it was, and what a client was told of it must be what the operation tells. At the first that is not, the
// thread is given up.
func (c *checker) history(t *tale) {
	now := newTruth(c.limit)
	from := time.Time{}
	for _, m := range moments(t.Events) {
		c.states = append(c.states, state{t.ID, from, m.at, now})
		o, why := c.explains(t, now, m)
		if why != "" {
			c.fault(isUnexplained, t.ID, m.events[0].decides(), "event %d: %s; the thread was %s", m.events[0].Seq, why, now.brief())
			return
		}
		now, from = o.next, m.at
	}
	c.states = append(c.states, state{t.ID, from, time.Time{}, now})
	var loaded []string
	for _, l := range t.loaded {
		loaded = append(loaded, l.Marks...)
	}
	var want []string
	for _, id := range now.loaded {
		want = append(want, partMark.FindAllString(now.messages[id].text, -1)...)
	}
	if !slices.Equal(loaded, want) {
		c.fault(isUnexplained, t.ID, "loaded", "delivered was %v, and should be %v", loaded, want)
	}
	if now.running != "" || now.steering != "" || len(now.line) > 0 {
		c.fault(isUnexplained, t.ID, "rest", "at rest the thread is %s", now.brief())
	}
}

func (t truth) brief() string {
	var line []string
	for _, s := range t.line {
		line = append(line, s.turn+"("+s.message+")")
	}
	return fmt.Sprintf("{running %q, stopping %v, steering %q, waiting %v, archived %v}", t.running, t.stopping, t.steering, line, t.archived)
}

// explains finds the operation that a moment is. why: there is none.
func (c *checker) explains(t *tale, now truth, m moment) (o outcome, why string) {
	var ok bool
	switch turn, status := m.ends(now.running); {
	case m.accepts(now) != nil:
		return c.accepted(t, now, m)
	case m.first(thread.EventThreadReset) != nil:
		return c.asked(t, now, m)
	case turn != "":
		o, ok = now.end(turn, status, fresh{moved: m.moved(now)})
	case m.first(thread.EventTurnBoundary) != nil:
		o, ok = now.take()
	case m.first(thread.EventTurnStarted) != nil:
		o, ok = now.claim()
	default:
		return c.asked(t, now, m)
	}
	switch {
	case !ok:
		return o, m.say() + " cannot be"
	case !m.is(o):
		return o, fmt.Sprintf("%s, and should be %v", m.say(), o.events)
	}
	return o, ""
}

func (m moment) names() []string {
	var names []string
	for _, e := range m.events {
		names = append(names, e.decides())
	}
	return names
}

func (m moment) say() string { return fmt.Sprint(m.names()) }

func (m moment) is(o outcome) bool { return set(m.names()) == set(o.events) }

// accepts is the event that tells of a new part, or nil.
func (m moment) accepts(now truth) *event {
	for i, e := range m.events {
		if e.Name == thread.EventMessageCreated || e.Name == thread.EventMessageUpdated && len(e.Message.Parts) > now.messages[e.Message.ID].parts {
			return &m.events[i]
		}
	}
	return nil
}

// ends is the end of the running turn, if the moment is that.
func (m moment) ends(running string) (string, thread.TurnStatus) {
	for _, e := range m.events {
		for status, name := range endEvents {
			if e.Name == name && e.Turn.ID == running {
				return running, status
			}
		}
	}
	return "", ""
}

// moved is the turn that the steering message became.
func (m moment) moved(now truth) string {
	for _, e := range m.events {
		if e.Name == thread.EventMessageUpdated && e.Message.ID == now.steering && e.Message.TurnID != now.running {
			return e.Message.TurnID
		}
	}
	return ""
}

// accepted explains a moment as the accept of the part that it shows.
func (c *checker) accepted(t *tale, now truth, m moment) (outcome, string) {
	e := m.accepts(now)
	part := e.Message.Parts[len(e.Message.Parts)-1]
	op := c.byKey[part.ClientID]
	if op == nil {
		return outcome{}, "nobody sent " + part.Text
	}
	o := now.accept(op.Said, fresh{message: e.Message.ID, turn: e.Message.TurnID, moved: m.moved(now)})
	switch {
	case o.told.code != "":
		return o, fmt.Sprintf("%s: %s was accepted, and should be refused: %s", m.say(), op.Who, o.told.code)
	case !m.is(o):
		return o, fmt.Sprintf("%s: accepting %s should be %v", m.say(), op.Who, o.events)
	case !op.fits(m.at, o.told):
		return o, fmt.Sprintf("%s: %s was told %+v, and should be told %+v within its time", m.say(), op.Who, op.answers(), o.told)
	}
	return o, c.place(op, o.told)
}

// place remembers which call a moment was. Each is one.
func (c *checker) place(op *call, answer told) string {
	if _, twice := c.placed[op]; twice {
		return op.Who + " happened twice"
	}
	c.placed[op] = answer
	return ""
}

func (op *call) answers() []told {
	var all []told
	for _, t := range op.Tries {
		if !t.Ended.IsZero() && !slices.Contains(all, t.Told) {
			all = append(all, t.Told)
		}
	}
	return all
}

// fits reports whether a call may have happened at a time: it was told so by a request that was under way then, or by the
// repeat of one.
func (op *call) fits(at time.Time, answer told) bool {
	before := false // a try without an answer, which may be the one
	for _, t := range op.Tries {
		began := !t.Began.After(at.Add(slack))
		switch {
		case t.Ended.IsZero():
			before = before || began
		case t.Told != answer:
		case !t.Replayed:
			return began && !t.Ended.Before(at.Add(-slack))
		case before || began: // it repeats what another try did
			return !t.Ended.Before(at.Add(-slack))
		}
	}
	return false
}

// asked explains a moment as one of the calls that give something back, or replay: the first of those that fit it in time,
// in what they do and in what they were told.
func (c *checker) asked(t *tale, now truth, m moment) (outcome, string) {
	var near []string
	for _, op := range c.Calls {
		if _, taken := c.placed[op]; taken || op.Do == send || !op.at(t.ID) {
			continue
		}
		o := now.ask(op)
		switch {
		case len(o.events) == 0 || !m.is(o):
		case !op.fits(m.at, o.told):
			near = append(near, fmt.Sprintf("%s would do that, and was told %+v where %+v is right", op.Who, op.answers(), o.told))
		default:
			return o, c.place(op, o.told)
		}
	}
	return outcome{}, fmt.Sprintf("%s is no call's doing; %s", m.say(), strings.Join(near, "; "))
}

// at reports whether a call may be about a thread.
func (op *call) at(threadID string) bool { return op.Thread == threadID || op.Thread == "home" }

// ask is what a call would do now. A send that is asked makes nothing: it is for refusals.
func (t truth) ask(op *call) outcome {
	switch op.Do {
	case send:
		return t.accept(op.Said, fresh{})
	case withdraw:
		return t.withdrawSteering()
	case withdrawMessage:
		return t.withdrawMessage(op.Target)
	case stop:
		return t.stop(op.All)
	case cancel:
		return t.cancel(op.Target)
	case replay:
		return t.replay(op.Target)
	case reset:
		return t.reset()
	}
	return outcome{next: t}
}

// explain looks, for each answer of each call that no moment explains, for a time within the request at which the thread
// was such that this is the answer, and nothing changes.
func (c *checker) explain() {
	for _, op := range c.Calls {
		answer, placed := c.placed[op]
		var first *told // what repeats repeat
		if placed {
			first = &answer
		}
		done := 0
		for _, t := range op.Tries {
			if placed && !t.Ended.IsZero() && !t.Replayed && t.Told == answer {
				done++
			}
			switch {
			case t.Ended.IsZero():
			case done > 1:
				c.fault(isUnexplained, op.Thread, op.Who, "%s: it was done once, and two requests were told that they did it", op.Do)
			case first != nil && t.Told == *first && (t.Replayed || placed):
			case c.could(op, t):
				if t.Told.code == "" {
					first = &t.Told
				}
			default:
				c.fault(isUnexplained, op.Thread, op.Who, "%s %s: no serial order gives the answer %+v", op.Do, op.Said.text+op.Target, t.Told)
			}
		}
	}
}

func (c *checker) could(op *call, t try) bool {
	began := t.Began
	if t.Replayed {
		began = op.began()
	}
	return slices.ContainsFunc(c.states, func(s state) bool {
		if !op.at(s.thread) || !s.to.IsZero() && s.to.Before(began.Add(-slack)) || s.from.After(t.Ended.Add(slack)) {
			return false
		}
		o := s.truth.ask(op)
		return len(o.events) == 0 && o.told == t.Told
	})
}
