package store_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"bobbin/store"
	"bobbin/thread"
)

func TestEndRepeatedReturnsTheSameAndNeverEndsALaterAttempt(t *testing.T) {
	t.Run("AfterAnAnswer", func(t *testing.T) {
		b := setup(t)
		r := b.start("hello")
		b.accept("one")
		first := r.answer("hi")
		events := b.lastEvent()
		again := r.end(broken())
		require.Equal(t, first.Status, again.Status)
		require.Equal(t, first.Next.ID, again.Next.ID)
		require.Equal(t, events, b.lastEvent())
		b.run(first.Next).answer("yes")
		require.Nil(t, r.end(store.Outcome{}).Next, "what followed has ended too")
	})
	t.Run("AfterARetryThatWasClaimed", func(t *testing.T) {
		b := setup(t)
		r := b.retrying()
		require.Equal(t, store.Ended{Status: thread.TurnQueued}, r.end(broken()))
		b.due()
		second := b.running()
		require.Equal(t, store.Ended{Status: thread.TurnQueued}, r.end(broken()))
		require.Equal(t, thread.TurnRunning, second.turn().Status)
		_, err := b.db.Load(b.ctx(), r.ref, r.attempt)
		require.ErrorIs(t, err, thread.ErrFenced)
		require.Equal(t, thread.TurnSucceeded, second.answer("hi").Status)
	})
	t.Run("AfterARetryThatWentOnAtOnce", func(t *testing.T) {
		b := setup(t)
		r := b.start("hello", channel(thread.ChannelSMS))
		b.accept("one", channel(thread.ChannelSMS))
		first := r.end(broken())
		require.Equal(t, thread.TurnQueued, first.Status)
		require.Equal(t, r.ref.ID, first.Next.ID)
		require.Equal(t, 2, first.Next.Attempt)
		again := r.end(broken())
		require.Equal(t, first.Status, again.Status)
		require.Equal(t, first.Next.Attempt, again.Next.Attempt)
		require.Equal(t, "one", b.run(first.Next).take()[0].Text)
	})
	t.Run("AfterAReplay", func(t *testing.T) {
		b := setup(t)
		r := b.start("hello")
		r.end(broken())
		_, err := b.db.Replay(b.ctx(), owner, r.ref.ID)
		require.NoError(t, err)
		r.end(broken())
		second := b.running()
		r.end(broken())
		require.Equal(t, thread.TurnRunning, second.turn().Status)
	})
}

func TestFollowUpTurnGoesAheadOfAllThatWaits(t *testing.T) {
	for name, outcome := range map[string]store.Outcome{"AfterAnAnswer": {}, "AfterAFailure": broken()} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			r := b.start("hello")
			m := b.accept("one", files("f"), mentions("@bob")).Message
			b.accept("behind", channel("telegram"))
			if outcome.Error == nil {
				r.commit(store.RoundAnswer, "hi")
			}
			next := r.end(outcome).Next
			require.Equal(t, m.ID, b.messageOf(next))
			require.Equal(t, r.ref.ID, next.FollowUpOf)
			require.Equal(t, []any{thread.SourceUser, thread.Chat}, []any{next.Source, next.Mode})
			require.Equal(t, []string{"behind"}, b.waitingTurns())
		})
	}
}

func TestEndWhoseFollowUpCannotBeWrittenChangesNothing(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	m := b.accept("one").Message
	r.commit(store.RoundAnswer, "hi")
	b.exec(`
		CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''refused''; END';
		CREATE TRIGGER refuse BEFORE INSERT ON turns FOR EACH ROW EXECUTE FUNCTION refuse()`)
	events := b.lastEvent()
	_, err := b.db.End(b.ctx(), r.ref.ID, r.attempt, store.Outcome{})
	require.Error(t, err)
	require.Equal(t, events, b.lastEvent())
	th, err := b.db.Thread(b.ctx(), owner, b.thread)
	require.NoError(t, err)
	require.Equal(t, m.ID, th.Steering.ID)
	require.Equal(t, r.ref.ID, th.RunningTurn)
	b.exec(`DROP TRIGGER refuse ON turns`)
	require.Equal(t, m.ID, b.messageOf(r.end(store.Outcome{}).Next))
}

