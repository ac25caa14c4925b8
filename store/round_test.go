package store_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"bobbin/store"
	"bobbin/thread"
)

func TestCommitRoundAfterATakeIsMovedSoNothingIsDeliveredUnseen(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	round := r.next(store.RoundAnswer, "built without it")
	b.accept("one")
	var errs [2]error
	b.race(store.PointTake,
		func(db *store.DB) { _, errs[0] = db.Take(b.ctx(), r.ref.ID) },
		func(db *store.DB) { _, errs[1] = db.CommitRound(b.ctx(), r.ref, round) })
	require.NoError(t, errs[0])
	require.ErrorIs(t, errs[1], thread.ErrMoved)
	require.Equal(t, []string{"user: hello", "user: one"}, b.session())
}

func TestCommitRoundThenTakeLoadsBehindIt(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	round := r.next(store.RoundCalls, "", tool("t"))
	b.accept("one")
	var entries []thread.Entry
	var errs [2]error
	b.race(store.PointRound,
		func(db *store.DB) { _, errs[0] = db.CommitRound(b.ctx(), r.ref, round) },
		func(db *store.DB) { entries, errs[1] = db.Take(b.ctx(), r.ref.ID) })
	require.Equal(t, [2]error{}, errs)
	require.Equal(t, int64(2), entries[0].Pos)
}

func TestTwoHoldersOfOneRoundTheFirstWins(t *testing.T) {
	for name, outcome := range map[string]store.RoundOutcome{"AnAnswer": store.RoundAnswer, "AnEmptyReply": store.RoundEmpty} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			r := b.start("hello")
			round := r.next(outcome, "first")
			if outcome == store.RoundEmpty {
				round.Reply.Text = ""
			}
			second := round
			second.Reply.Text = "second"
			var errs [2]error
			b.race(store.PointRound,
				func(db *store.DB) { _, errs[0] = db.CommitRound(b.ctx(), r.ref, round) },
				func(db *store.DB) { _, errs[1] = db.CommitRound(b.ctx(), r.ref, second) })
			require.NoError(t, errs[0])
			require.ErrorIs(t, errs[1], thread.ErrMoved)
			require.NotContains(t, b.session(), "assistant: second")
			w := r.load()
			require.Equal(t, 1, w.Turn.Rounds)
			require.Equal(t, outcome == store.RoundAnswer, w.Answered)
		})
	}
}

func TestTwoHoldersThatFailTheSameRoundCountOnceAndOneShowsNothingMore(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	var got [2]int
	var errs [2]error
	b.race(store.PointRound,
		func(db *store.DB) { got[0], errs[0] = db.FailAttempt(b.ctx(), r.ref, 0) },
		func(db *store.DB) { got[1], errs[1] = db.FailAttempt(b.ctx(), r.ref, 0) })
	require.Equal(t, [2]error{}, errs)
	require.Equal(t, [2]int{1, 0}, got)
	require.Equal(t, 1, r.load().ModelAttempt)
	require.Equal(t, 1, r.load().Counters.ModelFailures, "one call failed")
}

func TestStartCallTwiceStartsOnce(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	r.commit(store.RoundCalls, "", effect("pay"))
	var ok [2]bool
	var errs [2]error
	b.race(store.PointCall,
		func(db *store.DB) {
			_, ok[0], errs[0] = db.StartCall(b.ctx(), r.ref, 1, 0, &store.Start{WorkerID: "w"})
		},
		func(db *store.DB) {
			_, ok[1], errs[1] = db.StartCall(b.ctx(), r.ref, 1, 0, &store.Start{WorkerID: "w"})
		})
	require.Equal(t, [2]error{}, errs)
	require.Equal(t, [2]bool{true, false}, ok)
	require.NoError(t, r.finish(0, "paid"))
	call, again, err := b.db.StartCall(b.ctx(), r.ref, 1, 0, &store.Start{WorkerID: "w"})
	require.NoError(t, err)
	require.False(t, again)
	require.Equal(t, thread.CallSucceeded, call.State)
	_, _, err = b.db.StartCall(b.ctx(), r.ref, 1, 1, &store.Start{WorkerID: "w"})
	require.ErrorIs(t, err, thread.ErrNotFound)
}

