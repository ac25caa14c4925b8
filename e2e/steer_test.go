package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"

	"bobbin/llm/scripted"
	"bobbin/thread"
)

func TestSteering(t *testing.T) {
	t.Parallel()
	h := furnish(t)

	t.Run("LinesSentWhileAToolRunsReachTheModelAsOneMessage", func(t *testing.T) {
		t.Parallel()
		g := h.tools.gate("listing")
		c := h.chat(t, scripted.Rounds(ask("look", "listing"), scripted.Say("Here is the list.")))
		first := c.start("List the companies.")
		h.arrives(g)
		one := c.send("Only domestic companies")
		two := c.send("Limit it to listed ones")
		require.Equal(t, thread.DisposedSteering, one.Disposition)
		require.Equal(t, one.Message.ID, two.Message.ID)
		require.Equal(t, first.TurnID, two.TurnID)
		g.release()
		c.answered(first.TurnID)
		next := h.request(c.marker, 2)
		require.Equal(t, []string{"Only domestic companies\n\nLimit it to listed ones"}, next.News())
		boundary := c.awaitNamed(thread.TurnBoundary, first.TurnID)
		delivered := c.await("the delivery", func(e event) bool {
			return e.Name == thread.MessageDeliveredEv && e.Message.ID == one.Message.ID
		})
		require.Less(t, delivered.Seq, boundary.Seq)
		kinds := []thread.StepKind{}
		for _, s := range c.steps(first.TurnID) {
			kinds = append(kinds, s.Kind)
		}
		require.Equal(t, []thread.StepKind{thread.StepTool, thread.StepBoundary}, kinds)
		require.Len(t, c.requests(), 2)
		c.checkOrder()
	})
}
