package store_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"bobbin/store"
	"bobbin/store/storetest"
	"bobbin/thread"
)

const cent = thread.Dollar / 100

func limited(dollars thread.USD) storetest.Option {
	return func(c *store.Config) { c.MonthlyLimit = &dollars }
}

// spent books what the owner spent before.
func (b *bundle) spent(amount thread.USD) {
	b.t.Helper()
	b.exec(`
		INSERT INTO spending (owner_id, month, spent) VALUES ($1, date_trunc('month', now())::date, $2)
		ON CONFLICT (owner_id, month) DO UPDATE SET spent = EXCLUDED.spent`, owner, int64(amount))
}

func (b *bundle) spending() thread.Spending {
	b.t.Helper()
	u, err := b.db.Usage(b.ctx(), owner, time.Time{})
	require.NoError(b.t, err)
	return u.Spending
}

// sums holds the three places against each other: the ledger, the turns and the months' slots.
func (b *bundle) sums() {
	b.t.Helper()
	var ledger, turns, months, open, reserved thread.USD
	b.scan(`
		SELECT (SELECT COALESCE(sum(cost), 0)::bigint FROM ledger WHERE state = 'settled'), (SELECT sum(cost)::bigint FROM turns),
			(SELECT COALESCE(sum(spent), 0)::bigint FROM spending_slots), (SELECT COALESCE(sum(reserved), 0)::bigint FROM ledger WHERE state = 'reserved'),
			(SELECT COALESCE(sum(reserved), 0)::bigint FROM spending_slots)`, nil, &ledger, &turns, &months, &open, &reserved)
	require.Equal(b.t, ledger, turns, "turns are the sums of the ledger")
	require.Equal(b.t, ledger, months, "months are the sums of the ledger")
	require.Equal(b.t, open, reserved, "what is reserved is what is open")
}

// call is a call that is estimated to read for a cent and may cost most.
func call(most thread.USD) store.Reservation {
	return store.Reservation{
		Charge: store.Charge{ID: store.NewChargeID(), Round: 1, Attempt: 1, Model: "m", Usage: thread.Usage{InputTokens: 100, Cost: cent}},
		Least:  most, Most: most,
	}
}

func (r run) reserve(res store.Reservation) (thread.USD, error) {
	return r.db.Reserve(r.ctx(), r.ref, res)
}

func (r run) settle(id string, cost thread.USD, o store.ChargeOutcome) {
	r.t.Helper()
	require.NoError(r.t, r.db.Settle(r.ctx(), r.ref, charge(id, cost, o)))
}

func charge(id string, cost thread.USD, o store.ChargeOutcome) store.Charge {
	return store.Charge{ID: id, Round: 1, Attempt: 1, Model: "m", Usage: thread.Usage{InputTokens: 90, OutputTokens: 10, Cost: cost}, Outcome: o}
}

// atOnce reserves for n calls of n threads at the same moment, and returns how many were admitted.
func (b *bundle) atOnce(n int, most thread.USD) (admitted []store.Charge, runs []run, refused []error) {
	b.t.Helper()
	runs = make([]run, n)
	for i := range runs {
		b.thread = b.open()
		runs[i] = b.start("hello")
		copied := *b
		runs[i].bundle = &copied
	}
	release := b.lockedRows(`SELECT FROM spending FOR UPDATE`)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, r := range runs {
		wg.Go(func() {
			res := call(most)
			_, err := r.reserve(res)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				refused = append(refused, err)
				return
			}
			admitted = append(admitted, res.Charge)
		})
	}
	done := async(wg.Wait)
	b.waiting(n, done) // all have come to the row
	release()
	<-done
	return admitted, runs, refused
}

func TestOfCallsAtOnceOnlyThoseAreAdmittedThatFit(t *testing.T) {
	for name, c := range map[string]struct {
		limit, spent thread.USD
		calls, want  int
	}{
		"FourAtNineCentsWithTwentyFiveLeft": {5 * thread.Dollar, 475 * cent, 4, 2},
		"FiveAtNineCentsWithTenLeft":        {10 * thread.Dollar, 990 * cent, 5, 1},
		"FiveWithJustEnough":                {10 * thread.Dollar, 955 * cent, 5, 5},
		"FiveWithABillionthTooLittle":       {10 * thread.Dollar, 955*cent + 1, 5, 4},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, limited(c.limit))
			b.spent(c.spent)
			admitted, runs, refused := b.atOnce(c.calls, 9*cent)
			require.Len(t, admitted, c.want)
			for _, err := range refused {
				require.ErrorIs(t, err, thread.ErrReserved, "it would fit, were the others not there")
			}
			s := b.spending()
			require.Equal(t, thread.USD(c.want)*9*cent, s.Reserved)
			require.LessOrEqual(t, s.Spent+s.Reserved, c.limit)

			for _, a := range admitted { // they cost a tenth of it
				r := runs[slices.IndexFunc(runs, func(r run) bool { return r.has(a.ID) })]
				r.settle(a.ID, 9*cent/10, store.ChargeOK)
			}
			require.Zero(t, b.spending().Reserved)
			if c.want < c.calls && c.calls == 5 && c.want == 1 {
				_, err := runs[0].reserve(call(9 * cent))
				require.NoError(t, err, "what was not used is there again")
			}
		})
	}
}