func TestFinishCallTwiceKeepsTheFirstResult(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	r.commit(store.RoundCalls, "", tool("a"), tool("b"))
	call := func(index int, result string) thread.Call {
		return thread.Call{TurnID: r.ref.ID, Round: 1, Index: index, Name: "a", State: thread.CallSucceeded, Result: result}
	}
	var errs [2]error
	b.race(store.PointCall,
		func(db *store.DB) { errs[0] = finish(b.ctx(), db, r.ref, call(0, "first")) },
		func(db *store.DB) { errs[1] = finish(b.ctx(), db, r.ref, call(0, "second")) })
	require.NoError(t, errs[0])
	require.ErrorIs(t, errs[1], thread.ErrMoved, "the other reads what stands")
	require.NoError(t, finish(b.ctx(), b.db, r.ref, call(0, "first")), "a repeat is as good as once")
	w := r.load()
	require.Equal(t, "first", w.Session.Entries[1].Calls[0].Result)
	require.Equal(t, []thread.Call{w.Session.Entries[1].Calls[1]}, w.Open, "the other is still to do: what is done is not done again")
}

// The round head that follows does not look again: whatever was accepted before the result was written has to be in it.
func TestFinishCallTellsWhatItsRoundHeadIsToTake(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	r.commit(store.RoundCalls, "", tool("a"), tool("b"), tool("c"))
	finish := func(db *store.DB, index int) (bool, error) {
		return db.FinishCall(b.ctx(), r.ref, thread.Call{TurnID: r.ref.ID, Round: 1, Index: index, Name: "t", State: thread.CallSucceeded, Result: "7"})
	}
	waits, err := finish(b.db, 0)
	require.NoError(t, err)
	require.False(t, waits)

	var m store.Accepted
	var acceptErr error
	b.race(store.PointCall,
		func(db *store.DB) { waits, err = finish(db, 1) },
		func(db *store.DB) { m, acceptErr = db.Accept(b.ctx(), b.incoming("one")) })
	require.NoError(t, err)
	require.NoError(t, acceptErr)
	require.Equal(t, thread.DisposedSteering, m.Disposition)
	require.False(t, waits, "it could only be accepted after the result")

	b.race(store.PointAccept,
		func(db *store.DB) { m, acceptErr = db.Accept(b.ctx(), b.incoming("two")) },
		func(db *store.DB) { waits, err = finish(db, 2) })
	require.NoError(t, acceptErr)
	require.NoError(t, err)
	require.True(t, waits)
	waits, err = finish(b.db, 2)
	require.NoError(t, err)
	require.True(t, waits, "a repeat tells it too")
	entries, err := b.db.TakeSeen(b.ctx(), r.ref)
	require.NoError(t, err)
	require.Equal(t, "one\n\ntwo", entries[0].Text)
	waits, err = finish(b.db, 2)
	require.NoError(t, err)
	require.False(t, waits)
	b.accept("three")
	_, err = b.db.WithdrawSteering(b.ctx(), owner, b.thread)
	require.NoError(t, err)
	entries, err = b.db.TakeSeen(b.ctx(), r.ref)
	require.NoError(t, err)
	require.Empty(t, entries, "what was seen may be gone")
}

