package crashes

import (
	"fmt"
	"slices"
	"strings"

	"bobbin/e2e/house"
	"bobbin/e2e/tally"
	"bobbin/llm/scripted"
	"bobbin/thread"
)

// A Sent is a message that was accepted.
type Sent struct {
	Text string // which occurs in no other
	ID   string // as the API gave it, perhaps when it was sent again
}

// A Record is what a conversation has come to. It is judged when it is at rest.
type Record struct {
	Sent     []Sent // in the order of their acceptance
	Messages []thread.Message
	Turns    []thread.Turn
	Entries  map[string]int // how often each message stands in the session, by its id
	Streamed map[string]string
	Requests []scripted.Request
	Calls    []house.ToolCall // of the conversation's tools
	Charges  []string         // keys of the side effects that were asked for

	May   []thread.FailCode // what turns may fail with, as things were
	At    *Snapshot         // when the process was killed; nil: none was
	Left  []string          // what has not come to rest
	Other []string          // anything else that the player found wrong
}

// A Snapshot is what stood in Postgres when a process had been killed, and what had come by then.
type Snapshot struct {
	Rounds   int            // that left something in the session
	Recorded map[string]int // calls with a result, by the call's key
	Started  bool           // a side effect had started, and had no result
	Worker   bool           // who was killed
	Requests int            // that had come to the provider
	Calls    int            // that had come to the tools
}

// Wrong is something that must not be.
type Wrong struct {
	Kind Kind
	What string
}

// Kind of what is wrong.
type Kind string

// The kinds.
const (
	Lost        Kind = "lost"           // an accepted message that is in no model input
	Doubled     Kind = "doubled"        // or in the session, or on the screen, twice
	Reordered   Kind = "reordered"      // or before an earlier one
	ScreenWrong Kind = "screen"         // the screen is not what the model was shown, and its answer
	ToolTwice   Kind = "tool twice"     // a side effect that happened again
	ReadTwice   Kind = "asked again"    // a tool whose result was recorded
	ModelTwice  Kind = "model again"    // a model call whose round was written
	ReplyTwice  Kind = "reply twice"    // a second answer of a turn
	ReplyWrong  Kind = "reply"          // none of a turn that succeeded, or another than was streamed
	Orphan      Kind = "orphan call"    // a call without a result, or the other way round
	FailedWrong Kind = "failed"         // a turn that failed though it need not, or without the notice
	Unquiet     Kind = "not at rest"    // what nobody drives
	Unclear     Kind = "unclear answer" // of the API
	Late        Kind = "late"           // what only the sweep found
)

// Judge says all that is wrong with what a conversation has come to.
func Judge(r *Record) []Wrong {
	j := &judge{Record: r}
	j.messages()
	j.screen()
	j.replies()
	j.pairs()
	j.effects()
	j.failures()
	if r.At != nil {
		j.repeats()
	}
	for _, l := range r.Left {
		j.say(Unquiet, "%s", l)
	}
	for _, o := range r.Other {
		j.say(Unclear, "%s", o)
	}
	return j.wrong
}

type judge struct {
	*Record
	wrong []Wrong
}

func (j *judge) say(k Kind, format string, args ...any) {
	j.wrong = append(j.wrong, Wrong{k, fmt.Sprintf(format, args...)})
}

// messages: each that was accepted was loaded once, and in order.
func (j *judge) messages() {
	if len(j.Requests) == 0 {
		j.say(Lost, "the model was asked nothing")
		return
	}
	said := slices.DeleteFunc(house.Said(j.Requests[len(j.Requests)-1]), func(l string) bool { return !strings.HasPrefix(l, "user: ") })
	last := strings.Join(said, "\n")
	before := -1
	for _, s := range j.Sent {
		at := strings.Index(last, s.Text)
		switch n := strings.Count(last, s.Text); {
		case n == 0 || j.Entries[s.ID] == 0:
			j.say(Lost, "%q is %d times in the last model input, %d times in the session", s.Text, n, j.Entries[s.ID])
		case n > 1 || j.Entries[s.ID] > 1:
			j.say(Doubled, "%q is %d times in the last model input, %d times in the session", s.Text, n, j.Entries[s.ID])
		case at < before:
			j.say(Reordered, "%q came before what was accepted earlier", s.Text)
		}
		before = max(before, at)
		var shown int
		for _, m := range j.Messages {
			if m.Role == thread.RoleUser {
				shown += strings.Count(m.Text, s.Text)
			}
		}
		if shown != 1 {
			j.say(map[bool]Kind{true: Doubled, false: Lost}[shown > 1], "%q is %d times on the screen", s.Text, shown)
		}
	}
}

