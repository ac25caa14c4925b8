package store_test

import (
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"bobbin/store"
	"bobbin/thread"
)

// The table "Accepting a message": each state of the thread and each delivery.
func TestAcceptByStateOfTheThreadAndDelivery(t *testing.T) {
	const (
		auto, steer, turn, interrupt = thread.DeliverAuto, thread.DeliverSteer, thread.DeliverTurn, thread.DeliverInterrupt
		started, steering, queued    = thread.DisposedTurn, thread.DisposedSteering, thread.DisposedQueued
	)
	states := map[string]func(*bundle){
		"idle":      func(*bundle) {},
		"running":   func(b *bundle) { b.start("hello", channel(thread.ChannelSMS)) },
		"stopping":  func(b *bundle) { b.start("hello", channel(thread.ChannelSMS)); b.stop(store.ScopeConversation) },
		"waiting":   func(b *bundle) { b.start("hello", channel(thread.ChannelSMS)); b.accept("behind", channel("telegram")) },
		"retrying":  func(b *bundle) { b.retrying() },
		"retrying+": func(b *bundle) { b.retrying(); b.accept("behind", channel("telegram")) },
	}
	all := setup(t)
	for _, c := range []struct {
		state    string
		delivery thread.Delivery
		want     thread.Disposition
		err      error
		waiting  []string // requests of the waiting turns, first to last
		stopping bool
		steers   string // text of the steering row
	}{
		{state: "idle", delivery: auto, want: started},
		{state: "idle", delivery: "", want: started},
		{state: "idle", delivery: steer, err: thread.ErrNoRunningTurn},
		{state: "idle", delivery: turn, want: started},
		{state: "idle", delivery: interrupt, want: started},

		{state: "running", delivery: auto, want: steering, steers: "new"},
		{state: "running", delivery: steer, want: steering, steers: "new"},
		{state: "running", delivery: turn, want: queued, waiting: []string{"new"}},
		{state: "running", delivery: interrupt, want: queued, waiting: []string{"new"}, stopping: true},

		{state: "stopping", delivery: auto, want: queued, waiting: []string{"new"}, stopping: true},
		{state: "stopping", delivery: steer, err: thread.ErrStopping, stopping: true},
		{state: "stopping", delivery: turn, want: queued, waiting: []string{"new"}, stopping: true},
		{state: "stopping", delivery: interrupt, want: queued, waiting: []string{"new"}, stopping: true},

		{state: "waiting", delivery: auto, want: queued, waiting: []string{"behind", "new"}},
		{state: "waiting", delivery: steer, err: thread.ErrNotSteerable, waiting: []string{"behind"}},
		{state: "waiting", delivery: turn, want: queued, waiting: []string{"behind", "new"}},
		{state: "waiting", delivery: interrupt, want: queued, waiting: []string{"new", "behind"}, stopping: true},

		{state: "retrying", delivery: auto, want: queued, steers: "new"},
		{state: "retrying", delivery: steer, err: thread.ErrNoRunningTurn, waiting: []string{""}},
		{state: "retrying", delivery: turn, want: queued, waiting: []string{"", "new"}},
		{state: "retrying", delivery: interrupt, want: started, waiting: []string{""}},

		{state: "retrying+", delivery: auto, want: queued, waiting: []string{"", "behind", "new"}},
		{state: "retrying+", delivery: steer, err: thread.ErrNoRunningTurn, waiting: []string{"", "behind"}},
		{state: "retrying+", delivery: turn, want: queued, waiting: []string{"", "behind", "new"}},
		{state: "retrying+", delivery: interrupt, want: started, waiting: []string{"", "behind"}},
	} {
		t.Run(c.state+"/"+string(c.delivery), func(t *testing.T) {
			b := all.sub(t)
			states[c.state](b)
			before := b.lastEvent()
			out, err := b.db.Accept(b.ctx(), b.incoming("new", channel(thread.ChannelSMS), delivery(c.delivery)))
			require.ErrorIs(t, err, c.err)
			require.Equal(t, c.want, out.Disposition)
			require.Equal(t, c.waiting, b.waitingTurns())
			th, err := b.db.Thread(b.ctx(), owner, b.thread)
			require.NoError(t, err)
			require.Equal(t, c.stopping, th.Stopping)
			if c.steers == "" {
				require.Nil(t, th.Steering)
			} else {
				require.Equal(t, c.steers, th.Steering.Text)
				require.Equal(t, th.RunningTurn, out.TurnID)
			}
			if c.err != nil {
				require.Equal(t, before, b.lastEvent(), "nothing changes")
				return
			}
			if c.want == started {
				require.Equal(t, th.RunningTurn, out.TurnID)
				require.Equal(t, thread.MessageDelivered, out.Message.State)
			}
		})
	}
}

