package activities_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"bobbin/activities"
	"bobbin/contract"
	"bobbin/llm/scripted"
	"bobbin/store"
	"bobbin/thread"
	"bobbin/tools"
)

const cent = thread.Dollar / 100

// aCent is a price at which 10 tokens written cost a cent, and reading costs nothing.
const aCent = "scripted: {input: 0, output: 1000}"

func (b *bundle) limit(amount thread.USD) {
	b.t.Helper()
	require.NoError(b.t, b.db.SetLimit(b.ctx(), owner, &amount))
}

func (b *bundle) usage() store.Usage {
	b.t.Helper()
	u, err := b.db.Usage(b.ctx(), owner, time.Time{})
	require.NoError(b.t, err)
	return u
}

func (b *bundle) turn(ref contract.TurnRef) *thread.Turn {
	b.t.Helper()
	turn, err := b.db.Turn(b.ctx(), owner, ref.ID)
	require.NoError(b.t, err)
	return turn
}

// costing is a reply that costs so many cents.
func costing(cents int64, r scripted.Reply) scripted.Reply {
	r.Usage = &scripted.Usage{Input: 100, Output: 10 * cents}
	return r
}

func read7(context.Context, tools.Call) (string, error) { return "7", nil }

func TestNoModelCallStartsAfterTheLimit(t *testing.T) {
	b := setup(t, scripted.Always(costing(100, scripted.Ask("read", `{}`)))) // it would go on for ever
	b.prices, b.tools = aCent, []tools.Tool{reader("read", read7)}
	b.limit(5 * thread.Dollar)
	w := b.worker(func(c *activities.Config) { c.ReserveWait = -1 })
	turn := b.start("Read it.")
	res := w.stint(turn)
	require.Equal(t, contract.StintFailed, res.Outcome)
	require.Equal(t, thread.FailUsageLimit, res.Fail)
	require.Equal(t, thread.TurnFailed, w.end(turn, res).Status)
	made := len(b.model.Requests())
	require.LessOrEqual(t, made, 5)

	u := b.usage()
	require.LessOrEqual(t, u.Spending.Spent, 5*thread.Dollar)
	require.Zero(t, u.Spending.Reserved)
	require.EqualValues(t, made, u.Models[0].Calls)
	require.Equal(t, u.Models[0].Usage, b.turn(turn).Usage, "turn and month have one source")
	require.Equal(t, u.Spending.Spent, u.Models[0].Cost)
	texts := b.messages()
	require.Contains(t, texts[len(texts)-1], "notice: This month's spending limit is reached")

	b.limit(u.Spending.Spent) // now it is reached, and a turn that waits does not come to its model
	_, err := b.db.Accept(b.ctx(), store.Incoming{OwnerID: owner, ThreadID: b.thread, Channel: thread.ChannelWeb, Text: "again"})
	var over *thread.UsageLimitError
	require.ErrorAs(t, err, &over)
	_, err = b.db.Replay(b.ctx(), owner, turn.ID)
	require.NoError(t, err)
	claimed, err := w.Claim(b.ctx(), b.thread)
	require.NoError(t, err)
	res = w.stint(*claimed.Conversation)
	require.Equal(t, thread.FailUsageLimit, res.Fail)
	require.Len(t, b.model.Requests(), made)
}

// Near the limit a call is bounded to what is left, and says so to the provider.
func TestACallNearTheLimitMayWriteOnlyWhatIsLeft(t *testing.T) {
	b := setup(t, scripted.Always(costing(1, scripted.Say("Done."))))
	b.prices = aCent
	b.limit(3 * thread.Dollar)
	w := b.worker()
	turn := b.start("Hello")
	require.Equal(t, contract.StintAnswered, w.stint(turn).Outcome)
	require.Contains(t, string(b.request(1).Body), `"max_completion_tokens":3000`)
	require.Equal(t, cent, b.usage().Spending.Spent)
}

func TestWithoutALimitACallIsNotBounded(t *testing.T) {
	b := setup(t, scripted.Always(costing(1, scripted.Say("Done."))))
	b.prices = aCent
	w := b.worker()
	turn := b.start("Hello")
	require.Equal(t, contract.StintAnswered, w.stint(turn).Outcome)
	require.NotContains(t, string(b.request(1).Body), "max_")
	require.Equal(t, cent, b.turn(turn).Usage.Cost)
}

// Five turns at once, each of whose calls may cost nearly all that is left and costs a hundredth of it: they wait for each
// other, and none is refused.
func TestWorkThatCostsLessThanItsWorstCaseIsNotRefused(t *testing.T) {
	b := setup(t, scripted.Always(costing(2, scripted.Say("Done."))))
	b.prices = aCent
	b.limit(17 * thread.Dollar) // one call may cost 16.384
	w := b.worker()
	var turns []contract.TurnRef
	for range 5 {
		th, err := b.db.OpenThread(b.ctx(), owner, "")
		require.NoError(t, err)
		b.thread = th.ID
		turns = append(turns, b.start("Hello"))
	}
	var wg sync.WaitGroup
	results := make([]contract.StintResult, len(turns))
	for i, turn := range turns {
		wg.Go(func() { results[i] = w.stint(turn) })
	}
	wg.Wait()
	for _, res := range results {
		require.Equal(t, contract.StintAnswered, res.Outcome)
	}
	s := b.usage().Spending
	require.Equal(t, [2]thread.USD{10 * cent, 0}, [2]thread.USD{s.Spent, s.Reserved})
}