func TestRetryPolicyOfSMS(t *testing.T) {
	b := setup(t)
	r := b.start("hello", channel(thread.ChannelSMS))
	for _, want := range []time.Duration{30 * time.Second, 2 * time.Minute, 10 * time.Minute, 30 * time.Minute} {
		require.Equal(t, store.Ended{Status: thread.TurnQueued}, r.end(broken()))
		c, err := b.db.Claim(b.ctx(), b.thread)
		require.NoError(t, err)
		require.Nil(t, c.Conversation)
		require.Equal(t, 1, c.Waiting)
		left := c.RetryAt.Sub(c.Now)
		require.LessOrEqual(t, left, want)
		require.Greater(t, left, want-patience)
		turn := r.turn()
		require.Equal(t, thread.FailModelUnavailable, turn.Error.Code)
		b.due()
		r = b.running()
		require.Nil(t, r.turn().Error)
	}
	require.Equal(t, store.Ended{Status: thread.TurnFailed}, r.end(broken()), "the fifth failure is final")
	require.Equal(t, 5, r.turn().Attempt)
	require.Len(t, b.conversation(), 2)
	backlog, err := b.db.Backlog(b.ctx(), owner)
	require.NoError(t, err)
	require.Equal(t, r.ref.ID, backlog.Failed[0].ID)

	_, err = b.db.Replay(b.ctx(), owner, r.ref.ID)
	require.NoError(t, err)
	require.Equal(t, store.Ended{Status: thread.TurnQueued}, b.running().end(broken()), "a replay has all its tries again")
}

func TestFailureOnTheWebPostsTheNoticeOnce(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	require.Equal(t, store.Ended{Status: thread.TurnFailed}, r.end(broken()))
	r.end(broken())
	require.Len(t, b.conversation(), 2)
	require.Contains(t, b.conversation()[1], "Say *continue*")
}

func TestUnknownToolOutcomeAsksThePersonEvenWhereFailuresAreRetried(t *testing.T) {
	b := setup(t)
	r := b.start("hello", channel(thread.ChannelSMS))
	ended := r.end(store.Outcome{Error: &thread.TurnError{Code: thread.FailToolUnknown, Detail: "The outcome is unknown."}})
	require.Equal(t, thread.TurnFailed, ended.Status)
	require.Nil(t, ended.Next)
	require.Contains(t, b.conversation()[1], "please check whether that happened")
}

func TestRetryWithAMessageThatCannotBeLoadedLetsItWaitBehind(t *testing.T) {
	b := setup(t)
	r := b.start("hello", channel(thread.ChannelSMS))
	b.accept("one", channel(thread.ChannelSMS), files("f"))
	b.accept("behind", channel("telegram"))
	require.Equal(t, store.Ended{Status: thread.TurnQueued}, r.end(broken()))
	require.Equal(t, []string{"", "one", "behind"}, b.waitingTurns())
	b.due()
	again := b.running()
	require.Equal(t, r.ref.ID, again.ref.ID)
	require.NotNil(t, again.answer("hi").Next)
	require.Equal(t, []string{"user: hello", "assistant: hi", "user: one", "user: behind [queued]"}, b.conversation())
}

func TestReplayGoesToTheEndOfTheLine(t *testing.T) {
	b := setup(t)
	failed := b.start("hello")
	b.accept("one", channel("telegram"))
	next := b.run(failed.end(broken()).Next)
	b.accept("two", channel("whatsapp"))
	turn, err := b.db.Replay(b.ctx(), owner, failed.ref.ID)
	require.NoError(t, err)
	require.Equal(t, thread.TurnQueued, turn.Status)
	_, err = b.db.Replay(b.ctx(), owner, failed.ref.ID)
	require.ErrorIs(t, err, thread.ErrConflict)
	_, err = b.db.Replay(b.ctx(), owner, next.ref.ID)
	require.ErrorIs(t, err, thread.ErrConflict, "it runs")
	require.Equal(t, []string{"two", ""}, b.waitingTurns())
	second := b.run(next.answer("hi").Next)
	replayed := second.answer("yes").Next
	require.Equal(t, failed.ref.ID, replayed.ID)
	require.Equal(t, 2, replayed.Attempt)
}

