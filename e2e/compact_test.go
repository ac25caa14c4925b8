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

// window is that of the model in these stories, in tokens: some ten messages.
const window = 6000

func TestALongConversation(t *testing.T) {
	t.Parallel()
	h := house.Furnish(t, fmt.Sprintf("BOBBIN_MODEL_CONTEXT_TOKENS=%d", window))
	for name, story := range map[string]func(*house.House){
		"GoesOnPastTheWindowAndKnowsWhatWasSaidFirst": outgrowsTheWindow,
		"GoesOnWhereTheModelsWindowIsLessThanIsSaid":  outgrowsALesserWindow,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			story(h.In(t))
		})
	}
}

const fact = "The code word is heron."

// remembers answers at length, and summarises by keeping the fact if it is shown.
func remembers(r scripted.Request) scripted.Reply {
	switch {
	case !summary(r):
		return scripted.Say(strings.Repeat("well ", 100))
	case r.Mentions(fact):
		return scripted.Say("They said: " + fact)
	}
	return scripted.Say("They said nothing of note.")
}

func summary(r scripted.Request) bool {
	return len(r.Tools) == 0 && strings.HasPrefix(r.Messages[0].Text, "You summarise")
}

// talk holds a conversation of n turns that begins with the fact, and returns how many requests were for summaries and how
// long the longest was, in tokens.
func talk(c *house.Chat, n int) (summaries, longest int) {
	c.T.Helper()
	c.Answered(c.Start(fact).TurnID)
	for i := range n {
		c.Answered(c.Start(fmt.Sprintf("item %d. %s", i, strings.Repeat("word ", 300))).TurnID)
	}
	for _, r := range c.Requests() {
		if longest = max(longest, len(r.Body)/4); summary(r) {
			summaries++
		}
	}
	return summaries, longest
}

func outgrowsTheWindow(h *house.House) {
	t := h.T
	c := h.Chat(scripted.Window(window, remembers))
	summaries, longest := talk(c, 24)
	require.Positive(t, summaries)
	require.LessOrEqual(t, longest, window, "no request was refused")
	requests := c.Requests()
	last := requests[len(requests)-1]
	require.True(t, last.Mentions(fact), "in the summary")
	require.False(t, last.Mentions("item 0."), "not shown any more")
	require.Equal(t, 50, h.Count(`SELECT count(*) FROM entries WHERE session_id = $1`, c.ID), "the record stays")
	require.Equal(t, summaries, h.Count(`SELECT count(*) FROM summaries WHERE session_id = $1`, c.ID))
	steps := h.Count(`SELECT count(*) FROM steps s JOIN turns t ON t.id = s.turn_id WHERE t.thread_id = $1 AND s.kind = 'note'`, c.ID)
	require.Equal(t, summaries, steps)
	require.Contains(t, c.Watch.Names(), string(thread.EventTurnPhase))
	checkNewest(c, last)
}

func outgrowsALesserWindow(h *house.House) {
	t := h.T
	const lesser = 3000
	c := h.Chat(scripted.Window(lesser, remembers))
	summaries, longest := talk(c, 12)
	require.Positive(t, summaries)
	require.Greater(t, longest, lesser, "a request was refused")
	requests := c.Requests()
	last := requests[len(requests)-1]
	require.True(t, last.Mentions(fact))
	for _, turn := range c.Turns() {
		require.Equal(t, thread.TurnSucceeded, turn.Status)
	}
	checkNewest(c, last)
}

// checkNewest checks that the model was shown the newest messages, in their order and word for word.
func checkNewest(c *house.Chat, last scripted.Request) {
	c.T.Helper()
	shown, screen := house.Said(last), c.Screen()
	require.Greater(c.T, len(screen), len(shown)+1, "not all of it is shown")
	require.Equal(c.T, screen[len(screen)-1-len(shown):len(screen)-1], shown)
}