func (r run) has(id string) (is bool) {
	r.t.Helper()
	r.scan(`SELECT EXISTS (SELECT FROM ledger WHERE id = $1 AND turn_id = $2)`, []any{id, r.ref.ID}, &is)
	return is
}

func TestAReservationShrinksToWhatIsLeft(t *testing.T) {
	b := setup(t, limited(thread.Dollar))
	b.spent(95 * cent)
	r := b.start("hello2")
	res := call(9 * cent)
	var ul *thread.UsageLimitError
	_, err := r.reserve(res)
	require.ErrorAs(t, err, &ul, "it never fits")
	require.ErrorContains(t, err, "$1.00; $0.95 is spent, $0.00 reserved")
	res.Least = 3 * cent
	got, err := r.reserve(res)
	require.NoError(t, err)
	require.Equal(t, 5*cent, got)
	again, err := r.reserve(res)
	require.NoError(t, err)
	require.Equal(t, got, again, "under one id it reserves once")
	require.Equal(t, 5*cent, b.spending().Reserved)
	r.settle(res.ID, 2*cent, store.ChargeOK)

	first := call(2 * cent)
	_, err = r.reserve(first)
	require.NoError(t, err)
	second := call(3 * cent)
	second.Least = cent
	_, err = r.reserve(second)
	require.ErrorIs(t, err, thread.ErrReserved)
	second.Hasty = true
	got, err = r.reserve(second)
	require.NoError(t, err)
	require.Equal(t, cent, got, "what the other leaves")
}

func TestACallIsCountedOnceHoweverOftenItIsSettled(t *testing.T) {
	b := setup(t, limited(thread.Dollar))
	r := b.start("hello")
	res := call(9 * cent)
	_, err := r.reserve(res)
	require.NoError(t, err)
	require.Zero(t, r.turn().Usage.Cost, "what is reserved is not used")
	b.sums()

	round := r.next(store.RoundAnswer, "hi")
	round.Charge = store.Charge{ID: res.ID, Attempt: 1}
	round.Reply.Usage = thread.Usage{InputTokens: 90, CachedTokens: 50, OutputTokens: 10, ReasoningTokens: 4, Cost: 2 * cent}
	_, err = r.db.CommitRound(r.ctx(), r.ref, round)
	require.NoError(t, err)
	_, err = r.db.CommitRound(r.ctx(), r.ref, round)
	require.ErrorIs(t, err, thread.ErrMoved, "the commit was lost and is tried again")
	r.settle(res.ID, 5*cent, store.ChargeOK)
	r.settle(res.ID, 0, store.ChargeUnmade)
	require.Equal(t, round.Reply.Usage, r.turn().Usage)
	want := store.Usage{Spending: thread.Spending{Spent: 2 * cent}, Models: []store.ModelUsage{{Model: "scripted", Calls: 1, Usage: round.Reply.Usage}}}
	got, err := r.db.Usage(r.ctx(), owner, time.Time{})
	require.NoError(t, err)
	got.Month, got.Spending.Limit, got.Spending.Resets = time.Time{}, nil, time.Time{}
	require.Empty(t, cmp.Diff(want, got))
	b.sums()
}

func TestFailedStoppedAndUnmadeCallsAreInTheLedger(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	for _, c := range []struct {
		cost thread.USD
		o    store.ChargeOutcome
	}{{3 * cent, store.ChargeFailed}, {0, store.ChargeFailed}, {cent, store.ChargeStopped}, {7 * cent, store.ChargeUnmade}} {
		id := store.NewChargeID()
		r.settle(id, c.cost, c.o)
		r.settle(id, c.cost, c.o)
	}
	require.Equal(t, 4*cent, r.turn().Usage.Cost)
	require.Equal(t, []string{"settled failed", "settled failed", "settled stopped", "released -"},
		b.list(`SELECT state || ' ' || COALESCE(outcome, '-') FROM ledger ORDER BY id`))
	b.sums()
}

