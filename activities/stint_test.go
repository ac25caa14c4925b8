package activities_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"

	"bobbin/activities"
	"bobbin/contract"
	"bobbin/llm/scripted"
	"bobbin/store"
	"bobbin/thread"
	"bobbin/tools"
)

func TestStintAnswersWithWhatItsToolsFound(t *testing.T) {
	b := setup(t, scripted.Rounds(scripted.Reply{Calls: []scripted.Call{{Name: "read", Arguments: `{}`}, {Name: "read", Arguments: `{}`}}}, scripted.Say("It is 7.")))
	b.tools = []tools.Tool{reader("read", func(context.Context, tools.Call) (string, error) { return "7", nil })}
	w := b.worker()
	turn := b.start("What is it?")
	res := w.stint(turn)
	require.Equal(t, contract.StintAnswered, res.Outcome)
	require.Len(t, res.Rounds, 2)
	require.Equal(t, []string{"read", "read"}, res.Rounds[0].Tools)
	require.Equal(t, thread.TurnSucceeded, w.end(turn, res).Status)
	require.Equal(t, []string{"user: What is it?", "assistant: It is 7."}, b.messages())
	require.Equal(t, []string{"read succeeded: 7", "read succeeded: 7"}, calls(b.session()))
	require.Empty(t, b.model.Refusals())
}

// The model can name a tool as it likes, with what was said in the name. Nothing of that enters a history.
func TestWhatTheModelCallsAToolThatThereIsNotIsNotTold(t *testing.T) {
	b := setup(t, scripted.Rounds(scripted.Ask("read_annas_diary", `{}`), scripted.Say("There is none.")))
	w := b.worker()
	turn := b.start("What is it?")
	res := w.stint(turn)
	require.Equal(t, contract.StintAnswered, res.Outcome)
	require.Equal(t, []string{"unknown"}, res.Rounds[0].Tools)
}

func TestStopClosesAHungModelCall(t *testing.T) {
	b := setup(t, scripted.Always(scripted.Reply{Pieces: []string{"Once ", "upon "}, Fault: scripted.Hang, After: 2}))
	w := b.worker()
	turn := b.start("Tell me a story.")
	done := later(func() contract.StintResult { return w.stint(turn) })
	b.shown("Once upon ")
	b.stop()
	b.gone(1)
	res := come(t, done)
	require.Equal(t, contract.StintFenced, res.Outcome)
	require.Equal(t, thread.TurnCancelled, w.end(turn, res).Status)
	require.Equal(t, []string{"user: Tell me a story.", "assistant: Once upon  (stopped)"}, b.messages())
}

// Where the notification is lost, a look every quarter of a second finds the flag.
func TestStopClosesAHungModelCallOfAWorkerThatHearsNothing(t *testing.T) {
	b := setup(t, scripted.Always(scripted.Reply{Fault: scripted.Hang}))
	p, dsn := through(t, b.dsn, true)
	w := b.workerAt(dsn)
	come(t, p.cut) // its listener cannot listen
	turn := b.start("Hello")
	done := later(func() contract.StintResult { return w.stint(turn) })
	b.request(1)
	b.stop()
	b.gone(1)
	require.Equal(t, contract.StintFenced, come(t, done).Outcome)
}

func TestStopEndsARunningTool(t *testing.T) {
	b := setup(t, scripted.Rounds(scripted.Ask("read", `{}`)))
	running, ended := make(chan struct{}), make(chan error, 1)
	b.tools = []tools.Tool{reader("read", func(ctx context.Context, _ tools.Call) (string, error) {
		close(running)
		<-ctx.Done()
		ended <- ctx.Err()
		return "", ctx.Err()
	})}
	w := b.worker()
	turn := b.start("Read it.")
	done := later(func() contract.StintResult { return w.stint(turn) })
	come(t, running)
	b.stop()
	require.Error(t, come(t, ended))
	require.Equal(t, contract.StintFenced, come(t, done).Outcome)
	require.Equal(t, thread.TurnCancelled, w.end(turn, contract.StintResult{}).Status)
	require.Equal(t, []string{"read interrupted: This call was not run: the turn ended first."}, calls(b.session()))
}

