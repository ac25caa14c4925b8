package store_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"bobbin/store"
	"bobbin/thread"
)

// follow reads a thread's events from a sequence number until it has seen the one numbered last.
func follow(ctx context.Context, db *store.DB, threadID string, after, last int64) ([]thread.Event, error) {
	s := db.Subscribe(threadID, after)
	defer s.Close()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var all []thread.Event
	for len(all) == 0 || all[len(all)-1].Seq < last {
		events, err := s.Next(ctx)
		if err != nil {
			return all, err
		}
		all = append(all, events...)
	}
	return all, nil
}

func TestSubscribersSeeEveryEventOnceAndInOrderWhileEightWrite(t *testing.T) {
	for name, disturb := range map[string]func(*bundle){
		"Undisturbed": func(*bundle) {},
		"WhileTheListenersLoseTheirConnections": func(b *bundle) {
			b.scan(`
				SELECT count(pg_terminate_backend(pid))
				FROM pg_stat_activity
				WHERE datname = current_database() AND query LIKE 'LISTEN%'`, nil, new(int))
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			other := b.second()
			b.start("hello")
			const senders, each = 6, 12
			turns := []run{b.running(), b.background("look")}
			rounds := make([]store.Round, len(turns))
			before := b.lastEvent()
			for i, r := range turns {
				r.commit(store.RoundCalls, "", tool("a"))
				rounds[i] = r.next(store.RoundCalls, "", tool("a"))
			}
			wrote := b.lastEvent() - before // each turn with one round
			// an accept writes that its message and its turn were made, a withdrawal that they are over
			last := b.lastEvent() + 4*senders*each + wrote*each
			target := b.incoming("", reply).ReplyTo
			dbs := []*store.DB{b.db, other}
			got := make([][]thread.Event, 4)
			errs := make([]error, len(got))
			var readers, group sync.WaitGroup
			for i := range got {
				readers.Go(func() { got[i], errs[i] = follow(b.ctx(), dbs[i%2], b.thread, int64(i), last) })
			}
			for i, r := range turns {
				db := dbs[i%2]
				group.Go(func() {
					for round := rounds[i]; round.N < rounds[i].N+each; round.N, round.Base = round.N+1, round.Base+1 {
						if _, err := db.CommitRound(b.ctx(), r.ref, round); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			for w := range senders {
				db := dbs[w%2]
				group.Go(func() {
					for i := range each {
						in := b.incoming(fmt.Sprint(w, i), channel(fmt.Sprint(w)))
						in.ReplyTo = target
						m, err := db.Accept(b.ctx(), in)
						if err == nil {
							_, err = db.WithdrawMessage(b.ctx(), owner, m.Message.ID)
						}
						if err != nil {
							t.Error(err)
							return
						}
						if w == 0 && i == each/2 {
							disturb(b)
						}
					}
				})
			}
			group.Wait()
			readers.Wait()
			for i, events := range got {
				require.NoError(t, errs[i])
				for j, e := range events {
					require.Equal(t, int64(i+j+1), e.Seq, "reader %d", i)
				}
			}
		})
	}
}

// The turns of a thread share no lock but that of its event counter.
func TestEventsOfTurnsThatWriteAtOnceAreNumberedOneAfterTheOther(t *testing.T) {
	for first, name := range []string{"TheConversationFirst", "TheBackgroundFirst"} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			turns := []run{b.start("hello"), b.background("look")}
			var errs [2]error
			commit := func(i int) func(*store.DB) {
				round := turns[i].next(store.RoundCalls, "", tool("a"))
				return func(db *store.DB) { _, errs[i] = db.CommitRound(b.ctx(), turns[i].ref, round) }
			}
			b.race(store.PointRound, commit(first), commit(1-first))
			require.Equal(t, [2]error{}, errs)
			events, err := follow(b.ctx(), b.db, b.thread, 0, b.lastEvent())
			require.NoError(t, err)
			for i, e := range events {
				require.Equal(t, int64(i+1), e.Seq)
			}
		})
	}
}

func TestSubscriptionResumesWhereItsReaderStands(t *testing.T) {
	b := setup(t)
	b.start("hello")
	b.accept("one")
	all, gap, err := b.db.Events(b.ctx(), b.thread, 0, 100)
	require.NoError(t, err)
	require.False(t, gap)
	for after := range int64(len(all)) {
		rest, err := follow(b.ctx(), b.db, b.thread, after, b.lastEvent())
		require.NoError(t, err)
		require.Equal(t, all[after:], rest)
	}
}

