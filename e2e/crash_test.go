package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"bobbin/llm/scripted"
	"bobbin/thread"
)

// The stories come one after the other, as each kills the only worker. What is started again is another process with
// another worker's entry.
func TestAWorkerThatIsKilled(t *testing.T) {
	t.Parallel()
	h := open(t)
	h.migrate()
	h.api()
	for _, s := range []struct {
		name  string
		story func(*house, *process)
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
			h := h.in(t)
			w := h.worker()
			s.story(h, w)
			for _, p := range h.processes {
				if strings.HasPrefix(p.name, "worker") {
					p.kill()
				}
			}
		})
	}
}

func killedInReadOnlyTool(h *house, w *process) {
	t := h.t
	g := h.tools.gate("slow-look")
	c := h.chat(scripted.Rounds(ask("look", "quick"), ask("look", "slow-look"), scripted.Say("Looked.")))
	first := c.start("Look slowly.")
	h.arrives(g)
	c.send("and narrow it")
	w.kill()
	c.send("to these")
	h.worker()
	h.arrives(g)
	g.release()
	c.answered(first.TurnID)
	require.Len(t, h.tools.called("quick"), 1)
	require.Len(t, c.requests(), 3, "no model call is repeated")
	require.Equal(t, []string{"and narrow it\n\nto these"}, h.request(c.marker, 3).News())
	c.checkOrder()
}

func killedBetweenRounds(h *house, w *process) {
	t := h.t
	g := newGate()
	c := h.chat(scripted.Rounds(ask("look", "round-1"), scripted.Reply{Text: "Said.", Gate: g.open, GateAt: scripted.AtStart}))
	first := c.start("One round, then killed.")
	before := h.request(c.marker, 2)
	w.kill()
	h.worker()
	after := h.request(c.marker, 3)
	g.release()
	c.answered(first.TurnID)
	require.Equal(t, string(before.Body), string(after.Body), "the same round, from the same session")
	require.Len(t, h.tools.called("round-1"), 1)
	require.Len(t, c.requests(), 3)
	c.checkOrder()
}

// andrewyng/openworker#443, cubeplexai/cubeloop#116
func killedInSideEffect(h *house, w *process) {
	t := h.t
	g := h.tools.gate("payment")
	c := h.chat(scripted.Rounds(ask("charge", "payment"), scripted.Say("Went on.")))
	first := c.start("Pay.")
	h.arrives(g)
	w.kill()
	h.worker()
	end := c.ended(first.TurnID)
	require.Equal(t, thread.EventTurnFailed, end.Name)
	require.Equal(t, thread.FailToolUnknown, end.Turn.Error.Code)
	g.release()
	shown := c.messages()
	require.Equal(t, thread.RoleNotice, shown[len(shown)-1].Role)
	require.Contains(t, shown[len(shown)-1].Text, "continue")
	c.answered(c.send("continue").TurnID)
	require.Len(t, h.tools.called("payment"), 1)
	require.Len(t, c.requests(), 2)
	c.checkOrder()
}

// GEMISIS/leviath#96
func killedInBatch(h *house, w *process) {
	t := h.t
	g := h.tools.gate("batch-3")
	c := h.chat(scripted.Rounds(ask("look", "batch-1", "batch-2", "batch-3"), scripted.Say("All three.")))
	first := c.start("Three at once.")
	h.arrives(g)
	h.until("two results", func() bool {
		return h.count(`SELECT count(*) FROM calls WHERE turn_id = $1 AND state = 'succeeded'`, first.TurnID) == 2
	})
	w.kill()
	h.worker()
	h.arrives(g)
	g.release()
	c.answered(first.TurnID)
	require.Equal(t, []int{1, 1, 2}, []int{
		len(h.tools.called("batch-1")), len(h.tools.called("batch-2")), len(h.tools.called("batch-3")),
	})
	results := h.request(c.marker, 2).Results()
	require.Len(t, results, 3)
	for i, r := range results {
		require.Contains(t, r.Text, fmt.Sprintf("result of batch-%d", i+1))
	}
	c.checkOrder()
}

// microsoft/agent-framework#3938
func killedInIdempotentTool(h *house, w *process) {
	t := h.t
	g := h.tools.gate("booking")
	c := h.chat(scripted.Rounds(ask("put", "booking"), scripted.Say("Booked.")))
	first := c.start("Book.")
	one := h.arrives(g)
	w.kill()
	h.worker()
	two := h.arrives(g)
	g.release()
	c.answered(first.TurnID)
	require.Equal(t, one, two)
	require.NotEmpty(t, one.Once)
	c.checkOrder()
}