// The next message after a stop in the middle of a call finds a session that the strict provider takes.
func TestASessionIsNotStuckAfterAStopInACall(t *testing.T) {
	b := setup(t, func(r scripted.Request) scripted.Reply {
		if len(r.Texts("assistant")) == 0 {
			return scripted.Ask("read", `{}`)
		}
		return scripted.Say("Here I am.")
	})
	running := make(chan struct{})
	b.tools = []tools.Tool{reader("read", func(ctx context.Context, _ tools.Call) (string, error) {
		close(running)
		<-ctx.Done()
		return "", ctx.Err()
	})}
	w := b.worker()
	turn := b.start("Read it.")
	done := later(func() contract.StintResult { return w.stint(turn) })
	come(t, running)
	b.stop()
	w.end(turn, come(t, done))
	turn = b.start("Are you there?")
	res := w.stint(turn)
	require.Equal(t, contract.StintAnswered, res.Outcome)
	require.Empty(t, b.model.Refusals())
}

func TestAPanicFailsTheTurnAtOnce(t *testing.T) {
	b := setup(t, scripted.Always(scripted.Say("Hello there.")))
	w := b.worker(func(c *activities.Config) { c.Deltas = nil }) // a mistake of ours
	turn := b.start("Hello")
	res := w.stint(turn)
	require.Equal(t, contract.StintFailed, res.Outcome)
	require.Equal(t, thread.FailInternal, res.Fail)
	require.Equal(t, thread.TurnFailed, w.end(turn, res).Status)
}

// Two workers hold one turn, the first only slow. What the second did stands; the first finds it.
func TestTwoStintsOfOneTurnWriteEachRoundOnce(t *testing.T) {
	gate := make(chan struct{})
	var asked atomic.Int32
	b := setup(t, func(r scripted.Request) scripted.Reply {
		slow := asked.Add(1) == 1
		reply := scripted.Ask("read", `{}`)
		if len(r.Texts("assistant")) > 0 {
			reply = scripted.Say("Done.")
		}
		if slow {
			reply.Gate, reply.GateAt = gate, scripted.AtStart
		}
		return reply
	})
	var runs atomic.Int32
	b.tools = []tools.Tool{reader("read", func(context.Context, tools.Call) (string, error) { runs.Add(1); return "7", nil })}
	slow, fast := b.worker(), b.worker()
	turn := b.start("Look.")
	first := later(func() contract.StintResult { return slow.stint(turn) })
	b.request(1)
	b.accept("And quickly.")
	require.Equal(t, contract.StintAnswered, fast.stint(turn).Outcome)
	close(gate)
	require.Equal(t, contract.StintAnswered, come(t, first).Outcome)
	require.EqualValues(t, 1, runs.Load())
	require.Equal(t, thread.TurnSucceeded, fast.end(turn, contract.StintResult{}).Status)
	require.Equal(t, thread.TurnSucceeded, slow.end(turn, contract.StintResult{}).Status)
	require.Equal(t, []string{"user: Look.", "user: And quickly.", "assistant: Done."}, b.messages())
	var kinds []thread.EntryKind
	for _, e := range b.session() {
		kinds = append(kinds, e.Kind)
	}
	require.Equal(t, []thread.EntryKind{thread.EntryUser, thread.EntryUser, thread.EntryAssistant, thread.EntryAssistant, thread.EntryUser}, kinds)
}

func TestTheTimeLimitEndsAHungCallAndTheAnswerIsWritten(t *testing.T) {
	b := setup(t, func(r scripted.Request) scripted.Reply {
		if len(r.Tools) > 0 {
			return scripted.Reply{Fault: scripted.Hang}
		}
		return scripted.Say("What I have.")
	})
	b.tools = []tools.Tool{reader("read", func(context.Context, tools.Call) (string, error) { return "", nil })}
	b.limits.Duration = 3 * time.Second // also on a busy machine the first call begins before
	w := b.worker()
	turn := b.start("Hello")
	require.Equal(t, contract.StintAnswered, w.stint(turn).Outcome)
	b.gone(1)
	w.end(turn, contract.StintResult{})
	require.Equal(t, []string{"user: Hello", "assistant: What I have."}, b.messages())
}

