package tools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
)

const secret = "s3cr3t-token-of-the-test"

func environment(name string) (string, bool) {
	v, ok := map[string]string{"TOKEN": secret, "SHORT": "abc", "EMPTY": "", "LINES": "a\nb"}[name]
	return v, ok
}

// weather returns a registry with one HTTP tool that calls the handler; fields are more lines of its YAML.
func weather(t *testing.T, h http.HandlerFunc, fields ...string) *Registry {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return weatherAt(t, srv.URL+"/run?key=in-the-query", fields...)
}

func weatherAt(t *testing.T, url string, fields ...string) *Registry {
	t.Helper()
	file := "- name: weather\n  description: Tell the weather.\n  url: " + url + "\n  parameters: {type: object}\n"
	for _, f := range fields {
		file += "  " + f + "\n"
	}
	tools, err := Parse(strings.NewReader(file), environment)
	require.NoError(t, err)
	return registry(t, tools...)
}

func TestAnHTTPToolSendsTheCallAndReturnsTheBodyAsItIs(t *testing.T) {
	t.Parallel()
	type request struct {
		Method, Path string
		Headers      map[string]string
		Body         string
	}
	got := make(chan request, 1)
	r := weather(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		h := map[string]string{}
		for _, name := range []string{"Content-Type", "Idempotency-Key", "Authorization", "X-Two"} {
			h[name] = r.Header.Get(name)
		}
		got <- request{r.Method, r.URL.String(), h, string(body)}
		w.WriteHeader(http.StatusCreated)
		io.WriteString(w, "{ \"sky\" : \"blue\" }\n")
	}, "headers: {authorization: 'Bearer ${TOKEN}', X-Two: '${SHORT}-$SHORT-${SHORT}'}", "method: PUT")
	result, err := r.Run(t.Context(), "weather", call(`{"city":"Graz"}`))
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(Result{Text: "{ \"sky\" : \"blue\" }\n"}, result))
	require.Empty(t, cmp.Diff(request{
		Method: http.MethodPut,
		Path:   "/run?key=in-the-query",
		Headers: map[string]string{
			"Content-Type": "application/json", "Idempotency-Key": "turn/1/0",
			"Authorization": "Bearer " + secret, "X-Two": "abc-$SHORT-abc",
		},
		Body: `{"call_id":"turn/1/0","thread_id":"thread","turn_id":"turn","arguments":{"city":"Graz"}}`,
	}, <-got))
}

func TestAnHTTPToolsFailureIsAResult(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"a refusal with a reason": {
			func(w http.ResponseWriter, _ *http.Request) {
				http.Error(w, "no such city", http.StatusUnprocessableEntity)
			},
			"weather failed: its server answered HTTP 422 Unprocessable Entity: no such city",
		},
		"a refusal without one": {
			func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
			"weather failed: its server answered HTTP 500 Internal Server Error: (no text)",
		},
		"a long one, cut": {
			func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusBadGateway)
				io.WriteString(w, strings.Repeat("x", 1<<20))
			},
			"weather failed: its server answered HTTP 502 Bad Gateway: " + strings.Repeat("x", failureLimit) + " …",
		},
		"a redirect, not followed": {
			func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
			},
			"weather failed: its server answered HTTP 307 Temporary Redirect: (no text)",
		},
		"a secret repeated": {
			func(w http.ResponseWriter, r *http.Request) {
				http.Error(w, r.Header.Get("Authorization"), http.StatusForbidden)
			},
			"weather failed: its server answered HTTP 403 Forbidden: Bearer " + strings.Repeat("*", len(secret)),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := weather(t, c.answer, "headers: {Authorization: 'Bearer ${TOKEN}'}")
			got, err := r.Run(t.Context(), "weather", call(`{}`))
			require.NoError(t, err)
			require.Empty(t, cmp.Diff(Result{Text: c.want, Failed: true}, got))
		})
	}
}

func TestAnHTTPToolKeepsSecretsOutOfResults(t *testing.T) {
	t.Parallel()
	const limit = 100
	for at := limit - 2*len(secret); at < limit+len(secret); at++ {
		r := weather(t, func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, strings.Repeat("x", at)+secret+strings.Repeat("y", 10*limit))
		}, "headers: {X-Key: '${TOKEN}'}", fmt.Sprintf("result_limit: %d", limit))
		got, err := r.Run(t.Context(), "weather", call(`{}`))
		require.NoError(t, err)
		text, note, _ := strings.Cut(got.Text, "\n\n[")
		want := (strings.Repeat("x", at) + strings.Repeat("*", len(secret)) + strings.Repeat("y", limit))[:limit]
		require.Equal(t, want, text)
		require.Contains(t, note, "longer than 100 bytes")
	}
}