func killedWhileStreaming(h *house, w *process) {
	t := h.t
	hang := true
	c := h.chat(func(scripted.Request) scripted.Reply {
		if hang {
			hang = false
			return scripted.Reply{Pieces: []string{"Half "}, Fault: scripted.Hang, After: 1}
		}
		return scripted.Say("The whole answer.")
	})
	first := c.start("Answer.")
	shown := c.await("what was written", func(e event) bool { return e.Name == thread.EventAnswerDelta })
	w.kill()
	h.worker()
	restarted := c.awaitNamed(thread.EventAnswerRestarted, first.TurnID)
	require.Greater(t, restarted.Seq, shown.Seq)
	c.answered(first.TurnID)
	require.Equal(t, "The whole answer.", c.streamed(first.TurnID))
	c.checkOrder()
}

// streamed is what a page shows of a turn's answer after all its events: pieces that do not fit fail the test.
func (c *chat) streamed(turn string) string {
	c.t.Helper()
	text := ""
	for _, e := range c.watch.all() {
		switch {
		case e.TurnID != turn:
		case e.Name == thread.EventAnswerRestarted:
			text = ""
		case e.Name == thread.EventAnswerDelta:
			require.Equal(c.t, len(text), e.Offset, "the pieces of an answer follow each other")
			text += e.Text
		}
	}
	return text
}

func killedWhileStopping(h *house, w *process) {
	t := h.t
	c := h.chat(scripted.Rounds(scripted.Reply{Pieces: []string{"Kept "}, Fault: scripted.Hang, After: 1}, scripted.Say("New.")))
	first := c.start("Answer.")
	c.await("what was written", func(e event) bool { return e.Name == thread.EventAnswerDelta })
	w.freeze() // so that it cannot hear of the stop
	c.stop("conversation")
	w.kill()
	waiting := c.send("next")
	h.worker()
	require.Equal(t, thread.EventTurnCancelled, c.ended(first.TurnID).Name)
	c.answered(waiting.TurnID)
	require.Equal(t, "Kept ", c.messages()[1].Text)
	require.Len(t, c.requests(), 2)
	c.checkOrder()
}

// The worker is frozen where the answer stands in the step log and the turn has not ended: no end can pass the lock that
// the test holds.
func killedAfterAnswer(h *house, w *process) {
	t := h.t
	g := newGate()
	c := h.chat(scripted.Rounds(scripted.Reply{Text: "Once only.", Gate: g.open, GateAt: scripted.AtFinish}))
	first := c.start("Answer.")
	h.request(c.marker, 1)
	tx, err := h.sql.Begin(h.ctx())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(h.t.Context()) }()
	_, err = tx.Exec(h.ctx(), `LOCK TABLE messages IN SHARE MODE`) // an end writes the answer there; a round does not
	require.NoError(t, err)
	g.release()
	h.until("the answer in the step log", func() bool {
		return h.count(`SELECT count(*) FROM rounds WHERE turn_id = $1 AND outcome = 'answer'`, first.TurnID) == 1
	})
	w.kill()
	require.NoError(t, tx.Rollback(h.ctx()))
	h.worker()
	c.answered(first.TurnID)
	require.Len(t, c.requests(), 1, "the answer is not asked for again")
	c.checkOrder()
}

func TestEverythingKilled(t *testing.T) {
	t.Parallel()
	h := open(t)
	h.migrate()
	h.api()
	t.Run("TenMessagesBehindASlowTurnAreAnsweredOnceInOrder", func(t *testing.T) { tenBehindASlowTurn(h.in(t)) })
	t.Run("WhatWaitsAtAGracefulStopIsAnsweredOnce", func(t *testing.T) { gracefulStopKeepsWhatWaits(h.in(t)) })
	t.Run("WhatWasAcceptedWhileTemporalWasAwayIsAnsweredOnce", func(t *testing.T) { acceptedWithoutTemporal(h.in(t)) })
}

