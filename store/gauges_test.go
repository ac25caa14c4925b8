package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"bobbin/store"
	"bobbin/thread"
)

func TestGaugesCountWhatWaitsAndWhatNobodyDrives(t *testing.T) {
	b := setup(t)
	read := func() store.Gauges {
		t.Helper()
		g, err := b.db.Gauges(b.ctx(), time.Second)
		require.NoError(t, err)
		return g
	}
	require.Empty(t, cmp.Diff(store.Gauges{Turns: []store.TurnCount{}}, read()))

	// Accepted with no worker alive: nothing waits in line, and the turn that was claimed with it is seen all the same.
	b.accept("hello")
	b.exec(`UPDATE turns SET driven_at = driven_at - interval '1 hour'`)
	b.exec(`UPDATE outbox SET due_at = due_at - interval '1 minute', created_at = created_at - interval '1 minute'`)
	g := read()
	require.Equal(t, []store.TurnCount{{Status: thread.TurnRunning, Source: thread.SourceUser, Count: 1}}, g.Turns)
	require.Equal(t, []int{0, 1, 0, 1, 0}, []int{g.Turn.Count, g.Undriven.Count, g.Steering.Count, g.Outbox.Count, g.Workers})
	require.GreaterOrEqual(t, g.Undriven.Oldest, time.Hour)
	require.GreaterOrEqual(t, g.Outbox.Oldest, time.Minute)
	backlog, err := b.db.Backlog(b.ctx(), owner)
	require.NoError(t, err)
	require.Equal(t, []int{0, 1, 1, 0}, []int{backlog.Waiting, backlog.Undriven, backlog.Running, backlog.Workers})
	require.Less(t, *backlog.OldestWaiting, time.Now().Add(-time.Minute))

	// A worker takes it: more is queued, and nothing is undriven.
	doomed, kill := b.process()
	worker, err := doomed.RegisterWorker(b.ctx())
	require.NoError(t, err)
	defer worker.Close()
	r := b.running()
	_, err = doomed.Begin(b.ctx(), r.ref, r.attempt, store.Attempt{WorkerID: worker.ID, TurnID: r.ref.ID, WorkflowID: "w", RunID: "r", ActivityID: "1"})
	require.NoError(t, err)
	b.accept("one more thing")
	b.accept("another matter", delivery(thread.DeliverTurn))
	g = read()
	require.Equal(t, []int{1, 0, 1, 1}, []int{g.Turn.Count, g.Undriven.Count, g.Steering.Count, g.Workers})

	// It dies. Nobody has noticed yet but this.
	kill()
	g = read()
	require.Equal(t, []int{1, 1, 1, 0}, []int{g.Turn.Count, g.Undriven.Count, g.Steering.Count, g.Workers})
}

// A turn that waits for the time of its retry is not in line: nobody could start it.
func TestGaugesLeaveOutWhatWaitsForItsRetry(t *testing.T) {
	b := setup(t)
	b.accept("one")
	b.accept("two", delivery(thread.DeliverTurn))
	b.exec(`UPDATE turns SET retry_at = clock_timestamp() + interval '1 hour' WHERE status = 'queued'`)
	g, err := b.db.Gauges(b.ctx(), time.Second)
	require.NoError(t, err)
	require.Zero(t, g.Turn)
}

func TestGaugesAreGivenUpWhenTheDatabaseIsSlow(t *testing.T) {
	b := setup(t)
	_, err := b.db.Gauges(b.ctx(), time.Second) // its statements are prepared from now on
	require.NoError(t, err)
	held, err := b.sql.Begin(b.ctx())
	require.NoError(t, err)
	defer func() { _ = held.Rollback(b.ctx()) }()
	_, err = held.Exec(b.ctx(), `LOCK TABLE turns IN ACCESS EXCLUSIVE MODE`)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(b.ctx(), patience)
	defer cancel()
	_, err = b.db.Gauges(ctx, 50*time.Millisecond)
	require.ErrorIs(t, err, thread.ErrUnavailable)
}

func TestTheSchemaOfAMigratedDatabaseIsTheBinarys(t *testing.T) {
	b := setup(t)
	have, want, err := b.db.Schema(b.ctx())
	require.NoError(t, err)
	require.Positive(t, have)
	require.Equal(t, want, have)
}

func TestAStopSaysHowLongAgoItWas(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	_, ok, err := b.db.StoppedFor(b.ctx(), r.ref)
	require.NoError(t, err)
	require.False(t, ok)
	_, err = b.db.Stop(b.ctx(), owner, b.thread, store.ScopeConversation)
	require.NoError(t, err)
	b.exec(`UPDATE events SET created_at = created_at - interval '3 seconds' WHERE name = 'turn.phase'`)
	d, ok, err := b.db.StoppedFor(b.ctx(), r.ref)
	require.NoError(t, err)
	require.True(t, ok)
	require.GreaterOrEqual(t, d, 3*time.Second)
}
