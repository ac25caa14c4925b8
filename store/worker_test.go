package store_test

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"bobbin/store"
	"bobbin/store/storetest"
)

// process is a DB of a process that can be killed: its connections end at once, and it makes no new ones. To Postgres a
// process that was killed looks just so.
func (b *bundle) process() (db *store.DB, kill func()) {
	b.t.Helper()
	role := "r" + strings.ReplaceAll(uuid.NewString(), "-", "")
	b.exec(`CREATE ROLE ` + role + ` LOGIN SUPERUSER PASSWORD 'test'`)
	b.t.Cleanup(func() {
		_, err := b.sql.Exec(context.Background(), `DROP ROLE `+role)
		require.NoError(b.t, err)
	})
	dsn := b.dsn + " user=" + role + " password=test"
	if u, err := url.Parse(b.dsn); err == nil && u.Scheme != "" {
		u.User = url.UserPassword(role, "test")
		dsn = u.String()
	}
	return storetest.Open(b.t, dsn), func() {
		b.t.Helper()
		b.exec(`ALTER ROLE ` + role + ` NOLOGIN`)
		b.until(nil, `
			SELECT count(pg_terminate_backend(pid)) = 0
			FROM pg_stat_activity
			WHERE usename = $1`, role)
	}
}

func TestDeadAttemptsAreThoseOfWorkersWhoseConnectionEnded(t *testing.T) {
	b := setup(t)
	doomed, kill := b.process()
	live, err := b.db.RegisterWorker(b.ctx())
	require.NoError(t, err)
	defer live.Close()
	dead, err := doomed.RegisterWorker(b.ctx())
	require.NoError(t, err)
	defer dead.Close()
	r := b.start("hello")
	attempt := func(worker, activity string) store.Attempt {
		return store.Attempt{WorkerID: worker, TurnID: r.ref.ID, WorkflowID: "wf", RunID: "run", ActivityID: activity}
	}
	_, err = doomed.Begin(b.ctx(), r.ref, r.attempt, attempt(dead.ID, "1"))
	require.NoError(t, err)
	require.NoError(t, b.db.BeginAttempt(b.ctx(), attempt(live.ID, "2")))
	got, err := b.db.DeadAttempts(b.ctx())
	require.NoError(t, err)
	require.Empty(t, got)

	kill()
	got, err = b.db.DeadAttempts(b.ctx())
	require.NoError(t, err)
	require.Empty(t, cmp.Diff([]store.Attempt{attempt(dead.ID, "1")}, got))
	got, err = b.db.DeadAttempts(b.ctx())
	require.NoError(t, err)
	require.Empty(t, got, "each is returned once")
	require.Equal(t, []string{live.ID}, b.list(`SELECT worker_id FROM attempts`))
}

func TestWorkerThatLostItsConnectionEntersAgain(t *testing.T) {
	b := setup(t)
	w, err := b.db.RegisterWorker(b.ctx())
	require.NoError(t, err)
	defer w.Close()
	const holder = `SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`
	var pid int
	b.scan(holder, nil, &pid)
	b.scan(`SELECT pg_terminate_backend($1)`, []any{pid}, new(bool))
	b.until(nil, `SELECT count(*) > 0 FROM (`+holder+` AND granted AND pid <> $1) l`, pid)
	r := b.start("hello")
	require.NoError(t, b.db.BeginAttempt(b.ctx(), store.Attempt{WorkerID: w.ID, TurnID: r.ref.ID, RunID: "1", ActivityID: "1"}))
	got, err := b.db.DeadAttempts(b.ctx())
	require.NoError(t, err)
	require.Empty(t, got)
}

func TestWorkerThatClosesLeavesNoEntry(t *testing.T) {
	b := setup(t)
	w, err := b.db.RegisterWorker(b.ctx())
	require.NoError(t, err)
	w.Close()
	require.Empty(t, b.list(`SELECT id FROM workers`))
}

func TestAttemptOfAWorkerThatWasForgottenIsDead(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	a := store.Attempt{WorkerID: "wrk_gone", TurnID: r.ref.ID, WorkflowID: "wf", RunID: "1", ActivityID: "1"}
	require.NoError(t, b.db.BeginAttempt(b.ctx(), a))
	got, err := b.db.DeadAttempts(b.ctx())
	require.NoError(t, err)
	require.Equal(t, []store.Attempt{a}, got)
}

func TestProcessKilledInsideATransactionHoldsNothing(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	b.accept("one")
	release := b.locked("streams") // so that the doomed take waits with the run row's lock held
	doomed, kill := b.process()
	done := async(func() { _, _ = doomed.Take(b.ctx(), r.ref.ID) })
	b.waiting(1, done)
	kill()
	release()
	<-done
	require.Equal(t, "one", r.take()[0].Text)
}

func TestEndAttemptLetsTheSweepLook(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	a := store.Attempt{WorkerID: "w", TurnID: r.ref.ID, RunID: "1", ActivityID: "1"}
	for range 2 {
		require.NoError(t, b.db.BeginAttempt(b.ctx(), a))
	}
	b.exec(`UPDATE turns SET driven_at = driven_at - interval '1 hour'`)
	for range 2 {
		require.NoError(t, b.db.EndAttempt(b.ctx(), a))
	}
	got, err := b.db.Sweep(b.ctx(), time.Minute)
	require.NoError(t, err)
	require.Empty(t, got, "it was just moved")
	require.Empty(t, b.list(`SELECT turn_id FROM attempts`))
}