// What others have reserved for longer than the wait is not there: the call takes what they leave, or its turn ends.
func TestAReservationWaitsABoundedTimeForOthers(t *testing.T) {
	gate := make(chan struct{})
	slow := costing(1, scripted.Say("Done."))
	slow.Gate, slow.GateAt = gate, scripted.AtStart
	b := setup(t, scripted.Always(slow))
	b.prices = aCent
	b.limit(17 * thread.Dollar)
	w := b.worker(func(c *activities.Config) { c.ReserveWait = 200 * time.Millisecond })
	first := b.start("Hello")
	done := later(func() contract.StintResult { return w.stint(first) })
	b.request(1)
	th, err := b.db.OpenThread(b.ctx(), owner, "")
	require.NoError(t, err)
	b.thread = th.ID
	second := b.start("Hello")
	res := w.stint(second)
	require.Equal(t, thread.FailUsageLimit, res.Fail, "0.616 are left, and 1.024 is the least")
	w.end(second, res)
	require.Contains(t, b.turn(second).Error.Detail, "$16.384 reserved by calls under way")
	require.Len(t, b.model.Requests(), 1)
	close(gate)
	require.Equal(t, contract.StintAnswered, come(t, done).Outcome)
}

func TestStoppedAndBrokenCallsArePaidForAsEstimated(t *testing.T) {
	b := setup(t, scripted.List(
		scripted.Reply{Pieces: []string{"aaaaaaaaa"}, Fault: scripted.Break, After: 1},
		scripted.Reply{Status: 429, RetryAfter: time.Millisecond},
		scripted.Reply{Pieces: []string{"Once upon "}, Fault: scripted.Hang, After: 1},
	))
	b.prices = "scripted: {input: 30, output: 300}"
	b.limits.LongWait = patience
	b.limit(100 * thread.Dollar)
	w := b.worker()
	turn := b.start("Tell me a story.")
	done := later(func() contract.StintResult { return w.stint(turn) })
	b.request(3)
	for !slices.ContainsFunc(b.events(), func(e thread.Event) bool { return strings.Contains(string(e.Data), "Once upon ") }) {
		require.NoError(t, b.ctx().Err())
	}
	b.stop()
	require.Equal(t, contract.StintFenced, come(t, done).Outcome)
	u := b.usage()
	require.Zero(t, u.Spending.Reserved)
	require.EqualValues(t, 3, u.Models[0].Calls)
	require.EqualValues(t, 3+4, u.Models[0].OutputTokens, "three bytes a token")
	w.end(turn, contract.StintResult{})
	require.Equal(t, u.Models[0].Usage, b.turn(turn).Usage)
	require.Equal(t, u.Spending.Spent, b.turn(turn).Usage.Cost)
}

// A worker dies in a model call: what it had reserved is settled by the next, and its call counts once.
func TestTheCallOfADeadWorkerIsSettledByTheNextStint(t *testing.T) {
	b := setup(t, scripted.List(scripted.Reply{Fault: scripted.Hang}, costing(1, scripted.Say("Here."))))
	b.prices = "scripted: {input: 30, output: 1000}"
	b.limit(100 * thread.Dollar)
	p, dsn := through(t, b.dsn, false)
	dying, next := b.workerAt(dsn), b.worker()
	turn := b.start("Hello")
	go func() { _, _ = dying.try(turn) }() // it hangs until the test ends
	b.request(1)
	require.NotZero(t, b.usage().Spending.Reserved)
	p.lose()
	require.Equal(t, contract.StintAnswered, next.stint(turn).Outcome)
	u := b.usage()
	require.Zero(t, u.Spending.Reserved)
	require.EqualValues(t, 2, u.Models[0].Calls)
	require.Equal(t, u.Models[0].Usage, b.turn(turn).Usage)
}

// Each limit of a turn makes it write its answer from what there is.
func TestATurnsOwnLimitsMakeItWrapUp(t *testing.T) {
	for name, set := range map[string]func(*bundle){
		"Rounds": func(b *bundle) { b.limits.Rounds = 3 },
		"Tokens": func(b *bundle) { b.limits.Tokens = 3 * 110 },
		"Cost":   func(b *bundle) { b.limits.Cost = 3 * cent },
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, func(r scripted.Request) scripted.Reply {
				if len(r.Tools) == 0 {
					return costing(1, scripted.Say("What I have."))
				}
				return costing(1, scripted.Ask("read", `{}`))
			})
			b.prices, b.tools = aCent, []tools.Tool{reader("read", read7)}
			set(b)
			w := b.worker()
			turn := b.start("Read it.")
			require.Equal(t, contract.StintAnswered, w.stint(turn).Outcome)
			require.Len(t, b.model.Requests(), 4, "three rounds, and the one that wraps up")
			require.Equal(t, 4*cent, b.turn(turn).Usage.Cost)
		})
	}
}
