package llm

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/sashabaranov/go-openai"
	"github.com/stretchr/testify/require"

	"bobbin/llm/scripted"
	"bobbin/thread"
)

func user(text string) thread.Entry { return thread.Entry{Kind: thread.EntryUser, Text: text} }

func asks(text string, calls ...thread.Call) thread.Entry {
	return thread.Entry{Kind: thread.EntryAssistant, Text: text, Calls: calls}
}

func call(id string, state thread.CallState, result string) thread.Call {
	return thread.Call{ID: id, Name: "look", Arguments: `{"a":1}`, State: state, Result: result}
}

func shaped(p thread.Prompt, names toolNames) []openai.ChatCompletionMessage {
	messages, _ := shape(p, names, false)
	return messages
}

// transcript writes messages down, one a line.
func transcript(messages []openai.ChatCompletionMessage) string {
	var b strings.Builder
	for _, m := range messages {
		fmt.Fprintf(&b, "%s%s: %s", m.Role, strings.TrimSuffix("/"+m.ToolCallID, "/"), m.Content)
		for _, c := range m.ToolCalls {
			fmt.Fprintf(&b, " <%s %s %s>", c.ID, c.Function.Name, c.Function.Arguments)
		}
		b.WriteString("\n")
	}
	return b.String()
}

func TestShape(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 50)
	for _, tc := range []struct {
		name   string
		prompt thread.Prompt
		want   string
	}{
		{
			"APlainConversationIsSentAsItIs",
			thread.Prompt{System: "be kind", Entries: []thread.Entry{user(" two\n\nlines <&> "), asks("yes"), user("more")}},
			"system: be kind\nuser:  two\n\nlines <&> \nassistant: yes\nuser: more\n",
		},
		{
			"ResultsFollowTheirCallsInOrder",
			thread.Prompt{Entries: []thread.Entry{user("q"), asks("", call("b", thread.CallSucceeded, "1"), call("a", thread.CallFailed, "2")), user("and")}},
			"user: q\nassistant:  <b look {\"a\":1}> <a look {\"a\":1}>\ntool/b: 1\ntool/a: 2\nuser: and\n",
		},
		{
			"ACallWithoutAResultGetsOneThatSaysSo",
			thread.Prompt{Entries: []thread.Entry{asks("", call("1", thread.CallPending, ""), call("2", thread.CallStarted, ""), call("3", thread.CallInterrupted, ""), call("4", thread.CallSucceeded, " "), call("5", thread.CallFailed, ""))}},
			"assistant:  <1 look {\"a\":1}> <2 look {\"a\":1}> <3 look {\"a\":1}> <4 look {\"a\":1}> <5 look {\"a\":1}>\n" +
				"tool/1: " + pendingResult + "\ntool/2: " + startedResult + "\ntool/3: " + interruptedResult + "\ntool/4: " + emptyResult + "\ntool/5: " + failedResult + "\n",
		},
		{
			"AnInterruptedCallKeepsTheResultThatSaysWhy",
			thread.Prompt{Entries: []thread.Entry{asks("", call("1", thread.CallInterrupted, "stopped by you"))}},
			"assistant:  <1 look {\"a\":1}>\ntool/1: stopped by you\n",
		},
		{
			"ArgumentsThatAreNoObjectBecomeEmpty",
			thread.Prompt{Entries: []thread.Entry{asks("", thread.Call{ID: "1", Name: "n", Arguments: `{"a":`, State: thread.CallFailed, Result: "r"}, thread.Call{ID: "2", Name: "n", Arguments: `[1]`, State: thread.CallFailed, Result: "r"})}},
			"assistant:  <1 n {}> <2 n {}>\ntool/1: r\ntool/2: r\n",
		},
		{
			"AnEmptyAssistantEntryIsLeftOut",
			thread.Prompt{Entries: []thread.Entry{user("q"), asks(" \n"), {Kind: thread.EntryAssistant, Reasoning: "hm"}, user("again")}},
			"user: q\nuser: again\n",
		},
		{
			"NotesAreTaggedAndKeptApart",
			thread.Prompt{Entries: []thread.Entry{{Kind: thread.EntryNote, Text: "one"}, {Kind: thread.EntryNote, Text: "two"}, user("q"), {Kind: "later", Text: "x"}}},
			"user: [Bobbin] one\nuser: [Bobbin] two\nuser: q\nuser: [Bobbin] x\n",
		},
		{
			"IdsAreUniqueInTheWholeRequestAndFit",
			thread.Prompt{Entries: []thread.Entry{asks("", call("a", thread.CallFailed, "1"), call("a", thread.CallFailed, "2")), asks("", call("a", thread.CallFailed, "3"), call("", thread.CallFailed, "4"), call("ä:b", thread.CallFailed, "5"), call(long, thread.CallFailed, "6"))}},
			"assistant:  <a look {\"a\":1}> <a_2 look {\"a\":1}>\ntool/a: 1\ntool/a_2: 2\n" +
				"assistant:  <a_3 look {\"a\":1}> <call look {\"a\":1}> <b look {\"a\":1}> <" + long[:40] + " look {\"a\":1}>\ntool/a_3: 3\ntool/call: 4\ntool/b: 5\ntool/" + long[:40] + ": 6\n",
		},
		{
			"NamesAreMadeToFit",
			thread.Prompt{Entries: []thread.Entry{asks("", thread.Call{ID: "1", Name: "my.tool é", Arguments: "{}", State: thread.CallFailed, Result: "r"}, thread.Call{ID: "2", Arguments: "{}", State: thread.CallFailed, Result: "r"})}},
			"assistant:  <1 my_tool__ {}> <2 unnamed {}>\ntool/1: r\ntool/2: r\n",
		},
		{
			"NULAndBrokenUTF8AreTakenOut",
			thread.Prompt{Entries: []thread.Entry{user("a\x00b\xffc"), asks("", thread.Call{ID: "1", Name: "n", Arguments: `{"a":"x\u0000y"}`, State: thread.CallFailed, Result: "\x00r"})}},
			"user: abc\nassistant:  <1 n {\"a\":\"xy\"}>\ntool/1: r\n",
		},
		{"AnEmptyMessageGetsAPlaceholder", thread.Prompt{Entries: []thread.Entry{user(" ")}}, "user: (empty message)\n"},
		{"AnEmptySessionGetsAPlaceholder", thread.Prompt{System: "s"}, "system: s\nuser: [Bobbin] (no message yet)\n"},
		{"TheAssistantIsNotLast", thread.Prompt{Entries: []thread.Entry{user("q"), asks("a")}}, "user: q\nassistant: a\nuser: " + carryOn + "\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got := transcript(shaped(tc.prompt, nameTools(tc.prompt.Tools)))
			require.Empty(t, cmp.Diff(tc.want, got))
		})
	}
}