func TestSubscriptionWakesAnotherProcessLongBeforeItLooksByItself(t *testing.T) {
	b := setup(t)
	other := b.second()
	b.until(nil, `SELECT count(*) >= 2 FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%' AND state = 'idle'`)
	fastest := patience
	for range 3 {
		s := other.Subscribe(b.thread, b.lastEvent())
		var err error
		done := async(func() { _, err = s.Next(b.ctx()) })
		// its first look finds nothing, and its second would come two seconds later
		b.until(done, `
			SELECT count(*) > 0
			FROM pg_stat_activity
			WHERE datname = current_database() AND state = 'idle' AND query LIKE '%FROM events%' AND query LIKE '%ORDER BY seq%'`)
		start := time.Now()
		b.accept("hello")
		<-done
		fastest = min(fastest, time.Since(start))
		require.NoError(t, err)
		s.Close()
	}
	require.Less(t, fastest, time.Second)
}

func TestSubscriptionEndsWithItsContext(t *testing.T) {
	b := setup(t)
	ctx, cancel := context.WithCancel(b.ctx())
	s := b.db.Subscribe(b.thread, 0)
	cancel()
	_, err := s.Next(ctx)
	require.ErrorIs(t, err, context.Canceled)
	s.Close()
	s.Close()
}

func TestPruneEventsLeavesAGapThatIsTold(t *testing.T) {
	b := setup(t, func(c *store.Config) { c.EventRetention = time.Hour })
	r := b.start("hello")
	b.accept("one")
	r.take()
	last := b.lastEvent()
	n, err := b.db.PruneEvents(b.ctx(), 100)
	require.NoError(t, err)
	require.Zero(t, n, "nothing is old enough")

	b.exec(`UPDATE events SET created_at = created_at - interval '2 hours'`)
	n, err = b.db.PruneEvents(b.ctx(), 2)
	require.NoError(t, err)
	require.Equal(t, int64(2), n)
	events, gap, err := b.db.Events(b.ctx(), b.thread, 0, 100)
	require.NoError(t, err)
	require.True(t, gap)
	require.Equal(t, int64(3), events[0].Seq)
	_, gap, err = b.db.Events(b.ctx(), b.thread, 2, 100)
	require.NoError(t, err)
	require.False(t, gap, "who has seen what is gone misses nothing")

	_, err = b.db.PruneEvents(b.ctx(), 100)
	require.NoError(t, err)
	s := b.db.Subscribe(b.thread, 1)
	defer s.Close()
	got, err := s.Next(b.ctx())
	require.NoError(t, err)
	require.Len(t, got, 2, "the newest stays")
	require.Equal(t, []any{thread.EventGap, last - 1}, []any{got[0].Name, got[0].Seq})
	require.Equal(t, last, got[1].Seq)
	b.accept("two")
	got, err = s.Next(b.ctx())
	require.NoError(t, err)
	require.Equal(t, last+1, got[0].Seq, "a gap is told once")
}

type piece struct {
	Attempt int    `json:"attempt"`
	Offset  int    `json:"offset"`
	Text    string `json:"text"`
}

func (r run) pieces() []piece {
	r.t.Helper()
	var list []piece
	for _, raw := range r.list(`SELECT data::text FROM events WHERE turn_id = $1 AND name = 'answer.delta' ORDER BY seq`, r.ref.ID) {
		var p piece
		require.NoError(r.t, json.Unmarshal([]byte(raw), &p))
		list = append(list, p)
	}
	return list
}

func TestDeltasAreBatchedInOrderAndWithoutAGap(t *testing.T) {
	b := setup(t)
	d := b.db.NewDeltas()
	defer d.Close()
	var runs []run
	for range 3 {
		runs = append(runs, b.bundleOn(b.open()).start("hello"))
	}
	texts := make([]strings.Builder, len(runs))
	for i := range 300 {
		for j, r := range runs {
			text := fmt.Sprintf("%d,", i)
			d.Write(r.ref, thread.Delta{TurnID: r.ref.ID, Round: 1, Offset: texts[j].Len(), Text: text})
			texts[j].WriteString(text)
		}
		if i == 150 {
			d.Flush(b.ctx(), runs[0].ref.ID)
		}
	}
	for j, r := range runs {
		d.Flush(b.ctx(), r.ref.ID)
		pieces := r.pieces()
		require.Less(t, len(pieces), 100)
		whole := ""
		for _, p := range pieces {
			require.Equal(t, len(whole), p.Offset)
			whole += p.Text
		}
		require.Equal(t, texts[j].String(), whole)
		require.Equal(t, []string{"answering"}, r.list(`SELECT data ->> 'phase' FROM events WHERE turn_id = $1 AND name = 'turn.phase'`, r.ref.ID))
	}
}

