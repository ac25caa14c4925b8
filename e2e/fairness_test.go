package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"bobbin/e2e/house"
	"bobbin/embedded/temporal"
	"bobbin/llm/scripted"
	"bobbin/thread"
)

const (
	floodTurns  = 200
	otherOwners = 20
	fewSlots    = 4
)

// One owner's flood must not make others wait for it. What counts is the order in which turns reach the provider, not how
// long they take.
func TestAFloodOfOneOwnerHoldsUpNobodyElse(t *testing.T) {
	before := openFlooded(t, house.Open(t, "BOBBIN_WORKER_STINTS=4", "BOBBIN_RATE_LIMIT=0")).flood()
	t.Logf("turns of the flood that began before another owner's: median %d, worst %d of %d", before[len(before)/2], before[len(before)-1], floodTurns)
	require.LessOrEqual(t, before[len(before)-1], 60, "%v", before)
}

// A server that knows no fairness keys takes them, and dispatches in the order of arrival.
func TestAServerWithoutFairnessServesInTheOrderOfArrival(t *testing.T) {
	srv, err := temporal.Start(t.Context(), temporal.Config{
		Dir: filepath.Join(t.TempDir(), "temporal"), Memory: true, Namespace: "default", Headless: true,
		Program: os.Getenv("BOBBIN_TEST_TEMPORAL_PROGRAM"), Settings: []string{"matching.enableFairness=false"},
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = srv.Stop(context.Background()) })
	before := openFlooded(t, house.OpenOn(t, srv, "BOBBIN_WORKER_STINTS=4", "BOBBIN_RATE_LIMIT=0")).flood()
	t.Logf("turns of the flood that began before another owner's: median %d, worst %d of %d", before[len(before)/2], before[len(before)-1], floodTurns)
	require.GreaterOrEqual(t, before[len(before)/2], 150, "%v", before)
}

// A flooded house has a worker with few slots, all of them held until open.
type flooded struct {
	*house.House
	open chan struct{}
}

func openFlooded(t *testing.T, h *house.House) flooded {
	t.Helper()
	f := flooded{h, make(chan struct{})}
	for _, marker := range []string{"flood.", "other."} {
		h.Model.On(marker, func(scripted.Request) scripted.Reply {
			return scripted.Reply{Text: "Done.", Delay: 20 * time.Millisecond, Gate: f.open}
		})
	}
	h.Migrate()
	h.API()
	h.Worker()
	return f
}

// flood sends one owner's messages, each to a thread of its own, and right after them one message of each other owner. It
// returns, for each of the others, how many turns of the flood reached the provider before theirs, in order.
func (f flooded) flood() []int {
	f.T.Helper()
	var sending errgroup.Group
	sending.SetLimit(8)
	for range floodTurns {
		sending.Go(func() error { return f.say(house.APIKey, "flood.") })
	}
	require.NoError(f.T, sending.Wait())
	f.nudged()
	for i := range otherOwners {
		key := fmt.Sprintf("bob_other_%d", i)
		require.NoError(f.T, f.DB.EnsureKey(f.T.Context(), fmt.Sprintf("other %d", i), "e2e", key))
		sending.Go(func() error { return f.say(key, "other.") })
	}
	require.NoError(f.T, sending.Wait())
	f.nudged()
	f.Until("all slots to be taken", func() bool { return len(f.Model.Requests()) >= fewSlots })
	close(f.open)
	var before []int
	for n, flood := 1, 0; len(before) < otherOwners; n++ {
		f.Until(fmt.Sprintf("request %d", n), func() bool { return len(f.Model.Requests()) >= n })
		if f.Model.Requests()[n-1].Mentions("flood.") {
			flood++
		} else {
			before = append(before, flood)
		}
	}
	return before
}

// nudged waits until Temporal knows of all that was sent.
func (f flooded) nudged() {
	f.T.Helper()
	f.Until("all nudges to be sent", func() bool { return f.Count(`SELECT count(*) FROM outbox`) == 0 })
}

// say sends a message to a new thread of the key's owner.
func (f flooded) say(key, text string) error {
	var th thread.Thread
	as := []string{"Authorization", "Bearer " + key}
	if err := f.Call("POST", "/v1/threads", nil, &th, as...); err != nil {
		return err
	}
	var out house.Accepted
	return f.Call("POST", "/v1/threads/"+th.ID+"/messages", map[string]any{"text": text}, &out, as...)
}