func TestShapeOnlyAppendsWhenTheSessionGrows(t *testing.T) {
	t.Parallel()
	entries := []thread.Entry{
		user("q"), asks("", call("a", thread.CallFailed, "1"), call("a", thread.CallFailed, "2")), user("more"),
		asks("x", call("a", thread.CallFailed, "3")), user("end"),
	}
	whole := transcript(shaped(thread.Prompt{Entries: entries}, toolNames{}))
	for n := 1; n <= len(entries); n++ {
		part := strings.ReplaceAll(transcript(shaped(thread.Prompt{Entries: entries[:n]}, toolNames{})), "user: "+carryOn+"\n", "")
		require.True(t, strings.HasPrefix(whole, part), "after %d entries:\n%s", n, part)
	}
}

func TestToolsAreOfferedUnderNamesThatFitAndComeBackUnderTheirOwn(t *testing.T) {
	t.Parallel()
	names := nameTools([]thread.ToolSpec{
		{Name: "a.b", Parameters: json.RawMessage(`{"type":"object","properties":{"x":{"type":"string"}}}`)},
		{Name: "a_b"},
		{Name: "a.b", Description: "again"},
		{Name: "c", Parameters: json.RawMessage(`{"$schema":"x"}`)},
	})
	got, err := json.Marshal(names.tools)
	require.NoError(t, err)
	require.JSONEq(t, `[
		{"type":"function","function":{"name":"a_b","parameters":{"type":"object","properties":{"x":{"type":"string"}}}}},
		{"type":"function","function":{"name":"a_b_2","parameters":{"type":"object","properties":{}}}},
		{"type":"function","function":{"name":"c","parameters":{"$schema":"x","type":"object","properties":{}}}}
	]`, string(got))
	require.Equal(t, "a.b", names.original("a_b"))
	require.Equal(t, "a_b", names.original("a_b_2"))
	require.Equal(t, "nobody", names.original("nobody"))
	require.Equal(t, "a_b_2", names.sentAs("a_b"))
}

// FuzzShape: whatever the entries are, the request is one that the strict provider takes.
func FuzzShape(f *testing.F) {
	for seed := range uint64(40) {
		f.Add(seed, "text", "{}")
	}
	f.Add(uint64(7), "\x00\xff\\ud83d", `{"a":"\u0000"}`)
	f.Add(uint64(9), "[Bobbin] ", `{"a":1}{"b":2}`)
	f.Fuzz(func(t *testing.T, seed uint64, text, arguments string) {
		p := randomPrompt(rand.New(rand.NewPCG(seed, 1)), text, arguments)
		c, err := New(Config{Model: "m", MaxOutputTokens: 10})
		require.NoError(t, err)
		req, _ := c.request(p, nameTools(p.Tools), false)
		body, err := encode(req, "")
		require.NoError(t, err)
		if r := scripted.Check(body); r != nil {
			t.Fatalf("refused: %v\n%s", r, body)
		}
	})
}

