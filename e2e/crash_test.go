package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"bobbin/e2e/house"
	"bobbin/llm/scripted"
	"bobbin/thread"
)

// The stories come one after the other, as each kills the only worker. What is started again is another process with
// another worker's entry.
func TestAWorkerThatIsKilled(t *testing.T) {
	t.Parallel()
	h := house.Open(t)
	h.Migrate()
	h.API()
	for _, s := range []struct {
		name  string
		story func(*house.House, *house.Process)
	}{
		{"InAReadOnlyToolGoesOnAtTheSameRound", killedInReadOnlyTool},
		{"BetweenTwoRoundsRepeatsNeitherTheRoundNorItsTools", killedBetweenRounds},
		{"InASideEffectDoesNotRunItTwiceAndAsksThePerson", killedInSideEffect},
		{"InABatchOfToolsRepeatsOnlyWhatHadNoResult", killedInBatch},
		{"InAnIdempotentToolSendsTheSameKeyAgain", killedInIdempotentTool},
		{"WhileItStreamsAnAnswerVoidsWhatItHadShown", killedWhileStreaming},
		{"WhileItStreamsToAStoppedTurnLeavesACancelledTurn", killedWhileStopping},
		{"AfterItsAnswerWasStoredSendsNoSecondReply", killedAfterAnswer},
	} {
		t.Run(s.name, func(t *testing.T) {
			h := h.In(t)
			w := h.Worker()
			s.story(h, w)
			for _, p := range h.Processes {
				if strings.HasPrefix(p.Name, "worker") {
					p.Kill()
				}
			}
		})
	}
}

func killedInReadOnlyTool(h *house.House, w *house.Process) {
	t := h.T
	g := h.Tools.Gate("slow-look")
	c := h.Chat(scripted.Rounds(house.Ask("look", "quick"), house.Ask("look", "slow-look"), scripted.Say("Looked.")))
	first := c.Start("Look slowly.")
	h.Arrives(g)
	c.Send("and narrow it")
	w.Kill()
	c.Send("to these")
	h.Worker()
	h.Arrives(g)
	g.Release()
	c.Answered(first.TurnID)
	require.Len(t, h.Tools.Called("quick"), 1)
	require.Len(t, c.Requests(), 3, "no model call is repeated")
	require.Equal(t, []string{"and narrow it\n\nto these"}, h.Request(c.Marker, 3).News())
	c.CheckOrder()
}

func killedBetweenRounds(h *house.House, w *house.Process) {
	t := h.T
	g := house.NewGate()
	c := h.Chat(scripted.Rounds(house.Ask("look", "round-1"), scripted.Reply{Text: "Said.", Gate: g.Open, GateAt: scripted.AtStart}))
	first := c.Start("One round, then killed.")
	before := h.Request(c.Marker, 2)
	w.Kill()
	h.Worker()
	after := h.Request(c.Marker, 3)
	g.Release()
	c.Answered(first.TurnID)
	require.Equal(t, string(before.Body), string(after.Body), "the same round, from the same session")
	require.Len(t, h.Tools.Called("round-1"), 1)
	require.Len(t, c.Requests(), 3)
	c.CheckOrder()
}

// andrewyng/openworker#443, cubeplexai/cubeloop#116
func killedInSideEffect(h *house.House, w *house.Process) {
	t := h.T
	g := h.Tools.Gate("payment")
	c := h.Chat(scripted.Rounds(house.Ask("charge", "payment"), scripted.Say("Went on.")))
	first := c.Start("Pay.")
	h.Arrives(g)
	w.Kill()
	h.Worker()
	end := c.Ended(first.TurnID)
	require.Equal(t, thread.EventTurnFailed, end.Name)
	require.Equal(t, thread.FailToolUnknown, end.Turn.Error.Code)
	g.Release()
	shown := c.Messages()
	require.Equal(t, thread.RoleNotice, shown[len(shown)-1].Role)
	require.Contains(t, shown[len(shown)-1].Text, "continue")
	c.Answered(c.Send("continue").TurnID)
	require.Len(t, h.Tools.Called("payment"), 1)
	require.Len(t, c.Requests(), 2)
	c.CheckOrder()
}

// GEMISIS/leviath#96
func killedInBatch(h *house.House, w *house.Process) {
	t := h.T
	g := h.Tools.Gate("batch-3")
	c := h.Chat(scripted.Rounds(house.Ask("look", "batch-1", "batch-2", "batch-3"), scripted.Say("All three.")))
	first := c.Start("Three at once.")
	h.Arrives(g)
	h.Until("two results", func() bool {
		return h.Count(`SELECT count(*) FROM calls WHERE turn_id = $1 AND state = 'succeeded'`, first.TurnID) == 2
	})
	w.Kill()
	h.Worker()
	h.Arrives(g)
	g.Release()
	c.Answered(first.TurnID)
	require.Equal(t, []int{1, 1, 2}, []int{
		len(h.Tools.Called("batch-1")), len(h.Tools.Called("batch-2")), len(h.Tools.Called("batch-3")),
	})
	results := h.Request(c.Marker, 2).Results()
	require.Len(t, results, 3)
	for i, r := range results {
		require.Contains(t, r.Text, fmt.Sprintf("result of batch-%d", i+1))
	}
	c.CheckOrder()
}