// waitingTurns are the requests of the waiting turns, in their order; that of a retry is empty, as it was loaded before.
func (b *bundle) waitingTurns() []string {
	b.t.Helper()
	list := b.list(`
		SELECT COALESCE(m.text, '')
		FROM turns t
		LEFT JOIN messages m ON m.turn_id = t.id AND m.state = 'queued'
		WHERE t.thread_id = $1 AND t.kind = 'conversation' AND t.status = 'queued'
		ORDER BY t.rank`, b.thread)
	if len(list) == 0 {
		return nil
	}
	return list
}

func TestAcceptBesideARunningTurn(t *testing.T) {
	all := setup(t)
	for _, c := range []struct {
		name string
		with with
		want thread.Disposition
	}{
		{"APlainMessageSteers", mode(""), thread.DisposedSteering},
		{"ChatSteers", mode(thread.Chat), thread.DisposedSteering},
		{"AnAttachmentSteersAndWaitsThere", files("f"), thread.DisposedSteering},
		{"AMentionSteersAndWaitsThere", mentions("@bob"), thread.DisposedSteering},
		{"AnotherChannelWaits", channel("telegram"), thread.DisposedQueued},
		{"AReplyWaits", reply, thread.DisposedQueued},
		{"DeepResearchWaits", mode(thread.DeepResearch), thread.DisposedQueued},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := all.sub(t)
			r := b.start("hello")
			out := b.accept("new", c.with)
			require.Equal(t, c.want, out.Disposition)
			require.Equal(t, c.want == thread.DisposedSteering, out.TurnID == r.ref.ID)
		})
	}
}

func TestAcceptBesideAWaitingTurn(t *testing.T) {
	all, sms := setup(t), channel(thread.ChannelSMS)
	for _, c := range []struct {
		name  string
		first []with
		then  []with
		late  string // how much later
		joins bool
	}{
		{name: "WebMergesAllThatWaits", late: "1 hour", joins: true},
		{name: "SMSMergesInsideItsWindow", first: []with{sms}, then: []with{sms}, late: "29 s", joins: true},
		{name: "SMSFurtherApartIsAnsweredInSequence", first: []with{sms}, then: []with{sms}, late: "31 s"},
		{name: "AnotherChannelDoesNotJoin", then: []with{channel("telegram")}},
		{name: "AnAttachmentDoesNotJoin", then: []with{files("f")}},
		{name: "AMentionDoesNotJoin", then: []with{mentions("@bob")}},
		{name: "AReplyDoesNotJoin", then: []with{reply}},
		{name: "NothingJoinsAReply", first: []with{reply}},
		{name: "AnotherModeDoesNotJoin", then: []with{mode(thread.DeepResearch)}},
		{name: "APlainMessageJoinsOneWithFiles", first: []with{files("f")}, joins: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := all.sub(t)
			b.start("hello", channel("signal"))
			first := b.accept("first", c.first...)
			if c.late != "" {
				b.exec(`UPDATE message_parts SET sent_at = sent_at - $1::interval WHERE message_id = $2`, c.late, first.Message.ID)
			}
			then := b.accept("then", c.then...)
			require.Equal(t, thread.DisposedQueued, then.Disposition)
			require.Equal(t, c.joins, then.TurnID == first.TurnID)
			require.Equal(t, c.joins, then.Message.ID == first.Message.ID)
			if c.joins {
				require.Equal(t, []string{"first\n\nthen"}, b.waitingTurns())
			} else {
				require.Equal(t, []string{"first", "then"}, b.waitingTurns())
			}
		})
	}
}

