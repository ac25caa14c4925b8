package api_test

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/require"

	"bobbin/api"
)

func TestEveryOperationHidesWhatIsAnotherOwners(t *testing.T) {
	t.Parallel()
	w := setup(t).world()
	before := w.state()
	walk(t, func(method, path string, op *openapi3.Operation) {
		p, body := w.path(path), ""
		if method != "GET" {
			body = encode(t, example(t, op))
		}
		for _, key := range []string{"", "k"} {
			if p != path {
				w.refused(404, "not_found", method, p, body, "Authorization", "Bearer "+bertsKey, "Idempotency-Key", key)
				continue
			}
			a := w.do(method, p, body, "Authorization", "Bearer "+bertsKey)
			for _, id := range []string{w.thread, w.turn, w.message} {
				require.NotContains(t, a.raw, id)
			}
			if method == "GET" && at(a.body, "data") != nil {
				for _, e := range a.body["data"].([]any) {
					require.NotContains(t, before, text(e.(map[string]any), "id"), "Bert may have what he opened himself")
				}
			}
		}
	})
	for _, id := range []string{w.thread, w.turn, w.message} {
		w.refused(400, "invalid_field", "GET", "/v1/threads?before="+id, "", "Authorization", "Bearer "+bertsKey)
	}
	require.Equal(t, before, w.state())
}

func TestEveryOperationWantsAValidKey(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *api.Config) { c.KeyTTL = -1 })
	require.NoError(t, b.db.EnsureKey(t.Context(), "anna", "revoked", "bob_revoked"))
	b.ok("GET", "/v1/health", "", "Authorization", "Bearer bob_revoked")
	keys, err := b.db.Keys(t.Context(), "anna")
	require.NoError(t, err)
	for _, k := range keys {
		if k.Label == "revoked" {
			require.NoError(t, b.db.RevokeKey(t.Context(), k.ID))
		}
	}
	w := b.world()
	before := w.state()
	walk(t, func(method, path string, op *openapi3.Operation) {
		body := ""
		if method != "GET" {
			body = encode(t, example(t, op))
		}
		for _, header := range []string{
			"", "Bearer", "Bearer ", "Bearer wrong", "Bearer bob_revoked", "Bearer bob_revoked " + annasKey, "Basic YW5uYTphbm5h", annasKey, "Bearer \xff\xfe",
			"Token " + annasKey, "Bearer " + strings.Repeat("x", 10_000), "Bearer ' OR 1=1 --", "Bearer 🎈",
		} {
			a := w.refused(401, "unauthorized", method, w.path(path), body, "Authorization", header)
			require.Equal(t, `Bearer realm="bobbin"`, a.header.Get("WWW-Authenticate"))
		}
	})
	require.Equal(t, before, w.state())
}

func TestAKeyThatAsksTooOftenIsToldWhenToComeBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.world()
	before := w.state()
	free := b.url
	w.url = b.serve(b.db, func(c *api.Config) { c.Rate, c.Burst = 0.001, 2 })
	s := b.streamFrom(w.url, w.thread, "")
	w.ok("GET", "/v1/health", "")
	walk(t, func(method, path string, op *openapi3.Operation) {
		a := w.refused(429, "rate_limited", method, w.path(path), encode(t, example(t, op)))
		seconds, err := strconv.Atoi(a.header.Get("Retry-After"))
		require.NoError(t, err)
		require.InDelta(t, 1000, seconds, 10)
	})
	w.ok("GET", "/v1/threads", "", "Authorization", "Bearer "+bertsKey)
	w.url = free
	require.Equal(t, before, w.state())
	w.say(w.thread, "more")
	require.Equal(t, "message.updated", s.next().name, "a stream that is open goes on")
}

func TestGuessingKeysIsSlow(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.url = b.serve(b.db, func(c *api.Config) { c.AuthFailures, c.KeyTTL, c.TrustedProxies = 3, -1, []string{"127.0.0.1"} })
	b.ok("GET", "/v1/health", "")
	for i := range 3 {
		b.refused(401, "unauthorized", "GET", "/v1/health", "", "Authorization", "Bearer guess"+strconv.Itoa(i))
	}
	a := b.refused(429, "rate_limited", "GET", "/v1/health", "", "Authorization", "Bearer guess")
	require.NotEmpty(t, a.header.Get("Retry-After"))
	b.refused(429, "rate_limited", "GET", "/v1/health", "", "Authorization", "Bearer "+bertsKey) // nobody can tell it from a guess
	b.ok("GET", "/v1/health", "")                                                                // it has worked here
	b.refused(401, "unauthorized", "GET", "/v1/health", "", "Authorization", "")                 // no guess at all
	b.ok("GET", "/v1/health", "", "Authorization", "Bearer "+bertsKey, "X-Forwarded-For", "192.0.2.1")

	for i := range 3 {
		b.refused(401, "unauthorized", "GET", "/v1/health", "", "Authorization", "Bearer 6", "X-Forwarded-For", "2001:db8::"+strconv.Itoa(i))
	}
	b.refused(429, "rate_limited", "GET", "/v1/health", "", "Authorization", "Bearer 6", "X-Forwarded-For", "2001:db8::ffff")

	b.url = b.serve(b.db, func(c *api.Config) { c.AuthFailures = 1 })
	b.refused(401, "unauthorized", "GET", "/v1/health", "", "Authorization", "Bearer a", "X-Forwarded-For", "192.0.2.2")
	b.refused(429, "rate_limited", "GET", "/v1/health", "", "Authorization", "Bearer b", "X-Forwarded-For", "192.0.2.3")
}

func TestARevokedKeyIsRefusedOnceItIsNoLongerRemembered(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *api.Config) { c.KeyTTL = time.Hour })
	b.ok("GET", "/v1/health", "")
	keys, err := b.db.Keys(t.Context(), "anna")
	require.NoError(t, err)
	require.NoError(t, b.db.RevokeKey(t.Context(), keys[0].ID))
	b.ok("GET", "/v1/health", "") // for KeyTTL
	b.url = b.serve(b.db, func(c *api.Config) { c.KeyTTL = -1 })
	require.Equal(t, http.StatusUnauthorized, b.do("GET", "/v1/health", "").status)
}
