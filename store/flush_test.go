package store_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"bobbin/store"
	"bobbin/thread"
)

// flushes counts round trips: each batch, and each statement that goes by itself. What the wake-ups send is not counted,
// as no operation waits for it; nor is the preparing of statements, once a connection and statement. statements counts those
// of batches, BEGIN and COMMIT among them.
type flushes struct{ n, statements atomic.Int64 }

func (f *flushes) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	if !strings.Contains(d.SQL, "pg_notify") && !strings.HasPrefix(d.SQL, "LISTEN") {
		f.n.Add(1)
	}
	return ctx
}
func (f *flushes) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (f *flushes) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	f.n.Add(1)
	return ctx
}
func (f *flushes) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {
	f.statements.Add(1)
}
func (f *flushes) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// Round trips are what an operation costs; beyond eight clients nothing else counts.
func TestRoundTripsOfEachOperation(t *testing.T) {
	f := &flushes{}
	b := setup(t, func(c *store.Config) { c.Tracer = f })
	var r run
	var m store.Accepted
	cost := func(want int, name string, op func() error) {
		t.Helper()
		before := f.n.Load()
		require.NoError(t, op(), name)
		require.Equal(t, want, int(f.n.Load()-before), name)
	}
	accept := func(mods ...with) func() error {
		return func() (err error) { m, err = b.db.Accept(b.ctx(), b.incoming("text", mods...)); return err }
	}
	take := func() error { _, err := b.db.Take(b.ctx(), r.ref.ID); return err }

	cost(2, "accept that starts a turn", accept(key("k")))
	cost(2, "accept, repeated: reads and rolls back", accept(key("k")))
	r = b.run(&thread.Turn{ID: m.TurnID, ThreadID: b.thread, Attempt: 1})
	cost(2, "claim with nothing to do", func() error { _, err := b.db.Claim(b.ctx(), b.thread); return err })
	cost(2, "begin: the fence with the turn's work, the write", func() error {
		_, err := b.db.Begin(b.ctx(), r.ref, 1, store.Attempt{TurnID: r.ref.ID})
		return err
	})
	cost(1, "load", func() error { _, err := b.db.Load(b.ctx(), r.ref, 1); return err })
	cost(1, "take with nothing queued", take)
	cost(2, "accept that steers", accept())
	cost(3, "take: a look, the locks, the write", take)
	cost(2, "accept that steers with a file", accept(files("f")))
	cost(3, "take of what cannot be loaded", take)
	round := r.next(store.RoundCalls, "", effect("a"))
	cost(2, "commit round", func() error { _, err := b.db.CommitRound(b.ctx(), r.ref, round); return err })
	cost(2, "start call", func() error {
		_, _, err := b.db.StartCall(b.ctx(), r.ref, 1, 0, &store.Start{WorkerID: "w"})
		return err
	})
	result := thread.Call{TurnID: r.ref.ID, Round: 1, State: thread.CallSucceeded}
	cost(2, "finish call", func() error { return finish(b.ctx(), b.db, r.ref, result) })
	cost(2, "fail attempt", func() error { _, err := b.db.FailAttempt(b.ctx(), r.ref, 1); return err })
	repeat := func(key string) *store.Repeat { return &store.Repeat{Key: key} }
	cost(2, "withdraw steering", func() error { _, err := b.db.WithdrawSteering(b.ctx(), owner, b.thread, repeat("w")); return err })
	cost(2, "withdraw steering, repeated: reads and rolls back", func() error {
		_, err := b.db.WithdrawSteering(b.ctx(), owner, b.thread, repeat("w"))
		return err
	})
	cost(2, "accept that waits", accept(channel("telegram")))
	cost(3, "withdraw a message: its thread first", func() error {
		_, err := b.db.WithdrawMessage(b.ctx(), owner, m.Message.ID)
		return err
	})
	cost(2, "accept that interrupts", accept(delivery(thread.DeliverInterrupt)))
	cost(2, "stop", func() error { _, err := b.db.Stop(b.ctx(), owner, b.thread, store.ScopeAll, repeat("s")); return err })
	cost(3, "end: its thread first", func() error { _, err := b.db.End(b.ctx(), r.ref.ID, 1, store.Outcome{}); return err })
	cost(3, "end, repeated", func() error { _, err := b.db.End(b.ctx(), r.ref.ID, 1, store.Outcome{}); return err })
	cost(1, "end attempt", func() error { return b.db.EndAttempt(b.ctx(), store.Attempt{TurnID: r.ref.ID}) })
	cost(1, "events", func() error { _, _, err := b.db.Events(b.ctx(), b.thread, 0, 10); return err })
	cost(1, "thread", func() error { _, err := b.db.Thread(b.ctx(), owner, b.thread); return err })
	cost(2, "messages", func() error { _, err := b.db.Messages(b.ctx(), owner, b.thread, store.Page{Limit: 10}); return err })
	cost(2, "add background turn", func() error {
		_, err := b.db.AddBackground(b.ctx(), b.thread, thread.SourceEvent, "look")
		return err
	})
	cost(2, "reset", func() error { _, err := b.db.Reset(b.ctx(), owner, b.thread, repeat("r")); return err })
}

// A turn is mostly rounds, so what a round costs is what the whole costs.
func TestStatementsOfARound(t *testing.T) {
	f := &flushes{}
	b := setup(t, func(c *store.Config) { c.Tracer = f })
	r := b.start("hello")
	cost := func(flushes, statements int, name string, op func() error) {
		t.Helper()
		n, s := f.n.Load(), f.statements.Load()
		require.NoError(t, op(), name)
		require.Equal(t, [2]int{flushes, statements}, [2]int{int(f.n.Load() - n), int(f.statements.Load() - s)}, name)
	}
	round := r.next(store.RoundCalls, "Let me look.", tool("a"), tool("b"))
	round.Notes, round.Reply.Reasoning = []string{"Wrap up."}, "Hm."
	cost(2, 6, "commit round: BEGIN, lock, read, write, events, COMMIT", func() error {
		_, err := b.db.CommitRound(b.ctx(), r.ref, round)
		return err
	})
	for i := range 2 {
		cost(2, 6, "finish call: likewise", func() error { return r.finish(i, "7") })
	}
	round = r.next(store.RoundAnswer, "Seven.")
	cost(2, 5, "commit answer: nobody is told before the end", func() error {
		_, err := b.db.CommitRound(b.ctx(), r.ref, round)
		return err
	})
}

// Statements are held where they are many, so that none comes unseen.
func TestStatementsOfAcceptTakeAndEnd(t *testing.T) {
	f := &flushes{}
	b := setup(t, func(c *store.Config) { c.Tracer = f })
	var m store.Accepted
	cost := func(want int, name string, op func() error) {
		t.Helper()
		before := f.statements.Load()
		require.NoError(t, op(), name)
		require.Equal(t, want, int(f.statements.Load()-before), name)
	}
	accept := func(mods ...with) func() error {
		return func() (err error) { m, err = b.db.Accept(b.ctx(), b.incoming("text", mods...)); return err }
	}
	cost(15, "accept that starts a turn", accept())
	turn := m.TurnID
	cost(12, "accept that steers", accept())
	cost(11, "accept that steers a second time", accept())
	cost(16, "take", func() error { _, err := b.db.Take(b.ctx(), turn); return err })
	cost(13, "accept that waits", accept(channel("telegram")))
	cost(15, "accept that waits, with a key: what it was used for, and that it was", accept(channel("sms"), key("k")))
	cost(25, "end that claims the next turn", func() error { _, err := b.db.End(b.ctx(), turn, 1, store.Outcome{}); return err })
}
