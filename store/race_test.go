package store_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"bobbin/store"
	"bobbin/thread"
)

// Each row of the table "The races, and who wins", with two real transactions: the first is stopped with its locks held,
// the second is seen to wait for them, then the first commits.

func TestAppendThenTakeLoadsBothLinesAsOneMessage(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	b.accept("one")
	var entries []thread.Entry
	var errs [2]error
	b.race(store.PointAccept,
		func(db *store.DB) { _, errs[0] = db.Accept(b.ctx(), b.incoming("two")) },
		func(db *store.DB) { entries, errs[1] = db.Take(b.ctx(), r.ref.ID) })
	require.Equal(t, [2]error{}, errs)
	require.Len(t, entries, 2)
	require.Equal(t, "one\n\ntwo", entries[0].Text)
	require.Equal(t, []string{"user: hello", "user: one\n\ntwo"}, b.conversation())
	require.Equal(t, entries[1].Pos, r.load().Session.End)
}

func TestTakeThenAppendMakesANewSteeringRow(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	first := b.accept("one")
	var second store.Accepted
	var entries []thread.Entry
	var errs [2]error
	b.race(store.PointTake,
		func(db *store.DB) { entries, errs[0] = db.Take(b.ctx(), r.ref.ID) },
		func(db *store.DB) { second, errs[1] = db.Accept(b.ctx(), b.incoming("two")) })
	require.Equal(t, [2]error{}, errs)
	require.Equal(t, "one", entries[0].Text)
	require.Equal(t, thread.DisposedSteering, second.Disposition)
	require.NotEqual(t, first.Message.ID, second.Message.ID)
	require.Equal(t, "two", r.take()[0].Text, "the next round takes it")
}

func TestTakeThatWaitedForAnAppendSeesWhatTheAppendBrought(t *testing.T) {
	for name, brought := range map[string]with{"AnAttachment": files("file_1"), "AMention": mentions("@bob")} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			r := b.start("hello")
			m := b.accept("one").Message
			var entries []thread.Entry
			var errs [2]error
			b.race(store.PointAccept,
				func(db *store.DB) { _, errs[0] = db.Accept(b.ctx(), b.incoming("two", brought)) },
				func(db *store.DB) { entries, errs[1] = db.Take(b.ctx(), r.ref.ID) })
			require.Equal(t, [2]error{}, errs)
			require.Empty(t, entries)
			require.Equal(t, "queued", b.state(m.ID))
			require.Equal(t, []string{"user: hello"}, b.session())
			require.Equal(t, m.ID, b.messageOf(r.answer("done").Next), "it is the request of the follow-up turn")
		})
	}
}

// messageOf returns the id of the message that a turn answers.
func (b *bundle) messageOf(turn *thread.Turn) (id string) {
	b.t.Helper()
	require.NotNil(b.t, turn)
	b.scan(`SELECT id FROM messages WHERE turn_id = $1 AND role = 'user'`, []any{turn.ID}, &id)
	return id
}

func TestWithdrawThenTakeLoadsNothing(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	m := b.accept("one").Message
	var entries []thread.Entry
	var got thread.Withdrawn
	var errs [2]error
	b.race(store.PointWithdraw,
		func(db *store.DB) { got, errs[0] = db.WithdrawMessage(b.ctx(), owner, m.ID) },
		func(db *store.DB) { entries, errs[1] = db.Take(b.ctx(), r.ref.ID) })
	require.Equal(t, [2]error{}, errs)
	require.Empty(t, entries)
	require.Equal(t, "one", got.Text)
	require.Equal(t, []string{"user: hello"}, b.session())
}

func TestTakeThenWithdrawIsRefused(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	m := b.accept("one").Message
	var errs [2]error
	b.race(store.PointTake,
		func(db *store.DB) { _, errs[0] = db.Take(b.ctx(), r.ref.ID) },
		func(db *store.DB) { _, errs[1] = db.WithdrawMessage(b.ctx(), owner, m.ID) })
	require.NoError(t, errs[0])
	require.ErrorIs(t, errs[1], thread.ErrAlreadyDelivered)
	require.Equal(t, "delivered", b.state(m.ID))
}

