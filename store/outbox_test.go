package store_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"bobbin/store"
	"bobbin/thread"
)

func TestNudgeIsInTheOutboxWhenTheAcceptReturns(t *testing.T) {
	var mu sync.Mutex
	var called []store.Nudge
	b := setup(t, func(c *store.Config) {
		c.OnNudge = func(n store.Nudge) {
			mu.Lock()
			defer mu.Unlock()
			called = append(called, n)
		}
	})
	out := b.accept("hello")
	due, err := b.db.NudgesDue(b.ctx(), 10, time.Minute)
	require.NoError(t, err)
	require.Empty(t, due, "the process that wrote it has a second to send it")
	b.exec(`UPDATE outbox SET due_at = clock_timestamp()`)
	due, err = b.db.NudgesDue(b.ctx(), 10, time.Minute)
	require.NoError(t, err)
	require.Equal(t, called, due)
	require.Equal(t, []store.Nudge{{ID: due[0].ID, ThreadID: b.thread, Kind: store.NudgeWork, TurnID: out.TurnID, OwnerID: owner}}, due)

	due, err = b.db.NudgesDue(b.ctx(), 10, time.Minute)
	require.NoError(t, err)
	require.Empty(t, due, "it is put off")
	for range 2 {
		require.NoError(t, b.db.NudgesSent(b.ctx(), []int64{called[0].ID, 999}))
	}
	require.Empty(t, b.list(`SELECT kind FROM outbox`))
}

func TestRefusedAcceptLeavesNoNudge(t *testing.T) {
	b := setup(t, func(c *store.Config) { c.OnNudge = func(store.Nudge) { t.Error("nudged") } })
	_, err := b.db.Accept(b.ctx(), b.incoming("one", delivery(thread.DeliverSteer)))
	require.ErrorIs(t, err, thread.ErrNoRunningTurn)
	require.Empty(t, b.list(`SELECT kind FROM outbox`))
}

