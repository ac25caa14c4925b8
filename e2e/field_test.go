package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"bobbin/llm/scripted"
	"bobbin/thread"
)

// What was queued with "send now" is drained although the worker died right after it, and what was written stays.
func TestASendNowOutlivesTheWorkerThatWasWriting(t *testing.T) {
	t.Parallel()
	h := open(t)
	h.migrate()
	h.api()
	w := h.worker()
	g := make(chan struct{})
	c := h.chat(scripted.Rounds(scripted.Reply{Pieces: []string{"One ", "two ", "three."}, Gate: g}, scripted.Say("Now this."), scripted.Say("Then that.")))
	first := c.start("Count.")
	step(g, 3)
	c.await("what was written", func(e event) bool { return e.Name == thread.EventAnswerDelta && strings.Contains(e.Text, "two ") })
	c.send("queued, a turn of its own", replyTo(first.Message.ID))
	now := c.send("send now", delivery(thread.DeliverInterrupt))
	w.kill()
	h.worker()
	require.Equal(t, thread.EventTurnCancelled, c.ended(first.TurnID).Name)
	c.answered(now.TurnID)
	c.idle()
	require.Equal(t, []string{
		"user: " + c.marker + " Count.", "assistant: One two ", "user: send now", "assistant: Now this.",
		"user: queued, a turn of its own", "assistant: Then that.",
	}, c.screen())
	c.checkOrder()
}

// A page that is loaded while nobody works sees a turn that runs, what it had written, and no answer; and then the whole.
func TestAPageLoadedAfterTheWorkerDiedSeesTheTurnRunAndThenItsAnswer(t *testing.T) {
	t.Parallel()
	h := open(t)
	h.migrate()
	h.api()
	w := h.worker()
	g := make(chan struct{})
	c := h.chat(scripted.Rounds(scripted.Reply{Pieces: []string{"Half ", "an ", "answer."}, Gate: g}))
	first := c.start("Answer.")
	step(g, 2)
	c.await("what was written", func(e event) bool { return e.Name == thread.EventAnswerDelta })
	w.kill()
	require.Equal(t, thread.TurnRunning, c.turn(first.TurnID).Status)
	require.Len(t, c.messages(), 1)
	page := h.follow(c.id, 0)
	defer page.close()
	_, err := page.await(func(e event) bool { return e.Name == thread.EventAnswerDelta })
	require.NoError(t, err)
	h.until("the backlog to say that nobody works", func() bool {
		var out struct{ Undriven, Workers int }
		require.NoError(t, h.call("GET", "/v1/health", nil, &out))
		return out.Undriven == 1 && out.Workers == 0
	})
	h.worker()
	close(g)
	c.answered(first.TurnID)
	_, err = page.await(func(e event) bool { return e.Name == thread.EventAnswerCompleted })
	require.NoError(t, err)
	require.Equal(t, "Half an answer.", c.messages()[1].Text)
	require.False(t, c.messages()[1].Stopped)
	c.requireOneAnswer()
	c.checkOrder()
}

