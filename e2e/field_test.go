package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"bobbin/e2e/house"
	"bobbin/llm/scripted"
	"bobbin/thread"
)

// What was queued with "send now" is drained although the worker died right after it, and what was written stays.
func TestASendNowOutlivesTheWorkerThatWasWriting(t *testing.T) {
	t.Parallel()
	h := house.Open(t)
	h.Migrate()
	h.API()
	w := h.Worker()
	g := make(chan struct{})
	c := h.Chat(scripted.Rounds(scripted.Reply{Pieces: []string{"One ", "two ", "three."}, Gate: g}, scripted.Say("Now this."), scripted.Say("Then that.")))
	first := c.Start("Count.")
	house.Step(g, 3)
	c.Await("what was written", func(e house.Event) bool { return e.Name == thread.EventAnswerDelta && strings.Contains(e.Text, "two ") })
	c.Send("queued, a turn of its own", house.ReplyTo(first.Message.ID))
	now := c.Send("send now", house.Delivery(thread.DeliverInterrupt))
	w.Kill()
	h.Worker()
	require.Equal(t, thread.EventTurnCancelled, c.Ended(first.TurnID).Name)
	c.Answered(now.TurnID)
	c.Idle()
	require.Equal(t, []string{
		"user: " + c.Marker + " Count.", "assistant: One two ", "user: send now", "assistant: Now this.",
		"user: queued, a turn of its own", "assistant: Then that.",
	}, c.Screen())
	c.CheckOrder()
}

// A page that is loaded while nobody works sees a turn that runs, what it had written, and no answer; and then the whole.
func TestAPageLoadedAfterTheWorkerDiedSeesTheTurnRunAndThenItsAnswer(t *testing.T) {
	t.Parallel()
	h := house.Open(t)
	h.Migrate()
	h.API()
	w := h.Worker()
	g := make(chan struct{})
	c := h.Chat(scripted.Rounds(scripted.Reply{Pieces: []string{"Half ", "an ", "answer."}, Gate: g}))
	first := c.Start("Answer.")
	house.Step(g, 2)
	c.Await("what was written", func(e house.Event) bool { return e.Name == thread.EventAnswerDelta })
	w.Kill()
	require.Equal(t, thread.TurnRunning, c.Turn(first.TurnID).Status)
	require.Len(t, c.Messages(), 1)
	page := h.Follow(c.ID, 0)
	defer page.Close()
	_, err := page.Await(func(e house.Event) bool { return e.Name == thread.EventAnswerDelta })
	require.NoError(t, err)
	h.Until("the backlog to say that nobody works", func() bool {
		var out struct{ Undriven, Workers int }
		require.NoError(t, h.Call("GET", "/v1/health", nil, &out))
		return out.Undriven == 1 && out.Workers == 0
	})
	h.Worker()
	close(g)
	c.Answered(first.TurnID)
	_, err = page.Await(func(e house.Event) bool { return e.Name == thread.EventAnswerCompleted })
	require.NoError(t, err)
	require.Equal(t, "Half an answer.", c.Messages()[1].Text)
	require.False(t, c.Messages()[1].Stopped)
	c.RequireOneAnswer()
	c.CheckOrder()
}

// Who started a turn may be gone: another client follows it from its beginning, stops it, and the provider is let go.
func TestATurnOfAClientThatLeftIsFollowedAndStoppedByAnother(t *testing.T) {
	t.Parallel()
	h := house.Open(t)
	h.Migrate()
	h.API()
	_, operator := h.Operated()
	h.Ready(operator)
	c := h.Chat(scripted.Rounds(scripted.Reply{Pieces: []string{"It ", "goes ", "on."}, Fault: scripted.Hang, After: 2}))
	first := c.Start("Go on and on.")
	hung := h.Request(c.Marker, 1)
	c.Await("what was written", func(e house.Event) bool { return e.Name == thread.EventAnswerDelta })
	c.Watch.Close()
	second := h.Follow(c.ID, 0)
	defer second.Close()
	_, err := second.Await(func(e house.Event) bool { return e.Name == thread.EventAnswerDelta })
	require.NoError(t, err)
	require.Equal(t, []string{first.TurnID}, c.Stop("conversation").Stopped)
	end, err := h.Model.WaitEnd(h.Ctx(), hung.N)
	require.NoError(t, err)
	require.False(t, end.Gone.IsZero(), "the provider sees its connection closed")
	_, err = second.Await(func(e house.Event) bool { return e.Name == thread.EventTurnCancelled && e.TurnID == first.TurnID })
	require.NoError(t, err)
	h.Until("the worker's metrics to show it", func() bool {
		_, shown := house.Get(operator + "/metrics")
		for _, line := range []string{
			"bobbin_stop_seconds_count 1", `bobbin_turns_ended_total{code="",source="user",status="cancelled"} 1`, "bobbin_workers 1",
			`bobbin_model_call_seconds_count{model="scripted",result="cut_off"} 1`, `bobbin_worker_slots_used{kind="stint"} 0`,
			`bobbin_model_first_text_seconds_count{model="scripted"} 1`, `bobbin_waiting{what="undriven"} 0`,
		} {
			if !strings.Contains(shown, "\n"+line+"\n") {
				return false
			}
		}
		return true
	})
}

