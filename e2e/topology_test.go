package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"

	"bobbin/llm/scripted"
	"bobbin/thread"
)

// through is the same chat, written to through one of the house's APIs. What it sees comes as before.
func (c *chat) through(api *process) *chat {
	other := *c
	other.h = c.h.through(api)
	return &other
}

// The processes of docker-compose.yml: two APIs and two workers, after one migration, behind one Postgres and one Temporal.
func TestTwoAPIsAndTwoWorkersAreOneServer(t *testing.T) {
	t.Parallel()
	h := open(t)
	h.migrate()
	one, two := h.api(), h.api()
	first, second := h.worker(), h.worker()

	t.Run("WhatIsSentToOneIsSeenStreamingAtTheOtherAndStoppedThere", func(t *testing.T) {
		g := make(chan struct{})
		c := h.in(t).through(two).chat(scripted.Rounds(scripted.Reply{Pieces: []string{"As ", "it ", "comes"}, Gate: g}, scripted.Say("Yes.")))
		sent := c.through(one).start("Tell me.")
		step(g, 2)
		c.await("the answer as it is written", func(e event) bool { return e.Name == thread.EventAnswerDelta && e.TurnID == sent.TurnID })
		require.Equal(t, []string{sent.TurnID}, c.through(two).stop("conversation").Stopped)
		require.Equal(t, thread.EventTurnCancelled, c.ended(sent.TurnID).Name)
		end, err := h.model.WaitEnd(h.ctx(), h.request(c.marker, 1).N)
		require.NoError(t, err)
		require.False(t, end.Gone.IsZero(), "the provider sees its connection closed")
		c.answered(c.through(one).send("Still there?").TurnID)
		c.checkOrder()
	})

	t.Run("ATurnOutlivesEachWorkerInTurn", func(t *testing.T) {
		g := h.tools.gate("outlives")
		c := h.in(t).through(two).chat(scripted.Rounds(ask("look", "outlives"), scripted.Say("Here.")))
		sent := c.through(one).start("Look.")
		h.arrives(g)
		first.kill()
		h.worker()
		second.kill()
		g.release()
		c.answered(sent.TurnID)
		require.Len(t, c.requests(), 2, "no round twice")
		c.checkOrder()
	})

	t.Run("WithOneAPIGoneTheOtherServesAll", func(t *testing.T) {
		c := h.in(t).through(two).chat(scripted.Echo)
		c.answered(c.through(one).start("Both.").TurnID)
		one.kill()
		c.answered(c.send("One.").TurnID)
		c.checkOrder()
	})
}