func TestAfterTheEndNothingIsWritten(t *testing.T) {
	for name, over := range map[string]func(run){
		"Stop":   func(r run) { r.stop(store.ScopeAll) },
		"End":    func(r run) { r.end(broken()) },
		"Reset":  func(r run) { _, err := r.db.Reset(r.ctx(), owner, r.thread); require.NoError(r.t, err) },
		"Cancel": func(r run) { r.cancelTurn(r) },
	} {
		for kind, begin := range map[string]func(*bundle) run{
			"Conversation": func(b *bundle) run { return b.start("hello") },
			"Background":   func(b *bundle) run { return b.background("look") },
		} {
			t.Run(name+kind, func(t *testing.T) {
				b := setup(t)
				r := begin(b)
				r.commit(store.RoundCalls, "", tool("a"), effect("pay"))
				require.NoError(t, r.finish(0, "a's result"))
				_, ok, err := b.db.StartCall(b.ctx(), r.ref, 1, 1, &store.Start{WorkerID: "w"})
				require.NoError(t, err)
				require.True(t, ok)
				late := r.next(store.RoundAnswer, "late")
				attempt := r.load().ModelAttempt

				over(r)
				events, session := b.lastEvent(), b.session()
				_, err = b.db.CommitRound(b.ctx(), r.ref, late)
				require.ErrorIs(t, err, thread.ErrFenced)
				_, err = b.db.FailAttempt(b.ctx(), r.ref, 0)
				require.ErrorIs(t, err, thread.ErrFenced)
				_, _, err = b.db.StartCall(b.ctx(), r.ref, 1, 0, &store.Start{WorkerID: "w"})
				require.ErrorIs(t, err, thread.ErrFenced)
				_, err = b.db.Begin(b.ctx(), r.ref, r.attempt, store.Attempt{TurnID: r.ref.ID, RunID: "late"})
				require.ErrorIs(t, err, thread.ErrFenced)
				_, err = b.db.Load(b.ctx(), r.ref, r.attempt)
				require.ErrorIs(t, err, thread.ErrFenced)
				require.ErrorIs(t, r.finish(1, "paid after all"), thread.ErrFenced)
				d := b.db.NewDeltas()
				d.Write(r.ref, thread.Delta{TurnID: r.ref.ID, Round: 2, Attempt: attempt, Text: "late"})
				d.Flush(b.ctx(), r.ref.ID)
				d.Close()

				require.Equal(t, events, b.lastEvent())
				require.Equal(t, session, b.session())
				var result string
				b.scan(`SELECT result FROM calls WHERE turn_id = $1 AND idx = 1`, []any{r.ref.ID}, &result)
				require.Equal(t, "paid after all", result, "the outcome of an outside call is kept")
				if name == "Stop" || name == "Cancel" {
					r.end(store.Outcome{})
				}
				b.nothingOpen()
			})
		}
	}
}

// nothingOpen: a turn that is over has no open call and no running step.
func (b *bundle) nothingOpen() {
	b.t.Helper()
	require.Empty(b.t, b.list(`
		SELECT c.turn_id || ' ' || c.name || ' ' || c.state
		FROM calls c JOIN turns t ON t.id = c.turn_id
		WHERE c.state IN ('pending', 'started') AND t.finished_at IS NOT NULL`))
	require.Empty(b.t, b.list(`
		SELECT s.turn_id || ' ' || s.title
		FROM steps s JOIN turns t ON t.id = s.turn_id
		WHERE s.status = 'running' AND t.finished_at IS NOT NULL`))
}