// microsoft/agent-framework#3938
func killedInIdempotentTool(h *house.House, w *house.Process) {
	t := h.T
	g := h.Tools.Gate("booking")
	c := h.Chat(scripted.Rounds(house.Ask("put", "booking"), scripted.Say("Booked.")))
	first := c.Start("Book.")
	one := h.Arrives(g)
	w.Kill()
	h.Worker()
	two := h.Arrives(g)
	g.Release()
	c.Answered(first.TurnID)
	require.Equal(t, one, two)
	require.NotEmpty(t, one.Once)
	c.CheckOrder()
}

func killedWhileStreaming(h *house.House, w *house.Process) {
	t := h.T
	hang := true
	c := h.Chat(func(scripted.Request) scripted.Reply {
		if hang {
			hang = false
			return scripted.Reply{Pieces: []string{"Half "}, Fault: scripted.Hang, After: 1}
		}
		return scripted.Say("The whole answer.")
	})
	first := c.Start("Answer.")
	shown := c.Await("what was written", func(e house.Event) bool { return e.Name == thread.EventAnswerDelta })
	w.Kill()
	h.Worker()
	restarted := c.AwaitNamed(thread.EventAnswerRestarted, first.TurnID)
	require.Greater(t, restarted.Seq, shown.Seq)
	c.Answered(first.TurnID)
	require.Equal(t, "The whole answer.", c.Streamed(first.TurnID))
	c.CheckOrder()
}

func killedWhileStopping(h *house.House, w *house.Process) {
	t := h.T
	c := h.Chat(scripted.Rounds(scripted.Reply{Pieces: []string{"Kept "}, Fault: scripted.Hang, After: 1}, scripted.Say("New.")))
	first := c.Start("Answer.")
	c.Await("what was written", func(e house.Event) bool { return e.Name == thread.EventAnswerDelta })
	w.Freeze() // so that it cannot hear of the stop
	c.Stop("conversation")
	w.Kill()
	waiting := c.Send("next")
	h.Worker()
	require.Equal(t, thread.EventTurnCancelled, c.Ended(first.TurnID).Name)
	c.Answered(waiting.TurnID)
	require.Equal(t, "Kept ", c.Messages()[1].Text)
	require.Len(t, c.Requests(), 2)
	c.CheckOrder()
}

// The worker is frozen where the answer stands in the step log and the turn has not ended: no end can pass the lock that
// the test holds.
func killedAfterAnswer(h *house.House, w *house.Process) {
	t := h.T
	g := house.NewGate()
	c := h.Chat(scripted.Rounds(scripted.Reply{Text: "Once only.", Gate: g.Open, GateAt: scripted.AtFinish}))
	first := c.Start("Answer.")
	h.Request(c.Marker, 1)
	tx, err := h.SQL.Begin(h.Ctx())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(h.T.Context()) }()
	_, err = tx.Exec(h.Ctx(), `LOCK TABLE messages IN SHARE MODE`) // an end writes the answer there; a round does not
	require.NoError(t, err)
	g.Release()
	h.Until("the answer in the step log", func() bool {
		return h.Count(`SELECT count(*) FROM rounds WHERE turn_id = $1 AND outcome = 'answer'`, first.TurnID) == 1
	})
	w.Kill()
	require.NoError(t, tx.Rollback(h.Ctx()))
	h.Worker()
	c.Answered(first.TurnID)
	require.Len(t, c.Requests(), 1, "the answer is not asked for again")
	c.CheckOrder()
}

func TestEverythingKilled(t *testing.T) {
	t.Parallel()
	h := house.Open(t)
	h.Migrate()
	h.API()
	t.Run("TenMessagesBehindASlowTurnAreAnsweredOnceInOrder", func(t *testing.T) { tenBehindASlowTurn(h.In(t)) })
	t.Run("WhatWaitsAtAGracefulStopIsAnsweredOnce", func(t *testing.T) { gracefulStopKeepsWhatWaits(h.In(t)) })
	t.Run("WhatWasAcceptedWhileTemporalWasAwayIsAnsweredOnce", func(t *testing.T) { acceptedWithoutTemporal(h.In(t)) })
}