func TestDeltasOfAnotherRoundOrAttemptAreRefused(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	r.shown(0, 0, "first")
	r.commit(store.RoundCalls, "first", tool("t"))
	d := b.db.NewDeltas()
	defer d.Close()
	for _, late := range []thread.Delta{
		{TurnID: r.ref.ID, Round: 1, Offset: 5, Text: "late"},
		{TurnID: r.ref.ID, Round: 2, Attempt: 1, Text: "early"},
		{TurnID: r.ref.ID, Round: 0, Text: "none"},
	} {
		d.Write(r.ref, late)
		d.Flush(b.ctx(), r.ref.ID)
	}
	d.Write(store.TurnRef{ID: "trn_none", ThreadID: b.thread}, thread.Delta{TurnID: "trn_none", Text: "none"})
	d.Flush(b.ctx(), "trn_none")
	require.Len(t, r.pieces(), 1)
}

func TestDeltasNoneAfterTheEndOfTheTurn(t *testing.T) {
	for _, p := range []store.Point{store.PointEnd, store.PointStop} {
		t.Run(string(p), func(t *testing.T) {
			b := setup(t)
			r := b.start("hello")
			r.shown(0, 0, "half")
			d := b.db.NewDeltas()
			defer d.Close()
			slow, g := b.gated(p)
			var err error
			done := async(func() {
				if p == store.PointStop {
					_, err = slow.Stop(b.ctx(), owner, b.thread, store.ScopeConversation)
				} else {
					_, err = slow.End(b.ctx(), r.ref.ID, r.attempt, broken())
				}
			})
			<-g.arrived
			d.Write(r.ref, thread.Delta{TurnID: r.ref.ID, Round: 1, Offset: 4, Text: " late"})
			b.passBy(d)
			close(g.open)
			<-done
			d.Flush(b.ctx(), r.ref.ID)
			require.NoError(t, err)
			require.Len(t, r.pieces(), 1)
		})
	}
}

// passBy writes a piece of another thread, which must not wait for this thread's event counter.
func (b *bundle) passBy(d *store.Deltas) {
	b.t.Helper()
	other := b.bundleOn(b.open()).start("beside")
	d.Write(other.ref, thread.Delta{TurnID: other.ref.ID, Round: 1, Text: "not kept waiting"})
	d.Flush(b.ctx(), other.ref.ID)
	require.Len(b.t, other.pieces(), 1)
}

func TestDeltasWhoseThreadIsLockedAreKeptAndHoldNobodyUp(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	release := b.locked("streams")
	d := b.db.NewDeltas()
	defer d.Close()
	d.Write(r.ref, thread.Delta{TurnID: r.ref.ID, Round: 1, Text: "one "})
	b.passBy(d)
	require.Empty(t, r.pieces())
	d.Write(r.ref, thread.Delta{TurnID: r.ref.ID, Round: 1, Offset: 4, Text: "two"})
	release()
	d.Flush(b.ctx(), r.ref.ID)
	whole := ""
	for _, p := range r.pieces() {
		require.Equal(t, len(whole), p.Offset)
		whole += p.Text
	}
	require.Equal(t, "one two", whole)
}

func TestBeginVoidsWhatAnEarlierStintHadShown(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	r.shown(0, 0, "half")
	w, err := b.db.Begin(b.ctx(), r.ref, r.attempt, store.Attempt{TurnID: r.ref.ID, RunID: "1", ActivityID: "1"})
	require.NoError(t, err)
	require.Equal(t, 1, w.ModelAttempt)
	events := b.events()
	require.Equal(t, string(thread.EventAnswerRestarted), events[len(events)-1])
	w, err = b.db.Begin(b.ctx(), r.ref, r.attempt, store.Attempt{TurnID: r.ref.ID, RunID: "1", ActivityID: "2"})
	require.NoError(t, err)
	require.Equal(t, 2, w.ModelAttempt)
	require.Equal(t, events, b.events(), "there is nothing more to void")
	_, err = b.db.Begin(b.ctx(), r.ref, r.attempt+1, store.Attempt{TurnID: r.ref.ID})
	require.ErrorIs(t, err, thread.ErrFenced)
}

func TestBeginVoidsNoAnswerThatIsWritten(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	r.shown(0, 0, "whole")
	r.commit(store.RoundAnswer, "whole")
	before := b.events()
	w, err := b.db.Begin(b.ctx(), r.ref, r.attempt, store.Attempt{TurnID: r.ref.ID, RunID: "1", ActivityID: "2"})
	require.NoError(t, err)
	require.True(t, w.Answered)
	require.Equal(t, before, b.events(), "a worker that died before the end leaves an answer on the page")
}

func TestOnStopIsCalledInEveryProcess(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	bg := b.background("look")
	other := b.second()
	called := make(chan string, 100)
	for id, db := range map[string]*store.DB{r.ref.ID: other, bg.ref.ID: b.db} {
		defer db.OnStop(id, func() {
			select {
			case called <- id:
			default:
			}
		})()
	}
	b.stop(store.ScopeAll)
	seen := map[string]bool{}
	for len(seen) < 2 {
		select {
		case id := <-called:
			seen[id] = true
		case <-time.After(patience):
			t.Fatalf("only %v heard of the stop", seen)
		}
	}
}
