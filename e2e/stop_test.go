package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"bobbin/llm/scripted"
	"bobbin/thread"
)

func TestStop(t *testing.T) {
	t.Parallel()
	h := furnish(t)
	for name, story := range map[string]func(*house){
		"WhileTheAnswerStreamsKeepsItAndGivesBackWhatWaits":   stopWhileStreaming,
		"DuringAToolLeavesASessionThatTheProviderTakes":       stopDuringTool,
		"DuringASideEffectEndsTheTurnAndKeepsTheOutcome":      stopDuringSideEffect,
		"ReachesTheConversationWithAQueueAndABackgroundTurn":  stopBesideBackground,
		"DuringAModelCallThatHangsEndsTheCallAtTheProvider":   stopHungCall,
		"WithNothingRunningStopsNothing":                      stopNothing,
		"AndAMessageAfterItAreTwoTurnsAndNothingIsAnsweredIn": stopThenMessage,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			story(h.in(t))
		})
	}
}

// markusylisiurunen/tau#40, op7418/CodePilot#665
func stopWhileStreaming(h *house) {
	t := h.t
	g := make(chan struct{})
	c := h.chat(scripted.Rounds(scripted.Reply{Pieces: []string{"Once ", "upon ", "a time"}, Gate: g}, scripted.Say("Yes.")))
	first := c.start("Tell me a story.")
	step(g, 3)
	c.await("what was written", func(e event) bool { return e.Name == thread.EventAnswerDelta && strings.Contains(e.Text, "upon ") })
	c.send("and then?")
	c.send("and who?", files("fil_7"))
	out := c.stop("conversation")
	require.Equal(t, []string{first.TurnID}, out.Stopped)
	require.NotNil(t, out.Withdrawn)
	require.Equal(t, "and then?\n\nand who?", out.Withdrawn.Text)
	require.Equal(t, []string{"fil_7"}, out.Withdrawn.Attachments)
	end, err := h.model.WaitEnd(h.ctx(), h.request(c.marker, 1).N)
	require.NoError(t, err)
	require.False(t, end.Gone.IsZero(), "the provider sees its connection closed")
	require.Equal(t, thread.EventTurnCancelled, c.ended(first.TurnID).Name)
	shown := c.messages()
	require.Len(t, shown, 2)
	require.Equal(t, []any{"Once upon ", true, thread.RoleAssistant}, []any{shown[1].Text, shown[1].Stopped, shown[1].Role})
	require.Len(t, c.turns(), 1, "what was withdrawn starts no turn")
	c.answered(c.send("Is this a new turn?").TurnID)
	require.Equal(t, []string{"Is this a new turn?"}, h.request(c.marker, 2).News())
	c.checkOrder()
}

// charmbracelet/crush#529
func stopDuringTool(h *house) {
	t := h.t
	g := h.tools.gate("stopped-look")
	c := h.chat(scripted.Rounds(ask("look", "stopped-look", "beside it"), scripted.Say("Fine.")))
	first := c.start("Look for long.")
	h.arrives(g)
	c.stop("conversation")
	require.Equal(t, thread.EventTurnCancelled, c.ended(first.TurnID).Name)
	c.answered(c.send("Go on.").TurnID)
	next := h.request(c.marker, 2)
	var results []scripted.Message
	for _, m := range next.Messages {
		if m.Role == "tool" {
			results = append(results, m)
		}
	}
	require.Len(t, results, 2, "each call has a result")
	require.Len(t, h.tools.called("stopped-look"), 1)
	c.checkOrder()
}

func stopDuringSideEffect(h *house) {
	t := h.t
	g := h.tools.gate("stopped-charge")
	c := h.chat(scripted.Rounds(ask("charge", "stopped-charge"), scripted.Say("I see.")))
	first := c.start("Charge it.")
	h.arrives(g)
	c.stop("conversation")
	require.Equal(t, thread.EventTurnCancelled, c.ended(first.TurnID).Name)
	g.release()
	h.until("the outcome in the call's row", func() bool {
		return h.count(`SELECT count(*) FROM calls WHERE turn_id = $1 AND result LIKE 'result of stopped-charge%'`, first.TurnID) == 1
	})
	c.answered(c.send("Did it happen?").TurnID)
	require.Len(t, h.tools.called("stopped-charge"), 1)
	require.True(t, h.request(c.marker, 2).Mentions("result of stopped-charge"), "the next turn knows what happened")
	c.checkOrder()
}