// A worker dies between its reservation and what it would have settled. Its turn's next stint, or its end, settles it; should
// it live after all, what it says counts.
func TestTheReservationOfADeadWorkerIsSettledOnce(t *testing.T) {
	for name, next := range map[string]func(run){
		"AtTheNextStint": func(r run) {
			w, err := r.db.Begin(r.ctx(), r.ref, 1, store.Attempt{TurnID: r.ref.ID})
			require.NoError(r.t, err)
			require.Equal(r.t, cent, w.Counters.Used.Cost, "it counts against the turn's limits")
		},
		"AtTheEnd":   func(r run) { r.end(broken()) },
		"AtTheReset": func(r run) { _, err := r.db.Reset(r.ctx(), owner, r.thread); require.NoError(r.t, err) },
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, limited(thread.Dollar))
			r := b.start("hello")
			res := call(9 * cent)
			_, err := r.reserve(res)
			require.NoError(t, err)
			next(r)
			s := b.spending()
			require.Equal(t, [2]thread.USD{cent, 0}, [2]thread.USD{s.Spent, s.Reserved}, "what it read, as estimated")
			require.Equal(t, cent, r.turn().Usage.Cost)
			require.EqualValues(t, 100, r.turn().Usage.InputTokens)
			b.sums()
			next2, err := r.reserve(call(cent))
			if name == "AtTheNextStint" {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, thread.ErrFenced, "nobody would settle it: %v", next2)
			}
			r.settle(res.ID, 4*cent, store.ChargeOK)
			require.Equal(t, 4*cent, r.turn().Usage.Cost, "it was only slow")
			require.EqualValues(t, 90, r.turn().Usage.InputTokens)
			b.sums()
		})
	}
}

// The event of the end tells the same usage as the turn does afterwards.
func TestTheEndTellsWhatADeadWorkersCallCost(t *testing.T) {
	b := setup(t, limited(thread.Dollar))
	r := b.start("hello")
	_, err := r.reserve(call(9 * cent))
	require.NoError(t, err)
	out, err := r.db.End(r.ctx(), r.ref.ID, r.attempt, broken())
	require.NoError(t, err)
	require.Equal(t, out.Turn.Usage, r.turn().Usage)
}

func TestSettleAndEndOfOneTurnAtOnceCountItOnce(t *testing.T) {
	b := setup(t, limited(thread.Dollar))
	r := b.start("hello")
	res := call(9 * cent)
	_, err := r.reserve(res)
	require.NoError(t, err)
	var errs [2]error
	b.race(store.PointEnd,
		func(db *store.DB) { _, errs[0] = db.End(b.ctx(), r.ref.ID, r.attempt, broken()) },
		func(db *store.DB) { errs[1] = db.Settle(b.ctx(), r.ref, charge(res.ID, 4*cent, store.ChargeStopped)) })
	require.Equal(t, [2]error{}, errs)
	require.Equal(t, 4*cent, r.turn().Usage.Cost)
	require.Zero(t, b.spending().Reserved)
	b.sums()
}

func TestReserveAndEndAtOnceLeaveNothingReserved(t *testing.T) {
	b := setup(t, limited(thread.Dollar))
	r := b.start("hello")
	var errs [2]error
	b.race(store.PointEnd,
		func(db *store.DB) { _, errs[0] = db.End(b.ctx(), r.ref.ID, r.attempt, broken()) },
		func(db *store.DB) { _, errs[1] = db.Reserve(b.ctx(), r.ref, call(cent)) })
	require.NoError(t, errs[0])
	require.ErrorIs(t, errs[1], thread.ErrFenced)
	require.Zero(t, b.spending().Reserved)
}

func TestACommitThatMeetsAnotherHoldersEndStillCountsItsCall(t *testing.T) {
	b := setup(t, limited(thread.Dollar))
	r := b.start("hello")
	res := call(9 * cent)
	_, err := r.reserve(res)
	require.NoError(t, err)
	round := r.next(store.RoundAnswer, "late")
	round.Charge.ID, round.Reply.Usage.Cost = res.ID, 3*cent
	var errs [2]error
	b.race(store.PointStop,
		func(db *store.DB) { _, errs[0] = db.Stop(b.ctx(), owner, b.thread, store.ScopeConversation) },
		func(db *store.DB) { _, errs[1] = db.CommitRound(b.ctx(), r.ref, round) })
	require.NoError(t, errs[0])
	require.ErrorIs(t, errs[1], thread.ErrFenced)
	require.Equal(t, 9*cent, b.spending().Reserved, "nothing of it was written")
	r.settle(res.ID, 3*cent, store.ChargeStopped)
	require.Equal(t, 3*cent, b.spending().Spent)
	b.sums()
}

