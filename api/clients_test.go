package api_test

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"bobbin/store"
	"bobbin/store/storetest"
	"bobbin/thread"
)

// answer writes an answer, in pieces and whole, and ends the turn.
func (w *worker) answer(pieces ...string) {
	w.Helper()
	ctx := context.Background()
	work, err := w.db.Load(ctx, w.ref, w.turn.Attempt)
	require.NoError(w, err)
	round, whole := work.Turn.Rounds+1, ""
	deltas := w.db.NewDeltas()
	defer deltas.Close()
	for _, p := range pieces {
		deltas.Write(w.ref, thread.Delta{TurnID: w.ref.ID, Round: round, Offset: len(whole), Text: p})
		deltas.Flush(ctx, w.ref.ID)
		whole += p
	}
	_, err = w.db.CommitRound(ctx, w.ref, store.Round{
		N: round, Base: work.Session.End, Outcome: store.RoundAnswer,
		Reply: thread.Reply{Text: whole, Model: "scripted", Finish: thread.FinishStop},
	})
	require.NoError(w, err)
	_, err = w.db.End(ctx, w.ref.ID, w.turn.Attempt, store.Outcome{})
	require.NoError(w, err)
}

// Whoever looks on sees the same: what is said, loaded, taken back and answered, in one order.
func TestTenClientsSeeTheSameTurnWhole(t *testing.T) {
	t.Parallel()
	const clients = 10
	b := setup(t)
	urls := []string{b.url, b.serve(storetest.Open(t, b.dsn))}
	id := b.open()
	b.say(id, "work")
	w := b.work(id)
	var streams [clients]*reader
	for i := range streams {
		streams[i] = b.streamFrom(urls[i%2], id, "?after=0")
	}
	var seen [clients][]event
	var wg sync.WaitGroup
	for i, s := range streams {
		wg.Go(func() {
			for len(seen[i]) == 0 || seen[i][len(seen[i])-1].name != "turn.succeeded" {
				seen[i] = append(seen[i], s.next())
			}
		})
	}
	b.say(id, "only domestic companies")
	w.take()
	b.say(id, "no, leave that")
	b.ok("DELETE", "/v1/threads/"+id+"/steering", "")
	w.answer("Wool ", "was ", "traded.")
	wg.Wait()

	for i, list := range seen {
		for n, e := range list {
			require.Equal(t, strconv.Itoa(n+1), e.id, "client %d", i)
		}
		require.Empty(t, cmp.Diff(seen[0], list, cmp.AllowUnexported(event{})), "client %d", i)
	}
	require.Equal(t, []string{
		"message.created", "turn.started", "message.delivered", // work
		"message.created", "message.delivered", "step.created", "turn.boundary", // loaded
		"message.created", "message.withdrawn", // taken back
		"answer.delta", "answer.delta", "answer.delta", "answer.completed", "turn.succeeded",
	}, slices.DeleteFunc(names(seen[0]), func(name string) bool { return name == "turn.phase" }))
}

func TestAClientThatComesBackFindsTheTurnThatRunsAndWhereToGoOn(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for name, end := range map[string]func(id string, w *worker){
		"answered": func(_ string, w *worker) { w.answer("Done.") },
		"stopped":  func(id string, w *worker) { b.ok("POST", "/v1/threads/"+id+"/stop", ""); w.fail() },
	} {
		t.Run(name, func(t *testing.T) {
			id := b.open()
			turn := text(b.say(id, "work"), "turn_id")
			w := b.work(id)
			th := b.ok("GET", "/v1/threads/"+id, "")
			require.Equal(t, turn, th["running_turn"])
			s := b.stream(id, "?after="+strconv.FormatFloat(th["last_event"].(float64), 'f', -1, 64))
			b.say(id, "more")
			e := s.next()
			require.Equal(t, "message.created", e.name)
			require.EqualValues(t, th["last_event"].(float64)+1, e.data["seq"])
			w.take()
			end(id, w)
			th = b.ok("GET", "/v1/threads/"+id, "")
			require.NotContains(t, th, "running_turn")
			require.NotContains(t, th, "stopping")
		})
	}
}

func TestWhileATurnRunsAMessageMaySteerOrInterruptIt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for delivery, want := range map[string]string{"auto": "steering", "steer": "steering", "turn": "queued", "interrupt": "queued"} {
		id := b.open()
		turn := text(b.say(id, "work"), "turn_id")
		b.work(id)
		a := b.ok("POST", "/v1/threads/"+id+"/messages", `{"text": "now", "delivery": "`+delivery+`"}`)
		require.Equal(t, want, a["disposition"], delivery)
		require.Equal(t, want == "steering", a["turn_id"] == turn, delivery)
		require.Equal(t, delivery == "interrupt", b.ok("GET", "/v1/threads/"+id, "")["stopping"] == true, delivery)
	}
}

// A message that waits is changed by taking it back and sending it anew; one that the model has is not changed at all.
func TestAMessageIsChangedByWithdrawingAndSendingAgain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.open()
	path := "/v1/threads/" + id + "/messages"
	b.say(id, "work")
	w := b.work(id)
	first := text(b.say(id, "only domestic"), "message", "id")
	given := b.ok("DELETE", "/v1/messages/"+first, "")
	second := text(b.say(id, text(given, "text")+" companies"), "message", "id")
	w.take()
	require.Equal(t, []string{"work", "only domestic companies"}, texts(b.ok("GET", path, "")))
	b.refused(409, "already_delivered", "DELETE", "/v1/messages/"+second, "")
	for _, method := range []string{"PATCH", "PUT", "POST"} {
		b.refused(405, "method_not_allowed", method, "/v1/messages/"+second, `{"text": "x"}`)
	}
	require.Equal(t, []string{"work", "only domestic companies"}, texts(b.ok("GET", path, "")))
}
