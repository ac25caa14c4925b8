package store_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"bobbin/store"
	"bobbin/thread"
)

// turns answers one message after the other.
func (b *bundle) turns(texts ...string) {
	b.t.Helper()
	for _, text := range texts {
		b.start(text).answer("answer to " + text)
	}
}

// summary stands for what a turn is shown up to the nth of its entries, which are counted from 0.
func (r run) summary(text string, n int) store.Summary {
	r.t.Helper()
	w := r.load()
	return store.Summary{
		N: w.Session.Summary.N + 1, Last: w.Session.Entries[n], Text: text, Model: "scripted", Entries: n + 1, Tokens: 10,
		Usage: thread.Usage{InputTokens: 7, OutputTokens: 3},
	}
}

func (r run) compact(text string, n int) {
	r.t.Helper()
	require.NoError(r.t, r.db.Compact(r.ctx(), r.ref, r.summary(text, n)))
}

// shows is what the model is shown of a turn's session, a line an entry; what is pinned says so.
func (r run) shows() []string {
	r.t.Helper()
	s := r.load().Session
	list := []string{}
	if s.Summary.Text != "" {
		list = append(list, "summary: "+s.Summary.Text)
	}
	for i, e := range s.Entries {
		line := string(e.Kind) + ": " + e.Text
		if i < s.Pinned {
			line += " [pinned]"
		}
		for _, c := range e.Calls {
			line += " [" + c.Name + " " + c.Result + "]"
		}
		list = append(list, line)
	}
	return list
}

func TestCompactShowsTheSummaryAndWhatFollowsAndKeepsTheRecord(t *testing.T) {
	b := setup(t)
	b.turns("one", "two")
	r := b.start("three", mentions("@bob"))
	r.commit(store.RoundCalls, "", tool("t"))
	require.NoError(t, r.finish(0, "found"))
	record := b.session()
	r.compact("one was said", 2)
	require.Equal(t, []string{
		"summary: one was said", "assistant: answer to two", "user: three", `note: Mentioned in the message above: ["@bob"].`,
		"assistant:  [t found]",
	}, r.shows())
	r.compact("one and two were said", 2)
	require.Equal(t, []string{
		"summary: one and two were said", "user: three [pinned]", `note: Mentioned in the message above: ["@bob"]. [pinned]`,
		"assistant:  [t found]",
	}, r.shows())
	require.Equal(t, record, b.session(), "the record stays")
	r.answer("answer to three")
	next := b.start("four")
	require.Equal(t, "summary: one and two were said", next.shows()[0], "the next turn goes on from it")
	require.NotContains(t, strings.Join(next.shows(), "\n"), "user: three", "what another turn was asked is in the summary")

	steps, err := b.db.Steps(b.ctx(), owner, r.ref.ID, 0, 100)
	require.NoError(t, err)
	require.Equal(t, thread.StepNote, steps[1].Kind)
	require.Equal(t, "Earlier conversation summarised", steps[1].Title)
	require.JSONEq(t, `{"summary": "one was said", "entries": 3, "tokens": 10}`, string(steps[1].Detail))
}

func TestTwoHoldersThatCompactTheFirstWins(t *testing.T) {
	b := setup(t)
	b.turns("one")
	r := b.start("two")
	first, second := r.summary("first", 1), r.summary("second", 1)
	var errs [2]error
	b.race(store.PointRound,
		func(db *store.DB) { errs[0] = db.Compact(b.ctx(), r.ref, first) },
		func(db *store.DB) { errs[1] = db.Compact(b.ctx(), r.ref, second) })
	require.NoError(t, errs[0])
	require.ErrorIs(t, errs[1], thread.ErrMoved)
	require.ErrorIs(t, b.db.Compact(b.ctx(), r.ref, first), thread.ErrMoved, "repeated")
	require.Equal(t, "summary: first", r.shows()[0])
	require.Len(t, b.list(`SELECT title FROM steps WHERE turn_id = $1`, r.ref.ID), 1)
}

func TestCompactOfATurnThatWasStoppedWritesNothing(t *testing.T) {
	b := setup(t)
	b.turns("one")
	r := b.start("two")
	s := r.summary("late", 1)
	b.stop(store.ScopeConversation)
	require.ErrorIs(t, b.db.Compact(b.ctx(), r.ref, s), thread.ErrFenced)
	require.ErrorIs(t, b.db.Summarising(b.ctx(), r.ref), thread.ErrFenced)
	require.ErrorIs(t, b.db.Recover(b.ctx(), r.ref, 9, true), thread.ErrFenced)
	require.Empty(t, b.list(`SELECT text FROM summaries`))
}

func TestABackgroundTurnIsShownNoSummaryOfWhatCameAfterItsTrigger(t *testing.T) {
	b := setup(t)
	b.turns("one", "two")
	early := b.start("three")
	early.compact("one", 1)
	early.answer("answer to three")
	bg := b.background("look")
	late := b.start("four")
	late.compact("one, two, three", 4)
	late.answer("answer to four")
	require.Equal(t, []string{
		"summary: one", "user: two", "assistant: answer to two", "user: three", "assistant: answer to three", "user: look",
	}, bg.shows())

	bg.compact("its own: one and two", 1)
	require.Equal(t, []string{
		"summary: its own: one and two", "user: three", "assistant: answer to three", "user: look",
	}, bg.shows())
	bg.commit(store.RoundCalls, "", tool("t"))
	require.NoError(t, bg.finish(0, "found"))
	bg.compact("its own: all", 3)
	require.Equal(t, []string{"summary: its own: all", "user: look [pinned]"}, bg.shows())
	require.Equal(t, "summary: one, two, three", b.start("five").shows()[0], "the conversation's is its own")
}

func TestWhatATurnDoesOnceStartsOverWithALoadedMessageAndOutlivesAStint(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	_, err := b.db.FailAttempt(b.ctx(), r.ref, 0)
	require.NoError(t, err)
	require.NoError(t, b.db.Recover(b.ctx(), r.ref, 900, false))
	require.NoError(t, b.db.Recover(b.ctx(), r.ref, 0, true))
	c := r.load().Counters
	require.Equal(t, int64(900), c.Refused)
	require.True(t, c.SummaryFailed)
	require.Zero(t, c.ModelFailures, "the next call has all its tries")
	b.accept("more")
	require.Len(t, r.take(), 1)
	c = r.load().Counters
	require.Zero(t, c.Refused)
	require.False(t, c.SummaryFailed)
}

func TestLoadCountsWhatTheProviderCountedSinceTheSummary(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	counted := func(in int64) {
		round := r.next(store.RoundCalls, "", tool("t"))
		round.Reply.Usage.InputTokens = in
		_, err := b.db.CommitRound(b.ctx(), r.ref, round)
		require.NoError(t, err)
		require.NoError(t, r.finish(0, "found"))
	}
	counted(100)
	counted(200)
	inputs := func() (list []int64) {
		for _, e := range r.load().Session.Entries {
			list = append(list, e.Input)
		}
		return list
	}
	require.Equal(t, []int64{0, 100, 200}, inputs())
	r.compact("it was said", 1)
	require.Equal(t, []int64{0, 0}, inputs(), "they were counted without the summary")
	counted(50)
	require.Equal(t, []int64{0, 0, 50}, inputs())
}
