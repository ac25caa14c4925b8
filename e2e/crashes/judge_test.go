package crashes_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"bobbin/e2e/crashes"
	"bobbin/e2e/house"
	"bobbin/llm/scripted"
	"bobbin/thread"
)

// good is a conversation with nothing wrong in it: a turn that looks and charges, and one after it.
func good() *crashes.Record {
	user := func(text string) scripted.Message { return scripted.Message{Role: "user", Text: text} }
	answer := func(text string) scripted.Message { return scripted.Message{Role: "assistant", Text: text} }
	asks := scripted.Message{Role: "assistant", Calls: []scripted.Call{{ID: "c1", Name: "look", Arguments: `{"key":"look"}`}, {ID: "c2", Name: "charge"}}}
	first := []scripted.Message{{Role: "system"}, user("one;")}
	second := append(first[:2:2], asks, scripted.Message{Role: "tool", CallID: "c1"}, scripted.Message{Role: "tool", CallID: "c2"})
	third := append(second[:5:5], answer("Did."), user("two;"))
	return &crashes.Record{
		Sent:     []crashes.Sent{{Text: "one;", ID: "m1"}, {Text: "two;", ID: "m2"}},
		Entries:  map[string]int{"m1": 1, "m2": 1},
		Requests: []scripted.Request{{N: 1, Messages: first}, {N: 2, Messages: second}, {N: 3, Messages: third}},
		Messages: []thread.Message{
			{Role: thread.RoleUser, Text: "one;", TurnID: "t1"}, {Role: thread.RoleAssistant, Text: "Did.", TurnID: "t1"},
			{Role: thread.RoleUser, Text: "two;", TurnID: "t2"}, {Role: thread.RoleAssistant, Text: "Again.", TurnID: "t2"},
		},
		Turns:    []thread.Turn{{ID: "t1", Status: thread.TurnSucceeded}, {ID: "t2", Status: thread.TurnSucceeded}},
		Streamed: map[string]string{"t1": "Did.", "t2": "Again."},
		Calls:    []house.ToolCall{{Tool: "look", Key: "look", Once: "k1"}, {Tool: "charge", Key: "charge", Once: "k2"}},
		Charges:  []string{"charge"},
	}
}

func TestJudgeFindsEachKindOfWrong(t *testing.T) {
	t.Parallel()
	require.Empty(t, crashes.Judge(good()))
	failed := func(r *crashes.Record, code thread.FailCode) {
		r.Turns[0].Status, r.Turns[0].Error = thread.TurnFailed, &thread.TurnError{Code: code}
	}
	for _, c := range []struct {
		name  string
		spoil func(*crashes.Record)
		want  []crashes.Kind
	}{
		{"AMessageThatNoModelSaw", func(r *crashes.Record) { r.Sent = append(r.Sent, crashes.Sent{Text: "three;", ID: "m3"}) }, []crashes.Kind{crashes.Lost, crashes.Lost}},
		{"AMessageInTheSessionTwice", func(r *crashes.Record) { r.Entries["m1"] = 2 }, []crashes.Kind{crashes.Doubled}},
		{"MessagesInAnotherOrder", func(r *crashes.Record) { r.Sent[0], r.Sent[1] = r.Sent[1], r.Sent[0] }, []crashes.Kind{crashes.Reordered}},
		{"AScreenThatIsNotWhatTheModelSaw", func(r *crashes.Record) { r.Messages[1].Text, r.Streamed["t1"] = "Did not.", "Did not." }, []crashes.Kind{crashes.ScreenWrong}},
		{"ASecondCharge", func(r *crashes.Record) { r.Calls = append(r.Calls, r.Calls[1]) }, []crashes.Kind{crashes.ToolTwice}},
		{"ACallUnderAnotherKey", func(r *crashes.Record) { r.Calls = append(r.Calls, house.ToolCall{Key: "look", Once: "k9"}) }, []crashes.Kind{crashes.ReadTwice}},
		{"ACallWhoseResultWasRecorded", func(r *crashes.Record) {
			r.Calls = append(r.Calls, r.Calls[0])
			r.At = &crashes.Snapshot{Recorded: map[string]int{"look": 1}, Calls: 2, Requests: 3}
		}, []crashes.Kind{crashes.ReadTwice}},
		{"ARoundThatWasWritten", func(r *crashes.Record) { r.At = &crashes.Snapshot{Rounds: 1, Requests: 0} }, []crashes.Kind{crashes.ModelTwice}},
		{"ASecondReply", func(r *crashes.Record) { r.Messages[3].TurnID = "t1" }, []crashes.Kind{crashes.ReplyTwice, crashes.ReplyWrong}},
		{"AReplyThatWasStreamedOtherwise", func(r *crashes.Record) { r.Streamed["t2"] = "Again.Again." }, []crashes.Kind{crashes.ReplyWrong}},
		{"AResultWithoutItsCall", func(r *crashes.Record) { r.Requests[1].Messages[2].Calls = nil }, []crashes.Kind{crashes.Orphan, crashes.Orphan}},
		{"ATurnThatFailedForNothing", func(r *crashes.Record) { failed(r, thread.FailToolUnknown) }, []crashes.Kind{crashes.FailedWrong}},
		{"ATurnThatFailedOtherwise", func(r *crashes.Record) { failed(r, thread.FailInternal) }, []crashes.Kind{crashes.FailedWrong}},
		{"AFailureWithoutTheNotice", func(r *crashes.Record) {
			failed(r, thread.FailToolUnknown)
			r.At = &crashes.Snapshot{Started: true, Worker: true, Requests: 3}
		}, []crashes.Kind{crashes.FailedWrong}},
		{"WhatIsLeft", func(r *crashes.Record) { r.Left = []string{"a turn"} }, []crashes.Kind{crashes.Unquiet}},
		{"WhatThePlayerFound", func(r *crashes.Record) { r.Other = []string{"HTTP 500"} }, []crashes.Kind{crashes.Unclear}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := good()
			c.spoil(r)
			var got []crashes.Kind
			for _, w := range crashes.Judge(r) {
				got = append(got, w.Kind)
			}
			require.Empty(t, cmp.Diff(c.want, got))
		})
	}
}

func TestJudgeTakesAFailureWhereASideEffectWasInterrupted(t *testing.T) {
	t.Parallel()
	r := good()
	r.Turns[0].Status, r.Turns[0].Error = thread.TurnFailed, &thread.TurnError{Code: thread.FailToolUnknown}
	r.Messages = append(r.Messages, thread.Message{Role: thread.RoleNotice, TurnID: "t1", Text: "Say *continue*."})
	r.At = &crashes.Snapshot{Started: true, Worker: true, Requests: 3}
	require.Empty(t, crashes.Judge(r))
}