// anthropics/claude-code#16905
func stopBesideBackground(h *house) {
	t := h.t
	look, back := h.tools.gate("beside-look"), h.tools.gate("beside-back")
	c := h.chat(func(r scripted.Request) scripted.Reply {
		switch {
		case r.Mentions("background work") && len(r.Results()) == 0:
			return ask("look", "beside-back")
		case r.Mentions("background work"):
			return scripted.Say("Worked.")
		}
		return ask("look", "beside-look")
	})
	first := c.start("Look.")
	h.arrives(look)
	turn, err := h.db.AddBackground(h.ctx(), c.id, thread.SourceEvent, c.marker+" background work")
	require.NoError(t, err)
	h.arrives(back)
	c.send("and this")
	out := c.stop("conversation")
	require.Equal(t, []string{first.TurnID}, out.Stopped)
	require.Equal(t, "and this", out.Withdrawn.Text)
	require.Equal(t, thread.EventTurnCancelled, c.ended(first.TurnID).Name)
	require.Equal(t, thread.TurnRunning, c.turn(turn.ID).Status, "a background turn goes on")
	out = c.stop("all")
	require.Equal(t, []string{turn.ID}, out.Stopped)
	require.Equal(t, thread.EventTurnCancelled, c.ended(turn.ID).Name)
	require.Len(t, c.turns(), 2)
}

// syntara-orchestration/syntara#348
func stopHungCall(h *house) {
	t := h.t
	c := h.chat(scripted.Rounds(scripted.Reply{Fault: scripted.Hang}, scripted.Say("Back.")))
	first := c.start("Hang.")
	hung := h.request(c.marker, 1)
	c.stop("conversation")
	end, err := h.model.WaitEnd(h.ctx(), hung.N)
	require.NoError(t, err)
	require.False(t, end.Gone.IsZero())
	require.Equal(t, thread.EventTurnCancelled, c.ended(first.TurnID).Name)
	require.Empty(t, h.request(c.marker, 1).Finished)
}

func stopNothing(h *house) {
	t := h.t
	c := h.chat(scripted.Echo)
	require.Equal(t, stopped{Stopped: []string{}}, c.stop("conversation"))
	c.answered(c.start("one").TurnID)
	c.idle()
	require.Equal(t, stopped{Stopped: []string{}}, c.stop("all"))
	c.answered(c.send("two").TurnID)
	c.checkOrder()
}

// dust-tt/dust#16542
func stopThenMessage(h *house) {
	t := h.t
	g := newGate()
	c := h.chat(scripted.Rounds(scripted.Reply{Text: "too late", Gate: g.open, GateAt: scripted.AtFinish}, scripted.Say("New."),
		scripted.Say("Newer.")))
	first := c.start("One.")
	c.await("the whole text", func(e event) bool { return e.Name == thread.EventAnswerDelta && strings.HasSuffix(e.Text, "late") })
	c.stop("conversation")
	g.release() // the answer would be whole now
	second := c.send("Two.")
	_, err := c.trySend("Three.", delivery(thread.DeliverSteer))
	if err != nil {
		requireOneOf(t, err, "stopping", "not_steerable", "no_running_turn")
	}
	require.Equal(t, thread.EventTurnCancelled, c.ended(first.TurnID).Name)
	c.answered(second.TurnID)
	c.idle()
	for _, e := range c.watch.all() {
		require.False(t, e.TurnID == first.TurnID && e.Name == thread.EventTurnSucceeded, "stopped never becomes succeeded")
	}
	c.checkOrder()
}

func requireOneOf(t require.TestingT, err error, codes ...string) {
	var p *problem
	require.ErrorAs(t, err, &p)
	require.Contains(t, codes, p.Code)
}

// dust-tt/dust#16542, syntara-orchestration/syntara#348
func TestStopReachesAModelCallWhileNotificationsAndTemporalAreCutOff(t *testing.T) {
	t.Parallel()
	h := furnish(t)
	c := h.chat(scripted.Rounds(scripted.Reply{Pieces: []string{"Kept"}, Fault: scripted.Hang, After: 1}, scripted.Say("Back.")))
	first := c.start("Hang.")
	hung := h.request(c.marker, 1)
	c.await("what was written", func(e event) bool { return e.Name == thread.EventAnswerDelta })
	ctx, cancel := context.WithCancel(h.ctx())
	defer cancel()
	go h.deafen(ctx)
	h.line.cut()
	c.stop("conversation")
	end, err := h.model.WaitEnd(h.ctx(), hung.N)
	require.NoError(t, err)
	require.False(t, end.Gone.IsZero())
	waiting := c.send("after the stop")
	require.Equal(t, thread.DisposedQueued, waiting.Disposition)
	h.line.mend()
	cancel()
	require.Equal(t, thread.EventTurnCancelled, c.ended(first.TurnID).Name)
	c.answered(waiting.TurnID)
	c.checkOrder()
}

// deafen ends, again and again, every connection that listens for notifications.
func (h *house) deafen(ctx context.Context) {
	for ctx.Err() == nil {
		_, _ = h.sql.Exec(ctx, `
			SELECT pg_terminate_backend(pid)
			FROM pg_stat_activity
			WHERE datname = current_database() AND query LIKE 'LISTEN%'`)
		time.Sleep(pollEvery)
	}
}
