package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"bobbin/llm/scripted"
	"bobbin/thread"
)

// window is that of the model in these stories, in tokens: some ten messages.
const window = 6000

func TestALongConversation(t *testing.T) {
	t.Parallel()
	h := furnish(t, fmt.Sprintf("BOBBIN_MODEL_CONTEXT_TOKENS=%d", window))
	for name, story := range map[string]func(*house){
		"GoesOnPastTheWindowAndKnowsWhatWasSaidFirst": outgrowsTheWindow,
		"GoesOnWhereTheModelsWindowIsLessThanIsSaid":  outgrowsALesserWindow,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			story(h.in(t))
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
func (c *chat) talk(n int) (summaries, longest int) {
	c.t.Helper()
	c.answered(c.start(fact).TurnID)
	for i := range n {
		c.answered(c.start(fmt.Sprintf("item %d. %s", i, strings.Repeat("word ", 300))).TurnID)
	}
	for _, r := range c.requests() {
		if longest = max(longest, len(r.Body)/4); summary(r) {
			summaries++
		}
	}
	return summaries, longest
}

func outgrowsTheWindow(h *house) {
	t := h.t
	c := h.chat(scripted.Window(window, remembers))
	summaries, longest := c.talk(24)
	require.Positive(t, summaries)
	require.LessOrEqual(t, longest, window, "no request was refused")
	requests := c.requests()
	last := requests[len(requests)-1]
	require.True(t, last.Mentions(fact), "in the summary")
	require.False(t, last.Mentions("item 0."), "not shown any more")
	require.Equal(t, 50, h.count(`SELECT count(*) FROM entries WHERE session_id = $1`, c.id), "the record stays")
	require.Equal(t, summaries, h.count(`SELECT count(*) FROM summaries WHERE session_id = $1`, c.id))
	steps := h.count(`SELECT count(*) FROM steps s JOIN turns t ON t.id = s.turn_id WHERE t.thread_id = $1 AND s.kind = 'note'`, c.id)
	require.Equal(t, summaries, steps)
	require.Contains(t, c.watch.names(), string(thread.EventTurnPhase))
	c.checkNewest(last)
}

func outgrowsALesserWindow(h *house) {
	t := h.t
	const lesser = 3000
	c := h.chat(scripted.Window(lesser, remembers))
	summaries, longest := c.talk(12)
	require.Positive(t, summaries)
	require.Greater(t, longest, lesser, "a request was refused")
	requests := c.requests()
	last := requests[len(requests)-1]
	require.True(t, last.Mentions(fact))
	for _, turn := range c.turns() {
		require.Equal(t, thread.TurnSucceeded, turn.Status)
	}
	c.checkNewest(last)
}

// checkNewest checks that the model was shown the newest messages, in their order and word for word.
func (c *chat) checkNewest(last scripted.Request) {
	c.t.Helper()
	shown, screen := said(last), c.screen()
	require.Greater(c.t, len(screen), len(shown)+1, "not all of it is shown")
	require.Equal(c.t, screen[len(screen)-1-len(shown):len(screen)-1], shown)
}