func TestAppendThenWithdrawReturnsBothLines(t *testing.T) {
	b := setup(t)
	b.start("hello")
	b.accept("one", files("a"))
	var got thread.Withdrawn
	var errs [2]error
	b.race(store.PointAccept,
		func(db *store.DB) {
			_, errs[0] = db.Accept(b.ctx(), b.incoming("two", files("b", "a"), mentions("@bob")))
		},
		func(db *store.DB) { got, errs[1] = db.WithdrawSteering(b.ctx(), owner, b.thread) })
	require.Equal(t, [2]error{}, errs)
	want := thread.Withdrawn{MessageID: got.MessageID, Text: "one\n\ntwo", Attachments: []string{"a", "b"}, Mentions: []string{"@bob"}}
	require.Empty(t, cmp.Diff(want, got))
}

func TestWithdrawThenAppendIsAFreshMessage(t *testing.T) {
	b := setup(t)
	b.start("hello")
	m := b.accept("one").Message
	var got store.Accepted
	var errs [2]error
	b.race(store.PointWithdraw,
		func(db *store.DB) { _, errs[0] = db.WithdrawSteering(b.ctx(), owner, b.thread) },
		func(db *store.DB) { got, errs[1] = db.Accept(b.ctx(), b.incoming("two")) })
	require.Equal(t, [2]error{}, errs)
	require.NotEqual(t, m.ID, got.Message.ID)
	require.Equal(t, "two", got.Message.Text)
	require.Equal(t, []string{"user: hello", "user: two [queued]"}, b.conversation())
}

func TestAcceptThenEndMakesTheFollowUpTurn(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	r.commit(store.RoundAnswer, "hi")
	var got store.Accepted
	var ended store.Ended
	var errs [2]error
	b.race(store.PointAccept,
		func(db *store.DB) { got, errs[0] = db.Accept(b.ctx(), b.incoming("one")) },
		func(db *store.DB) { ended, errs[1] = db.End(b.ctx(), r.ref.ID, r.attempt, store.Outcome{}) })
	require.Equal(t, [2]error{}, errs)
	require.Equal(t, thread.DisposedSteering, got.Disposition)
	require.Equal(t, thread.TurnSucceeded, ended.Status)
	require.Equal(t, got.Message.ID, b.messageOf(ended.Next))
	require.Equal(t, r.ref.ID, ended.Next.FollowUpOf)
	require.Equal(t, thread.Chat, ended.Next.Mode)
	require.Equal(t, []string{"user: hello", "assistant: hi", "user: one"}, b.session())
}

func TestEndThenAccept(t *testing.T) {
	t.Run("AutoMakesAnOrdinaryTurn", func(t *testing.T) {
		b := setup(t)
		r := b.start("hello")
		r.commit(store.RoundAnswer, "hi")
		var got store.Accepted
		var errs [2]error
		b.race(store.PointEnd,
			func(db *store.DB) { _, errs[0] = db.End(b.ctx(), r.ref.ID, r.attempt, store.Outcome{}) },
			func(db *store.DB) { got, errs[1] = db.Accept(b.ctx(), b.incoming("one")) })
		require.Equal(t, [2]error{}, errs)
		require.Equal(t, thread.DisposedTurn, got.Disposition)
		require.Empty(t, b.running().turn().FollowUpOf)
	})
	t.Run("SteerIsRefused", func(t *testing.T) {
		b := setup(t)
		r := b.start("hello")
		r.commit(store.RoundAnswer, "hi")
		var errs [2]error
		b.race(store.PointEnd,
			func(db *store.DB) { _, errs[0] = db.End(b.ctx(), r.ref.ID, r.attempt, store.Outcome{}) },
			func(db *store.DB) { _, errs[1] = db.Accept(b.ctx(), b.incoming("one", delivery(thread.DeliverSteer))) })
		require.NoError(t, errs[0])
		require.ErrorIs(t, errs[1], thread.ErrNoRunningTurn)
		require.Equal(t, []string{"user: hello", "assistant: hi"}, b.conversation())
	})
}

