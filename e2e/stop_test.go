package e2e

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"bobbin/e2e/house"
	"bobbin/llm/scripted"
	"bobbin/thread"
)

func TestStop(t *testing.T) {
	t.Parallel()
	h := house.Furnish(t)
	for name, story := range map[string]func(*house.House){
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
			story(h.In(t))
		})
	}
}

// markusylisiurunen/tau#40, op7418/CodePilot#665
func stopWhileStreaming(h *house.House) {
	t := h.T
	g := make(chan struct{})
	c := h.Chat(scripted.Rounds(scripted.Reply{Pieces: []string{"Once ", "upon ", "a time"}, Gate: g}, scripted.Say("Yes.")))
	first := c.Start("Tell me a story.")
	house.Step(g, 3)
	c.Await("what was written", func(e house.Event) bool {
		return e.Name == thread.EventAnswerDelta && strings.Contains(e.Text, "upon ")
	})
	c.Send("and then?")
	c.Send("and who?", house.Files("fil_7"))
	out := c.Stop("conversation")
	require.Equal(t, []string{first.TurnID}, out.Stopped)
	require.NotNil(t, out.Withdrawn)
	require.Equal(t, "and then?\n\nand who?", out.Withdrawn.Text)
	require.Equal(t, []string{"fil_7"}, out.Withdrawn.Attachments)
	end, err := h.Model.WaitEnd(h.Ctx(), h.Request(c.Marker, 1).N)
	require.NoError(t, err)
	require.False(t, end.Gone.IsZero(), "the provider sees its connection closed")
	require.Equal(t, thread.EventTurnCancelled, c.Ended(first.TurnID).Name)
	shown := c.Messages()
	require.Len(t, shown, 2)
	require.Equal(t, []any{"Once upon ", true, thread.RoleAssistant}, []any{shown[1].Text, shown[1].Stopped, shown[1].Role})
	require.Len(t, c.Turns(), 1, "what was withdrawn starts no turn")
	c.Answered(c.Send("Is this a new turn?").TurnID)
	require.Equal(t, []string{"Is this a new turn?"}, h.Request(c.Marker, 2).News())
	c.CheckOrder()
}

// charmbracelet/crush#529
func stopDuringTool(h *house.House) {
	t := h.T
	g := h.Tools.Gate("stopped-look")
	c := h.Chat(scripted.Rounds(house.Ask("look", "stopped-look", "beside it"), scripted.Say("Fine.")))
	first := c.Start("Look for long.")
	h.Arrives(g)
	c.Stop("conversation")
	require.Equal(t, thread.EventTurnCancelled, c.Ended(first.TurnID).Name)
	c.Answered(c.Send("Go on.").TurnID)
	next := h.Request(c.Marker, 2)
	var results []scripted.Message
	for _, m := range next.Messages {
		if m.Role == "tool" {
			results = append(results, m)
		}
	}
	require.Len(t, results, 2, "each call has a result")
	require.Len(t, h.Tools.Called("stopped-look"), 1)
	c.CheckOrder()
}

func stopDuringSideEffect(h *house.House) {
	t := h.T
	g := h.Tools.Gate("stopped-charge")
	c := h.Chat(scripted.Rounds(house.Ask("charge", "stopped-charge"), scripted.Say("I see.")))
	first := c.Start("Charge it.")
	h.Arrives(g)
	c.Stop("conversation")
	require.Equal(t, thread.EventTurnCancelled, c.Ended(first.TurnID).Name)
	g.Release()
	h.Until("the outcome in the call's row", func() bool {
		return h.Count(`SELECT count(*) FROM calls WHERE turn_id = $1 AND result LIKE 'result of stopped-charge%'`, first.TurnID) == 1
	})
	c.Answered(c.Send("Did it happen?").TurnID)
	require.Len(t, h.Tools.Called("stopped-charge"), 1)
	require.True(t, h.Request(c.Marker, 2).Mentions("result of stopped-charge"), "the next turn knows what happened")
	c.CheckOrder()
}

