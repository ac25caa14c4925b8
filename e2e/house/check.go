package house

import (
	"fmt"
	"slices"
	"strings"

	"github.com/stretchr/testify/require"

	"bobbin/llm/scripted"
	"bobbin/thread"
)

// Screen is the conversation as lines "role: text", without notices.
func (c *Chat) Screen() []string {
	c.T.Helper()
	var lines []string
	for _, m := range c.Messages() {
		if m.Role != thread.RoleNotice {
			lines = append(lines, string(m.Role)+": "+m.Text)
		}
	}
	return lines
}

// Said is the conversation of a request as lines "role: text", without what was not said to anyone.
func Said(r scripted.Request) []string {
	var lines []string
	for _, m := range r.Messages {
		if (m.Role == "user" || m.Role == "assistant") && len(m.Calls) == 0 && !strings.HasPrefix(m.Text, scripted.NoteTag) {
			lines = append(lines, m.Role+": "+m.Text)
		}
	}
	return lines
}

// CheckOrder checks, of a chat whose last turn has answered, that the screen shows what the model was shown, in its order,
// and then the answer.
func (c *Chat) CheckOrder() {
	c.T.Helper()
	all := c.Requests()
	require.NotEmpty(c.T, all)
	c.CheckOrderIn(all[len(all)-1:])
}

// CheckOrderIn is CheckOrder where two holders of a turn ask on their own: the answer is to one of the requests.
func (c *Chat) CheckOrderIn(requests []scripted.Request) {
	c.T.Helper()
	screen := c.Screen()
	require.NotEmpty(c.T, screen)
	last := len(screen) - 1
	asked := func(r scripted.Request) bool { return slices.Equal(Said(r), screen[:last]) }
	if !strings.HasPrefix(screen[last], "assistant: ") || !slices.ContainsFunc(requests, asked) {
		c.T.Fatalf("the screen is not what the model was shown, and the answer:\nscreen %s\nmodel  %s",
			brief(screen), brief(Said(requests[len(requests)-1])))
	}
}

// brief is a list of lines for a failure's text.
func brief(lines []string) string {
	var b strings.Builder
	for _, l := range lines {
		fmt.Fprintf(&b, "\n  %.100q (%d)", l, len(l))
	}
	return b.String()
}

// Times counts how often text was in a chat's delivered messages.
func (c *Chat) Times(text string) int {
	c.T.Helper()
	n := 0
	for _, m := range c.Messages() {
		if m.State == thread.MessageDelivered && m.Role == thread.RoleUser {
			n += strings.Count(m.Text, text)
		}
	}
	return n
}

// Streamed is what a page shows of a turn's answer after all its events: pieces that do not fit fail the test.
func (c *Chat) Streamed(turn string) string {
	c.T.Helper()
	text := ""
	for _, e := range c.Watch.All() {
		switch {
		case e.TurnID != turn:
		case e.Name == thread.EventAnswerRestarted:
			text = ""
		case e.Name == thread.EventAnswerDelta:
			require.Equal(c.T, len(text), e.Offset, "the pieces of an answer follow each other")
			text += e.Text
		}
	}
	return text
}

// RequireOneAnswer checks that the chat was one turn and has one answer.
func (c *Chat) RequireOneAnswer() {
	c.T.Helper()
	require.Len(c.T, c.Turns(), 1)
	require.Equal(c.T, 1, c.H.Count(`SELECT count(*) FROM messages WHERE thread_id = $1 AND role = 'assistant'`, c.ID))
}

// CheckReplies checks, of a chat at rest, that each turn has ended and has one reply at most, exactly one if it succeeded,
// and that what was streamed is what was stored. Background turns have none: they do not speak by answering.
func (c *Chat) CheckReplies() {
	c.T.Helper()
	replies := map[string][]thread.Message{}
	for _, m := range c.Messages() {
		if m.Role == thread.RoleAssistant {
			replies[m.TurnID] = append(replies[m.TurnID], m)
		}
	}
	for _, turn := range c.Turns() {
		require.LessOrEqual(c.T, len(replies[turn.ID]), 1, "turn %s", turn.ID)
		require.True(c.T, turn.Status.Ended(), "turn %s is %s", turn.ID, turn.Status)
		if turn.Kind == thread.Background {
			require.Empty(c.T, replies[turn.ID], "turn %s", turn.ID)
			continue
		}
		require.Equal(c.T, turn.Status == thread.TurnSucceeded, len(replies[turn.ID]) == 1 && !replies[turn.ID][0].Stopped, "turn %s", turn.ID)
		if turn.Status == thread.TurnSucceeded {
			require.Equal(c.T, replies[turn.ID][0].Text, c.Streamed(turn.ID))
		}
	}
}

// CheckCalls checks that in each of the chat's requests every tool call is answered by one result, right behind it, and that
// there is no result without its call.
func (c *Chat) CheckCalls() {
	c.T.Helper()
	for _, r := range c.Requests() {
		open := map[string]bool{}
		for _, m := range r.Messages {
			if m.Role == "tool" {
				require.True(c.T, open[m.CallID], "request %d has a result of %q without its call, or twice", r.N, m.CallID)
				delete(open, m.CallID)
				continue
			}
			require.Empty(c.T, open, "request %d has calls without results", r.N)
			for _, call := range m.Calls {
				open[call.ID] = true
			}
		}
		require.Empty(c.T, open, "request %d ends with calls without results", r.N)
	}
}