func TestStopThenAccept(t *testing.T) {
	t.Run("AutoWaitsBehindTheStop", func(t *testing.T) {
		b := setup(t)
		r := b.start("hello")
		var stopped store.Stopped
		var got store.Accepted
		var errs [2]error
		b.race(store.PointStop,
			func(db *store.DB) { stopped, errs[0] = db.Stop(b.ctx(), owner, b.thread, store.ScopeConversation) },
			func(db *store.DB) { got, errs[1] = db.Accept(b.ctx(), b.incoming("one")) })
		require.Equal(t, [2]error{}, errs)
		require.Equal(t, []string{r.ref.ID}, stopped.Turns)
		require.Equal(t, thread.DisposedQueued, got.Disposition)
		ended := r.end(store.Outcome{})
		require.Equal(t, thread.TurnCancelled, ended.Status)
		require.Equal(t, got.TurnID, ended.Next.ID)
		require.Empty(t, ended.Next.FollowUpOf)
	})
	t.Run("SteerIsRefused", func(t *testing.T) {
		b := setup(t)
		b.start("hello")
		var errs [2]error
		b.race(store.PointStop,
			func(db *store.DB) { _, errs[0] = db.Stop(b.ctx(), owner, b.thread, store.ScopeConversation) },
			func(db *store.DB) { _, errs[1] = db.Accept(b.ctx(), b.incoming("one", delivery(thread.DeliverSteer))) })
		require.NoError(t, errs[0])
		require.ErrorIs(t, errs[1], thread.ErrStopping)
	})
}

func TestAcceptThenStopReturnsTheMessageToTheComposer(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	var stopped store.Stopped
	var errs [2]error
	b.race(store.PointAccept,
		func(db *store.DB) { _, errs[0] = db.Accept(b.ctx(), b.incoming("one", files("a"), mentions("@bob"))) },
		func(db *store.DB) { stopped, errs[1] = db.Stop(b.ctx(), owner, b.thread, store.ScopeConversation) })
	require.Equal(t, [2]error{}, errs)
	want := store.Stopped{Turns: []string{r.ref.ID}, Withdrawn: &thread.Withdrawn{
		MessageID: stopped.Withdrawn.MessageID, Text: "one", Attachments: []string{"a"}, Mentions: []string{"@bob"},
	}}
	require.Empty(t, cmp.Diff(want, stopped))
	ended := r.end(store.Outcome{})
	require.Nil(t, ended.Next, "a stop sends nothing")
	require.Equal(t, []string{"user: hello"}, b.conversation())
}

func TestStopThenTakeIsFenced(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	b.accept("one")
	var errs [2]error
	b.race(store.PointStop,
		func(db *store.DB) { _, errs[0] = db.Stop(b.ctx(), owner, b.thread, store.ScopeConversation) },
		func(db *store.DB) { _, errs[1] = db.Take(b.ctx(), r.ref.ID) })
	require.NoError(t, errs[0])
	require.ErrorIs(t, errs[1], thread.ErrFenced)
	require.Equal(t, []string{"user: hello"}, b.session())
}

func TestTakeThenStopWithdrawsNothing(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	b.accept("one")
	var stopped store.Stopped
	var errs [2]error
	b.race(store.PointTake,
		func(db *store.DB) { _, errs[0] = db.Take(b.ctx(), r.ref.ID) },
		func(db *store.DB) { stopped, errs[1] = db.Stop(b.ctx(), owner, b.thread, store.ScopeConversation) })
	require.Equal(t, [2]error{}, errs)
	require.Nil(t, stopped.Withdrawn)
	require.Equal(t, []string{"user: hello", "user: one"}, b.session())
}