func TestBurstWindowCountsFromTheOldestPart(t *testing.T) {
	b := setup(t)
	b.start("hello")
	first := b.accept("one", channel(thread.ChannelSMS))
	older := func() {
		b.exec(`UPDATE message_parts SET sent_at = sent_at - interval '20 s' WHERE message_id = $1`, first.Message.ID)
	}
	older()
	require.Equal(t, first.TurnID, b.accept("two", channel(thread.ChannelSMS)).TurnID)
	older()
	require.NotEqual(t, first.TurnID, b.accept("three", channel(thread.ChannelSMS)).TurnID)
	require.Equal(t, []string{"one\n\ntwo", "three"}, b.waitingTurns())
}

func TestAcceptDuringTheRetryWait(t *testing.T) {
	all := setup(t)
	t.Run("APlainMessageMakesTheTurnGoOnAndIsLoadedWithABoundary", func(t *testing.T) {
		b := all.sub(t)
		failed := b.retrying()
		out := b.accept("new", channel(thread.ChannelSMS))
		require.Equal(t, failed.ref.ID, out.TurnID)
		r := b.running()
		require.Equal(t, failed.ref.ID, r.ref.ID)
		require.Equal(t, 2, r.attempt)
		require.Equal(t, "new", r.take()[0].Text)
		require.Equal(t, []string{"user: hello", "user: new"}, b.session())
		require.Contains(t, b.events(), string(thread.EventTurnBoundary))
	})
	for name, mod := range map[string]with{
		"AnAttachmentWaitsBehind": files("f"), "AnotherChannelWaitsBehind": channel("telegram"),
		"AReplyWaitsBehind": reply, "ResearchWaitsBehind": mode(thread.DeepResearch),
	} {
		t.Run(name, func(t *testing.T) {
			b := all.sub(t)
			b.retrying()
			require.Equal(t, thread.DisposedQueued, b.accept("new", channel(thread.ChannelSMS), mod).Disposition)
			require.Equal(t, []string{"", "new"}, b.waitingTurns())
		})
	}
}

