package scripted_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"bobbin/llm"
	"bobbin/llm/scripted"
	"bobbin/thread"
)

// A talk is a conversation with the demo through the real client. Its loop is the least that an agent has.
type talk struct {
	bundle
	entries []thread.Entry
	tools   []thread.ToolSpec
	rounds  int
	// during is called before each model call, as a round head is, and may add what people write meanwhile.
	during func(round int) []string
}

func talkWith(t *testing.T, tools ...string) *talk {
	t.Helper()
	k := &talk{bundle: setup(t, scripted.Options{Play: scripted.Demo(), Fast: true}), during: func(int) []string { return nil }}
	for _, name := range tools {
		k.tools = append(k.tools, thread.ToolSpec{Name: name, Description: "does " + name, Parameters: json.RawMessage(`{"type":"object","properties":{}}`)})
	}
	return k
}

// ask runs one turn to its answer.
func (k *talk) ask(t *testing.T, text string) string {
	t.Helper()
	k.write(text)
	for round := 1; ; round++ {
		for _, line := range k.during(round) {
			k.write(line)
		}
		r, err := k.client.Call(t.Context(), thread.Prompt{System: "be kind", Entries: k.entries, Tools: k.tools}, nil)
		require.NoError(t, err)
		entry := thread.Entry{Kind: thread.EntryAssistant, Text: r.Text}
		for i, c := range r.Calls {
			entry.Calls = append(entry.Calls, thread.Call{
				Index: i, ID: c.ID, Name: c.Name, Arguments: c.Arguments, State: thread.CallSucceeded, Result: "result of " + c.Name,
			})
		}
		k.entries = append(k.entries, entry)
		if k.rounds = round; len(r.Calls) == 0 {
			return r.Text
		}
		require.Less(t, round, 40)
	}
}

func (k *talk) write(text string) {
	k.entries = append(k.entries, thread.Entry{Kind: thread.EntryUser, Text: text})
}

func TestDemoTakesInWhatIsWrittenWhileItWorks(t *testing.T) {
	t.Parallel()
	k := talkWith(t, scripted.DemoTool)
	k.during = func(round int) []string {
		if round == 3 {
			return []string{"Only domestic companies.\n\nLimit it to listed ones"}
		}
		return nil
	}
	report := k.ask(t, "Research the wool trade for 30 s, please")
	require.Equal(t, 7, k.rounds) // six steps of five seconds, and the report
	require.Contains(t, report, "the wool trade")
	require.Contains(t, report, "only domestic companies; limit it to listed ones")
	require.Contains(t, report, "### Taken in on the way\n\n- Only domestic companies\n- Limit it to listed ones")

	var taken, seconds []string
	for _, e := range k.entries {
		if strings.HasPrefix(e.Text, "Taking in: ") {
			taken = append(taken, strings.SplitN(e.Text, "\n", 2)[0])
		}
		for _, c := range e.Calls {
			var a struct {
				Task    string  `json:"task"`
				Seconds float64 `json:"seconds"`
			}
			require.NoError(t, json.Unmarshal([]byte(c.Arguments), &a))
			require.NotEmpty(t, a.Task)
			require.InDelta(t, 5, a.Seconds, 0.01)
			seconds = append(seconds, c.Name)
		}
	}
	require.Equal(t, []string{"Taking in: Only domestic companies; Limit it to listed ones"}, taken, "once, at the round that first showed it")
	require.Len(t, seconds, 6)
	require.Empty(t, k.server.Refusals())

	k.during = func(int) []string { return nil }
	require.Contains(t, k.ask(t, "and the cotton trade?"), "> and the cotton trade?", "the next turn starts afresh")
}

func TestDemoFinishesEarlyWhenItIsToldTo(t *testing.T) {
	t.Parallel()
	k := talkWith(t, scripted.DemoTool)
	k.during = func(round int) []string {
		if round == 3 {
			return []string{"That's enough"}
		}
		return nil
	}
	require.Contains(t, k.ask(t, "work slowly for 2 minutes"), "**2 of 10** steps")
	require.Equal(t, 3, k.rounds)
}

func TestDemoFetchesWhatItIsPointedToWhileItWorks(t *testing.T) {
	t.Parallel()
	k := talkWith(t, scripted.DemoTool, "fetch_url")
	k.during = func(round int) []string {
		if round == 2 {
			return []string{"look at https://example.com/a too"}
		}
		return nil
	}
	k.ask(t, "research wool")
	var fetched []string
	for _, e := range k.entries {
		for _, c := range e.Calls {
			if c.Name == "fetch_url" {
				fetched = append(fetched, c.Arguments)
			}
		}
	}
	require.Equal(t, []string{`{"url":"https://example.com/a"}`}, fetched)
}