func randomPrompt(r *rand.Rand, text, arguments string) thread.Prompt {
	pick := func(from ...string) string { return from[r.IntN(len(from))] }
	texts := func() string { return pick("", " ", "hello", "a\x00", "\xff", text, text+text) }
	p := thread.Prompt{System: texts()}
	for range r.IntN(12) {
		e := thread.Entry{Kind: thread.EntryKind(pick("user", "assistant", "assistant", "note", "odd")), Text: texts(), Reasoning: texts()}
		for i := range r.IntN(4) {
			e.Calls = append(e.Calls, thread.Call{
				Index: i, ID: pick("", "a", "a", "a_2", "é", text, strings.Repeat("long", 20)), Name: pick("", "look", "a.b", "a_b", text, strings.Repeat("n", 90)),
				Arguments: pick("", "{}", "null", "[]", `{"a":`, `{"a":"\u0000\ud800"}`, arguments), Result: texts(),
				State: thread.CallState(pick("pending", "started", "succeeded", "failed", "interrupted", "odd")),
			})
		}
		p.Entries = append(p.Entries, e)
	}
	for range r.IntN(4) {
		p.Tools = append(p.Tools, thread.ToolSpec{
			Name: pick("", "look", "a.b", "a_b", text), Description: texts(),
			Parameters: json.RawMessage(pick("", "null", "3", `{"type":"object","properties":{}}`, `{"type":"string"}`, `{"properties":null}`)),
		})
	}
	return p
}

func TestMend(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		in, out thread.Reply
	}{
		{"AnAnswerStays", thread.Reply{Text: "hi", Finish: "stop", Model: "m"}, thread.Reply{Text: "hi", Finish: "stop", Model: "m"}},
		{
			"MissingIdsAreFilledAndRepeatedOnesMadeUnique",
			thread.Reply{Calls: []thread.Asked{{Name: " a ", Arguments: "{}"}, {ID: "x", Name: "a", Arguments: "{}"}, {ID: "x", Name: "a", Arguments: "{}"}}},
			thread.Reply{Calls: []thread.Asked{{ID: "call_0", Name: "a", Arguments: "{}"}, {ID: "x", Name: "a", Arguments: "{}"}, {ID: "x_2", Name: "a", Arguments: "{}"}}, Finish: "tool_calls"},
		},
		{
			"MissingArgumentsAreAnEmptyObjectAndWrongOnesStay",
			thread.Reply{Calls: []thread.Asked{{ID: "1", Name: "a"}, {ID: "2", Arguments: `{"a":`}}, Finish: "stop"},
			thread.Reply{Calls: []thread.Asked{{ID: "1", Name: "a", Arguments: "{}"}, {ID: "2", Name: "unnamed", Arguments: `{"a":`}}, Finish: "tool_calls"},
		},
		{
			"WhatPostgresRefusesIsTakenOut",
			thread.Reply{Text: "a\x00\xff", Reasoning: "\x00b", Calls: []thread.Asked{{ID: "1", Name: "a\x00", Arguments: `{"a":"x\u0000 \\u0000 \ud83d\ude00 \ud83d \ude00","n":1.50}`}}},
			thread.Reply{Text: "a", Reasoning: "b", Calls: []thread.Asked{{ID: "1", Name: "a", Arguments: `{"a":"x \\u0000 \ud83d\ude00 \ufffd \ufffd","n":1.50}`}}, Finish: "tool_calls"},
		},
		{"CallsThatNeverCameAreNoFinishReason", thread.Reply{Finish: "tool_calls"}, thread.Reply{Finish: "stop"}},
		{"OtherNamesForTheLimitAreKnown", thread.Reply{Finish: "max_tokens"}, thread.Reply{Finish: "length"}},
		{"OddFinishReasonsAreStop", thread.Reply{Finish: "eos"}, thread.Reply{Finish: "stop"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got := Mend(tc.in)
			require.Empty(t, cmp.Diff(tc.out, got))
			require.Empty(t, cmp.Diff(got, Mend(got)))
		})
	}
}

func FuzzMend(f *testing.F) {
	f.Add("text", "id", "name", `{"a":"\u0000"}`)
	f.Add("\x00", "", "\xff", `\u000`)
	f.Add("", "call_1", "", `{"a":"\ud83d\ud83d\ude00"}`)
	f.Fuzz(func(t *testing.T, text, id, name, arguments string) {
		a := thread.Asked{ID: id, Name: name, Arguments: arguments}
		got := Mend(thread.Reply{Text: text, Calls: []thread.Asked{a, a, {}, {ID: "call_1"}}})
		ids := map[string]bool{}
		for _, c := range got.Calls {
			require.Regexp(t, `^[a-zA-Z0-9_-]{1,40}$`, c.ID)
			ids[c.ID] = true
			for _, s := range []string{got.Text, c.Name, c.Arguments} {
				require.True(t, utf8.ValidString(s) && !strings.Contains(s, "\x00"))
			}
			if json.Valid([]byte(arguments)) {
				require.True(t, json.Valid([]byte(c.Arguments)))
			}
		}
		require.Len(t, ids, 4)
		require.Empty(t, cmp.Diff(got, Mend(got)))
	})
}