func TestInterrupt(t *testing.T) {
	all, now := setup(t), delivery(thread.DeliverInterrupt)
	t.Run("JoinsTheSteeringMessageAheadOfAllThatWaits", func(t *testing.T) {
		b := all.sub(t)
		r := b.start("hello")
		steered := b.accept("one")
		b.accept("behind", channel("telegram"))
		out := b.accept("now", now)
		require.Equal(t, steered.Message.ID, out.Message.ID)
		require.Equal(t, []string{"one\n\nnow", "behind"}, b.waitingTurns())
		ended := r.end(store.Outcome{})
		require.Equal(t, thread.TurnCancelled, ended.Status)
		require.Equal(t, out.TurnID, ended.Next.ID)
		require.Equal(t, []string{"user: hello", "user: one\n\nnow", "user: behind [queued]"}, b.conversation())
	})
	t.Run("WaitsBehindTheSteeringMessageWhereItCannotJoin", func(t *testing.T) {
		b := all.sub(t)
		r := b.start("hello")
		b.accept("one")
		b.accept("behind", channel("telegram"))
		b.accept("now", now, files("f"))
		require.Equal(t, []string{"one", "now", "behind"}, b.waitingTurns())
		r.end(store.Outcome{})
		require.Equal(t, []string{"now", "behind"}, b.waitingTurns())
	})
	t.Run("GoesBehindAnEarlierOne", func(t *testing.T) {
		b := all.sub(t)
		r := b.start("hello")
		b.accept("waits", delivery(thread.DeliverTurn))
		b.accept("first", now, files("f"))
		b.accept("second", now, files("g"))
		b.accept("third", now)
		require.Equal(t, []string{"first", "second\n\nthird", "waits"}, b.waitingTurns())
		r.end(store.Outcome{})
		require.Equal(t, []string{"second\n\nthird", "waits"}, b.waitingTurns())
	})
	t.Run("GoesBeforeAReplayOfAnEarlierOne", func(t *testing.T) {
		b := all.sub(t)
		r := b.start("before", now)
		r.end(late())
		b.start("running")
		b.accept("waiting", delivery(thread.DeliverTurn))
		_, err := b.db.Replay(b.ctx(), owner, r.ref.ID)
		require.NoError(t, err)
		b.accept("urgent", now, files("f"))
		require.Equal(t, "urgent", b.waitingTurns()[0])
	})
	t.Run("KeepsThePartialAnswer", func(t *testing.T) {
		b := all.sub(t)
		r := b.start("hello")
		r.shown(0, 0, "half an ans")
		b.accept("now", now)
		r.end(store.Outcome{})
		require.Equal(t, []string{"user: hello", "assistant: half an ans [stopped]", "user: now"}, b.conversation())
	})
	t.Run("OverTheAttachmentLimitStopsNothing", func(t *testing.T) {
		b := all.sub(t)
		b.start("hello")
		_, err := b.db.Accept(b.ctx(), b.incoming("now", now, files(strings.Split("abcdefghijk", "")...)))
		var limit *thread.LimitError
		require.ErrorAs(t, err, &limit)
		th, err := b.db.Thread(b.ctx(), owner, b.thread)
		require.NoError(t, err)
		require.False(t, th.Stopping)
	})
}

func TestAttachmentLimitCountsTheMergedMessageAndChangesNothing(t *testing.T) {
	b := setup(t)
	b.start("hello")
	seven, four := strings.Split("abcdefg", ""), strings.Split("ghij", "")
	first := b.accept("one", files(seven...))
	b.accept("two", files(four...)) // one of them twice: ten
	before := b.lastEvent()

	_, err := b.db.Accept(b.ctx(), b.incoming("three", files("k"), key("k")))
	var limit *thread.LimitError
	require.ErrorAs(t, err, &limit)
	require.Equal(t, thread.LimitError{Field: "attachments", Limit: 10, Got: 11, Unit: "files in one message"}, *limit)
	require.Equal(t, before, b.lastEvent())
	th, err := b.db.Thread(b.ctx(), owner, b.thread)
	require.NoError(t, err)
	require.Equal(t, first.Message.ID, th.Steering.ID)
	require.Equal(t, "one\n\ntwo", th.Steering.Text)
	require.Equal(t, strings.Split("abcdefghij", ""), th.Steering.Attachments)
	require.Len(t, th.Steering.Parts, 2)

	require.Len(t, b.accept("three", key("k")).Message.Parts, 3, "the key is free after a refusal")
}

func TestPartsKeepTheirTextsTimesAndIds(t *testing.T) {
	b := setup(t)
	r := b.start("hello", key("k0"))
	b.accept("one\n", key("k1"))
	b.accept("\ntwo", key("k2"))
	entries := r.take()
	require.Equal(t, "one\n\ntwo", entries[0].Text)
	require.Contains(t, entries[1].Text, "2 messages in a row")
	messages, err := b.db.Messages(b.ctx(), owner, b.thread, store.Page{Limit: 10})
	require.NoError(t, err)
	m := messages[1]
	require.Equal(t, []string{"one\n", "\ntwo"}, []string{m.Parts[0].Text, m.Parts[1].Text})
	require.Equal(t, []string{"k1", "k2"}, []string{m.Parts[0].ClientID, m.Parts[1].ClientID})
	require.True(t, m.Parts[0].SentAt.Before(m.Parts[1].SentAt))
	require.True(t, m.CreatedAt.After(m.Parts[1].SentAt), "its time is that of its loading")
}