// openclaw/openclaw#135880
func tenBehindASlowTurn(h *house) {
	t := h.t
	h.worker()
	g := h.tools.gate("slow")
	c := h.chat(func(r scripted.Request) scripted.Reply {
		if len(r.Texts("assistant")) == 0 {
			return ask("look", "slow")
		}
		return scripted.Echo(r)
	})
	lined := h.chat(func(r scripted.Request) scripted.Reply {
		if len(r.Texts("assistant")) == 0 {
			return ask("look", "slow")
		}
		return scripted.Echo(r)
	})
	first, other := c.start("Slowly."), lined.start("Slowly too.")
	h.arrives(g)
	h.arrives(g)
	var last accepted
	for i := range 10 {
		last = c.send(fmt.Sprintf("text-%d;", i), replyTo(first.Message.ID)) // each is a turn of its own
		lined.send(fmt.Sprintf("line-%d;", i))                               // these become one message
	}
	h.killAll()
	h.api()
	h.worker()
	h.arrives(g)
	h.arrives(g)
	g.release()
	c.answered(first.TurnID)
	c.answered(last.TurnID)
	lined.answered(other.TurnID)
	want := []string{"user: " + c.marker + " Slowly.", "assistant: You said: " + c.marker + " Slowly."}
	for i := range 10 {
		want = append(want, fmt.Sprintf("user: text-%d;", i), fmt.Sprintf("assistant: You said: text-%d;", i))
	}
	got := c.screen()
	require.Len(t, got, len(want))
	require.Equal(t, want[2:], got[2:])
	require.Equal(t, []string{
		"line-0;\n\nline-1;\n\nline-2;\n\nline-3;\n\nline-4;\n\nline-5;\n\nline-6;\n\nline-7;\n\nline-8;\n\nline-9;",
	}, h.request(lined.marker, 2).News())
	c.checkOrder()
	lined.checkOrder()
}

func (h *house) killAll() {
	for _, p := range h.processes {
		p.kill()
	}
}

// openclaw/openclaw#51620
func gracefulStopKeepsWhatWaits(h *house) {
	t := h.t
	g := h.tools.gate("drained")
	c := h.chat(scripted.Rounds(ask("look", "drained"), scripted.Say("One."), scripted.Say("Two.")))
	first := c.start("Slowly.")
	h.arrives(g)
	c.send("M2", files("fil_1")) // it cannot be loaded, so it must become a turn of its own
	for _, p := range h.processes {
		p.terminate()
	}
	g.release()
	for _, p := range h.processes {
		if p.name != "migrate-1" && !p.ended() {
			require.Zero(t, p.waitEnd(), "%s ends in good order", p.name)
		}
	}
	h.api()
	h.worker()
	c.answered(first.TurnID)
	follow := c.await("the follow-up", func(e event) bool { return e.Name == thread.EventTurnStarted && e.Turn.FollowUpOf == first.TurnID })
	c.answered(follow.TurnID)
	require.Len(t, h.tools.called("drained"), 1)
	require.Len(t, c.requests(), 3)
	require.Equal(t, 1, c.times("M2"))
	c.checkOrder()
}

func acceptedWithoutTemporal(h *house) {
	t := h.t
	h.line.cut()
	var chats []*chat
	var turns []accepted
	for i := range 5 {
		c := h.chat(scripted.Echo)
		chats = append(chats, c)
		turns = append(turns, c.start(fmt.Sprintf("alone-%d;", i)))
		c.send(fmt.Sprintf("more-%d;", i))
	}
	h.killAll() // between the commit and the signal
	h.line.mend()
	h.api()
	h.worker()
	for i, c := range chats {
		c.answered(turns[i].TurnID)
		c.idle()
		require.Equal(t, 1, c.times(fmt.Sprintf("alone-%d;", i)))
		require.Equal(t, 1, c.times(fmt.Sprintf("more-%d;", i)))
		require.Len(t, c.requests(), 1, "the first round head takes the line that followed")
		c.checkOrder()
	}
}

func TestTwoWorkers(t *testing.T) {
	t.Parallel()
	h := open(t, "BOBBIN_HEARTBEAT_TIMEOUT=2s")
	h.migrate()
	h.api()
	t.Run("OneThatIsTerminatedBreaksNoTurnAndRepeatsNothing", func(t *testing.T) { terminatedMidTurn(h.in(t)) })
	t.Run("OneThatIsSlowLosesToTheOtherAndNothingIsDoubled", func(t *testing.T) { slowNotDead(h.in(t)) })
	t.Run("OneThatIsCutOffFromTemporalAnswersNothingThatItHasNotSeen", func(t *testing.T) { cutOffNotDead(h.in(t)) })
}

