package store_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"bobbin/store"
	"bobbin/store/storetest"
	"bobbin/thread"
)

// A crowd is what the clients and drivers of the property test share.
type crowd struct {
	*bundle
	dbs     []*store.DB
	threads []string
	stop    chan struct{} // closed: drivers finish what there is and return

	mu       sync.Mutex
	accepted map[string]bool // the texts, which are unique
}

// Random operations of concurrent clients and drivers. Whatever they did: each accepted part is in exactly one user entry
// of its thread's session, or was withdrawn and is in none; no turn is left running; no call is open; no row names one that
// is not there.
// BOBBIN_TEST_SEED repeats a run as far as the scheduler lets it.
func TestWhateverHappensEachPartIsAnsweredOnceOrGivenBack(t *testing.T) {
	b := setup(t)
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("BOBBIN_TEST_SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("BOBBIN_TEST_SEED=%d", seed)
	c := &crowd{bundle: b, dbs: []*store.DB{b.db, b.second()}, threads: []string{b.thread, b.open(), b.open()}, accepted: map[string]bool{}, stop: make(chan struct{})}
	var clients, drivers sync.WaitGroup
	for i := range 2 * len(c.threads) {
		drivers.Go(func() { c.drive(c.dbs[i%2], c.threads[i%len(c.threads)], rand.New(rand.NewPCG(seed, uint64(100+i)))) })
	}
	for i := range 6 {
		clients.Go(func() { c.client(i, rand.New(rand.NewPCG(seed, uint64(i)))) })
	}
	clients.Wait()
	close(c.stop)
	drivers.Wait()
	c.check()
}

func (c *crowd) ok(err error, allowed ...error) bool {
	if err == nil {
		return true
	}
	for _, a := range allowed {
		if errors.Is(err, a) {
			return false
		}
	}
	if !errors.Is(err, context.Canceled) {
		c.t.Error(err)
	}
	return false
}

func pick[T any](r *rand.Rand, list ...T) T { return list[r.IntN(len(list))] }

// client sends, withdraws, stops, cancels and replays for a while.
func (c *crowd) client(n int, r *rand.Rand) {
	var sent []store.Accepted
	for i := range 60 {
		db, id := pick(r, c.dbs...), pick(r, c.threads...)
		switch r.IntN(20) {
		case 0:
			_, err := db.Stop(c.ctx(), owner, id, pick(r, store.ScopeConversation, store.ScopeAll))
			c.ok(err)
		case 1, 2:
			_, err := db.WithdrawSteering(c.ctx(), owner, id)
			c.ok(err, thread.ErrNotFound, thread.ErrAlreadyDelivered, thread.ErrAlreadyWithdrawn)
		case 3, 4:
			if len(sent) > 0 {
				_, err := db.WithdrawMessage(c.ctx(), owner, pick(r, sent...).Message.ID)
				c.ok(err, thread.ErrAlreadyDelivered, thread.ErrAlreadyWithdrawn)
			}
		case 5:
			if len(sent) > 0 {
				_, err := db.Cancel(c.ctx(), owner, pick(r, sent...).TurnID)
				c.ok(err, thread.ErrConflict)
			}
		case 6:
			if len(sent) > 0 {
				_, err := db.Replay(c.ctx(), owner, pick(r, sent...).TurnID)
				c.ok(err, thread.ErrConflict)
			}
		default:
			in := c.incoming(fmt.Sprintf("<%d.%d>", n, i), c.to(id), key(fmt.Sprintf("%d.%d", n, i)),
				channel(pick(r, thread.ChannelWeb, thread.ChannelWeb, thread.ChannelSMS, "telegram")),
				delivery(pick(r, thread.DeliverAuto, thread.DeliverAuto, thread.DeliverAuto, thread.DeliverTurn, thread.DeliverSteer, thread.DeliverInterrupt)))
			if r.IntN(5) == 0 {
				in.Attachments = []string{pick(r, "a", "b", "c")}
			}
			if out, ok := c.send(db, in, r); ok {
				sent = append(sent, out)
				c.mu.Lock()
				c.accepted[in.Text] = true
				c.mu.Unlock()
			}
		}
	}
}

// send sometimes loses the answer and sends again, by another process, sometimes twice at once.
func (c *crowd) send(db *store.DB, in store.Incoming, r *rand.Rand) (store.Accepted, bool) {
	refusals := []error{thread.ErrNoRunningTurn, thread.ErrStopping, thread.ErrNotSteerable}
	var twin sync.WaitGroup
	var second store.Accepted
	var err2 error
	twice := r.IntN(4) == 0
	if twice {
		twin.Go(func() { second, err2 = c.dbs[0].Accept(c.ctx(), in) })
	}
	out, err := db.Accept(c.ctx(), in)
	twin.Wait()
	if twice && c.ok(err2, refusals...) {
		if err == nil && out.Message.ID != second.Message.ID {
			c.t.Errorf("%s became two messages", in.Text)
		}
		return second, true
	}
	return out, c.ok(err, refusals...)
}

// drive is a worker that claims, takes, commits rounds and ends, and errs now and then. Two drive each thread, so that
// every turn has two holders.
func (c *crowd) drive(db *store.DB, id string, r *rand.Rand) {
	for {
		closing := false
		select {
		case <-c.stop:
			closing = true
			_, err := c.sql.Exec(c.ctx(), `UPDATE turns SET retry_at = clock_timestamp() WHERE thread_id = $1 AND retry_at > clock_timestamp()`, id)
			c.ok(err)
		default:
		}
		claimed, err := db.Claim(c.ctx(), id)
		if !c.ok(err) {
			return
		}
		switch {
		case claimed.Conversation != nil:
			c.work(db, claimed.Conversation, r, closing)
		case closing && claimed.Waiting == 0:
			return
		}
	}
}

func (c *crowd) work(db *store.DB, turn *thread.Turn, r *rand.Rand, closing bool) {
	ref := store.TurnRef{ID: turn.ID, ThreadID: turn.ThreadID}
	outcome := store.Outcome{}
	for n := 0; ; n++ {
		if _, err := db.Take(c.ctx(), ref.ID); !c.ok(err, thread.ErrFenced) {
			break
		}
		w, err := db.Load(c.ctx(), ref, turn.Attempt)
		if !c.ok(err, thread.ErrFenced) {
			break
		}
		if w.Answered {
			break
		}
		if !closing && r.IntN(12) == 0 {
			outcome = broken()
			break
		}
		if !c.calls(db, ref, w.Open) {
			break
		}
		if len(w.Open) > 0 {
			continue
		}
		round := store.Round{N: w.Turn.Rounds + 1, Base: w.Session.End, Outcome: store.RoundAnswer, Reply: thread.Reply{Text: "answer"}}
		if n < 2 && r.IntN(2) == 0 {
			round.Outcome, round.Calls = store.RoundCalls, []store.RoundCall{tool("a"), effect("b")}
		}
		_, err = db.CommitRound(c.ctx(), ref, round)
		c.ok(err, thread.ErrFenced, thread.ErrMoved)
	}
	_, err := db.End(c.ctx(), ref.ID, turn.Attempt, outcome)
	c.ok(err)
}

func (c *crowd) calls(db *store.DB, ref store.TurnRef, open []thread.Call) bool {
	for _, call := range open {
		if call.Name == "b" {
			if _, _, err := db.StartCall(c.ctx(), ref, call.Round, call.Index, &store.Start{WorkerID: "w"}); !c.ok(err, thread.ErrFenced) {
				return false
			}
		}
		call.State, call.Result = thread.CallSucceeded, "done"
		if err := finish(c.ctx(), db, ref, call); !c.ok(err, thread.ErrFenced) {
			return false
		}
	}
	return true
}

func (c *crowd) check() {
	c.t.Helper()
	storetest.References(c.t, c.dsn)
	require.NotEmpty(c.t, c.accepted)
	withdrawn := map[string]int{}
	for _, p := range c.list(`SELECT p.text FROM message_parts p JOIN messages m ON m.id = p.message_id WHERE m.state = 'withdrawn'`) {
		withdrawn[p]++
	}
	delivered := map[string]int{}
	for _, p := range c.list(`
		SELECT p.text
		FROM entries e
		JOIN message_parts p ON p.message_id = e.message_id
		WHERE e.kind = 'user' AND position(p.text IN e.text) > 0`) {
		delivered[p]++
	}
	gone := 0
	for text := range c.accepted {
		require.Equal(c.t, 1, withdrawn[text]+delivered[text], "%s: withdrawn %d times, delivered %d times", text, withdrawn[text], delivered[text])
		gone += withdrawn[text]
	}
	require.Len(c.t, c.accepted, len(withdrawn)+len(delivered), "nothing came of itself")
	c.t.Logf("%d parts, %d of them withdrawn, %d turns", len(c.accepted), gone, len(c.list(`SELECT id FROM turns`)))

	require.Empty(c.t, c.list(`SELECT id FROM messages WHERE state = 'queued'`))
	require.Empty(c.t, c.list(`SELECT id FROM turns WHERE status IN ('running', 'queued')`))
	require.Empty(c.t, c.list(`SELECT thread_id FROM runs WHERE turn_id IS NOT NULL`))
	require.Empty(c.t, c.list(`SELECT message_id FROM steering WHERE state = 'queued'`))
	require.Empty(c.t, c.list(`SELECT turn_id || name FROM calls WHERE state IN ('pending', 'started')`))
	require.Empty(c.t, c.list(`SELECT turn_id || title FROM steps WHERE status = 'running'`))
	for _, id := range c.threads {
		on := c.bundleOn(id)
		require.Equal(c.t, on.list(`SELECT message_id FROM entries WHERE session_id = $1 AND kind = 'user' ORDER BY pos`, id),
			on.list(`SELECT id FROM messages WHERE thread_id = $1 AND role = 'user' AND state = 'delivered' ORDER BY seq`, id),
			"the conversation stands in the session's order")
		require.Empty(c.t, on.list(`
			SELECT format('%s after %s', seq, lag) FROM (
				SELECT seq, lag(seq, 1, 0::bigint) OVER (ORDER BY seq) AS lag FROM events WHERE thread_id = $1) e
			WHERE seq <> lag + 1`, id), "events have no gap")
		require.Empty(c.t, on.list(`
			SELECT m.id FROM message_parts a JOIN message_parts b USING (message_id) JOIN messages m ON m.id = a.message_id
			WHERE m.thread_id = $1 AND a.n < b.n AND a.sent_at > b.sent_at`, id), "parts keep their order")
	}
}