// screen: it shows what the model was shown last, and then the answer.
func (j *judge) screen() {
	var screen []string
	for _, m := range j.Messages {
		if m.Role != thread.RoleNotice {
			screen = append(screen, string(m.Role)+": "+m.Text)
		}
	}
	if len(screen) == 0 || len(j.Requests) == 0 {
		return
	}
	said := house.Said(j.Requests[len(j.Requests)-1])
	if last := len(screen) - 1; !strings.HasPrefix(screen[last], "assistant: ") || !slices.Equal(said, screen[:last]) {
		j.say(ScreenWrong, "screen %q, model %q", screen, said)
	}
}

// replies: one a turn, as it was streamed.
func (j *judge) replies() {
	replies := map[string][]thread.Message{}
	for _, m := range j.Messages {
		if m.Role == thread.RoleAssistant {
			replies[m.TurnID] = append(replies[m.TurnID], m)
		}
	}
	for _, t := range j.Turns {
		list := replies[t.ID]
		switch {
		case len(list) > 1:
			j.say(ReplyTwice, "turn %s has %d answers", t.ID, len(list))
		case t.Status != thread.TurnSucceeded:
		case len(list) == 0:
			j.say(ReplyWrong, "turn %s succeeded without an answer", t.ID)
		case list[0].Text != j.Streamed[t.ID]:
			j.say(ReplyWrong, "turn %s answered %q and streamed %q", t.ID, list[0].Text, j.Streamed[t.ID])
		}
	}
}

// pairs: in each request every call is followed by its result.
func (j *judge) pairs() {
	for _, r := range j.Requests {
		open := map[string]bool{}
		for _, m := range r.Messages {
			if m.Role == "tool" {
				if !open[m.CallID] {
					j.say(Orphan, "request %d has a result of %q without its call, or twice", r.N, m.CallID)
				}
				delete(open, m.CallID)
				continue
			}
			if len(open) > 0 {
				j.say(Orphan, "request %d has %d calls without results", r.N, len(open))
				clear(open)
			}
			for _, c := range m.Calls {
				open[c.ID] = true
			}
		}
		if len(open) > 0 {
			j.say(Orphan, "request %d ends with %d calls without results", r.N, len(open))
		}
	}
}

// effects: each happens once at most, and under one key each time.
func (j *judge) effects() {
	for _, key := range j.Charges {
		if n := j.called(key, 0); n > 1 {
			j.say(ToolTwice, "%s was charged %d times", key, n)
		}
	}
	once := map[string]string{}
	for _, c := range j.Calls {
		if k, known := once[c.Key]; known && k != c.Once {
			j.say(ReadTwice, "%s was called under two keys", c.Key)
		}
		once[c.Key] = c.Once
	}
}

func (j *judge) called(key string, from int) int {
	n := 0
	for _, c := range j.Calls[min(from, len(j.Calls)):] {
		if c.Key == key {
			n++
		}
	}
	return n
}

// failures: a turn fails only where a side effect was under way, and then it says so in the fixed words.
func (j *judge) failures() {
	for _, t := range j.Turns {
		if t.Status == thread.TurnSucceeded || !t.Status.Ended() {
			continue
		}
		code := thread.FailCode("")
		if t.Error != nil {
			code = t.Error.Code
		}
		may := slices.Clone(j.May)
		if j.At != nil && j.At.Started && j.At.Worker {
			may = append(may, thread.FailToolUnknown)
		}
		switch {
		case t.Status != thread.TurnFailed || !slices.Contains(may, code):
			j.say(FailedWrong, "turn %s is %s, %s", t.ID, t.Status, code)
		case !slices.ContainsFunc(j.Messages, func(m thread.Message) bool {
			return m.Role == thread.RoleNotice && m.TurnID == t.ID && strings.Contains(m.Text, "*continue*")
		}):
			j.say(FailedWrong, "turn %s failed without the notice", t.ID)
		}
	}
}

// repeats: what was recorded when the process was killed is not asked for again.
func (j *judge) repeats() {
	for _, r := range j.Requests[min(j.At.Requests, len(j.Requests)):] {
		if spoken := len(r.Texts("assistant")); spoken < j.At.Rounds {
			j.say(ModelTwice, "request %d asks for round %d again, %d were written", r.N, spoken+1, j.At.Rounds)
		}
	}
	for key := range j.At.Recorded {
		if n := j.called(key, j.At.Calls); n > 0 {
			j.say(ReadTwice, "%s was called %d times after its result was recorded", key, n)
		}
	}
}

// Row is what is wrong as the laboratory counts it.
func Row(list []Wrong) tally.Row {
	var r tally.Row
	for _, w := range list {
		switch w.Kind {
		case Lost, Unquiet:
			r.Lost++
		case Doubled:
			r.Doubled++
		case Reordered, ScreenWrong:
			r.Reordered++
		case ToolTwice, ReadTwice, ModelTwice:
			r.ToolTwice++
		case ReplyTwice, ReplyWrong:
			r.ReplyTwice++
		default: // the test fails of it, and says what it is
		}
	}
	return r
}