func TestOutcomeThatComesBetweenTheStopAndTheEndIsKept(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	r.commit(store.RoundCalls, "", effect("pay"), effect("mail"), effect("post"))
	for i := range 2 {
		_, _, err := b.db.StartCall(b.ctx(), r.ref, 1, i, &store.Start{WorkerID: "w"})
		require.NoError(t, err)
	}
	b.stop(store.ScopeConversation)
	require.ErrorIs(t, r.finish(0, "paid"), thread.ErrFenced)
	require.ErrorIs(t, r.finish(2, "never started"), thread.ErrFenced)
	r.end(store.Outcome{})
	b.nothingOpen()
	require.Equal(t, []string{"succeeded: paid", "interrupted: The turn", "interrupted: This call"},
		b.list(`SELECT state || ': ' || CASE state WHEN 'succeeded' THEN result ELSE left(result, 8 + (idx - 1)) END FROM calls WHERE turn_id = $1 ORDER BY idx`, r.ref.ID))
	require.Equal(t, []string{"done", "interrupted", "interrupted"},
		b.list(`SELECT status FROM steps WHERE turn_id = $1 ORDER BY n`, r.ref.ID))
	require.ErrorIs(t, r.finish(1, "mailed"), thread.ErrFenced)
	require.Equal(t, []string{"mailed"}, b.list(`SELECT result FROM calls WHERE turn_id = $1 AND idx = 1`, r.ref.ID))
}

func TestEveryCallOfTheSessionHasAResultAfterAnyEnd(t *testing.T) {
	for name, end := range map[string]func(run){
		"Stopped":          func(r run) { r.stop(store.ScopeConversation); r.end(store.Outcome{}) },
		"Failed":           func(r run) { r.end(store.Outcome{Error: &thread.TurnError{Code: thread.FailToolUnknown, Detail: "x"}}) },
		"Reset":            func(r run) { _, err := r.db.Reset(r.ctx(), owner, r.thread); require.NoError(r.t, err) },
		"RetryThenStop":    func(r run) { r.end(broken()); r.stop(store.ScopeConversation) },
		"RetryThenStopAll": func(r run) { r.end(broken()); r.stop(store.ScopeAll) },
		"RetryThenCancel":  func(r run) { r.end(broken()); r.cancelTurn(r) },
		"RetryThenReset": func(r run) {
			r.end(broken())
			_, err := r.db.Reset(r.ctx(), owner, r.thread)
			require.NoError(r.t, err)
		},
		"RetryThenInterrupt": func(r run) {
			r.end(broken())
			r.accept("now", channel(thread.ChannelSMS), delivery(thread.DeliverInterrupt))
			r.bundle.running().answer("hi")
			r.due()
			r.stop(store.ScopeAll)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			r := b.start("hello", channel(thread.ChannelSMS))
			r.commit(store.RoundCalls, "", tool("a"), effect("pay"))
			_, _, err := b.db.StartCall(b.ctx(), r.ref, 1, 1, &store.Start{WorkerID: "w"})
			require.NoError(t, err)
			end(r)
			b.nothingOpen()
			require.True(t, r.turn().Status.Ended())
		})
	}
}

func TestRetryDoesNotRunFinishedToolsAgain(t *testing.T) {
	b := setup(t)
	r := b.start("hello", channel(thread.ChannelSMS))
	r.commit(store.RoundCalls, "", effect("a"), effect("b"), effect("c"))
	for i := range 2 {
		_, _, err := b.db.StartCall(b.ctx(), r.ref, 1, i, &store.Start{WorkerID: "w"})
		require.NoError(t, err)
		require.NoError(t, r.finish(i, "done"))
	}
	r.end(broken())
	b.due()
	again := b.running()
	w := again.load()
	require.Len(t, w.Open, 1)
	require.Equal(t, "c", w.Open[0].Name)
	require.Zero(t, w.Counters.ModelFailures)
	_, ok, err := b.db.StartCall(b.ctx(), again.ref, 1, 0, &store.Start{WorkerID: "w"})
	require.NoError(t, err)
	require.False(t, ok)
}

func TestFailedCallsOfTheModelStartOverWithTheRetry(t *testing.T) {
	b := setup(t)
	r := b.start("hello", channel(thread.ChannelSMS))
	attempt := 0
	for range 3 {
		var err error
		attempt, err = b.db.FailAttempt(b.ctx(), r.ref, attempt)
		require.NoError(t, err)
	}
	require.Equal(t, 3, r.load().Counters.ModelFailures)
	r.end(broken())
	b.due()
	w := b.running().load()
	require.Zero(t, w.Counters.ModelFailures)
	require.Equal(t, 3, w.ModelAttempt, "but its number is new, so that no delta of the first claim passes")
}