func TestAnHTTPToolReadsNoMoreThanItsLimit(t *testing.T) {
	t.Parallel()
	gone := make(chan struct{})
	r := weather(t, func(w http.ResponseWriter, _ *http.Request) {
		defer close(gone)
		page := []byte(strings.Repeat("0123456789abcdef", 4096))
		for { // endless: only a reader that leaves ends it
			if _, err := w.Write(page); err != nil {
				return
			}
		}
	})
	got, err := r.Run(t.Context(), "weather", call(`{}`))
	require.NoError(t, err)
	require.False(t, got.Failed)
	require.Less(t, len(got.Text), DefaultResultLimit+200)
	require.Contains(t, got.Text, "[The result was cut here")
	<-gone
}

func TestAnHTTPToolTellsWhetherItWasReached(t *testing.T) {
	t.Parallel()

	t.Run("no server", func(t *testing.T) {
		t.Parallel()
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		require.NoError(t, l.Close())
		got, err := weatherAt(t, "http://"+l.Addr().String()+"/?key=in-the-query").Run(t.Context(), "weather", call(`{}`))
		require.NoError(t, err)
		require.True(t, got.Failed)
		require.Contains(t, got.Text, "weather failed: its server could not be reached (dial tcp")
		require.NotContains(t, got.Text, "in-the-query")
	})

	t.Run("an answer that breaks off", func(t *testing.T) {
		t.Parallel()
		r := weather(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			io.WriteString(w, "half")
		})
		got, err := r.Run(t.Context(), "weather", call(`{}`))
		require.NoError(t, err)
		require.True(t, got.Failed)
		require.Contains(t, got.Text, "Whether it took effect is unknown")
	})

	t.Run("a connection that breaks is not tried again", func(t *testing.T) {
		t.Parallel()
		var requests atomic.Int32
		r := weather(t, func(w http.ResponseWriter, r *http.Request) {
			if requests.Add(1) == 1 { // a first call, after which a careless client keeps the connection
				return
			}
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				conn.Close()
			}
		})
		_, err := r.Run(t.Context(), "weather", call(`{}`))
		require.NoError(t, err)
		got, err := r.Run(t.Context(), "weather", call(`{}`))
		require.NoError(t, err)
		require.True(t, got.Failed)
		require.Contains(t, got.Text, "weather failed: its server gave no answer (")
		require.NotContains(t, got.Text, "in-the-query")
		require.EqualValues(t, 2, requests.Load())
	})
}

func TestAnHTTPToolKeepsItsConnectionWhereARepeatDoesNoHarm(t *testing.T) {
	t.Parallel()
	for fields, want := range map[string]int{"": 3, "read_only: true": 1, "idempotent: true": 1} {
		t.Run(fields, func(t *testing.T) {
			t.Parallel()
			peers, conns := make(chan string, 1), map[string]bool{}
			r := weather(t, func(_ http.ResponseWriter, r *http.Request) { peers <- r.RemoteAddr }, fields)
			for range 3 {
				_, err := r.Run(t.Context(), "weather", call(`{}`))
				require.NoError(t, err)
				conns[<-peers] = true
			}
			require.Len(t, conns, want)
		})
	}

	t.Run("one that was closed is replaced", func(t *testing.T) {
		t.Parallel()
		var requests atomic.Int32
		keys := make(chan string, 3)
		r := weather(t, func(w http.ResponseWriter, r *http.Request) {
			keys <- r.Header.Get("Idempotency-Key")
			if requests.Add(1) != 2 {
				return
			}
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				conn.Close()
			}
		}, "read_only: true")
		for range 2 {
			got, err := r.Run(t.Context(), "weather", call(`{}`))
			require.NoError(t, err)
			require.False(t, got.Failed, got.Text)
		}
		require.EqualValues(t, 3, requests.Load())
		for range 3 {
			require.Equal(t, "turn/1/0", <-keys)
		}
	})
}

func TestAnHTTPToolHangsUpWhenTheTurnIsStopped(t *testing.T) {
	t.Parallel()
	errStopped := errors.New("stopped")
	ctx, cancel := context.WithCancelCause(t.Context())
	hungUp := make(chan struct{})
	r := weather(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) // net/http watches the connection from then on
		cancel(errStopped)
		<-r.Context().Done()
		close(hungUp)
	})
	_, err := r.Run(ctx, "weather", call(`{}`))
	require.ErrorIs(t, err, errStopped)
	<-hungUp
}

func TestAnHTTPToolEndsAtItsTimeLimit(t *testing.T) {
	t.Parallel()
	r := weather(t, func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}, "timeout: 20ms")
	got, err := r.Run(t.Context(), "weather", call(`{}`))
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(Result{
		Text:   "weather was ended after its time limit of 20ms. It may or may not have taken effect: find out before you do it again.",
		Failed: true,
	}, got))
}

func TestAnHTTPToolSendsTheSameKeyOnEveryAttempt(t *testing.T) {
	t.Parallel()
	keys := make(chan string, 2)
	r := weather(t, func(_ http.ResponseWriter, r *http.Request) {
		var body payload
		_ = json.NewDecoder(r.Body).Decode(&body)
		keys <- r.Header.Get("Idempotency-Key") + " " + body.CallID
	})
	for range 2 {
		_, err := r.Run(t.Context(), "weather", call(`{}`))
		require.NoError(t, err)
		require.Equal(t, "turn/1/0 turn/1/0", <-keys)
	}
}
