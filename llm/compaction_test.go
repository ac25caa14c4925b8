package llm

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/sashabaranov/go-openai"
	"github.com/stretchr/testify/require"

	"bobbin/llm/scripted"
	"bobbin/thread"
)

// A transcript of 500 messages with parallel calls, some without a result and with ids that come again, is cut at every
// place there is: what is shown after a summary is a request that a strict provider takes, with every call beside its result
// and all in order.
func TestATranscriptCutAnywhereHasNoOrphans(t *testing.T) {
	t.Parallel()
	var entries []thread.Entry
	for i := 0; messagesOf(entries) < 500; i++ {
		entries = append(entries, user(fmt.Sprintf("question %d", i)))
		if i%4 == 0 {
			entries = append(entries, thread.Entry{Kind: thread.EntryNote, Text: fmt.Sprintf("note %d", i)})
		}
		for round := range i % 3 {
			var calls []thread.Call
			for j := range 1 + (i+round)%4 {
				state := []thread.CallState{thread.CallSucceeded, thread.CallFailed, thread.CallInterrupted, thread.CallSucceeded}[j]
				calls = append(calls, call(fmt.Sprint("call_", j), state, fmt.Sprintf("result %d.%d.%d", i, round, j)))
			}
			entries = append(entries, asks("", calls...))
		}
		entries = append(entries, asks(fmt.Sprintf("answer %d", i)))
	}
	whole := shown(t, entries, user("and now?"))
	for k := range len(entries) + 1 {
		cut := append([]thread.Entry{{Kind: thread.EntryNote, Text: "A summary."}}, entries[k:]...)
		part := shown(t, cut, user("and now?"))
		require.Equal(t, NoteTag+"A summary.", part[0].Content)
		rest := part[1:]
		for i, m := range whole[len(whole)-len(rest):] {
			require.Equal(t, m.Role, rest[i].Role, "cut at %d", k)
			require.Equal(t, m.Content, rest[i].Content, "cut at %d", k)
			require.Len(t, rest[i].ToolCalls, len(m.ToolCalls))
		}
	}
}

func messagesOf(entries []thread.Entry) (n int) {
	for _, e := range entries {
		n += 1 + len(e.Calls)
	}
	return n
}

// shown is what the provider is sent of entries. It takes them.
func shown(t *testing.T, entries []thread.Entry, more ...thread.Entry) []openai.ChatCompletionMessage {
	t.Helper()
	messages := shaped(thread.Prompt{Entries: append(entries[:len(entries):len(entries)], more...)}, nameTools(nil))
	body, err := json.Marshal(openai.ChatCompletionRequest{Model: "m", Messages: messages})
	require.NoError(t, err)
	require.Nil(t, scripted.Check(body))
	return messages
}
