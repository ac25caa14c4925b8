package api

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestALimiterLetsABurstThroughAndThenItsRate(t *testing.T) {
	t.Parallel()
	l, now := newLimiter[string](2, 3), time.Unix(1, 0)
	for range 3 {
		require.Zero(t, l.wait("a", now, true))
	}
	require.Equal(t, 500*time.Millisecond, l.wait("a", now, true))
	require.Zero(t, l.wait("b", now, true), "each has a bucket of its own")
	now = now.Add(500 * time.Millisecond)
	require.Zero(t, l.wait("a", now, false), "a look takes nothing")
	require.Zero(t, l.wait("a", now, true))
	require.Equal(t, 500*time.Millisecond, l.wait("a", now, true))
}

func TestALimiterOfNothingLetsAllThrough(t *testing.T) {
	t.Parallel()
	l := newLimiter[string](0, 0)
	for range 1000 {
		require.Zero(t, l.wait("a", time.Unix(1, 0), true))
	}
	require.Empty(t, l.buckets)
}

func TestALimiterKeepsNoMoreThanItMay(t *testing.T) {
	t.Parallel()
	l, now := newLimiter[int](1, 2), time.Unix(1, 0)
	l.most = 10
	for i := range 10 {
		require.Zero(t, l.wait(i, now, true))
	}
	for i := 10; i < 12; i++ {
		require.Zero(t, l.wait(i, now, true), "those that find no room share one bucket")
	}
	require.NotZero(t, l.wait(12, now, true))
	require.Len(t, l.buckets, 10)
	now = now.Add(2 * time.Second)
	require.Zero(t, l.wait(13, now, true))
	require.Len(t, l.buckets, 1, "buckets that are full again are dropped")
}
