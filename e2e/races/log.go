package races

import (
	"time"

	"bobbin/thread"
)

// A record is all that is known of a place after a run.
type record struct {
	Place    int
	Calls    []*call
	Threads  []story
	Requests []request // at the provider, in order of arrival
	Effects  []effect  // at the server of tools, outside
}

// A call is one operation of a client, under one key, with every try of it.
type call struct {
	Who    string // place, client and step
	Do     verb
	Thread string // that was addressed; "home" is whichever thread was that
	Key    string // empty: a replay has none
	Said   said   // of a send
	Target string // message or turn
	All    bool   // the scope of a stop
	Tries  []try
}

// A try is one request of a call. It may have had no answer.
type try struct {
	Began, Ended time.Time // as the client's clock has it, which is the server's; Ended is zero without an answer
	Told         told
	Replayed     bool // the server said that it had answered this before
}

// began is when the call's first try was sent.
func (c *call) began() time.Time { return c.Tries[0].Began }

// A story is a thread as its events and its page tell it.
type story struct {
	ID     string
	Events []event
	Screen []thread.Message
	Turns  []thread.Turn
	Closed bool // the run's last message was answered here, so its request shows all
}

// An event is one of the stream, with the fields that matter here.
type event struct {
	Name      thread.EventName `json:"-"`
	Seq       int64            `json:"seq"`
	CreatedAt time.Time        `json:"created_at"`
	TurnID    string           `json:"turn_id"`
	MessageID string           `json:"message_id"`
	Turn      *thread.Turn     `json:"turn"`
	Message   *thread.Message  `json:"message"`
	Phase     thread.Phase     `json:"phase"`
	Offset    int              `json:"offset"`
	Text      string           `json:"text"`
}

// decides returns the event as a truth tells it, or nothing if it is about a turn's work and not about who waits and runs.
func (e event) decides() string {
	switch e.Name {
	case thread.EventMessageCreated:
		if e.Message.Role != thread.RoleUser {
			return ""
		}
		return string(e.Name) + " " + e.Message.ID
	case thread.EventMessageUpdated, thread.EventMessageWithdrawn, thread.EventMessageDelivered:
		return string(e.Name) + " " + e.Message.ID
	case thread.EventTurnBoundary:
		return string(e.Name) + " " + e.MessageID
	case thread.EventTurnQueued, thread.EventTurnStarted, thread.EventTurnSucceeded, thread.EventTurnFailed, thread.EventTurnCancelled:
		return string(e.Name) + " " + e.Turn.ID
	case thread.EventTurnPhase:
		if e.Phase != thread.PhaseStopping {
			return ""
		}
		return string(e.Name) + " " + e.TurnID
	case thread.EventThreadReset:
		return string(e.Name) + " "
	}
	return ""
}

// A request is one that the provider got, as far as it is checked.
type request struct {
	N             int
	Arrived, Left time.Time // Left: the client closed its connection before the answer's end; else zero
	Finished      time.Time
	Lines         []line
	Orphans       []string // calls without a result right behind them, results without a call
}

// A line is one thing that was said in a request or stands on the screen.
type line struct {
	Role  string
	Marks []string // the parts, or the answer, that it holds
}

// An effect is one call that arrived at a tool with side effects.
type effect struct{ Key string }

// moments cuts events into the transactions that wrote them: those of one have one time, which was read under the lock that
// numbers a thread's events. Of each only what decides is kept.
func moments(events []event) []moment {
	var all []moment
	for _, e := range events {
		if e.decides() == "" {
			continue
		}
		if n := len(all); n > 0 && all[n-1].at.Equal(e.CreatedAt) {
			all[n-1].events = append(all[n-1].events, e)
			continue
		}
		all = append(all, moment{at: e.CreatedAt, events: []event{e}})
	}
	return all
}

type moment struct {
	at     time.Time
	events []event
}

// first is the first event with a name, or nil.
func (m moment) first(name thread.EventName) *event {
	for i, e := range m.events {
		if e.Name == name {
			return &m.events[i]
		}
	}
	return nil
}