func TestTextThatPostgresWouldRefuseDoesNotBreakTheTurn(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	bad := "nul \x00 and \xff"
	r.commit(store.RoundCalls, bad, store.RoundCall{Asked: thread.Asked{ID: bad, Name: bad, Arguments: bad}})
	require.NoError(t, finish(b.ctx(), b.db, r.ref, thread.Call{TurnID: r.ref.ID, Round: 1, Name: bad, State: thread.CallFailed, Result: bad}))
	r.shown(0, 0, "half\x00an answer")
	r.end(late())
	require.Contains(t, b.conversation(), "assistant: half an answer [stopped]")
	_, err := b.db.Turn(b.ctx(), owner, bad)
	require.ErrorIs(t, err, thread.ErrNotFound)
}

func TestRefusedRoundWritesNothing(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	round := r.next(store.RoundAnswer, "hi")
	events := b.lastEvent()
	for _, wrong := range []func(*store.Round){
		func(r *store.Round) { r.N++ }, func(r *store.Round) { r.Base++ }, func(r *store.Round) { r.Base-- },
	} {
		bad := round
		wrong(&bad)
		_, err := b.db.CommitRound(b.ctx(), r.ref, bad)
		require.ErrorIs(t, err, thread.ErrMoved)
	}
	require.Equal(t, events, b.lastEvent())
}

func TestRoundsOfBackgroundTurnsRunBesideTheConversation(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	r.answer("hi")
	bg := b.background("look")
	next := b.start("again")
	require.Equal(t, []string{"hello", "hi", "look"}, texts(bg.load().Session), "it sees the turns that had finished")
	bg.commit(store.RoundCalls, "", tool("t"))
	next.commit(store.RoundAnswer, "yes")
	require.NoError(t, bg.finish(0, "seen"))
	bg.commit(store.RoundAnswer, "done")
	require.Equal(t, store.Ended{Status: thread.TurnSucceeded}, bg.end(store.Outcome{}))
	require.Equal(t, []string{"user: hello", "assistant: hi", "user: again"}, b.conversation(), "it speaks by no answer")
	require.Equal(t, thread.TurnRunning, next.turn().Status)
}

func texts(s thread.Session) []string {
	var list []string
	for _, e := range s.Entries {
		list = append(list, e.Text)
	}
	return list
}

func TestFinishCallReportsBothErrorsAsFenced(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	r.answer("hi")
	err := finish(b.ctx(), b.db, r.ref, thread.Call{TurnID: r.ref.ID, Round: 9, State: thread.CallSucceeded})
	require.True(t, errors.Is(err, thread.ErrFenced))
}

func TestStartedCallIsRunningWhileItsWorkerLives(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	r.commit(store.RoundCalls, "", tool("a"))
	w, err := b.db.RegisterWorker(b.ctx())
	require.NoError(t, err)
	_, ok, err := b.db.StartCall(b.ctx(), r.ref, 1, 0, &store.Start{WorkerID: w.ID})
	require.NoError(t, err)
	require.True(t, ok)
	require.Positive(t, r.load().Open[0].RunningFor)
	w.Close()
	require.Zero(t, r.load().Open[0].RunningFor, "nobody knows what came of it")
}

func TestStintsThatWriteNothingAreCounted(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	begin := func() int {
		w, err := b.db.Begin(b.ctx(), r.ref, r.attempt, store.Attempt{TurnID: r.ref.ID, RunID: "run", ActivityID: "5"})
		require.NoError(t, err)
		return w.Barren
	}
	require.Equal(t, []int{1, 2, 3}, []int{begin(), begin(), begin()})
	r.commit(store.RoundCalls, "", tool("a"))
	require.Equal(t, 1, begin(), "a round was written")
}