func TestTheTimeLimitCutsOffATool(t *testing.T) {
	b := setup(t, scripted.Rounds(scripted.Ask("read", `{}`), scripted.Say("What I have.")))
	b.tools = []tools.Tool{reader("read", func(ctx context.Context, _ tools.Call) (string, error) { <-ctx.Done(); return "", ctx.Err() })}
	b.limits.Duration = 3 * time.Second
	w := b.worker()
	turn := b.start("Hello")
	res := w.stint(turn)
	require.Equal(t, contract.StintAnswered, res.Outcome)
	w.end(turn, res)
	require.Equal(t, []string{"read failed: The turn's time limit was reached before this call had a result."}, calls(b.session()))
}

func TestALargeResultIsCut(t *testing.T) {
	b := setup(t, scripted.Rounds(scripted.Ask("read", `{}`), scripted.Say("Long.")))
	b.tools = []tools.Tool{reader("read", func(context.Context, tools.Call) (string, error) { return strings.Repeat("x", 3<<20), nil })}
	w := b.worker()
	require.Equal(t, contract.StintAnswered, w.stint(b.start("Read it.")).Outcome)
	results := b.request(2).Results()
	require.Len(t, results, 1)
	require.Less(t, len(results[0].Text), tools.DefaultResultLimit+1000)
	require.Greater(t, len(results[0].Text), tools.DefaultResultLimit-1000)
}

func TestWhatAFailedAttemptShowedIsVoid(t *testing.T) {
	b := setup(t, scripted.List(scripted.Reply{Pieces: []string{"Wrong ", "way "}, Fault: scripted.Break, After: 2}, scripted.Say("Right.")))
	w := b.worker()
	turn := b.start("Hello")
	require.Equal(t, contract.StintAnswered, w.stint(turn).Outcome)
	w.end(turn, contract.StintResult{})
	var shown []string
	attempt := 0
	for _, e := range b.events() {
		switch e.Name {
		case thread.EventAnswerDelta:
			var d thread.Delta
			require.NoError(t, json.Unmarshal(e.Data, &d))
			if d.Attempt != attempt {
				require.Zero(t, d.Offset, "an attempt starts at the beginning")
			}
			attempt = d.Attempt
			shown = append(shown, d.Text)
		case thread.EventAnswerRestarted, thread.EventAnswerCompleted:
			shown = append(shown, string(e.Name))
		}
	}
	require.Equal(t, "Wrong way |answer.restarted|Right.|answer.completed", joined(shown))
	require.Equal(t, []string{"user: Hello", "assistant: Right."}, b.messages())
}

func TestARoundIsWrittenWhenPostgresIsBack(t *testing.T) {
	p := &proxy{}
	var dsn string
	b := setup(t, func(scripted.Request) scripted.Reply {
		p.lose()
		return scripted.Say("Hello.")
	})
	p, dsn = through(t, b.dsn, false)
	w := b.workerAt(dsn)
	turn := b.start("Hello")
	done := later(func() contract.StintResult { return w.stint(turn) })
	for range 3 {
		come(t, p.refused)
	}
	p.back()
	require.Equal(t, contract.StintAnswered, come(t, done).Outcome)
	require.Len(t, b.model.Requests(), 1, "the reply is not asked for again")
}

func TestStintHandsBackAfterItsRounds(t *testing.T) {
	b := setup(t, scripted.Rounds(scripted.Ask("read", `{}`), scripted.Ask("read", `{}`), scripted.Say("Done.")))
	b.tools = []tools.Tool{reader("read", func(context.Context, tools.Call) (string, error) { return "7", nil })}
	w := b.worker(func(c *activities.Config) { c.StintRounds = 1 })
	turn := b.start("Look.")
	for _, want := range []contract.StintOutcome{contract.StintBudget, contract.StintBudget, contract.StintAnswered} {
		res := w.stint(turn)
		require.Equal(t, want, res.Outcome)
		require.Len(t, res.Rounds, 1)
	}
	require.Len(t, b.model.Requests(), 3)
}

func TestStintHandsBackAtItsNextRoundHeadWhenItsWorkerDrains(t *testing.T) {
	b := setup(t, scripted.Rounds(scripted.Ask("read", `{}`), scripted.Say("Done.")))
	w := b.worker()
	b.tools = []tools.Tool{reader("read", func(context.Context, tools.Call) (string, error) { close(w.drain); return "7", nil })}
	draining := b.worker()
	draining.drain = w.drain
	turn := b.start("Look.")
	require.Equal(t, contract.StintBudget, draining.stint(turn).Outcome)
	require.Equal(t, contract.StintAnswered, b.worker().stint(turn).Outcome)
}