func TestTwoRelaysNeverGetTheSameRow(t *testing.T) {
	b := setup(t)
	b.exec(`INSERT INTO outbox (thread_id, kind, due_at) SELECT $1, 'work', clock_timestamp() FROM generate_series(1, 300)`, b.thread)
	var mu sync.Mutex
	seen := map[int64]int{}
	var wg sync.WaitGroup
	for i := range 8 {
		db := b.db
		if i%2 == 1 {
			db = b.second()
		}
		wg.Go(func() {
			for {
				list, err := db.NudgesDue(b.ctx(), 7, time.Hour)
				if err != nil {
					t.Error(err)
				}
				if len(list) == 0 {
					return // others may hold rows, which are theirs
				}
				mu.Lock()
				for _, n := range list {
					seen[n.ID]++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	require.Len(t, seen, 300)
	for id, n := range seen {
		require.Equal(t, 1, n, "row %d", id)
	}
}

func TestAnOwnerWithAThousandNudgesHoldsUpNobodyElses(t *testing.T) {
	b := setup(t)
	b.exec(`INSERT INTO outbox (thread_id, kind, due_at) SELECT $1, 'work', clock_timestamp() - interval '1 hour' FROM generate_series(1, 1000)`, b.thread)
	for _, other := range []string{"bert", "cleo"} {
		require.NoError(t, b.db.EnsureOwner(b.ctx(), other))
		th, err := b.db.OpenThread(b.ctx(), other, "")
		require.NoError(t, err)
		b.exec(`INSERT INTO outbox (thread_id, kind, due_at) VALUES ($1, 'work', clock_timestamp())`, th.ID)
	}
	due, err := b.db.NudgesDue(b.ctx(), 5, time.Minute)
	require.NoError(t, err)
	count := map[string]int{}
	for _, n := range due {
		count[n.OwnerID]++
	}
	require.Equal(t, map[string]int{owner: 3, "bert": 1, "cleo": 1}, count)
}

func TestSweepFindsWhatNobodyMoves(t *testing.T) {
	drive := func(b *bundle, r run) {
		b.t.Helper()
		require.NoError(b.t, b.db.BeginAttempt(b.ctx(), store.Attempt{WorkerID: "w", TurnID: r.ref.ID, RunID: "1", ActivityID: "1"}))
	}
	for name, c := range map[string]struct {
		state func(*bundle)
		found bool
	}{
		"ARunningTurn":              {func(b *bundle) { b.start("hello") }, true},
		"ARunningTurnWithAnAttempt": {func(b *bundle) { drive(b, b.start("hello")) }, false},
		"ATurnWhoseAttemptIsSilentForLong": {func(b *bundle) {
			drive(b, b.start("hello"))
			b.exec(`UPDATE turns SET driven_at = driven_at - interval '1 hour'`)
		}, true},
		"ARetryThatIsNotDue": {func(b *bundle) { b.retrying() }, false},
		"ARetryThatIsDue":    {func(b *bundle) { b.retrying(); b.due() }, true},
		"ABackgroundTurnThatWaits": {func(b *bundle) {
			_, err := b.db.AddBackground(b.ctx(), b.thread, thread.SourceEvent, "x")
			require.NoError(b.t, err)
		}, true},
		"ATurnThatWaitsBehindADrivenOne":   {func(b *bundle) { r, _ := b.behind(); drive(b, r) }, false},
		"AThreadWhereEverythingIsAnswered": {func(b *bundle) { b.start("hello").answer("hi") }, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			c.state(b)
			got, err := b.db.Sweep(b.ctx(), 2*time.Hour)
			require.NoError(t, err)
			require.Empty(t, got, "it was moved since")
			b.exec(`UPDATE turns SET driven_at = driven_at - interval '2 minutes'`)
			got, err = b.db.Sweep(b.ctx(), time.Minute)
			require.NoError(t, err)
			if !c.found {
				require.Empty(t, got)
				return
			}
			require.Equal(t, []store.Nudge{{ThreadID: b.thread, Kind: store.NudgeWork, OwnerID: owner}}, got)
			got, err = b.second().Sweep(b.ctx(), time.Minute)
			require.NoError(t, err)
			require.Empty(t, got, "two sweeps share the work")
		})
	}
}

func TestNudgesThatAreHeldUpAreLeftToWhomHasThem(t *testing.T) {
	b := setup(t)
	b.accept("hello")
	var id int64
	b.scan(`SELECT id FROM outbox`, nil, &id)
	b.exec(`UPDATE outbox SET due_at = clock_timestamp()`)
	require.NoError(t, b.db.NudgesHeld(b.ctx(), []int64{id, 999}, time.Minute))
	due, err := b.second().NudgesDue(b.ctx(), 10, time.Minute)
	require.NoError(t, err)
	require.Empty(t, due)
	require.NoError(t, b.db.NudgesHeld(b.ctx(), []int64{id}, time.Second))
	var later bool
	b.scan(`SELECT due_at > clock_timestamp() + interval '30 seconds' FROM outbox`, nil, &later)
	require.True(t, later, "a shorter hold takes nothing back")
}

// An update of a column that is in an index writes to all indexes of the table, and a round updates its turn twice.
func TestWhatARoundUpdatesIsInNoIndex(t *testing.T) {
	b := setup(t)
	require.Empty(t, b.list(`
		SELECT format('%s in %s', a.attname, i.indexrelid::regclass)
		FROM pg_index i
		JOIN pg_attribute a ON a.attrelid = i.indrelid
		WHERE i.indrelid = 'turns'::regclass
		  AND a.attname IN ('driven_at', 'rounds', 'tool_calls', 'steps', 'input_tokens', 'output_tokens', 'cost_usd', 'limit_rounds',
		                    'limit_tool_calls', 'tool_failures', 'barren', 'model_failures', 'model_attempts')
		  AND (a.attnum = ANY (i.indkey) OR pg_get_indexdef(i.indexrelid) ~ ('\m' || a.attname || '\M'))`))
}
