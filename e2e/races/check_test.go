package races

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"bobbin/thread"
)

// A fake is a thread whose records are made by hand: an engine that does as the truth says, until a test bends it.
type fake struct {
	t     *testing.T
	now   truth
	rec   record
	clock time.Time
	parts map[string][]thread.Part // by message
	said  []line                   // the session
	made  int
}

func newFake(t *testing.T) *fake {
	return &fake{
		t: t, now: newTruth(attachments), clock: time.Unix(1, 0), parts: map[string][]thread.Part{},
		rec: record{Threads: []story{{ID: "thr", Closed: true}}},
	}
}

func (f *fake) story() *story { return &f.rec.Threads[0] }

func (f *fake) tick() time.Time {
	f.clock = f.clock.Add(time.Second)
	return f.clock
}

func (f *fake) id(kind string) string {
	f.made++
	return fmt.Sprintf("%s%d", kind, f.made)
}

// write writes what an operation comes to.
func (f *fake) write(o outcome) {
	f.t.Helper()
	f.now = o.next
	at := f.tick()
	for _, text := range o.events {
		name, id, _ := strings.Cut(text, " ")
		e := event{Name: thread.EventName(name), Seq: int64(len(f.story().Events) + 1), CreatedAt: at}
		switch kind, _, _ := strings.Cut(name, "."); {
		case e.Name == thread.EventTurnBoundary:
			e.MessageID = id
		case e.Name == thread.EventTurnPhase:
			e.TurnID, e.Phase = id, thread.PhaseStopping
		case kind == "turn":
			e.Turn = &thread.Turn{ID: id}
		case kind == "message":
			m := f.now.messages[id]
			e.Message = &thread.Message{ID: id, Role: thread.RoleUser, Text: m.text, State: m.state, TurnID: m.turn, Parts: slices.Clone(f.parts[id])}
			if e.Name == thread.EventMessageDelivered {
				f.say("user", m.text)
			}
		}
		f.story().Events = append(f.story().Events, e)
	}
}

func (f *fake) say(role, text string) {
	f.said = append(f.said, line{role, anyMark.FindAllString(text, -1)})
	f.story().Screen = append(f.story().Screen, thread.Message{
		Role: thread.Role(role), State: thread.MessageDelivered, Text: text, TurnID: f.now.running,
	})
}

// call is what a client does and is told, within a second of its clock.
func (f *fake) call(op *call, o outcome) *call {
	f.t.Helper()
	op.Who, op.Thread = fmt.Sprintf("client %d", len(f.rec.Calls)), "thr"
	began := f.clock.Add(500 * time.Millisecond)
	f.write(o)
	op.Tries = []try{{Began: began, Ended: f.clock.Add(200 * time.Millisecond), Told: o.told}}
	f.rec.Calls = append(f.rec.Calls, op)
	return op
}

func (f *fake) send(n int, in said) *call {
	in.text = fmt.Sprintf("part-0-0-%d;", n)
	ids := fresh{message: f.id("msg"), turn: f.id("trn"), moved: f.id("trn")}
	o := f.now.accept(in, ids)
	op := &call{Do: send, Key: in.text, Said: in}
	if id := o.told.message; id != "" {
		f.parts[id] = append(f.parts[id], thread.Part{Text: in.text, ClientID: in.text})
	}
	if o.told.disposition != thread.DisposedTurn && o.told.message == ids.message && o.told.turn != ids.turn {
		require.Equal(f.t, f.now.running, o.told.turn)
	}
	return f.call(op, o)
}

func (f *fake) take() {
	f.t.Helper()
	o, ok := f.now.take()
	require.True(f.t, ok)
	f.write(o)
}

func (f *fake) ask() *request {
	f.rec.Requests = append(f.rec.Requests, request{N: len(f.rec.Requests) + 1, Lines: slices.Clone(f.said)})
	return &f.rec.Requests[len(f.rec.Requests)-1]
}

// end ends the running turn. It has asked before, and answers if it succeeds.
func (f *fake) end(status thread.TurnStatus) {
	f.t.Helper()
	turn := f.now.running
	f.ask()
	if status == thread.TurnSucceeded {
		f.made++
		text := fmt.Sprintf("answer-0-%d; is that.", f.made)
		f.say("assistant", text)
		f.story().Events = append(f.story().Events, event{
			Name: thread.EventAnswerDelta, Seq: int64(len(f.story().Events) + 1), CreatedAt: f.tick(), TurnID: turn, Text: text,
		})
	}
	o, ok := f.now.end(turn, status, fresh{moved: f.id("trn")})
	require.True(f.t, ok)
	f.story().Turns = append(f.story().Turns, thread.Turn{ID: turn, Status: status, Attempt: 1})
	f.write(o)
}

