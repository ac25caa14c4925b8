package e2e

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"bobbin/e2e/house"
	"bobbin/llm/scripted"
	"bobbin/store"
	"bobbin/store/storetest"
	"bobbin/thread"
)

func TestTurnsGoOnWhilePostgresCutsEveryConnectionAgainAndAgain(t *testing.T) {
	t.Parallel()
	h := house.Furnish(t)
	g := h.Tools.Gate("cut-1")
	c := h.Chat(scripted.Rounds(house.Ask("look", "cut-1"), house.Ask("charge", "cut-2"), house.Ask("put", "cut-3"), scripted.Say("Whole."),
		scripted.Say("More.")))
	first := c.Start("Through all of it.")
	h.Arrives(g)
	ctx, cancel := context.WithCancel(h.Ctx())
	cuts := make(chan struct{}, 1000)
	go h.CutPostgres(ctx, cuts)
	<-cuts
	g.Release()
	for range 5 {
		<-cuts
	}
	cancel()
	end := c.Ended(first.TurnID)
	charged := h.Tools.Called("cut-2")
	require.LessOrEqual(t, len(charged), 1, "a side effect happens once")
	if end.Name == thread.EventTurnFailed { // the start of the charge is known, its result is not
		require.Equal(t, thread.FailToolUnknown, end.Turn.Error.Code)
	}
	c.Answered(c.Insist("continue").TurnID)
	c.CheckOrder()
}

func TestATurnWhoseWorkflowAnOperatorTerminatedIsFoundBySweeping(t *testing.T) {
	t.Parallel()
	h := house.Furnish(t)
	g := h.Tools.Gate("terminated")
	c := h.Chat(scripted.Rounds(house.Ask("look", "terminated"), scripted.Say("Found again.")))
	first := c.Start("Work.")
	h.Arrives(g)
	require.NoError(t, h.Temporal.TerminateWorkflow(h.Ctx(), c.WorkflowID(), "", "an operator's mistake"))
	h.Until("the stint to let go", func() bool { return h.Count(`SELECT count(*) FROM attempts`) == 0 })
	_, err := h.SQL.Exec(h.Ctx(), `UPDATE turns SET driven_at = driven_at - interval '1 hour' WHERE id = $1`, first.TurnID)
	require.NoError(t, err)
	h.API() // sweeps at its start, as each does now and then
	h.Arrives(g)
	g.Release()
	c.Answered(first.TurnID)
	require.Len(t, c.Requests(), 2)
	c.CheckOrder()
}

// A process that hangs while it holds a thread's locks, as on a machine that was suspended, must not hold the thread for
// ever: its own connection lives, so nothing but Postgres can take the locks from it.
func TestAProcessThatHangsInATransactionDoesNotHoldTheThread(t *testing.T) {
	t.Parallel()
	h := house.Furnish(t)
	c := h.Chat(scripted.Echo)
	c.Answered(c.Start("Before.").TurnID)
	c.Idle()
	held, wake := make(chan struct{}, 1), make(chan struct{})
	hanging := storetest.Open(t, h.DSN, func(cfg *store.Config) {
		cfg.Point = func(_ context.Context, p store.Point) {
			if p == store.PointAccept {
				held <- struct{}{}
				<-wake
			}
		}
	})
	letGo := sync.OnceFunc(func() { close(wake) })
	t.Cleanup(letGo)
	late := make(chan error, 1)
	go func() {
		_, err := hanging.Accept(h.Ctx(), store.Incoming{OwnerID: house.Owner, ThreadID: c.ID, Channel: thread.ChannelWeb, Text: "lost"})
		late <- err
	}()
	<-held
	c.Answered(c.Send("Meanwhile.").TurnID)
	letGo()
	require.Error(t, <-late, "what hung learns that it lost its transaction")
	require.Zero(t, c.Times("lost"))
	c.CheckOrder()
}