func TestAcceptTheSameKeyTwentyTimesAtOnceIsOnePart(t *testing.T) {
	for name, state := range map[string]func(*bundle){
		"OnAnIdleThread":       func(*bundle) {},
		"BesideARunningTurn":   func(b *bundle) { b.start("hello") },
		"BesideAWaitingTurn":   func(b *bundle) { b.behind() },
		"OnAHomeThreadUnborn":  func(b *bundle) { b.thread = store.Home },
		"DuringAWaitForARetry": func(b *bundle) { b.retrying() },
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			state(b)
			other := b.second()
			var got [20]store.Accepted
			var errs [20]error
			var wg sync.WaitGroup
			for i := range got {
				db := b.db
				if i%2 == 1 {
					db = other
				}
				wg.Go(func() { got[i], errs[i] = db.Accept(b.ctx(), b.incoming("one", key("k"), channel(thread.ChannelSMS))) })
			}
			wg.Wait()
			fresh := 0
			for i := range got {
				require.NoError(t, errs[i])
				require.Equal(t, got[0].Message.ID, got[i].Message.ID)
				require.Equal(t, got[0].TurnID, got[i].TurnID)
				require.Equal(t, got[0].Disposition, got[i].Disposition)
				require.Len(t, got[i].Message.Parts, 1)
				if !got[i].Repeated {
					fresh++
				}
			}
			require.Equal(t, 1, fresh)
		})
	}
}

func TestAcceptTheSameKeyOnAnotherThreadIsRefusedNotLost(t *testing.T) {
	b := setup(t)
	other := b.open()
	slow, g := b.gated(store.PointAccept)
	var err error
	done := async(func() { _, err = slow.Accept(b.ctx(), b.incoming("one", key("k"), b.to(other))) })
	<-g.arrived // it has found no such key
	b.accept("one", key("k"))
	close(g.open)
	<-done
	require.ErrorIs(t, err, thread.ErrKeyReused)
	require.Empty(t, b.bundleOn(other).conversation())
}

func TestAcceptWithAKeyOfAnotherTextIsRefused(t *testing.T) {
	b := setup(t)
	b.start("hello", key("k"))
	for _, other := range []store.Incoming{
		b.incoming("other", key("k")), b.incoming("hello", key("k"), files("f")), b.incoming("hello", key("k"), mentions("@bob")),
		b.incoming("hello", key("k"), reply),
	} {
		_, err := b.db.Accept(b.ctx(), other)
		require.ErrorIs(t, err, thread.ErrKeyReused)
	}
	require.Equal(t, []string{"user: hello"}, b.conversation())
	require.False(t, b.accept("hello", key("k"), channel("telegram")).Repeated, "another channel's keys are its own")
}

func TestAcceptRepeatedReturnsTheOriginalIdsAndThePresentState(t *testing.T) {
	for name, c := range map[string]struct {
		between func(*bundle, run, store.Accepted)
		want    thread.MessageState
	}{
		"AfterItWasLoaded":    {func(_ *bundle, r run, _ store.Accepted) { r.take() }, thread.MessageDelivered},
		"AfterItWasWithdrawn": {func(b *bundle, _ run, _ store.Accepted) { b.stop(store.ScopeConversation) }, thread.MessageWithdrawn},
		"AfterTheTurnEnded":   {func(_ *bundle, r run, _ store.Accepted) { r.answer("hi") }, thread.MessageDelivered},
		"AfterAReset": {func(b *bundle, _ run, _ store.Accepted) {
			_, err := b.db.Reset(b.ctx(), owner, b.thread)
			require.NoError(b.t, err)
		}, thread.MessageWithdrawn},
		"AtOnce": {func(*bundle, run, store.Accepted) {}, thread.MessageQueued},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			r := b.start("hello")
			first := b.accept("one", key("k"), delivery(thread.DeliverSteer))
			c.between(b, r, first)
			events := b.lastEvent()
			again := b.accept("one", key("k")) // the answer to the steer was lost: sent again as an ordinary message
			require.True(t, again.Repeated)
			require.Equal(t, first.Message.ID, again.Message.ID)
			require.Equal(t, first.TurnID, again.TurnID)
			require.Equal(t, thread.DisposedSteering, again.Disposition)
			require.Equal(t, c.want, again.Message.State)
			require.Len(t, again.Message.Parts, 1)
			require.Equal(t, events, b.lastEvent())
		})
	}
}