func TestStopThenEndCancelsWithoutAFollowUp(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	b.accept("one")
	r.commit(store.RoundAnswer, "hi")
	var ended store.Ended
	var errs [2]error
	b.race(store.PointStop,
		func(db *store.DB) { _, errs[0] = db.Stop(b.ctx(), owner, b.thread, store.ScopeConversation) },
		func(db *store.DB) { ended, errs[1] = db.End(b.ctx(), r.ref.ID, r.attempt, store.Outcome{}) })
	require.Equal(t, [2]error{}, errs)
	require.Equal(t, thread.TurnCancelled, ended.Status)
	require.Nil(t, ended.Next)
	require.Equal(t, []string{"user: hello", "assistant: hi [stopped]"}, b.conversation(), "an answer that was written is kept")
}

func TestEndThenStopStopsNothing(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	r.commit(store.RoundAnswer, "hi")
	var stopped store.Stopped
	var errs [2]error
	b.race(store.PointEnd,
		func(db *store.DB) { _, errs[0] = db.End(b.ctx(), r.ref.ID, r.attempt, store.Outcome{}) },
		func(db *store.DB) { stopped, errs[1] = db.Stop(b.ctx(), owner, b.thread, store.ScopeConversation) })
	require.Equal(t, [2]error{}, errs)
	require.Equal(t, store.Stopped{}, stopped)
	require.Equal(t, thread.TurnSucceeded, r.turn().Status)
}

func TestAcceptThenAcceptIsOneRowWithBothPartsInCommitOrder(t *testing.T) {
	b := setup(t)
	b.start("hello")
	var got [2]store.Accepted
	var errs [2]error
	b.race(store.PointAccept,
		func(db *store.DB) { got[0], errs[0] = db.Accept(b.ctx(), b.incoming("one")) },
		func(db *store.DB) { got[1], errs[1] = db.Accept(b.ctx(), b.incoming("two")) })
	require.Equal(t, [2]error{}, errs)
	require.Equal(t, got[0].Message.ID, got[1].Message.ID)
	require.Equal(t, "one\n\ntwo", got[1].Message.Text)
	require.Len(t, got[1].Message.Parts, 2)
	require.False(t, got[1].Message.Parts[1].SentAt.Before(got[1].Message.Parts[0].SentAt))
}

func TestAcceptOnAnIdleThreadThenAcceptSteersTheTurnOfTheFirst(t *testing.T) {
	b := setup(t)
	var got [2]store.Accepted
	var errs [2]error
	b.race(store.PointAccept,
		func(db *store.DB) { got[0], errs[0] = db.Accept(b.ctx(), b.incoming("one")) },
		func(db *store.DB) { got[1], errs[1] = db.Accept(b.ctx(), b.incoming("two")) })
	require.Equal(t, [2]error{}, errs)
	require.Equal(t, thread.DisposedTurn, got[0].Disposition)
	require.Equal(t, thread.DisposedSteering, got[1].Disposition)
	require.Equal(t, got[0].TurnID, got[1].TurnID)
}

func TestDuplicateDeliveryAtTheSameMomentIsOnePart(t *testing.T) {
	b := setup(t)
	b.start("hello")
	var got [2]store.Accepted
	var errs [2]error
	b.race(store.PointAccept,
		func(db *store.DB) { got[0], errs[0] = db.Accept(b.ctx(), b.incoming("one", key("k"))) },
		func(db *store.DB) { got[1], errs[1] = db.Accept(b.ctx(), b.incoming("one", key("k"))) })
	require.Equal(t, [2]error{}, errs)
	require.True(t, got[1].Repeated)
	got[0].Repeated = true
	require.Empty(t, cmp.Diff(got[0], got[1]))
	require.Len(t, got[1].Message.Parts, 1)
}

