package store_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"bobbin/store"
	"bobbin/thread"
)

func TestPruneKeysForgetsWhatIsOlderThanTheRetentionAndNothingElse(t *testing.T) {
	b := setup(t, func(c *store.Config) { c.KeyRetention = time.Hour })
	prune := func(limit int, want int64) {
		t.Helper()
		n, err := b.db.PruneKeys(b.ctx(), limit)
		require.NoError(t, err)
		require.Equal(t, want, n)
	}
	stop := func(key string) *store.Repeat {
		t.Helper()
		r := &store.Repeat{Key: key}
		_, err := b.db.Stop(b.ctx(), owner, b.thread, store.ScopeConversation, r)
		require.NoError(t, err)
		return r
	}
	old := b.accept("one", key("old"))
	b.accept("one more", key("older"))
	stop("old")
	prune(10, 0)

	b.exec(`UPDATE deliveries SET created_at = created_at - interval '2 hours'`)
	b.exec(`UPDATE deliveries SET created_at = created_at - interval '2 hours' WHERE key = 'older'`)
	b.exec(`UPDATE repeats SET created_at = created_at - interval '2 hours'`)
	fresh := b.accept("two", key("fresh"))
	stop("fresh")
	prune(1, 2)
	require.Equal(t, []string{"fresh", "old"}, b.list(`SELECT key FROM deliveries ORDER BY key`), "the oldest goes first")
	prune(10, 1)
	prune(10, 0)

	again := b.accept("two", key("fresh"))
	require.Equal(t, []any{true, fresh.Message.ID}, []any{again.Repeated, again.Message.ID})
	require.True(t, stop("fresh").Known)
	anew := b.accept("something else", key("old"))
	require.False(t, anew.Repeated, "a key that is forgotten may be used anew")
	require.NotEqual(t, old.Message.ID, anew.Message.ID)
	require.False(t, stop("old").Known)
}

func TestPruneSteeringKeepsEachThreadsNewestRowAndWhatWaits(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	steer := func() {
		b.accept("line")
		r.take()
	}
	for range 3 {
		steer()
	}
	other := *b
	other.thread = b.open()
	s := other.start("hello")
	other.accept("line")
	s.take()
	other.accept("it waits")
	rows := func() []string {
		return b.list(`SELECT thread_id || ' ' || state FROM steering ORDER BY thread_id, id`)
	}
	prune := func(after int64, limit int) (last, n int64) {
		t.Helper()
		last, n, err := b.db.PruneSteering(b.ctx(), after, limit)
		require.NoError(t, err)
		return last, n
	}
	last, n := prune(0, 2)
	require.Equal(t, int64(1), n, "of two rows of a thread one is older")
	last, n = prune(last, 100)
	require.Equal(t, int64(2), n)
	require.Equal(t, []string{b.thread + " delivered", other.thread + " queued"}, rows())
	again, n := prune(last, 100)
	require.Equal(t, []int64{last, 0}, []int64{again, n})

	_, err := b.db.WithdrawSteering(b.ctx(), owner, b.thread)
	require.ErrorIs(t, err, thread.ErrAlreadyDelivered, "it answers for the last that waited")
	out, err := b.db.WithdrawSteering(b.ctx(), owner, other.thread)
	require.NoError(t, err)
	require.Equal(t, "it waits", out.Text)
	steer()
	_, n = prune(last, 100)
	require.Equal(t, int64(1), n)
	require.Equal(t, []string{b.thread + " delivered", other.thread + " withdrawn"}, rows())
}

func TestTwoThatPruneAtOnceDoNotWaitForEachOther(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	for i := range 50 {
		b.accept("line", key(fmt.Sprint(i)))
		r.take()
	}
	b.exec(`UPDATE deliveries SET created_at = created_at - interval '1 year'`)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			_, err := b.db.PruneKeys(b.ctx(), 1000)
			require.NoError(t, err)
			_, _, err = b.db.PruneSteering(b.ctx(), 0, 1000)
			require.NoError(t, err)
		})
	}
	wg.Wait()
	require.Len(t, b.list(`SELECT state FROM steering`), 1)
	require.Empty(t, b.list(`SELECT key FROM deliveries`))
}