func TestDemoAnswers(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, ask string
		tools     []string
		want      string
		rounds    int
	}{
		{"Help", "help", nil, "| write | and I |", 1},
		{"AGreeting", "Hello!", nil, "demo model", 1},
		{"AnythingElse", "what is\nlove?", nil, "> what is\n> love?", 1},
		{"AFetch", "fetch https://example.com.", []string{"fetch_url"}, "> result of fetch_url", 2},
		{"AFetchWithoutTheTool", "fetch https://example.com", nil, "was not given to me", 1},
		{"WorkWithoutTools", "research wool", nil, "nothing to report yet", 1},
		{"WorkWithoutItsTool", "research wool", []string{"other"}, "was not given to me", 1},
		{"ItsTools", "tools", []string{"a", "b"}, "- **a**: does a\n- **b**: does b", 1},
		{"ACall", `call a {"x": {"y": 1}}`, []string{"a"}, "> result of a", 2},
		{"ACallOfNoTool", "call b", []string{"a"}, "no tool named `b`", 1},
		{"ACallWithBrokenArguments", "call a {x}", []string{"a"}, "not valid JSON", 1},
		{"ACount", "count to 4", nil, "1 2 3 4 – done.", 1},
		{"ALongAnswer", "a long answer please", nil, "# A long answer", 1},
		{"WhatWasSaid", "what did I say?", nil, "first thing", 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			k := talkWith(t, tc.tools...)
			require.Contains(t, k.ask(t, tc.ask), tc.want)
			require.Equal(t, tc.rounds, k.rounds)
		})
	}
}

func TestDemoRemembersTheConversation(t *testing.T) {
	t.Parallel()
	k := talkWith(t)
	k.ask(t, "my name is Ada")
	require.Contains(t, k.ask(t, "what did I say?"), "- my name is Ada")
	require.Contains(t, k.ask(t, "and now?"), "2 messages")
}

func TestDemoFailsAsAsked(t *testing.T) {
	t.Parallel()
	k := talkWith(t)
	_, err := k.client.Call(t.Context(), promptOf("fail"), nil)
	require.Equal(t, 500, thread.AsModelError(err).Status)
	_, err = k.client.Call(t.Context(), promptOf("flaky"), nil)
	require.Equal(t, 429, thread.AsModelError(err).Status)
	require.Equal(t, time.Second, thread.AsModelError(err).RetryAfter)
	r, err := k.client.Call(t.Context(), promptOf("flaky"), nil)
	require.NoError(t, err)
	require.Contains(t, r.Text, "**second**")
}

func TestDemoSumsUpWhenItIsAskedByANote(t *testing.T) {
	t.Parallel()
	k := talkWith(t)
	k.ask(t, "my name is Ada")
	k.entries = append(k.entries, thread.Entry{Kind: thread.EntryNote, Text: "Summarise the conversation so far."})
	r, err := k.client.Call(t.Context(), thread.Prompt{Entries: k.entries}, nil)
	require.NoError(t, err)
	require.Contains(t, r.Text, "- my name is Ada")
}

func TestDemoAnswersANoteThatBeginsATurn(t *testing.T) {
	t.Parallel()
	k := talkWith(t)
	k.entries = append(k.entries, thread.Entry{Kind: thread.EntryNote, Text: "count to 3"})
	r, err := k.client.Call(t.Context(), thread.Prompt{Entries: k.entries}, nil)
	require.NoError(t, err)
	require.Contains(t, r.Text, "1 2 3")
}

func FuzzDemo(f *testing.F) {
	f.Add("call", "", true)
	f.Add("research", "enough", true)
	f.Add("fetch https://", "https://a", false)
	f.Add("count to 99999999999999999999", "\x00", true)
	f.Add("work for 99999999999999999999 minutes", "[Bobbin] x", true)
	demo := scripted.Demo()
	f.Fuzz(func(t *testing.T, ask, steering string, tools bool) {
		r := scripted.Request{Messages: []scripted.Message{{Role: "user", Text: ask}}}
		if tools {
			r.Tools = []scripted.Tool{{Name: scripted.DemoTool}, {Name: "fetch_url"}}
		}
		for range 20 {
			reply := demo(r)
			require.True(t, reply.Text != "" || reply.Status != 0)
			if len(reply.Calls) == 0 {
				return
			}
			r.Messages = append(r.Messages, scripted.Message{Role: "assistant", Text: reply.Text, Calls: reply.Calls})
			for _, c := range reply.Calls {
				require.True(t, json.Valid([]byte(c.Arguments)))
				r.Messages = append(r.Messages, scripted.Message{Role: "tool", Text: "ok", CallID: c.ID})
			}
			r.Messages = append(r.Messages, scripted.Message{Role: "user", Text: steering})
		}
		t.Fatal("it does not come to an end")
	})
}

func TestNotesAreNotTakenForPeople(t *testing.T) {
	t.Parallel()
	r := scripted.Request{Messages: []scripted.Message{{Role: "user", Text: llm.NoteTag + "a note"}, {Role: "user", Text: "a person"}}}
	require.Equal(t, []string{"a person"}, r.News())
}