func TestAcceptOnHomeAfterAResetOpensAFreshThread(t *testing.T) {
	b := setup(t)
	b.thread = store.Home
	first := b.accept("hello", key("k"))
	_, err := b.db.Reset(b.ctx(), owner, store.Home)
	require.NoError(t, err)
	require.True(t, b.accept("hello", key("k")).Repeated, "a late redelivery does not open a conversation again")
	second := b.accept("hello again")
	require.Equal(t, thread.DisposedTurn, second.Disposition)
	turn, err := b.db.Turn(b.ctx(), owner, first.TurnID)
	require.NoError(t, err)
	_, err = b.db.Accept(b.ctx(), b.incoming("late", b.to(turn.ThreadID)))
	require.ErrorIs(t, err, thread.ErrArchived)
}

func TestHomeRacedByAResetGoesToTheFreshThread(t *testing.T) {
	b := setup(t)
	b.thread = store.Home
	b.accept("hello")
	th, err := b.db.Thread(b.ctx(), owner, store.Home)
	require.NoError(t, err)
	b.thread = th.ID
	var got store.Accepted
	var errs [2]error
	b.race(store.PointReset,
		func(db *store.DB) { _, errs[0] = db.Reset(b.ctx(), owner, store.Home) },
		func(db *store.DB) { got, errs[1] = db.Accept(b.ctx(), b.incoming("one", b.to(store.Home))) })
	require.Equal(t, [2]error{}, errs)
	require.Equal(t, thread.DisposedTurn, got.Disposition)
	require.Equal(t, []string{"user: hello"}, b.conversation())
}

func TestAcceptOfAReplyToNothingIsRefused(t *testing.T) {
	b := setup(t)
	b.start("hello")
	elsewhere := b.bundleOn(b.open()).accept("other")
	for _, id := range []string{"msg_none", elsewhere.Message.ID} {
		in := b.incoming("new")
		in.ReplyTo = id
		_, err := b.db.Accept(b.ctx(), in)
		require.ErrorIs(t, err, thread.ErrReplyTarget)
	}
}

func TestAcceptKeepsTextThatPostgresWouldRefuse(t *testing.T) {
	b := setup(t)
	out := b.accept("nul \x00 and \xff bytes", key("k"))
	require.Equal(t, "nul \ufffd and \ufffd bytes", out.Message.Text)
	require.True(t, b.accept("nul \x00 and \xff bytes", key("k")).Repeated)
}

func TestWithdrawGivesTheWholeTextBack(t *testing.T) {
	b := setup(t)
	b.start("hello")
	long := strings.Repeat("a line with \"quotes\" and ünïcode\n", 160)
	b.accept(long, files("a", "b"), mentions("@bob"))
	got, err := b.db.WithdrawSteering(b.ctx(), owner, b.thread)
	require.NoError(t, err)
	want := thread.Withdrawn{MessageID: got.MessageID, Text: long, Attachments: []string{"a", "b"}, Mentions: []string{"@bob"}}
	require.Empty(t, cmp.Diff(want, got))
}