// openclaw/openclaw#135880
func tenBehindASlowTurn(h *house.House) {
	t := h.T
	h.Worker()
	g := h.Tools.Gate("slow")
	c := h.Chat(func(r scripted.Request) scripted.Reply {
		if len(r.Texts("assistant")) == 0 {
			return house.Ask("look", "slow")
		}
		return scripted.Echo(r)
	})
	lined := h.Chat(func(r scripted.Request) scripted.Reply {
		if len(r.Texts("assistant")) == 0 {
			return house.Ask("look", "slow")
		}
		return scripted.Echo(r)
	})
	first, other := c.Start("Slowly."), lined.Start("Slowly too.")
	h.Arrives(g)
	h.Arrives(g)
	var last house.Accepted
	for i := range 10 {
		last = c.Send(fmt.Sprintf("text-%d;", i), house.ReplyTo(first.Message.ID)) // each is a turn of its own
		lined.Send(fmt.Sprintf("line-%d;", i))                                     // these become one message
	}
	h.KillAll()
	h.API()
	h.Worker()
	h.Arrives(g)
	h.Arrives(g)
	g.Release()
	c.Answered(first.TurnID)
	c.Answered(last.TurnID)
	lined.Answered(other.TurnID)
	want := []string{"user: " + c.Marker + " Slowly.", "assistant: You said: " + c.Marker + " Slowly."}
	for i := range 10 {
		want = append(want, fmt.Sprintf("user: text-%d;", i), fmt.Sprintf("assistant: You said: text-%d;", i))
	}
	got := c.Screen()
	require.Len(t, got, len(want))
	require.Equal(t, want[2:], got[2:])
	require.Equal(t, []string{
		"line-0;\n\nline-1;\n\nline-2;\n\nline-3;\n\nline-4;\n\nline-5;\n\nline-6;\n\nline-7;\n\nline-8;\n\nline-9;",
	}, h.Request(lined.Marker, 2).News())
	c.CheckOrder()
	lined.CheckOrder()
}

// openclaw/openclaw#51620
func gracefulStopKeepsWhatWaits(h *house.House) {
	t := h.T
	g := h.Tools.Gate("drained")
	c := h.Chat(scripted.Rounds(house.Ask("look", "drained"), scripted.Say("One."), scripted.Say("Two.")))
	first := c.Start("Slowly.")
	h.Arrives(g)
	c.Send("M2", house.Files("fil_1")) // it cannot be loaded, so it must become a turn of its own
	for _, p := range h.Processes {
		p.Terminate()
	}
	g.Release()
	for _, p := range h.Processes {
		if p.Name != "migrate-1" && !p.Ended() {
			require.Zero(t, p.WaitEnd(), "%s ends in good order", p.Name)
		}
	}
	h.API()
	h.Worker()
	c.Answered(first.TurnID)
	follow := c.Await("the follow-up", func(e house.Event) bool {
		return e.Name == thread.EventTurnStarted && e.Turn.FollowUpOf == first.TurnID
	})
	c.Answered(follow.TurnID)
	require.Len(t, h.Tools.Called("drained"), 1)
	require.Len(t, c.Requests(), 3)
	require.Equal(t, 1, c.Times("M2"))
	c.CheckOrder()
}

func acceptedWithoutTemporal(h *house.House) {
	t := h.T
	h.Line.Cut()
	var chats []*house.Chat
	var turns []house.Accepted
	for i := range 5 {
		c := h.Chat(scripted.Echo)
		chats = append(chats, c)
		turns = append(turns, c.Start(fmt.Sprintf("alone-%d;", i)))
		c.Send(fmt.Sprintf("more-%d;", i))
	}
	h.KillAll() // between the commit and the signal
	h.Line.Mend()
	h.API()
	h.Worker()
	for i, c := range chats {
		c.Answered(turns[i].TurnID)
		c.Idle()
		require.Equal(t, 1, c.Times(fmt.Sprintf("alone-%d;", i)))
		require.Equal(t, 1, c.Times(fmt.Sprintf("more-%d;", i)))
		require.Len(t, c.Requests(), 1, "the first round head takes the line that followed")
		c.CheckOrder()
	}
}

func TestTwoWorkers(t *testing.T) {
	t.Parallel()
	h := house.Open(t, "BOBBIN_HEARTBEAT_TIMEOUT=2s")
	h.Migrate()
	h.API()
	t.Run("OneThatIsTerminatedBreaksNoTurnAndRepeatsNothing", func(t *testing.T) { terminatedMidTurn(h.In(t)) })
	t.Run("OneThatIsSlowLosesToTheOtherAndNothingIsDoubled", func(t *testing.T) { slowNotDead(h.In(t)) })
	t.Run("OneThatIsCutOffFromTemporalAnswersNothingThatItHasNotSeen", func(t *testing.T) { cutOffNotDead(h.In(t)) })
}

