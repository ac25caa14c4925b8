package monitor

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"bobbin/store"
	"bobbin/thread"
)

func TestManyScrapersReadTheDatabaseOnce(t *testing.T) {
	t.Parallel()
	var reads atomic.Int32
	b := &backlog{read: func(context.Context, time.Duration) (store.Gauges, error) {
		reads.Add(1)
		return store.Gauges{
			Turns:    []store.TurnCount{{Status: thread.TurnRunning, Source: thread.SourceUser, Count: 2}},
			Undriven: store.Waiting{Count: 1, Oldest: time.Minute}, Workers: 3,
		}, nil
	}}
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() { testutil.CollectAndCount(b) })
	}
	all.Wait()
	require.EqualValues(t, 1, reads.Load())
	require.NoError(t, testutil.CollectAndCompare(b, strings.NewReader(`
		# HELP bobbin_workers Worker processes that live.
		# TYPE bobbin_workers gauge
		bobbin_workers 3
		# HELP bobbin_waiting_oldest_seconds How long the first of them has waited.
		# TYPE bobbin_waiting_oldest_seconds gauge
		bobbin_waiting_oldest_seconds{what="steering"} 0
		bobbin_waiting_oldest_seconds{what="turn"} 0
		bobbin_waiting_oldest_seconds{what="undriven"} 60
		# HELP bobbin_turns Turns that run or wait, in the whole database.
		# TYPE bobbin_turns gauge
		bobbin_turns{source="event",state="queued"} 0
		bobbin_turns{source="event",state="running"} 0
		bobbin_turns{source="resume",state="queued"} 0
		bobbin_turns{source="resume",state="running"} 0
		bobbin_turns{source="schedule",state="queued"} 0
		bobbin_turns{source="schedule",state="running"} 0
		bobbin_turns{source="user",state="queued"} 0
		bobbin_turns{source="user",state="running"} 2
	`), "bobbin_workers", "bobbin_waiting_oldest_seconds", "bobbin_turns"))
}

// The scrape goes on: what this process counts is wanted most when the database is away.
func TestADatabaseThatIsAwayIsOneMetric(t *testing.T) {
	t.Parallel()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(&backlog{read: func(context.Context, time.Duration) (store.Gauges, error) {
		return store.Gauges{}, errors.New("away")
	}})
	require.NoError(t, testutil.GatherAndCompare(r, strings.NewReader(`
		# HELP bobbin_database_up 1 if what follows could be read within a second, else 0 and it is missing.
		# TYPE bobbin_database_up gauge
		bobbin_database_up 0
	`)))
}