// behind makes a turn run and another wait behind it, which holds the returned message.
func (b *bundle) behind() (run, store.Accepted) {
	b.t.Helper()
	r := b.start("hello")
	return r, b.accept("one", channel("telegram"))
}

func TestClaimThenWithdrawOfThatTurnsMessageIsRefused(t *testing.T) {
	b := setup(t)
	waits := b.retrying()
	b.due()
	next := b.accept("behind", files("f"), channel(thread.ChannelSMS))
	b.cancelTurn(waits) // now the turn of next is due, and nobody has claimed it
	var claimed store.Claimed
	var errs [2]error
	b.race(store.PointClaim,
		func(db *store.DB) { claimed, errs[0] = db.Claim(b.ctx(), b.thread) },
		func(db *store.DB) { _, errs[1] = db.WithdrawMessage(b.ctx(), owner, next.Message.ID) })
	require.NoError(t, errs[0])
	require.Equal(t, next.TurnID, claimed.Conversation.ID)
	require.ErrorIs(t, errs[1], thread.ErrAlreadyDelivered)
}

func TestWithdrawOfAWaitingTurnsMessageThenClaimTakesTheNext(t *testing.T) {
	b := setup(t)
	r, one := b.behind()
	two := b.accept("two", channel("whatsapp"))
	r.commit(store.RoundAnswer, "hi")
	var ended store.Ended
	var errs [2]error
	b.race(store.PointWithdraw,
		func(db *store.DB) { _, errs[0] = db.WithdrawMessage(b.ctx(), owner, one.Message.ID) },
		func(db *store.DB) { ended, errs[1] = db.End(b.ctx(), r.ref.ID, r.attempt, store.Outcome{}) })
	require.Equal(t, [2]error{}, errs)
	require.Equal(t, two.TurnID, ended.Next.ID)
	turn, err := b.db.Turn(b.ctx(), owner, one.TurnID)
	require.NoError(t, err)
	require.Equal(t, thread.TurnCancelled, turn.Status)
}

func TestWithdrawOfTheOnlyWaitingTurnsMessageThenClaimFindsNothing(t *testing.T) {
	b := setup(t)
	waits := b.retrying()
	next := b.accept("behind", files("f"), channel(thread.ChannelSMS))
	b.cancelTurn(waits)
	var claimed store.Claimed
	var errs [2]error
	b.race(store.PointWithdraw,
		func(db *store.DB) { _, errs[0] = db.WithdrawMessage(b.ctx(), owner, next.Message.ID) },
		func(db *store.DB) { claimed, errs[1] = db.Claim(b.ctx(), b.thread) })
	require.Equal(t, [2]error{}, errs)
	require.Nil(t, claimed.Conversation)
	require.Zero(t, claimed.Waiting)
}

func TestClaimThenJoinGoesToTheSteeringRow(t *testing.T) {
	b := setup(t)
	waits := b.retrying()
	next := b.accept("behind", files("f"), channel(thread.ChannelSMS))
	b.cancelTurn(waits)
	var got store.Accepted
	var errs [2]error
	b.race(store.PointClaim,
		func(db *store.DB) { _, errs[0] = db.Claim(b.ctx(), b.thread) },
		func(db *store.DB) { got, errs[1] = db.Accept(b.ctx(), b.incoming("more", channel(thread.ChannelSMS))) })
	require.Equal(t, [2]error{}, errs)
	require.Equal(t, thread.DisposedSteering, got.Disposition)
	require.Equal(t, next.TurnID, got.TurnID)
	require.Equal(t, "more", b.running().take()[0].Text)
}