// Half an hour later the whole of a turn can still be read as it was streamed.
func TestAStreamIsResumedAfterHalfAnHour(t *testing.T) {
	t.Parallel()
	h := house.Furnish(t)
	g := make(chan struct{})
	c := h.Chat(scripted.Rounds(scripted.Reply{Pieces: []string{"Early ", "and ", "late."}, Gate: g}))
	first := c.Start("Take your time.")
	house.Step(g, 2)
	left := c.Await("what was written", func(e house.Event) bool { return e.Name == thread.EventAnswerDelta })
	_, err := h.SQL.Exec(t.Context(), `UPDATE events SET created_at = created_at - interval '30 minutes'`)
	require.NoError(t, err)
	pruned, err := h.DB.PruneEvents(t.Context(), 1000)
	require.NoError(t, err)
	require.Zero(t, pruned)
	house.Step(g, 3)
	c.Answered(first.TurnID)
	back := h.Follow(c.ID, left.Seq) // as a client that comes back with its last id
	defer back.Close()
	_, err = back.Await(func(e house.Event) bool { return e.Name == thread.EventTurnSucceeded })
	require.NoError(t, err)
	whole := h.Follow(c.ID, 0)
	defer whole.Close()
	_, err = whole.Await(func(e house.Event) bool { return e.Name == thread.EventTurnSucceeded })
	require.NoError(t, err)
	require.Equal(t, len(c.Watch.All()), len(whole.All()))
	require.Equal(t, int(c.Ended(first.TurnID).Seq-left.Seq), len(back.All()))
	for _, e := range append(back.All(), whole.All()...) {
		require.NotEqual(t, thread.EventGap, e.Name)
	}
	require.Equal(t, "Early and late.", c.Streamed(first.TurnID))
}

// An answer costs Temporal what a turn costs, however long it is.
func TestAnAnswerOfFiftyThousandTokensLeavesNoMoreHistoryThanAShortOne(t *testing.T) {
	t.Parallel()
	h := house.Furnish(t)
	const tokens = 50_000
	pieces := make([]string, 0, tokens/10)
	for i := range tokens / 10 {
		pieces = append(pieces, fmt.Sprintf("%d one two three four five six seven eight nine ", i))
	}
	c := h.Chat(scripted.Rounds(scripted.Say("Short."), scripted.Reply{Pieces: pieces}, scripted.Say("Short again.")))
	size := func(text string) (events, bytes int) {
		before := h.WorkflowRuns(c.WorkflowID())
		a := c.Send(text)
		c.Answered(a.TurnID)
		after := h.WorkflowRuns(c.WorkflowID())
		require.Equal(t, len(before), len(after))
		return len(after[0].Events) - len(before[0].Events), after[0].Size() - before[0].Size()
	}
	c.Answered(c.Start("Begin.").TurnID)
	began := time.Now()
	events, bytes := size("Now the long one.")
	t.Logf("%d tokens in %v: %d events, %d bytes of history", tokens, time.Since(began).Round(time.Millisecond), events, bytes)
	require.Less(t, events, 40) // a turn of any length, and a signal in ten seconds
	require.Less(t, bytes, 10_000)
	require.Equal(t, strings.Join(pieces, ""), c.Messages()[3].Text)
	c.CheckOrder()
}

// What people, the model and tools said is in no line of any process's log, at the lowest level, whatever goes wrong.
func TestNoLogHoldsWhatWasSaidWhateverFails(t *testing.T) {
	t.Parallel()
	h := house.Open(t, "BOBBIN_LOG_LEVEL=DEBUG", "BOBBIN_HEARTBEAT_TIMEOUT=2s")
	h.Migrate()
	h.API()
	w := h.Worker()
	const planted = "PLANTED"
	bad := scripted.Reply{Status: 500, ErrorCode: "server_error", ErrorMessage: planted + "ERROR"}
	c := h.Chat(scripted.List(
		bad, scripted.Reply{Pieces: []string{planted, " half"}, Fault: scripted.Break, After: 1},
		scripted.Reply{Calls: []scripted.Call{
			{Name: "look", Arguments: `{"key": "` + planted + `KEY"}`},
			{Name: "look", Arguments: `{"` + planted + `": 1}`},
			{Name: "look", Arguments: planted},
			{Name: planted + "TOOL", Arguments: "{}"},
			{Name: "charge", Arguments: `{"key": "` + planted + `CHARGE"}`},
			{Name: "fetch_url", Arguments: `{"url": "http://127.0.0.1/` + planted + `"}`},
		}},
		scripted.Reply{Text: planted + "GARBAGE", Fault: scripted.Garbage, After: 1},
		scripted.Say(planted+"ANSWER"),
		scripted.Reply{Status: 400, ErrorCode: "invalid_request_error", ErrorMessage: planted + "REFUSED"},
		scripted.Reply{Fault: scripted.Hang},
		scripted.Say("Never."),
	))
	c.Answered(c.Start(planted+"WORDS", house.Key(planted+"IDEMPOTENCY")).TurnID)
	require.Equal(t, thread.EventTurnFailed, c.Ended(c.Send(planted+"AGAIN").TurnID).Name)
	hung := c.Send(planted + "HUNG")
	h.Request(c.Marker, 7)
	_, err := c.TrySend(planted+"OTHER", house.Key(planted+"IDEMPOTENCY"))
	house.RequireProblem(t, err, 422, "idempotency_key_reused")
	require.Error(t, h.Call("POST", "/v1/threads/"+c.ID+"/messages?"+planted+"=1", map[string]any{planted: planted}, nil))
	require.Error(t, h.Call("GET", "/v1/threads/"+planted, nil, nil))
	_, err = h.SQL.Exec(t.Context(), `
		SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = 'bobbin'`)
	require.NoError(t, err)
	c.Stop("conversation")
	c.Ended(hung.TurnID)
	w.Kill()
	h.Worker()
	c.Send(planted + "LAST")
	for _, p := range h.Processes {
		require.NotContains(t, p.LogText(), planted, p.Name)
		require.NotContains(t, p.LogText(), house.APIKey, p.Name)
	}
}