func terminatedMidTurn(h *house.House) {
	t := h.T
	leaving := h.Worker()
	inTool, inCall := h.Tools.Gate("leaving"), house.NewGate()
	looking := h.Chat(scripted.Rounds(house.Ask("look", "leaving"), scripted.Say("Looked.")))
	calling := h.Chat(scripted.Rounds(
		scripted.Reply{Calls: house.Ask("look", "called").Calls, Gate: inCall.Open, GateAt: scripted.AtStart}, scripted.Say("Called."),
	))
	charging := h.Chat(scripted.Rounds(house.Ask("charge", "leaving-charge"), scripted.Say("Charged.")))
	pay := h.Tools.Gate("leaving-charge")
	one, two, three := looking.Start("Look."), calling.Start("Call."), charging.Start("Charge.")
	h.Arrives(inTool)
	h.Arrives(pay)
	h.Request(calling.Marker, 1)
	staying := h.Worker()
	defer staying.Kill()
	leaving.Terminate()
	looking.Send("sent while it drains")
	inCall.Release()
	inTool.Release()
	pay.Release()
	require.Zero(t, leaving.WaitEnd())
	for c, a := range map[*house.Chat]house.Accepted{looking: one, calling: two, charging: three} {
		c.Answered(a.TurnID)
		require.Len(t, c.Requests(), 2, "no model call is repeated")
		c.CheckOrder()
	}
	require.Equal(t, 1, looking.Times("sent while it drains"))
	for _, k := range []string{"leaving", "called", "leaving-charge"} {
		require.Len(t, h.Tools.Called(k), 1, k)
	}
}

func slowNotDead(h *house.House) {
	t := h.T
	slow := h.Worker()
	defer slow.Kill()
	g := h.Tools.Gate("slow-not-dead")
	answer := house.NewGate()
	looking := h.Chat(scripted.Rounds(house.Ask("look", "slow-not-dead"), scripted.Say("Looked.")))
	saying := h.Chat(scripted.Rounds(scripted.Reply{Text: "Said once.", Gate: answer.Open, GateAt: scripted.AtFinish}))
	one, two := looking.Start("Look."), saying.Start("Say.")
	h.Arrives(g)
	saying.Await("what was written", func(e house.Event) bool { return e.Name == thread.EventAnswerDelta })
	slow.Freeze()
	other := h.Worker()
	defer other.Kill()
	looking.Send("while it was slow")
	saying.Send("this one too")
	h.Arrives(g) // the other holds the stint as well
	h.Request(saying.Marker, 2)
	slow.Thaw()
	g.Release()
	answer.Release()
	for c, turn := range map[*house.Chat]string{looking: one.TurnID, saying: two.TurnID} {
		c.Answered(turn)
		c.Idle()
		c.RequireOneAnswer()
		c.CheckOrderIn(c.Requests()) // the slow one's last, which is thrown away, may come last
	}
	require.Equal(t, 1, looking.Times("while it was slow"))
	require.Equal(t, 1, saying.Times("this one too"))
	require.True(t, strings.HasPrefix("Said once.", saying.Streamed(two.TurnID)), "whoever was first, nothing is shown twice")
}

// The reply of the worker that is cut off comes when the other has loaded a message that this reply has not seen: the round
// must be thrown away, or the message would be delivered yet unanswered.
func cutOffNotDead(h *house.House) {
	t := h.T
	own := house.NewLine(t, h.Line.Target)
	cutOff := h.Worker("TEMPORAL_ADDRESS=" + own.Addr)
	defer cutOff.Kill()
	before, after := house.NewGate(), house.NewGate()
	c := h.Chat(func(r scripted.Request) scripted.Reply {
		if r.Mentions("this one too") {
			return scripted.Reply{Text: "Saw both.", Gate: after.Open, GateAt: scripted.AtFinish}
		}
		return scripted.Reply{Text: "Saw one.", Gate: before.Open, GateAt: scripted.AtFinish}
	})
	first := c.Start("Say.")
	c.Await("what was written", func(e house.Event) bool { return e.Name == thread.EventAnswerDelta })
	own.Cut()
	other := h.Worker()
	defer other.Kill()
	c.Send("this one too")
	h.Request(c.Marker, 2) // by the other, which has loaded the message
	before.Release()
	h.Until("what becomes of the reply that comes late", func() bool {
		return len(c.Requests()) == 3 || h.Count(`SELECT count(*) FROM rounds WHERE turn_id = $1`, first.TurnID) > 0
	})
	after.Release()
	c.Answered(first.TurnID)
	c.Idle()
	c.RequireOneAnswer()
	require.Equal(t, "Saw both.", c.Messages()[2].Text)
	require.True(t, strings.HasPrefix("Saw both.", c.Streamed(first.TurnID)), "whoever was first, nothing is shown twice")
}