func TestPartialAnswer(t *testing.T) {
	t.Run("IsKeptAtAStopInConversationAndSession", func(t *testing.T) {
		b := setup(t)
		r := b.start("hello")
		r.shown(0, 0, "half an ")
		r.shown(0, 8, "answer")
		b.stop(store.ScopeConversation)
		r.end(store.Outcome{})
		require.Equal(t, []string{"user: hello", "assistant: half an answer [stopped]"}, b.conversation())
		require.Equal(t, []string{"user: hello", "assistant: half an answer", "note: The person stopped this turn here; the answer above is not finished."}, b.session())
		require.NotEmpty(t, r.turn().Answer)
	})
	t.Run("IsKeptByAReset", func(t *testing.T) {
		b := setup(t)
		r := b.start("hello")
		b.background("look")
		r.shown(0, 0, "half")
		_, err := b.db.Reset(b.ctx(), owner, b.thread)
		require.NoError(t, err)
		require.Equal(t, []string{"user: hello", "assistant: half [stopped]"}, b.conversation())
	})
	t.Run("OfAGivenUpAttemptIsNot", func(t *testing.T) {
		b := setup(t)
		r := b.start("hello")
		r.shown(0, 0, "void")
		n, err := b.db.FailAttempt(b.ctx(), r.ref, 0)
		require.NoError(t, err)
		r.shown(n, 0, "kept")
		b.stop(store.ScopeConversation)
		r.end(store.Outcome{})
		require.Equal(t, []string{"user: hello", "assistant: kept [stopped]"}, b.conversation())
	})
	t.Run("BesideToolCallsIsThinkingAndNotKept", func(t *testing.T) {
		b := setup(t)
		r := b.start("hello")
		r.shown(0, 0, "let me look")
		r.commit(store.RoundCalls, "let me look", tool("t"))
		b.stop(store.ScopeConversation)
		r.end(store.Outcome{})
		require.Equal(t, []string{"user: hello"}, b.conversation())
		require.Contains(t, b.events(), string(thread.EventAnswerRestarted))
	})
	t.Run("OfAModelCallThatFailedIsNot", func(t *testing.T) {
		b := setup(t)
		r := b.start("hello")
		r.shown(0, 0, "void")
		r.end(broken())
		require.Len(t, b.conversation(), 2, "request and notice: %v", b.conversation())
		require.Equal(t, []string{"user: hello"}, b.session())
		require.Contains(t, b.events(), string(thread.EventAnswerRestarted))
	})
	t.Run("OfAFailedTurnIsNotPostedAgainByItsReplay", func(t *testing.T) {
		b := setup(t)
		r := b.start("hello")
		r.shown(0, 0, "half")
		r.end(late())
		_, err := b.db.Replay(b.ctx(), owner, r.ref.ID)
		require.NoError(t, err)
		again := b.running()
		b.stop(store.ScopeConversation)
		again.end(store.Outcome{})
		require.Len(t, b.conversation(), 3, "request, partial answer, notice: %v", b.conversation())
	})
}

func TestAnswerThatWasCommittedIsPostedWhateverFailedSince(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	r.commit(store.RoundAnswer, "hi")
	require.Equal(t, store.Ended{Status: thread.TurnSucceeded}, r.end(broken()))
	require.Equal(t, []string{"user: hello", "assistant: hi"}, b.conversation())
}

func TestEndWithoutAnAnswerFails(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	require.Equal(t, thread.TurnFailed, r.end(store.Outcome{}).Status)
	require.Equal(t, thread.FailInternal, r.turn().Error.Code)
}

func TestStopScopes(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	b.accept("steers", files("a"))
	one := b.accept("one", channel("telegram"), files("b", "a"))
	two := b.accept("two", channel("whatsapp"))
	bg := b.background("look")
	out := b.stop(store.ScopeConversation)
	require.Equal(t, []string{r.ref.ID}, out.Turns)
	require.Equal(t, "steers", out.Withdrawn.Text)
	require.Equal(t, []string{"one", "two"}, b.waitingTurns())

	out = b.stop(store.ScopeAll)
	require.ElementsMatch(t, []string{r.ref.ID, one.TurnID, two.TurnID, bg.ref.ID}, out.Turns)
	want := &thread.Withdrawn{MessageID: one.Message.ID, Text: "one\n\ntwo", Attachments: []string{"b", "a"}, Mentions: []string{}}
	require.Empty(t, cmp.Diff(want, out.Withdrawn))
	require.Equal(t, store.Ended{Status: thread.TurnCancelled}, r.end(store.Outcome{}))
	require.Equal(t, store.Ended{Status: thread.TurnCancelled}, bg.end(store.Outcome{}))
	require.Equal(t, []string{"user: hello"}, b.conversation())
	require.Equal(t, store.Stopped{}, b.stop(store.ScopeAll), "nothing is left to stop")
}