// anthropics/claude-code#16905
func stopBesideBackground(h *house.House) {
	t := h.T
	look, back := h.Tools.Gate("beside-look"), h.Tools.Gate("beside-back")
	c := h.Chat(func(r scripted.Request) scripted.Reply {
		switch {
		case r.Mentions("background work") && len(r.Results()) == 0:
			return house.Ask("look", "beside-back")
		case r.Mentions("background work"):
			return scripted.Say("Worked.")
		}
		return house.Ask("look", "beside-look")
	})
	first := c.Start("Look.")
	h.Arrives(look)
	turn, err := h.DB.AddBackground(h.Ctx(), c.ID, thread.SourceEvent, c.Marker+" background work")
	require.NoError(t, err)
	h.Arrives(back)
	c.Send("and this")
	out := c.Stop("conversation")
	require.Equal(t, []string{first.TurnID}, out.Stopped)
	require.Equal(t, "and this", out.Withdrawn.Text)
	require.Equal(t, thread.EventTurnCancelled, c.Ended(first.TurnID).Name)
	require.Equal(t, thread.TurnRunning, c.Turn(turn.ID).Status, "a background turn goes on")
	out = c.Stop("all")
	require.Equal(t, []string{turn.ID}, out.Stopped)
	require.Equal(t, thread.EventTurnCancelled, c.Ended(turn.ID).Name)
	require.Len(t, c.Turns(), 2)
}

// syntara-orchestration/syntara#348
func stopHungCall(h *house.House) {
	t := h.T
	c := h.Chat(scripted.Rounds(scripted.Reply{Fault: scripted.Hang}, scripted.Say("Back.")))
	first := c.Start("Hang.")
	hung := h.Request(c.Marker, 1)
	c.Stop("conversation")
	end, err := h.Model.WaitEnd(h.Ctx(), hung.N)
	require.NoError(t, err)
	require.False(t, end.Gone.IsZero())
	require.Equal(t, thread.EventTurnCancelled, c.Ended(first.TurnID).Name)
	require.Empty(t, h.Request(c.Marker, 1).Finished)
}

func stopNothing(h *house.House) {
	t := h.T
	c := h.Chat(scripted.Echo)
	require.Equal(t, house.Stopped{Stopped: []string{}}, c.Stop("conversation"))
	c.Answered(c.Start("one").TurnID)
	c.Idle()
	require.Equal(t, house.Stopped{Stopped: []string{}}, c.Stop("all"))
	c.Answered(c.Send("two").TurnID)
	c.CheckOrder()
}

// dust-tt/dust#16542
func stopThenMessage(h *house.House) {
	t := h.T
	g := house.NewGate()
	c := h.Chat(scripted.Rounds(scripted.Reply{Text: "too late", Gate: g.Open, GateAt: scripted.AtFinish}, scripted.Say("New."),
		scripted.Say("Newer.")))
	first := c.Start("One.")
	c.Await("the whole text", func(e house.Event) bool {
		return e.Name == thread.EventAnswerDelta && strings.HasSuffix(e.Text, "late")
	})
	c.Stop("conversation")
	g.Release() // the answer would be whole now
	second := c.Send("Two.")
	_, err := c.TrySend("Three.", house.Delivery(thread.DeliverSteer))
	if err != nil {
		house.RequireOneOf(t, err, "stopping", "not_steerable", "no_running_turn")
	}
	require.Equal(t, thread.EventTurnCancelled, c.Ended(first.TurnID).Name)
	c.Answered(second.TurnID)
	c.Idle()
	for _, e := range c.Watch.All() {
		require.False(t, e.TurnID == first.TurnID && e.Name == thread.EventTurnSucceeded, "stopped never becomes succeeded")
	}
	c.CheckOrder()
}

// dust-tt/dust#16542, syntara-orchestration/syntara#348
func TestStopReachesAModelCallWhileNotificationsAndTemporalAreCutOff(t *testing.T) {
	t.Parallel()
	h := house.Furnish(t)
	c := h.Chat(scripted.Rounds(scripted.Reply{Pieces: []string{"Kept"}, Fault: scripted.Hang, After: 1}, scripted.Say("Back.")))
	first := c.Start("Hang.")
	hung := h.Request(c.Marker, 1)
	c.Await("what was written", func(e house.Event) bool { return e.Name == thread.EventAnswerDelta })
	ctx, cancel := context.WithCancel(h.Ctx())
	defer cancel()
	go h.Deafen(ctx)
	h.Line.Cut()
	c.Stop("conversation")
	end, err := h.Model.WaitEnd(h.Ctx(), hung.N)
	require.NoError(t, err)
	require.False(t, end.Gone.IsZero())
	waiting := c.Send("after the stop")
	require.Equal(t, thread.DisposedQueued, waiting.Disposition)
	h.Line.Mend()
	cancel()
	require.Equal(t, thread.EventTurnCancelled, c.Ended(first.TurnID).Name)
	c.Answered(waiting.TurnID)
	c.CheckOrder()
}