func TestStintLeavesALongWaitToTheWorkflow(t *testing.T) {
	b := setup(t, scripted.List(scripted.Reply{Status: http.StatusTooManyRequests, RetryAfter: 40 * time.Second}, scripted.Say("Hello.")))
	w := b.worker()
	turn := b.start("Hello")
	res := w.stint(turn)
	require.Equal(t, contract.StintWait, res.Outcome)
	require.Equal(t, 40*time.Second, res.Wait)
	require.Equal(t, contract.StintAnswered, w.stint(turn).Outcome)
}

func TestStintDoesNotRunAToolThatNeedsApproval(t *testing.T) {
	b := setup(t, scripted.Rounds(scripted.Ask("pay", `{}`), scripted.Say("I would have paid.")))
	pay := sender("pay", func(context.Context, tools.Call) (string, error) { panic("it must not run") })
	pay.Approval = tools.ApprovalAsk
	b.tools = []tools.Tool{pay}
	w := b.worker()
	turn := b.start("Pay.")
	require.Equal(t, contract.StintAnswered, w.stint(turn).Outcome)
	w.end(turn, contract.StintResult{})
	require.Len(t, calls(b.session()), 1)
}

func TestAToolWithSideEffectsRunsOnceWhoeverAsks(t *testing.T) {
	b := setup(t, scripted.Rounds(scripted.Ask("send", `{}`), scripted.Say("Sent.")))
	var runs atomic.Int32
	var left atomic.Bool // the stint has left it to the workflow
	running, release := make(chan struct{}), make(chan struct{})
	b.tools = []tools.Tool{sender("send", func(context.Context, tools.Call) (string, error) {
		if runs.Add(1) == 1 && left.Load() {
			close(running)
			<-release
		}
		return "sent", nil
	})}
	w := b.worker()
	turn := b.start("Send it.")
	res := w.stint(turn)
	require.Equal(t, contract.StintTools, res.Outcome)
	require.Empty(t, cmp.Diff([]contract.ToolRef{{Turn: turn, Round: 1, Name: "send", Limit: tools.DefaultTimeout}}, res.Tools))
	left.Store(true)
	first := later(func() bool { w.tool(res.Tools[0]); return true })
	come(t, running)
	w.tool(res.Tools[0]) // it was started and has no result
	b.worker().tool(res.Tools[0])
	close(release)
	come(t, first)
	w.tool(res.Tools[0]) // it has one
	b.worker().tool(res.Tools[0])
	require.EqualValues(t, 1, runs.Load())
	require.Equal(t, contract.StintAnswered, w.stint(turn).Outcome)
}

func TestAToolThatWasStartedAndForgottenFailsTheTurn(t *testing.T) {
	b := setup(t, scripted.Rounds(scripted.Ask("send", `{}`), scripted.Say("Never.")))
	b.tools = []tools.Tool{sender("send", func(context.Context, tools.Call) (string, error) { panic("it must not run") })}
	w := b.worker()
	turn := b.start("Send it.")
	ref := w.stint(turn).Tools[0]
	_, ok, err := b.db.StartCall(b.ctx(), store.TurnRef{ID: turn.ID, ThreadID: turn.ThreadID}, ref.Round, ref.Index, &store.Start{WorkerID: "w"}) // and its worker dies
	require.NoError(t, err)
	require.True(t, ok)
	w.tool(ref)
	res := w.stint(turn)
	require.Equal(t, contract.StintFailed, res.Outcome)
	require.Equal(t, thread.FailToolUnknown, res.Fail)
	require.Equal(t, thread.TurnFailed, w.end(turn, res).Status)
	require.Contains(t, calls(b.session())[0], "It may have taken effect")
}

// A worker that lost its task, because Temporal was away or it drains, still runs the tool.
func TestAToolThatRunsOnAWorkerThatLivesIsWaitedFor(t *testing.T) {
	b := setup(t, scripted.Rounds(scripted.Ask("send", `{}`), scripted.Say("Sent.")))
	b.tools = []tools.Tool{sender("send", func(context.Context, tools.Call) (string, error) { panic("it runs elsewhere") })}
	w := b.worker()
	turn := b.start("Send it.")
	ref := w.stint(turn).Tools[0]
	alive, err := b.db.RegisterWorker(b.ctx())
	require.NoError(t, err)
	defer alive.Close()
	at := store.TurnRef{ID: turn.ID, ThreadID: turn.ThreadID}
	call, ok, err := b.db.StartCall(b.ctx(), at, ref.Round, ref.Index, &store.Start{WorkerID: alive.ID})
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, contract.StintWait, w.stint(turn).Outcome)
	call.State, call.Result = thread.CallSucceeded, "sent"
	_, err = b.db.FinishCall(b.ctx(), at, call)
	require.NoError(t, err)
	require.Equal(t, contract.StintAnswered, w.stint(turn).Outcome)
}