func TestJoinThenClaimLoadsBothLines(t *testing.T) {
	b := setup(t)
	waits := b.retrying()
	next := b.accept("behind", files("f"), channel(thread.ChannelSMS))
	b.cancelTurn(waits)
	var claimed store.Claimed
	var errs [2]error
	b.race(store.PointAccept,
		func(db *store.DB) { _, errs[0] = db.Accept(b.ctx(), b.incoming("more", channel(thread.ChannelSMS))) },
		func(db *store.DB) { claimed, errs[1] = db.Claim(b.ctx(), b.thread) })
	require.Equal(t, [2]error{}, errs)
	require.Equal(t, next.TurnID, claimed.Conversation.ID)
	require.Contains(t, b.session(), "user: behind\n\nmore")
}

func TestStopThenClaimStartsTheWaitingTurnOnlyAfterTheEnd(t *testing.T) {
	b := setup(t)
	r, one := b.behind()
	var claimed store.Claimed
	var errs [2]error
	b.race(store.PointStop,
		func(db *store.DB) { _, errs[0] = db.Stop(b.ctx(), owner, b.thread, store.ScopeConversation) },
		func(db *store.DB) { claimed, errs[1] = db.Claim(b.ctx(), b.thread) })
	require.Equal(t, [2]error{}, errs)
	require.Equal(t, r.ref.ID, claimed.Conversation.ID)
	require.Equal(t, one.TurnID, r.end(store.Outcome{}).Next.ID)
}

func TestClaimThenStopStopsTheTurnThatWasClaimed(t *testing.T) {
	b := setup(t)
	waits := b.retrying()
	next := b.accept("behind", files("f"), channel(thread.ChannelSMS))
	b.cancelTurn(waits)
	var stopped store.Stopped
	var errs [2]error
	b.race(store.PointClaim,
		func(db *store.DB) { _, errs[0] = db.Claim(b.ctx(), b.thread) },
		func(db *store.DB) { stopped, errs[1] = db.Stop(b.ctx(), owner, b.thread, store.ScopeConversation) })
	require.Equal(t, [2]error{}, errs)
	require.Equal(t, []string{next.TurnID}, stopped.Turns)
	require.Equal(t, thread.TurnCancelled, b.running().end(store.Outcome{}).Status)
}

func TestTwoClaimsAtTheSameMomentStartOneTurn(t *testing.T) {
	b := setup(t)
	waits := b.retrying()
	next := b.accept("behind", files("f"), channel(thread.ChannelSMS))
	b.cancelTurn(waits)
	var got [2]store.Claimed
	var errs [2]error
	b.race(store.PointClaim,
		func(db *store.DB) { got[0], errs[0] = db.Claim(b.ctx(), b.thread) },
		func(db *store.DB) { got[1], errs[1] = db.Claim(b.ctx(), b.thread) })
	require.Equal(t, [2]error{}, errs)
	for _, c := range got {
		require.Equal(t, next.TurnID, c.Conversation.ID)
		require.Equal(t, 1, c.Conversation.Attempt)
		require.Zero(t, c.Waiting)
	}
}

func TestEndRepeatedAtTheSameMomentReturnsTheSame(t *testing.T) {
	b := setup(t)
	r, one := b.behind()
	r.commit(store.RoundAnswer, "hi")
	var got [2]store.Ended
	var errs [2]error
	b.race(store.PointEnd,
		func(db *store.DB) { got[0], errs[0] = db.End(b.ctx(), r.ref.ID, r.attempt, store.Outcome{}) },
		func(db *store.DB) { got[1], errs[1] = db.End(b.ctx(), r.ref.ID, r.attempt, broken()) })
	require.Equal(t, [2]error{}, errs)
	require.Equal(t, one.TurnID, got[0].Next.ID)
	require.Equal(t, got[0].Status, got[1].Status)
	require.Equal(t, got[0].Next.ID, got[1].Next.ID)
	require.Equal(t, got[0].Next.Attempt, got[1].Next.Attempt)
	require.Equal(t, []string{"user: hello", "assistant: hi", "user: one"}, b.conversation())
}