// talk is a conversation with a message that is steered in, one that becomes a follow-up, one that is withdrawn and one that
// is refused.
func talk(t *testing.T) *fake {
	f := newFake(t)
	f.send(0, said{})
	f.ask()
	f.send(1, said{})
	f.send(2, said{})
	f.take()
	f.send(3, said{})
	f.call(&call{Do: withdraw, Key: "w"}, f.now.withdrawSteering())
	f.send(4, said{files: []string{"fil_1"}})
	f.send(5, said{delivery: thread.DeliverTurn})
	f.send(6, said{delivery: thread.DeliverSteer})
	f.end(thread.TurnSucceeded)
	f.send(7, said{delivery: thread.DeliverInterrupt})
	f.call(&call{Do: stop, Key: "s"}, f.now.stop(false))
	f.end(thread.TurnCancelled)
	f.end(thread.TurnSucceeded)
	f.send(8, said{reply: "msg1"})
	f.end(thread.TurnSucceeded)
	f.send(9, said{})
	f.call(&call{Do: stop, All: true, Key: "a"}, f.now.stop(true))
	f.end(thread.TurnCancelled)
	f.send(10, said{})
	f.end(thread.TurnSucceeded)
	return f
}

func (f *fake) kinds() []kind {
	var kinds []kind
	for _, v := range check(f.rec, attachments) {
		kinds = append(kinds, v.Kind)
	}
	return kinds
}

func (f *fake) last() *request { return &f.rec.Requests[len(f.rec.Requests)-1] }

// without is the last request without a part.
func (f *fake) without(mark string) {
	for i, l := range f.last().Lines {
		f.last().Lines[i].Marks = slices.DeleteFunc(slices.Clone(l.Marks), func(m string) bool { return m == mark })
	}
}

func TestWhatTheTruthDoesIsSound(t *testing.T) {
	t.Parallel()
	f := talk(t)
	require.Empty(t, check(f.rec, attachments))
	require.NotEmpty(t, f.rec.Threads[0].Events)
}