func TestStopAndCancelOfARetryWakeTheTurnBehindIt(t *testing.T) {
	for name, over := range map[string]func(run){
		"Stop":   func(r run) { r.stop(store.ScopeConversation) },
		"Cancel": func(r run) { r.cancelTurn(r) },
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			r := b.retrying()
			next := b.accept("behind", channel("telegram"))
			b.exec(`DELETE FROM outbox`)
			over(r)
			require.Equal(t, []string{"work"}, b.list(`SELECT kind FROM outbox`))
			require.Equal(t, next.TurnID, b.running().ref.ID)
		})
	}
}

func TestEndNudgesForTheTurnThatItClaims(t *testing.T) {
	b := setup(t)
	r, next := b.behind()
	b.exec(`DELETE FROM outbox`)
	r.answer("hi")
	require.Equal(t, []string{next.TurnID}, b.list(`SELECT turn_id FROM outbox WHERE kind = 'work'`))
}

func TestCancel(t *testing.T) {
	b := setup(t)
	r, waits := b.behind()
	got, err := b.db.Cancel(b.ctx(), owner, waits.TurnID)
	require.NoError(t, err)
	require.Equal(t, "one", got.Withdrawn.Text)
	_, err = b.db.Cancel(b.ctx(), owner, waits.TurnID)
	require.ErrorIs(t, err, thread.ErrConflict)
	for range 2 {
		got, err = b.db.Cancel(b.ctx(), owner, r.ref.ID)
		require.NoError(t, err)
		require.Equal(t, []string{r.ref.ID}, got.Turns)
	}
	require.Equal(t, store.Ended{Status: thread.TurnCancelled}, r.end(store.Outcome{}))
	_, err = b.db.Cancel(b.ctx(), owner, r.ref.ID)
	require.ErrorIs(t, err, thread.ErrConflict)
}

func TestResetCancelsReturnsAndKeeps(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	b.accept("steers")
	one := b.accept("one", channel("telegram"))
	bg := b.background("look")
	out, err := b.db.Reset(b.ctx(), owner, b.thread)
	require.NoError(t, err)
	require.ElementsMatch(t, []string{r.ref.ID, one.TurnID, bg.ref.ID}, out.Turns)
	require.Equal(t, "steers\n\none", out.Withdrawn.Text)
	for _, id := range out.Turns {
		turn, err := b.db.Turn(b.ctx(), owner, id)
		require.NoError(t, err)
		require.Equal(t, thread.TurnCancelled, turn.Status)
	}
	require.Equal(t, []string{"user: hello"}, b.conversation())
	_, err = b.db.AddBackground(b.ctx(), b.thread, thread.SourceEvent, "late")
	require.ErrorIs(t, err, thread.ErrArchived)
	_, err = b.db.Replay(b.ctx(), owner, r.ref.ID)
	require.ErrorIs(t, err, thread.ErrArchived)
	require.Equal(t, store.Stopped{}, b.stop(store.ScopeAll))
	_, err = b.db.WithdrawMessage(b.ctx(), owner, one.Message.ID)
	require.ErrorIs(t, err, thread.ErrAlreadyWithdrawn)
}

func TestClaimAndTakeMoveTheTimeOfAMessage(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	steers := b.accept("steers")
	waits := b.accept("waits", channel("telegram"))
	b.exec(`UPDATE messages SET created_at = created_at - interval '1 hour' WHERE state = 'queued'`)
	r.take()
	r.answer("hi")
	messages, err := b.db.Messages(b.ctx(), owner, b.thread, store.Page{Limit: 10})
	require.NoError(t, err)
	require.Equal(t, []string{"user: hello", "user: steers", "assistant: hi", "user: waits"}, b.conversation())
	for i := range messages[1:] {
		require.False(t, messages[i+1].CreatedAt.Before(messages[i].CreatedAt))
	}
	require.False(t, messages[1].CreatedAt.Before(steers.Message.CreatedAt))
	require.False(t, messages[3].CreatedAt.Before(waits.Message.CreatedAt))
}

func TestReplaySaysWhichRequestIsTakenUpWhereOthersWereAnsweredSince(t *testing.T) {
	b := setup(t)
	r := b.start("first")
	r.end(broken())
	b.start("second").answer("to the second")
	_, err := b.db.Replay(b.ctx(), owner, r.ref.ID)
	require.NoError(t, err)
	b.running()
	require.Equal(t, []string{
		"user: first", "user: second", "assistant: to the second",
		"note: An earlier request was not finished. Take it up again now and answer it: \nfirst",
	}, b.session())
}
