package relay

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"

	"bobbin/store"
	"bobbin/store/storetest"
	"bobbin/thread"
)

// away is a Temporal that nobody can reach until it is back.
type away struct {
	client.Client
	back bool
	sent int
}

func (a *away) SignalWithStartWorkflow(
	context.Context, string, string, any, client.StartWorkflowOptions, any, ...any,
) (client.WorkflowRun, error) {
	if !a.back {
		return nil, context.DeadlineExceeded
	}
	a.sent++
	return nil, nil
}

func TestANudgeThatCouldNotBeSentStaysInTheOutbox(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db := storetest.Open(t, storetest.DSN(t))
	require.NoError(t, db.EnsureKey(ctx, "anna", "test", "bob_test"))
	th, err := db.OpenThread(ctx, "anna", "")
	require.NoError(t, err)
	_, err = db.Accept(ctx, store.Incoming{OwnerID: "anna", ThreadID: th.ID, Channel: thread.ChannelWeb, Text: "hello"})
	require.NoError(t, err)
	due := func() (list []store.Nudge) {
		for len(list) == 0 && ctx.Err() == nil { // a commit's nudge comes due a second later
			time.Sleep(10 * time.Millisecond)
			list, err = db.NudgesDue(ctx, 10, 0)
			require.NoError(t, err)
		}
		return list
	}
	server := &away{}
	for _, n := range due() {
		deliver(ctx, db, server, n)
	}
	server.back = true
	for _, n := range due() {
		deliver(ctx, db, server, n)
	}
	require.Equal(t, 1, server.sent)
	left, err := db.NudgesDue(ctx, 10, 0)
	require.NoError(t, err)
	require.Empty(t, left)
}
