package e2e

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"bobbin/llm/scripted"
	"bobbin/store"
	"bobbin/store/storetest"
	"bobbin/thread"
)

func TestTurnsGoOnWhilePostgresCutsEveryConnectionAgainAndAgain(t *testing.T) {
	t.Parallel()
	h := furnish(t)
	g := h.tools.gate("cut-1")
	c := h.chat(scripted.Rounds(ask("look", "cut-1"), ask("charge", "cut-2"), ask("put", "cut-3"), scripted.Say("Whole."),
		scripted.Say("More.")))
	first := c.start("Through all of it.")
	h.arrives(g)
	ctx, cancel := context.WithCancel(h.ctx())
	cuts := make(chan struct{}, 1000)
	go h.cutPostgres(ctx, cuts)
	<-cuts
	g.release()
	for range 5 {
		<-cuts
	}
	cancel()
	end := c.ended(first.TurnID)
	charged := h.tools.called("cut-2")
	require.LessOrEqual(t, len(charged), 1, "a side effect happens once")
	if end.Name == thread.EventTurnFailed { // the start of the charge is known, its result is not
		require.Equal(t, thread.FailToolUnknown, end.Turn.Error.Code)
	}
	c.answered(c.insist("continue").TurnID)
	c.checkOrder()
}

// insist sends a message under a key, again and again while the API says that it is unavailable.
func (c *chat) insist(text string) accepted {
	c.t.Helper()
	var out accepted
	c.h.until("the API to accept", func() (done bool) {
		var err error
		if out, err = c.trySend(text, key(c.marker+text)); err != nil {
			requireOneOf(c.t, err, "unavailable")
		}
		return err == nil
	})
	return out
}

// cutPostgres ends all connections of Bobbin's processes, and says each time that it did.
func (h *house) cutPostgres(ctx context.Context, cuts chan<- struct{}) {
	for ctx.Err() == nil {
		_, _ = h.sql.Exec(ctx, `
			SELECT pg_terminate_backend(pid)
			FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'bobbin' AND pid <> pg_backend_pid()`)
		cuts <- struct{}{}
		select {
		case <-ctx.Done():
		case <-time.After(700 * time.Millisecond): // long enough for some work to be done
		}
	}
}

func TestATurnWhoseWorkflowAnOperatorTerminatedIsFoundBySweeping(t *testing.T) {
	t.Parallel()
	h := furnish(t)
	g := h.tools.gate("terminated")
	c := h.chat(scripted.Rounds(ask("look", "terminated"), scripted.Say("Found again.")))
	first := c.start("Work.")
	h.arrives(g)
	require.NoError(t, h.temporal.TerminateWorkflow(h.ctx(), c.workflowID(), "", "an operator's mistake"))
	h.until("the stint to let go", func() bool { return h.count(`SELECT count(*) FROM attempts`) == 0 })
	_, err := h.sql.Exec(h.ctx(), `UPDATE turns SET driven_at = driven_at - interval '1 hour' WHERE id = $1`, first.TurnID)
	require.NoError(t, err)
	h.api() // sweeps at its start, as each does now and then
	h.arrives(g)
	g.release()
	c.answered(first.TurnID)
	require.Len(t, c.requests(), 2)
	c.checkOrder()
}

// A process that hangs while it holds a thread's locks, as on a machine that was suspended, must not hold the thread for
// ever: its own connection lives, so nothing but Postgres can take the locks from it.
func TestAProcessThatHangsInATransactionDoesNotHoldTheThread(t *testing.T) {
	t.Parallel()
	h := furnish(t)
	c := h.chat(scripted.Echo)
	c.answered(c.start("Before.").TurnID)
	c.idle()
	held, wake := make(chan struct{}, 1), make(chan struct{})
	hanging := storetest.Open(t, h.dsn, func(cfg *store.Config) {
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
		_, err := hanging.Accept(h.ctx(), store.Incoming{OwnerID: owner, ThreadID: c.id, Channel: thread.ChannelWeb, Text: "lost"})
		late <- err
	}()
	<-held
	c.answered(c.send("Meanwhile.").TurnID)
	letGo()
	require.Error(t, <-late, "what hung learns that it lost its transaction")
	require.Zero(t, c.times("lost"))
	c.checkOrder()
}
