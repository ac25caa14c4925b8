package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"

	"bobbin/e2e/house"
	"bobbin/llm/scripted"
	"bobbin/thread"
)

// The processes of docker-compose.yml: two APIs and two workers, after one migration, behind one Postgres and one Temporal.
func TestTwoAPIsAndTwoWorkersAreOneServer(t *testing.T) {
	t.Parallel()
	h := house.Open(t)
	h.Migrate()
	one, two := h.API(), h.API()
	first, second := h.Worker(), h.Worker()

	t.Run("WhatIsSentToOneIsSeenStreamingAtTheOtherAndStoppedThere", func(t *testing.T) {
		g := make(chan struct{})
		c := h.In(t).Through(two).Chat(scripted.Rounds(scripted.Reply{Pieces: []string{"As ", "it ", "comes"}, Gate: g}, scripted.Say("Yes.")))
		sent := c.Through(one).Start("Tell me.")
		house.Step(g, 2)
		c.Await("the answer as it is written", func(e house.Event) bool { return e.Name == thread.EventAnswerDelta && e.TurnID == sent.TurnID })
		require.Equal(t, []string{sent.TurnID}, c.Through(two).Stop("conversation").Stopped)
		require.Equal(t, thread.EventTurnCancelled, c.Ended(sent.TurnID).Name)
		end, err := h.Model.WaitEnd(h.Ctx(), h.Request(c.Marker, 1).N)
		require.NoError(t, err)
		require.False(t, end.Gone.IsZero(), "the provider sees its connection closed")
		c.Answered(c.Through(one).Send("Still there?").TurnID)
		c.CheckOrder()
	})

	t.Run("ATurnOutlivesEachWorkerInTurn", func(t *testing.T) {
		g := h.Tools.Gate("outlives")
		c := h.In(t).Through(two).Chat(scripted.Rounds(house.Ask("look", "outlives"), scripted.Say("Here.")))
		sent := c.Through(one).Start("Look.")
		h.Arrives(g)
		first.Kill()
		h.Worker()
		second.Kill()
		g.Release()
		c.Answered(sent.TurnID)
		require.Len(t, c.Requests(), 2, "no round twice")
		c.CheckOrder()
	})

	t.Run("WithOneAPIGoneTheOtherServesAll", func(t *testing.T) {
		c := h.In(t).Through(two).Chat(scripted.Echo)
		c.Answered(c.Through(one).Start("Both.").TurnID)
		one.Kill()
		c.Answered(c.Send("One.").TurnID)
		c.CheckOrder()
	})
}