// All turns of an owner that settle, one commit after the other, would be as slow as one turn.
func TestTurnsOfOneOwnerSettleWithoutWaitingForEachOther(t *testing.T) {
	b := setup(t, limited(thread.Dollar))
	b.spent(0) // makes the row that reservations lock
	one := b.start("hello")
	one.settle(store.NewChargeID(), cent, store.ChargeOK)
	var slot int
	b.scan(`SELECT slot FROM spending_slots`, nil, &slot)
	two, apart := one, false
	for !apart {
		b.thread = b.open()
		two = b.start("hello")
		two.settle(store.NewChargeID(), cent, store.ChargeOK)
		b.scan(`SELECT count(*) > 1 FROM spending_slots`, nil, &apart)
	}
	spent := b.spending().Spent

	tx, err := b.sql.Begin(b.ctx())
	require.NoError(t, err)
	_, err = tx.Exec(b.ctx(), `SELECT FROM spending FOR UPDATE`) // as who reserves does
	require.NoError(t, err)
	_, err = tx.Exec(b.ctx(), `UPDATE spending_slots SET spent = spent + 1 WHERE slot = $1`, slot) // as the first turn does
	require.NoError(t, err)
	two.settle(store.NewChargeID(), cent, store.ChargeOK)
	waits := async(func() { one.settle(store.NewChargeID(), cent, store.ChargeOK) })
	b.waiting(1, waits)
	require.Equal(t, spent+cent, b.spending().Spent, "the second has committed before the first")
	require.NoError(t, tx.Rollback(b.ctx()))
	<-waits
	b.sums()
}

// The version before wrote to the one row of the month, and may go on doing so while processes are replaced.
func TestWhatTheVersionBeforeReservedIsSettledInASlot(t *testing.T) {
	b := setup(t, limited(thread.Dollar))
	b.spent(10 * cent)
	r := b.start("hello")
	res := call(9 * cent)
	_, err := r.reserve(res)
	require.NoError(t, err)
	b.exec(`DELETE FROM spending_slots`)
	b.exec(`UPDATE spending SET reserved = $1`, int64(9*cent))
	require.Equal(t, 9*cent, b.spending().Reserved)
	_, err = r.reserve(call(82 * cent))
	require.ErrorIs(t, err, thread.ErrReserved, "it counts")
	r.settle(res.ID, 2*cent, store.ChargeOK)
	s := b.spending()
	require.Equal(t, [2]thread.USD{12 * cent, 0}, [2]thread.USD{s.Spent, s.Reserved})
	_, err = r.reserve(call(82 * cent))
	require.NoError(t, err)
}

func TestACallCountsInTheMonthOfItsReservation(t *testing.T) {
	b := setup(t, limited(thread.Dollar))
	r := b.start("hello")
	res := call(9 * cent)
	_, err := r.reserve(res)
	require.NoError(t, err)
	b.exec(`UPDATE spending_slots SET month = month - interval '1 month'`) // a month begins
	b.exec(`UPDATE ledger SET month = month - interval '1 month'`)
	require.Zero(t, b.spending().Reserved)
	r.settle(res.ID, 4*cent, store.ChargeOK)
	require.Zero(t, b.spending().Spent)
	last, err := b.db.Usage(b.ctx(), owner, time.Now().UTC().AddDate(0, 0, 1-time.Now().UTC().Day()).Add(-24*time.Hour))
	require.NoError(t, err)
	require.Equal(t, 4*cent, last.Spending.Spent)
	require.Len(t, last.Models, 1)
	require.Equal(t, 4*cent, r.turn().Usage.Cost)
	b.sums()
}

