package api_test

import (
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// A client that lost the answer gets the text back again, and nothing happens twice.
func TestWhatGivesSomethingBackIsRepeatable(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for path, method := range map[string]string{
		"/v1/threads/{thread}/steering": "DELETE", "/v1/messages/{message}": "DELETE", "/v1/threads/{thread}/stop": "POST",
		"/v1/threads/{thread}/reset": "POST", "/v1/turns/{turn}/cancel": "POST",
	} {
		t.Run(path, func(t *testing.T) {
			w, key := b.world(), "key of "+path
			first := w.do(method, w.path(path), "", "Idempotency-Key", key)
			require.Equal(t, 200, first.status, first.raw)
			require.Contains(t, first.raw, "and then")
			require.Empty(t, first.header.Get("Idempotency-Replayed"))
			w.do("POST", w.path("/v1/threads/{thread}/messages"), `{"text": "written since"}`)
			before := w.state()
			again := w.do(method, w.path(path), "{}", "Idempotency-Key", key)
			require.Equal(t, first.raw, again.raw)
			require.Equal(t, "true", again.header.Get("Idempotency-Replayed"))
			require.Equal(t, before, w.state())

			other := b.world()
			w.refused(422, "idempotency_key_reused", method, other.path(path), "", "Idempotency-Key", key)
			w.refused(422, "limit_exceeded", method, other.path(path), "", "Idempotency-Key", strings.Repeat("k", 201))
			require.Contains(t, w.do(method, other.path(path), "", "Idempotency-Key", "").raw, "and then", "nothing was lost by that")
		})
	}
}

func TestAStopUnderAKeyIsNotOneOfAnotherScope(t *testing.T) {
	t.Parallel()
	w := setup(t).world()
	path := w.path("/v1/threads/{thread}/stop")
	w.ok("POST", path, "", "Idempotency-Key", "k")
	w.ok("POST", path, `{"scope": "conversation"}`, "Idempotency-Key", "k")
	w.refused(422, "idempotency_key_reused", "POST", path, `{"scope": "all"}`, "Idempotency-Key", "k")
}

func TestTwoResetsOfHomeUnderOneKeyArchiveOneThread(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.say("home", "work")
	b.say("home", "and then")
	var answers [4]answer
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() { answers[i] = b.do("POST", "/v1/threads/home/reset", "", "Idempotency-Key", "k") })
	}
	wg.Wait()
	for _, a := range answers {
		require.Equal(t, 200, a.status, a.raw)
		require.Equal(t, answers[0].raw, a.raw)
		require.Equal(t, "and then", text(a.body, "withdrawn", "text"))
	}
	archived := 0
	for _, th := range b.ok("GET", "/v1/threads", "")["data"].([]any) {
		if th.(map[string]any)["status"] == "archived" {
			archived++
		}
	}
	require.Equal(t, 1, archived)
	b.ok("POST", "/v1/threads/home/reset", "") // without a key each is a request of its own
	require.Len(t, b.ok("GET", "/v1/threads", "")["data"], 2)
}

func TestAnotherOwnersKeyIsAnotherKey(t *testing.T) {
	t.Parallel()
	w := setup(t).world()
	w.ok("DELETE", w.path("/v1/threads/{thread}/steering"), "", "Idempotency-Key", "k")
	w.refused(404, "not_found", "DELETE", w.path("/v1/threads/{thread}/steering"), "", "Idempotency-Key", "k", "Authorization", "Bearer "+bertsKey)
	w.refused(404, "not_found", "DELETE", w.path("/v1/messages/{message}"), "", "Idempotency-Key", "k", "Authorization", "Bearer "+bertsKey)
}
