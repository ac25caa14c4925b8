package store_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"bobbin/store"
	"bobbin/store/storetest"
	"bobbin/thread"
)

func TestTakeThatCannotGetTheLockLeavesTheMessageQueuedAndTheRoundGoesOn(t *testing.T) {
	short := func(c *store.Config) { c.TakeTimeout = 50 * time.Millisecond }
	for _, table := range []string{"runs", "steering", "streams"} {
		t.Run(table, func(t *testing.T) {
			b := setup(t, storetest.Option(short))
			r := b.start("hello")
			m := b.accept("one").Message
			round := r.next(store.RoundCalls, "", tool("t"))
			release := b.locked(table)
			_, err := b.db.Take(b.ctx(), r.ref.ID)
			require.ErrorIs(t, err, thread.ErrUnavailable)
			require.NotErrorIs(t, err, thread.ErrFenced)
			release()
			require.Equal(t, "queued", b.state(m.ID))
			_, err = b.db.CommitRound(b.ctx(), r.ref, round)
			require.NoError(t, err)
			require.NoError(t, r.finish(0, "result"))
			r.db = b.second() // which is given longer
			require.Equal(t, "one", r.take()[0].Text)
		})
	}
}

func TestTakeTimeoutDoesNotOutliveTheTake(t *testing.T) {
	b := setup(t, func(c *store.Config) { c.MaxConns, c.TakeTimeout = 1, 50*time.Millisecond })
	r := b.start("hello")
	b.accept("one")
	release := b.locked("streams")
	_, err := b.db.Take(b.ctx(), r.ref.ID)
	require.Error(t, err)
	done := async(func() { _, err = b.db.Accept(b.ctx(), b.incoming("two")) })
	b.until(done, `
		SELECT count(*) > 0
		FROM pg_stat_activity
		WHERE datname = current_database() AND wait_event_type = 'Lock' AND clock_timestamp() - query_start > interval '60 ms'`)
	release()
	<-done
	require.NoError(t, err)
}

func TestTakeWritesTheBoundaryAndStartsTheCountersOver(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	round := r.next(store.RoundCalls, "", tool("t"))
	round.Notes, round.WrapUp = []string{"wrap up"}, true
	_, err := b.db.CommitRound(b.ctx(), r.ref, round)
	require.NoError(t, err)
	require.NoError(t, finish(b.ctx(), b.db, r.ref, thread.Call{TurnID: r.ref.ID, Round: 1, Name: "t", State: thread.CallFailed, Result: "no"}))
	r.commit(store.RoundEmpty, "")
	before := r.load()
	require.True(t, before.Counters.WrapUpWarned)
	require.Equal(t, map[string]int{"t": 1}, before.Counters.ToolFailures)
	require.Equal(t, 1, before.Counters.EmptyRetries)

	m := b.accept("one").Message
	entries := r.take()
	after := r.load()
	after.Counters.Elapsed = 0
	require.Empty(t, cmp.Diff(thread.Counters{ToolFailures: map[string]int{}}, after.Counters))
	require.Equal(t, 2, after.Turn.Rounds, "what is numbered goes on")
	require.Equal(t, []thread.EntryKind{thread.EntryUser, thread.EntryNote}, []thread.EntryKind{entries[0].Kind, entries[1].Kind})
	require.Contains(t, entries[1].Text, "wrapping up no longer applies")
	require.Empty(t, cmp.Diff(entries, after.Session.Entries[len(after.Session.Entries)-2:]), "it returns what it wrote")

	steps, err := b.db.Steps(b.ctx(), owner, r.ref.ID, 0, 10)
	require.NoError(t, err)
	last := steps[len(steps)-1]
	require.Equal(t, thread.StepBoundary, last.Kind)
	require.Equal(t, m.ID, last.MessageID)
	require.Empty(t, r.take(), "a repeated take finds it done")
}

func TestTakeOfATurnThatIsOverIsFenced(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	r.answer("hi")
	_, err := b.db.Take(b.ctx(), r.ref.ID)
	require.ErrorIs(t, err, thread.ErrFenced)
	next := b.start("again")
	b.accept("one")
	_, err = b.db.Take(b.ctx(), r.ref.ID)
	require.ErrorIs(t, err, thread.ErrFenced, "nor does it take what belongs to the next")
	require.Equal(t, "one", next.take()[0].Text)
	_, err = b.db.Take(b.ctx(), "trn_none")
	require.ErrorIs(t, err, thread.ErrNotFound)
}

func TestTakeOfABackgroundTurnTakesNothing(t *testing.T) {
	b := setup(t)
	b.start("hello")
	b.accept("one")
	require.Empty(t, b.background("look").take())
}

// A withdrawn message must never have reached the model, and a loaded one must not be withdrawn: a thousand crossings
// are fewer than the races above prove, but no gate tells these when to run.
func TestWithdrawAndTakeCrossingFreelyAgree(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	other := b.second()
	for range 100 {
		m := b.accept("one").Message
		var entries []thread.Entry
		var errs [2]error
		one := async(func() { entries, errs[0] = b.db.Take(b.ctx(), r.ref.ID) })
		two := async(func() { _, errs[1] = other.WithdrawMessage(b.ctx(), owner, m.ID) })
		<-one
		<-two
		require.NoError(t, errs[0])
		if len(entries) > 0 {
			require.ErrorIs(t, errs[1], thread.ErrAlreadyDelivered)
		} else {
			require.NoError(t, errs[1])
		}
	}
}

func TestTakeLoadsNothingBehindAnAnswer(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	r.commit(store.RoundAnswer, "hi")
	late := b.accept("and quickly")
	require.Equal(t, thread.DisposedSteering, late.Disposition)
	entries, err := b.db.Take(b.ctx(), r.ref.ID) // another holder of the turn, at its round head
	require.NoError(t, err)
	require.Empty(t, entries)
	ended := r.end(store.Outcome{})
	require.NotNil(t, ended.Next, "the message is answered by a turn of its own")
	require.Equal(t, []string{"user: hello", "assistant: hi", "user: and quickly"}, b.conversation())
}