func terminatedMidTurn(h *house) {
	t := h.t
	leaving := h.worker()
	inTool, inCall := h.tools.gate("leaving"), newGate()
	looking := h.chat(scripted.Rounds(ask("look", "leaving"), scripted.Say("Looked.")))
	calling := h.chat(scripted.Rounds(
		scripted.Reply{Calls: ask("look", "called").Calls, Gate: inCall.open, GateAt: scripted.AtStart}, scripted.Say("Called."),
	))
	charging := h.chat(scripted.Rounds(ask("charge", "leaving-charge"), scripted.Say("Charged.")))
	pay := h.tools.gate("leaving-charge")
	one, two, three := looking.start("Look."), calling.start("Call."), charging.start("Charge.")
	h.arrives(inTool)
	h.arrives(pay)
	h.request(calling.marker, 1)
	staying := h.worker()
	defer staying.kill()
	leaving.terminate()
	looking.send("sent while it drains")
	inCall.release()
	inTool.release()
	pay.release()
	require.Zero(t, leaving.waitEnd())
	for c, a := range map[*chat]accepted{looking: one, calling: two, charging: three} {
		c.answered(a.TurnID)
		require.Len(t, c.requests(), 2, "no model call is repeated")
		c.checkOrder()
	}
	require.Equal(t, 1, looking.times("sent while it drains"))
	for _, k := range []string{"leaving", "called", "leaving-charge"} {
		require.Len(t, h.tools.called(k), 1, k)
	}
}

func slowNotDead(h *house) {
	t := h.t
	slow := h.worker()
	defer slow.kill()
	g := h.tools.gate("slow-not-dead")
	answer := newGate()
	looking := h.chat(scripted.Rounds(ask("look", "slow-not-dead"), scripted.Say("Looked.")))
	saying := h.chat(scripted.Rounds(scripted.Reply{Text: "Said once.", Gate: answer.open, GateAt: scripted.AtFinish}))
	one, two := looking.start("Look."), saying.start("Say.")
	h.arrives(g)
	saying.await("what was written", func(e event) bool { return e.Name == thread.EventAnswerDelta })
	slow.freeze()
	other := h.worker()
	defer other.kill()
	looking.send("while it was slow")
	saying.send("this one too")
	h.arrives(g) // the other holds the stint as well
	h.request(saying.marker, 2)
	slow.thaw()
	g.release()
	answer.release()
	for c, turn := range map[*chat]string{looking: one.TurnID, saying: two.TurnID} {
		c.answered(turn)
		c.idle()
		c.requireOneAnswer()
		c.checkOrderIn(c.requests()) // the slow one's last, which is thrown away, may come last
	}
	require.Equal(t, 1, looking.times("while it was slow"))
	require.Equal(t, 1, saying.times("this one too"))
	require.True(t, strings.HasPrefix("Said once.", saying.streamed(two.TurnID)), "whoever was first, nothing is shown twice")
}

func (c *chat) requireOneAnswer() {
	c.t.Helper()
	require.Len(c.t, c.turns(), 1)
	require.Equal(c.t, 1, c.h.count(`SELECT count(*) FROM messages WHERE thread_id = $1 AND role = 'assistant'`, c.id))
}

// The reply of the worker that is cut off comes when the other has loaded a message that this reply has not seen: the round
// must be thrown away, or the message would be delivered yet unanswered.
func cutOffNotDead(h *house) {
	t := h.t
	own := newLine(t, h.line.target)
	cutOff := h.worker("TEMPORAL_ADDRESS=" + own.addr)
	defer cutOff.kill()
	before, after := newGate(), newGate()
	c := h.chat(func(r scripted.Request) scripted.Reply {
		if r.Mentions("this one too") {
			return scripted.Reply{Text: "Saw both.", Gate: after.open, GateAt: scripted.AtFinish}
		}
		return scripted.Reply{Text: "Saw one.", Gate: before.open, GateAt: scripted.AtFinish}
	})
	first := c.start("Say.")
	c.await("what was written", func(e event) bool { return e.Name == thread.EventAnswerDelta })
	own.cut()
	other := h.worker()
	defer other.kill()
	c.send("this one too")
	h.request(c.marker, 2) // by the other, which has loaded the message
	before.release()
	h.until("what becomes of the reply that comes late", func() bool {
		return len(c.requests()) == 3 || h.count(`SELECT count(*) FROM rounds WHERE turn_id = $1`, first.TurnID) > 0
	})
	after.release()
	c.answered(first.TurnID)
	c.idle()
	c.requireOneAnswer()
	require.Equal(t, "Saw both.", c.messages()[2].Text)
	require.True(t, strings.HasPrefix("Saw both.", c.streamed(first.TurnID)), "whoever was first, nothing is shown twice")
}
