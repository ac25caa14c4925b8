package activities_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"bobbin/activities"
	"bobbin/agent"
	"bobbin/contract"
	"bobbin/llm/scripted"
	"bobbin/thread"
)

func small(c *activities.Config) { c.Window = agent.Window{Tokens: 2000, At: 0.75, Keep: 0.25} }

func isSummary(r scripted.Request) bool {
	return strings.HasPrefix(r.Messages[0].Text, "You summarise")
}

// long is a thread whose next turn is summarised first.
func (b *bundle) long(w *worker) contract.TurnRef {
	b.t.Helper()
	for range 3 {
		turn := b.start(strings.Repeat("word ", 300))
		b.t.Log(w.end(turn, w.stint(turn)).Status)
	}
	return b.start(strings.Repeat("word ", 300))
}

func TestStintStoppedWhileItSummarisesClosesTheConnectionAndKeepsNothing(t *testing.T) {
	held := make(chan struct{})
	b := setup(t, func(r scripted.Request) scripted.Reply {
		if isSummary(r) {
			return scripted.Reply{Text: "Notes.", Gate: held, GateAt: scripted.AtFinish}
		}
		return scripted.Say("Yes.")
	})
	w := b.worker(small)
	turn := b.long(w)
	done := later(func() contract.StintResult { return w.stint(turn) })
	summary := b.request(4)
	require.True(t, isSummary(summary))
	b.accept("and this") // waits for the next round head
	b.stop()
	require.Equal(t, contract.StintFenced, come(t, done).Outcome)
	end, err := b.model.WaitEnd(b.ctx(), summary.N)
	require.NoError(t, err)
	require.False(t, end.Gone.IsZero(), "the connection is closed")
	require.Equal(t, thread.TurnCancelled, w.end(turn, contract.StintResult{}).Status)
	for _, e := range b.events() {
		require.NotContains(t, string(e.Data), "Notes.")
	}
}

func TestAMessageThatComesWhileAStintSummarisesIsLoadedBeforeTheNextModelCall(t *testing.T) {
	var b *bundle
	b = setup(t, func(r scripted.Request) scripted.Reply {
		if isSummary(r) {
			b.accept("and this")
			return scripted.Say("Notes.")
		}
		return scripted.Say("Yes.")
	})
	w := b.worker(small)
	turn := b.long(w)
	require.Equal(t, contract.StintAnswered, w.stint(turn).Outcome)
	last := b.request(len(b.model.Requests()))
	require.False(t, isSummary(last))
	require.Equal(t, "and this", last.Messages[len(last.Messages)-1].Text)
	require.True(t, last.Mentions("Notes."))
	phases := 0
	for _, e := range b.events() {
		if e.Name == thread.EventTurnPhase && strings.Contains(string(e.Data), string(thread.PhaseSummarising)) {
			phases++
		}
	}
	require.Positive(t, phases)
}