func TestATurnWhoseStintsWriteNothingFails(t *testing.T) {
	b := setup(t, scripted.Always(scripted.Say("Never asked.")))
	w := b.worker()
	turn := b.start("Hello.")
	for i := range 20 {
		_, err := b.db.Begin(b.ctx(), store.TurnRef{ID: turn.ID, ThreadID: turn.ThreadID}, turn.Attempt,
			store.Attempt{TurnID: turn.ID, RunID: "run", ActivityID: "1", Number: i})
		require.NoError(t, err)
	}
	res := w.stint(turn)
	require.Equal(t, contract.StintFailed, res.Outcome)
	require.Equal(t, thread.FailInternal, res.Fail)
	require.Empty(t, b.model.Requests())
	require.Equal(t, thread.TurnFailed, w.end(turn, res).Status)
}

func TestAStopLetsAToolWithSideEffectsFinishAndKeepsItsOutcome(t *testing.T) {
	b := setup(t, scripted.Rounds(scripted.Ask("send", `{}`)))
	running, release := make(chan struct{}), make(chan struct{})
	b.tools = []tools.Tool{sender("send", func(ctx context.Context, _ tools.Call) (string, error) {
		close(running)
		<-release
		return "sent", ctx.Err()
	})}
	w := b.worker()
	turn := b.start("Send it.")
	ref := w.stint(turn).Tools[0]
	done := later(func() bool { w.tool(ref); return true })
	come(t, running)
	b.stop()
	come(t, done) // the activity does not wait for it
	require.Equal(t, thread.TurnCancelled, w.end(turn, contract.StintResult{Fail: thread.FailInternal}).Status)
	close(release)
	w.Drain(b.ctx())
	require.Equal(t, []string{"send succeeded: sent"}, calls(b.session()))
}

func TestAStintOfATurnThatHasEndedWritesNothing(t *testing.T) {
	b := setup(t, scripted.Always(scripted.Say("Hello.")))
	w := b.worker()
	turn := b.start("Hello")
	w.end(turn, w.stint(turn))
	before := b.events()
	require.Equal(t, contract.StintFenced, w.stint(turn).Outcome)
	require.Len(t, b.events(), len(before))
	require.Len(t, b.model.Requests(), 1)
}

func TestAnEndOfATurnThatIsNotThereIsNotTriedAgain(t *testing.T) {
	b := setup(t, scripted.Echo)
	_, err := b.worker().End(b.ctx(), contract.EndInput{Turn: contract.TurnRef{ID: "trn_none", ThreadID: b.thread}})
	var refused *temporal.ApplicationError
	require.ErrorAs(t, err, &refused)
	require.True(t, refused.NonRetryable())
}

// shown waits until the events show text of an answer.
func (b *bundle) shown(text string) {
	b.t.Helper()
	sub := b.db.Subscribe(b.thread, 0)
	defer sub.Close()
	var got strings.Builder
	for got.String() != text {
		events, err := sub.Next(b.ctx())
		require.NoError(b.t, err)
		for _, e := range events {
			var d thread.Delta
			if e.Name == thread.EventAnswerDelta {
				require.NoError(b.t, json.Unmarshal(e.Data, &d))
				got.WriteString(d.Text)
			}
		}
	}
}

// gone waits until the client of a request has closed its connection.
func (b *bundle) gone(n int) {
	b.t.Helper()
	r, err := b.model.WaitEnd(b.ctx(), n)
	require.NoError(b.t, err)
	require.False(b.t, r.Gone.IsZero(), "the request came to its end")
}

// joined joins what was shown, the pieces of one text together.
func joined(shown []string) string {
	var b strings.Builder
	for _, s := range shown {
		if strings.HasPrefix(s, "answer.") {
			s = "|" + s + "|"
		}
		b.WriteString(s)
	}
	return strings.Trim(b.String(), "|")
}