func TestTheCheckerFindsAndCounts(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		bend func(*fake)
		want kind
		n    int
	}{
		{"AMessageThatIsLost", func(f *fake) { f.without("part-0-0-2;") }, isLost, 1},
		{"TwoMessagesThatAreLost", func(f *fake) { f.without("part-0-0-2;"); f.without("part-0-0-7;") }, isLost, 2},
		{"AMessageThatTheClientWasToldAndNobodyHas", func(f *fake) {
			f.rec.Calls = append(f.rec.Calls, &call{Who: "x", Do: send, Thread: "thr", Key: "x", Said: said{text: "part-0-0-77;"}, Tries: []try{
				{Began: f.clock, Ended: f.clock.Add(1), Told: told{disposition: thread.DisposedTurn, message: "m", turn: "t"}},
			}})
		}, isLost, 1},
		{"AMessageThatComesTwice", func(f *fake) {
			f.last().Lines = append(f.last().Lines, line{"user", []string{"part-0-0-1;"}})
		}, isDoubled, 1},
		{"AMessageThatIsDeliveredTwice", func(f *fake) {
			for _, e := range f.story().Events {
				if e.Name == thread.EventMessageDelivered {
					e.Seq, e.CreatedAt = int64(len(f.story().Events)+1), f.tick()
					f.story().Events = append(f.story().Events, e)
					return
				}
			}
		}, isDoubled, 1},
		{"MessagesInAnotherOrder", func(f *fake) {
			l := f.last().Lines
			l[0], l[1] = l[1], l[0]
		}, isReordered, 1},
		{"AMessageThatIsLoadedAfterItsWithdrawal", func(f *fake) {
			f.last().Lines = append(f.last().Lines, line{"user", []string{"part-0-0-3;"}})
		}, isLoadedAfter, 1},
		{"AMessageThatIsShownAndWithdrawnLater", func(f *fake) {
			f.rec.Requests[1].Lines = append(f.rec.Requests[1].Lines, line{"user", []string{"part-0-0-3;"}})
		}, isLoadedAfter, 1},
		{"AMessageThatWasNotAccepted", func(f *fake) {
			f.last().Lines = append(f.last().Lines, line{"user", []string{"part-0-0-6;"}})
		}, isUnasked, 1},
		{"AToolThatRunsTwice", func(f *fake) {
			f.rec.Effects = []effect{{"a"}, {"b"}, {"a"}, {"c"}, {"c"}, {"c"}}
		}, isToolTwice, 2},
		{"AReplyThatComesTwice", func(f *fake) {
			s := f.story()
			answer := s.Screen[len(s.Screen)-1]
			answer.Text = "answer-0-999; is another."
			s.Screen = append(s.Screen, answer)
		}, isReplyTwice, 1},
		{"AnAnswerThatIsShownToTheModelTwice", func(f *fake) {
			for _, l := range f.last().Lines {
				if l.Role == "assistant" {
					f.last().Lines = append(f.last().Lines, l)
					return
				}
			}
		}, isReplyTwice, 1},
		{"ATurnThatSucceedsInSilence", func(f *fake) { f.story().Screen = f.story().Screen[:len(f.story().Screen)-1] }, isReply, 1},
		{"AnAnswerThatWasStreamedOtherwise", func(f *fake) {
			for i, e := range f.story().Events {
				if e.Name == thread.EventAnswerDelta {
					f.story().Events[i].Text = "Something else."
					return
				}
			}
		}, isReply, 1},
		{"ACallWithoutAResult", func(f *fake) { f.last().Orphans = []string{"c1", "c2"} }, isOrphan, 2},
		{"APageInAnotherOrder", func(f *fake) {
			s := f.story().Screen
			s[0], s[1] = s[1], s[0]
		}, isScreen, 1},
		{"ATextThatTwoClientsGotBack", func(f *fake) {
			again := *f.rec.Calls[4]
			again.Key, again.Who = "w2", "another"
			f.rec.Calls = append(f.rec.Calls, &again)
		}, isNotGiven, 1},
		{"AnotherDisposition", func(f *fake) { f.rec.Calls[1].Tries[0].Told.disposition = thread.DisposedQueued }, isUnexplained, 1},
		{"ARefusalWithoutAReason", func(f *fake) { f.rec.Calls[7].Tries[0].Told = told{code: "stopping"} }, isUnexplained, 1},
		{"AStopThatStoppedAnother", func(f *fake) { f.rec.Calls[9].Tries[0].Told.stopped = "trn1" }, isUnexplained, 1},
		{"AnAnswerFromBeforeItsTime", func(f *fake) { f.rec.Calls[1].Tries[0].Ended = f.rec.Calls[0].Tries[0].Ended }, isUnexplained, 1},
		{"AFollowUpWithoutACause", func(f *fake) {
			s := f.story()
			s.Events = append(s.Events, event{
				Name: thread.EventTurnQueued, Seq: int64(len(s.Events) + 1), CreatedAt: f.tick(), Turn: &thread.Turn{ID: "trn", FollowUpOf: "trn1"},
			})
		}, isUnexplained, 1},
		{"AMessageTakenBehindAStop", func(f *fake) {
			f.send(20, said{})
			f.send(21, said{})
			f.now.stopping = true
			f.now.stopping = false
			o, _ := f.now.take()
			f.call(&call{Do: stop, Key: "z"}, outcome{next: f.now, told: told{stopped: f.now.running}, events: []string{string(thread.EventTurnPhase) + " " + f.now.running}})
			f.write(o)
			f.end(thread.TurnSucceeded)
		}, isUnexplained, 1},
		{"ARepeatThatWasDoneAgain", func(f *fake) {
			c := f.rec.Calls[0]
			c.Tries = append(c.Tries, try{Began: c.Tries[0].Ended, Ended: f.tick(), Told: c.Tries[0].Told})
		}, isUnexplained, 1},
		{"AGapInTheEvents", func(f *fake) { f.story().Events[3].Seq = 77 }, isLost, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := talk(t)
			tc.bend(f)
			found := check(f.rec, attachments)
			n := 0
			for _, v := range found {
				if v.Kind == tc.want {
					n++
				}
			}
			require.Equal(t, tc.n, n, "%v", found)
		})
	}
}

func TestALostAnswerIsTheRepeats(t *testing.T) {
	t.Parallel()
	f := talk(t)
	c := f.rec.Calls[1]
	first := c.Tries[0]
	again := try{Began: first.Ended, Ended: f.tick(), Told: first.Told, Replayed: true}
	c.Tries = []try{{Began: first.Began}, again}
	require.Empty(t, check(f.rec, attachments))
	c.Tries = []try{{Began: first.Ended.Add(time.Hour)}, {Began: first.Ended.Add(time.Hour), Ended: first.Ended.Add(2 * time.Hour), Told: first.Told, Replayed: true}}
	require.Equal(t, []kind{isUnexplained}, f.kinds(), "nobody had asked yet")
}

func TestFaultsAreCountedByTheirKind(t *testing.T) {
	t.Parallel()
	row := count([]violation{{Kind: isLost}, {Kind: isLost}, {Kind: isDoubled}, {Kind: isReordered}, {Kind: isLoadedAfter}, {Kind: isToolTwice},
		{Kind: isReplyTwice}, {Kind: isUnexplained}, {Kind: isUnexplained}})
	require.Equal(t, []int{2, 1, 1, 1, 1, 1, 7}, []int{row.Lost, row.Doubled, row.Reordered, row.LoadedAfterWithdrawal, row.ToolTwice, row.ReplyTwice, row.Wrong()})
	require.Equal(t, map[string]string{"unexplained": "2"}, row.Figures)
}