func TestWithdrawTwiceAndAfterDelivery(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	one := b.accept("one").Message
	_, err := b.db.WithdrawMessage(b.ctx(), owner, one.ID)
	require.NoError(t, err)
	_, err = b.db.WithdrawMessage(b.ctx(), owner, one.ID)
	require.ErrorIs(t, err, thread.ErrAlreadyWithdrawn)
	_, err = b.db.WithdrawSteering(b.ctx(), owner, b.thread)
	require.ErrorIs(t, err, thread.ErrAlreadyWithdrawn)
	require.Contains(t, b.events(), string(thread.EventMessageWithdrawn))

	two := b.accept("two").Message
	r.take()
	_, err = b.db.WithdrawMessage(b.ctx(), owner, two.ID)
	require.ErrorIs(t, err, thread.ErrAlreadyDelivered)
	_, err = b.db.WithdrawSteering(b.ctx(), owner, b.thread)
	require.ErrorIs(t, err, thread.ErrAlreadyDelivered)
	require.Equal(t, []string{"user: hello", "user: two"}, b.session(), "the model sees the correction alone")
	r.answer("hi")
	_, err = b.db.WithdrawMessage(b.ctx(), owner, r.turn().Answer)
	require.ErrorIs(t, err, thread.ErrAlreadyDelivered)
}

func TestAKeyIsOfOneRequestThatIsCarriedOutOnce(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	stop := func(scope store.Scope) (store.Stopped, *store.Repeat, error) {
		again := &store.Repeat{Key: "k"}
		out, err := b.db.Stop(b.ctx(), owner, b.thread, scope, again)
		return out, again, err
	}
	first, repeat, err := stop(store.ScopeConversation)
	require.NoError(t, err)
	require.False(t, repeat.Known)
	r.end(store.Outcome{})
	next := b.start("again")
	second, repeat, err := stop(store.ScopeConversation) // the answer to the first was lost
	require.NoError(t, err)
	require.True(t, repeat.Known)
	require.Equal(t, first, second)
	_, _, err = stop(store.ScopeAll)
	require.ErrorIs(t, err, thread.ErrKeyReused)
	require.Equal(t, thread.TurnSucceeded, next.answer("Not stopped.").Status)
}

func TestMessagesStandInTheOrderTheModelReceivedThem(t *testing.T) {
	b := setup(t)
	r := b.start("one")
	b.accept("waits", channel("telegram"))
	b.accept("more", channel("whatsapp"))
	require.Equal(t, []string{"user: one", "user: waits [queued]", "user: more [queued]"}, b.conversation())
	next := b.run(r.answer("hi").Next)
	b.accept("three", channel("telegram"))
	require.Equal(t, []string{"user: one", "assistant: hi", "user: waits", "user: more [queued]", "user: three [queued]"}, b.conversation())
	b.run(next.answer("two").Next).answer("four")
	b.running().answer("five")
	want := []string{
		"user: one", "assistant: hi", "user: waits", "assistant: two", "user: more", "assistant: four", "user: three", "assistant: five",
	}
	require.Equal(t, want, b.conversation())
	require.Equal(t, want, b.session())
	var ordered bool
	b.scan(`
		SELECT bool_and(later) FROM (
			SELECT created_at >= lag(created_at, 1, created_at) OVER (ORDER BY seq) AS later FROM messages WHERE thread_id = $1) m`,
		[]any{b.thread}, &ordered)
	require.True(t, ordered, "nor do their times go back")
}

func TestFiveMessagesInOneTurnAreAllDelivered(t *testing.T) {
	b := setup(t)
	r := b.start("one")
	for _, text := range []string{"two", "three", "four", "five"} {
		b.accept(text)
	}
	require.Equal(t, "two\n\nthree\n\nfour\n\nfive", r.take()[0].Text)
	require.Empty(t, r.take())
	require.Nil(t, r.answer("done").Next, "what was answered is not sent again")
}

func TestAppendBeyondTheLimitOfTextIsRefusedAndChangesNothing(t *testing.T) {
	b := setup(t, func(c *store.Config) { c.MaxText = 10 })
	b.start("hello")
	b.accept("12345")
	_, err := b.db.Accept(b.ctx(), b.incoming("6789"))
	var limit *thread.LimitError
	require.ErrorAs(t, err, &limit)
	require.Equal(t, thread.LimitError{Field: "text", Limit: 10, Got: 11, Unit: "characters in one message"}, *limit)
	require.Equal(t, []string{"user: hello", "user: 12345 [queued]"}, b.conversation())
}