func TestResetAgainstTheOthers(t *testing.T) {
	reset := func(b *bundle, err *error, out *store.Stopped) func(*store.DB) {
		return func(db *store.DB) { *out, *err = db.Reset(b.ctx(), owner, b.thread) }
	}
	t.Run("ThenAcceptIsRefused", func(t *testing.T) {
		b := setup(t)
		b.start("hello")
		var errs [2]error
		var out store.Stopped
		b.race(store.PointReset, reset(b, &errs[0], &out),
			func(db *store.DB) { _, errs[1] = db.Accept(b.ctx(), b.incoming("one")) })
		require.NoError(t, errs[0])
		require.ErrorIs(t, errs[1], thread.ErrArchived)
	})
	t.Run("ThenTakeIsFenced", func(t *testing.T) {
		b := setup(t)
		r := b.start("hello")
		b.accept("one")
		var errs [2]error
		var out store.Stopped
		b.race(store.PointReset, reset(b, &errs[0], &out),
			func(db *store.DB) { _, errs[1] = db.Take(b.ctx(), r.ref.ID) })
		require.NoError(t, errs[0])
		require.ErrorIs(t, errs[1], thread.ErrFenced)
		require.Equal(t, "one", out.Withdrawn.Text)
	})
	t.Run("ThenEndReturnsCancelled", func(t *testing.T) {
		b := setup(t)
		r := b.start("hello")
		r.commit(store.RoundAnswer, "hi")
		var errs [2]error
		var out store.Stopped
		var ended store.Ended
		b.race(store.PointReset, reset(b, &errs[0], &out),
			func(db *store.DB) { ended, errs[1] = db.End(b.ctx(), r.ref.ID, r.attempt, store.Outcome{}) })
		require.Equal(t, [2]error{}, errs)
		require.Equal(t, thread.TurnCancelled, ended.Status)
		require.Nil(t, ended.Next)
	})
	t.Run("ThenClaimFindsNothing", func(t *testing.T) {
		b := setup(t)
		b.behind()
		var errs [2]error
		var out store.Stopped
		var claimed store.Claimed
		b.race(store.PointReset, reset(b, &errs[0], &out),
			func(db *store.DB) { claimed, errs[1] = db.Claim(b.ctx(), b.thread) })
		require.Equal(t, [2]error{}, errs)
		require.Nil(t, claimed.Conversation)
		require.True(t, claimed.Archived)
		require.Equal(t, "one", out.Withdrawn.Text)
	})
	t.Run("AfterAcceptReturnsTheMessage", func(t *testing.T) {
		b := setup(t)
		b.start("hello")
		var errs [2]error
		var out store.Stopped
		b.race(store.PointAccept,
			func(db *store.DB) { _, errs[0] = db.Accept(b.ctx(), b.incoming("one")) }, reset(b, &errs[1], &out))
		require.Equal(t, [2]error{}, errs)
		require.Equal(t, "one", out.Withdrawn.Text)
	})
	t.Run("TwiceIsRefused", func(t *testing.T) {
		b := setup(t)
		var errs [2]error
		var out store.Stopped
		b.race(store.PointReset, reset(b, &errs[0], &out), reset(b, &errs[1], &out))
		require.NoError(t, errs[0])
		require.ErrorIs(t, errs[1], thread.ErrArchived)
	})
}

// retrying makes a thread where nothing runs and a failed turn waits for its retry.
func (b *bundle) retrying() run {
	b.t.Helper()
	r := b.start("hello", channel(thread.ChannelSMS))
	require.Equal(b.t, store.Ended{Status: thread.TurnQueued}, r.end(broken()))
	return r
}

// due makes the time of a retry come.
func (b *bundle) due() {
	b.t.Helper()
	b.exec(`UPDATE turns SET retry_at = clock_timestamp() WHERE thread_id = $1 AND retry_at IS NOT NULL`, b.thread)
}

func (b *bundle) cancelTurn(r run) {
	b.t.Helper()
	_, err := b.db.Cancel(b.ctx(), owner, r.ref.ID)
	require.NoError(b.t, err)
}