// Who started a turn may be gone: another client follows it from its beginning, stops it, and the provider is let go.
func TestATurnOfAClientThatLeftIsFollowedAndStoppedByAnother(t *testing.T) {
	t.Parallel()
	h := open(t)
	h.migrate()
	h.api()
	_, operator := h.operated()
	h.ready(operator)
	c := h.chat(scripted.Rounds(scripted.Reply{Pieces: []string{"It ", "goes ", "on."}, Fault: scripted.Hang, After: 2}))
	first := c.start("Go on and on.")
	hung := h.request(c.marker, 1)
	c.await("what was written", func(e event) bool { return e.Name == thread.EventAnswerDelta })
	c.watch.close()
	second := h.follow(c.id, 0)
	defer second.close()
	_, err := second.await(func(e event) bool { return e.Name == thread.EventAnswerDelta })
	require.NoError(t, err)
	require.Equal(t, []string{first.TurnID}, c.stop("conversation").Stopped)
	end, err := h.model.WaitEnd(h.ctx(), hung.N)
	require.NoError(t, err)
	require.False(t, end.Gone.IsZero(), "the provider sees its connection closed")
	_, err = second.await(func(e event) bool { return e.Name == thread.EventTurnCancelled && e.TurnID == first.TurnID })
	require.NoError(t, err)
	h.until("the worker's metrics to show it", func() bool {
		_, shown := get(operator + "/metrics")
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
	h := furnish(t)
	g := make(chan struct{})
	c := h.chat(scripted.Rounds(scripted.Reply{Pieces: []string{"Early ", "and ", "late."}, Gate: g}))
	first := c.start("Take your time.")
	step(g, 2)
	left := c.await("what was written", func(e event) bool { return e.Name == thread.EventAnswerDelta })
	_, err := h.sql.Exec(t.Context(), `UPDATE events SET created_at = created_at - interval '30 minutes'`)
	require.NoError(t, err)
	pruned, err := h.db.PruneEvents(t.Context(), 1000)
	require.NoError(t, err)
	require.Zero(t, pruned)
	step(g, 3)
	c.answered(first.TurnID)
	back := h.follow(c.id, left.Seq) // as a client that comes back with its last id
	defer back.close()
	_, err = back.await(func(e event) bool { return e.Name == thread.EventTurnSucceeded })
	require.NoError(t, err)
	whole := h.follow(c.id, 0)
	defer whole.close()
	_, err = whole.await(func(e event) bool { return e.Name == thread.EventTurnSucceeded })
	require.NoError(t, err)
	require.Equal(t, len(c.watch.all()), len(whole.all()))
	require.Equal(t, int(c.ended(first.TurnID).Seq-left.Seq), len(back.all()))
	for _, e := range append(back.all(), whole.all()...) {
		require.NotEqual(t, thread.EventGap, e.Name)
	}
	require.Equal(t, "Early and late.", c.streamed(first.TurnID))
}

// An answer costs Temporal what a turn costs, however long it is.
func TestAnAnswerOfFiftyThousandTokensLeavesNoMoreHistoryThanAShortOne(t *testing.T) {
	t.Parallel()
	h := furnish(t)
	const tokens = 50_000
	pieces := make([]string, 0, tokens/10)
	for i := range tokens / 10 {
		pieces = append(pieces, fmt.Sprintf("%d one two three four five six seven eight nine ", i))
	}
	c := h.chat(scripted.Rounds(scripted.Say("Short."), scripted.Reply{Pieces: pieces}, scripted.Say("Short again.")))
	size := func(text string) (events, bytes int) {
		before := h.workflowRuns(c.workflowID())
		a := c.send(text)
		c.answered(a.TurnID)
		after := h.workflowRuns(c.workflowID())
		require.Equal(t, len(before), len(after))
		return len(after[0].events) - len(before[0].events), after[0].size() - before[0].size()
	}
	c.answered(c.start("Begin.").TurnID)
	began := time.Now()
	events, bytes := size("Now the long one.")
	t.Logf("%d tokens in %v: %d events, %d bytes of history", tokens, time.Since(began).Round(time.Millisecond), events, bytes)
	require.Less(t, events, 40) // a turn of any length, and a signal in ten seconds
	require.Less(t, bytes, 10_000)
	require.Equal(t, strings.Join(pieces, ""), c.messages()[3].Text)
	c.checkOrder()
}

// What people, the model and tools said is in no line of any process's log, at the lowest level, whatever goes wrong.
func TestNoLogHoldsWhatWasSaidWhateverFails(t *testing.T) {
	t.Parallel()
	h := open(t, "BOBBIN_LOG_LEVEL=DEBUG", "BOBBIN_HEARTBEAT_TIMEOUT=2s")
	h.migrate()
	h.api()
	w := h.worker()
	const planted = "PLANTED"
	bad := scripted.Reply{Status: 500, ErrorCode: "server_error", ErrorMessage: planted + "ERROR"}
	c := h.chat(scripted.List(
		bad, scripted.Reply{Pieces: []string{planted, " half"}, Fault: scripted.Break, After: 1},
		scripted.Reply{Calls: []scripted.Call{
			{Name: "look", Arguments: `{"key": "` + planted + `KEY"}`}, {Name: "look", Arguments: `{"` + planted + `": 1}`}, {Name: "look", Arguments: planted},
			{Name: planted + "TOOL", Arguments: "{}"}, {Name: "charge", Arguments: `{"key": "` + planted + `CHARGE"}`},
			{Name: "fetch_url", Arguments: `{"url": "http://127.0.0.1/` + planted + `"}`},
		}},
		scripted.Reply{Text: planted + "GARBAGE", Fault: scripted.Garbage, After: 1},
		scripted.Say(planted+"ANSWER"),
		scripted.Reply{Status: 400, ErrorCode: "invalid_request_error", ErrorMessage: planted + "REFUSED"},
		scripted.Reply{Fault: scripted.Hang},
		scripted.Say("Never."),
	))
	c.answered(c.start(planted+"WORDS", key(planted+"IDEMPOTENCY")).TurnID)
	require.Equal(t, thread.EventTurnFailed, c.ended(c.send(planted+"AGAIN").TurnID).Name)
	hung := c.send(planted + "HUNG")
	h.request(c.marker, 7)
	_, err := c.trySend(planted+"OTHER", key(planted+"IDEMPOTENCY"))
	requireProblem(t, err, 422, "idempotency_key_reused")
	require.Error(t, h.call("POST", "/v1/threads/"+c.id+"/messages?"+planted+"=1", map[string]any{planted: planted}, nil))
	require.Error(t, h.call("GET", "/v1/threads/"+planted, nil, nil))
	_, err = h.sql.Exec(t.Context(), `
		SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = 'bobbin'`)
	require.NoError(t, err)
	c.stop("conversation")
	c.ended(hung.TurnID)
	w.kill()
	h.worker()
	c.send(planted + "LAST")
	for _, p := range h.processes {
		require.NotContains(t, p.logText(), planted, p.name)
		require.NotContains(t, p.logText(), apiKey, p.name)
	}
}