func TestAtTheLimitNoMessageIsAccepted(t *testing.T) {
	b := setup(t, limited(thread.Dollar))
	b.start("hello")
	first := b.accept("one", key("k"))
	b.spent(thread.Dollar)
	var before, after int
	b.scan(`SELECT count(*) FROM messages`, nil, &before)
	for _, d := range []thread.Delivery{"", thread.DeliverAuto, thread.DeliverSteer, thread.DeliverTurn, thread.DeliverInterrupt} {
		_, err := b.db.Accept(b.ctx(), b.incoming("two", delivery(d)))
		var ul *thread.UsageLimitError
		require.ErrorAs(t, err, &ul, "delivery %q", d)
		require.Equal(t, thread.Dollar, ul.Spending.Spent)
		require.Equal(t, thread.Dollar, *ul.Spending.Limit)
		require.Equal(t, 1, ul.Spending.Resets.Day())
	}
	b.scan(`SELECT count(*) FROM messages`, nil, &after)
	require.Equal(t, before, after, "nothing is stored")
	again, err := b.db.Accept(b.ctx(), b.incoming("one", key("k")))
	require.NoError(t, err, "it was accepted before")
	require.Equal(t, first.Message.ID, again.Message.ID)
	require.True(t, again.Repeated)
}

func TestALimitOfZeroAllowsNothing(t *testing.T) {
	b := setup(t, limited(0))
	_, err := b.db.Accept(b.ctx(), b.incoming("hello"))
	var ul *thread.UsageLimitError
	require.ErrorAs(t, err, &ul)
}

func TestAnOwnersOwnLimitCountsBeforeTheConfiguredOne(t *testing.T) {
	b := setup(t, limited(thread.Dollar))
	b.spent(2 * thread.Dollar)
	standing := func() []store.Owner {
		list, err := b.db.Owners(b.ctx())
		require.NoError(t, err)
		for i := range list {
			list[i].Spending.Resets = time.Time{}
		}
		return list
	}
	one, five := thread.Dollar, 5*thread.Dollar
	require.Empty(t, cmp.Diff([]store.Owner{{ID: owner, Spending: thread.Spending{Limit: &one, Spent: 2 * thread.Dollar}}}, standing()))
	require.NoError(t, b.db.SetLimit(b.ctx(), owner, &five))
	require.Empty(t, cmp.Diff([]store.Owner{{ID: owner, OwnLimit: true, Spending: thread.Spending{Limit: &five, Spent: 2 * thread.Dollar}}}, standing()))
	r := b.start("hello")
	require.NoError(t, b.db.SetLimit(b.ctx(), owner, nil))
	require.Nil(t, b.spending().Limit)
	got, err := r.reserve(call(100 * thread.Dollar))
	require.NoError(t, err)
	require.Equal(t, 100*thread.Dollar, got, "without a limit all is granted")
	require.NoError(t, b.db.SetLimit(b.ctx(), owner, &one)) // lowered below what is spent
	_, err = r.reserve(call(cent))
	var ul *thread.UsageLimitError
	require.ErrorAs(t, err, &ul)
	require.Zero(t, ul.Spending.Remaining())
	require.NoError(t, b.db.ClearLimit(b.ctx(), owner))
	require.Equal(t, thread.Dollar, *b.spending().Limit)
	require.ErrorIs(t, b.db.SetLimit(b.ctx(), "nobody", nil), thread.ErrNotFound)
}

func TestATurnThatTheLimitEndsSaysSoAndIsNotRetried(t *testing.T) {
	b := setup(t, limited(thread.Dollar))
	r := b.start("hello", channel(thread.ChannelSMS)) // whose failures are retried
	r.commit(store.RoundCalls, "", tool("look"))
	require.NoError(t, r.finish(0, "7"))
	b.spent(thread.Dollar)
	out := r.end(store.Outcome{Error: &thread.TurnError{Code: thread.FailUsageLimit, Detail: "No room."}})
	require.Equal(t, thread.TurnFailed, out.Status)
	turn := r.turn()
	require.Equal(t, thread.FailUsageLimit, turn.Error.Code)
	require.Contains(t, turn.Error.Detail, "No room. To be exact: the limit of this month is $1.00; $1.00 is spent, $0.00 reserved")
	talk := b.conversation()
	require.Contains(t, talk[len(talk)-1], "notice: This month's spending limit is reached")
	require.Contains(t, b.session(), "assistant: ", "its work is kept")
}

func TestReservingCostsOneRoundTrip(t *testing.T) {
	f := &flushes{}
	b := setup(t, limited(thread.Dollar), func(c *store.Config) { c.Tracer = f })
	r := b.start("hello")
	res := call(cent)
	before := f.n.Load()
	_, err := r.reserve(res)
	require.NoError(t, err)
	require.EqualValues(t, 1, f.n.Load()-before)
	r.settle(res.ID, cent, store.ChargeFailed)
	require.EqualValues(t, 2, f.n.Load()-before)
}
