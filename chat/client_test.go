package chat

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"bobbin/thread"
)

// serve answers with what handlers say, one after the other; the last stays.
func serve(t *testing.T, handlers ...http.HandlerFunc) *Client {
	t.Helper()
	var mu sync.Mutex
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		h := handlers[0]
		if len(handlers) > 1 {
			handlers = handlers[1:]
		}
		mu.Unlock()
		h(w, r)
	}))
	t.Cleanup(s.CloseClientConnections)
	t.Cleanup(s.Close)
	return &Client{BaseURL: s.URL + "/", Key: "k", Wait: func(ctx context.Context, _ int) error { return ctx.Err() }}
}

func hangUp(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

func status(code int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
	}
}

// events streams events with these numbers, if the client stands at after, and hangs up.
func events(t *testing.T, after string, numbers ...int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("Last-Event-ID"); got != after {
			t.Errorf("Last-Event-ID %q, want %q", got, after)
		}
		_, _ = io.WriteString(w, "retry: 1000\n\n: still here\n\n")
		for _, n := range numbers {
			fmt.Fprintf(w, "id: %d\nevent: turn.phase\ndata: {\"turn_id\":\"t\",\ndata: \"n\":%d}\n\n", n, n)
		}
		_, _ = io.WriteString(w, "id: 99\nevent: turn.phase\ndata: {\"cut") // in the middle of an event
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
}

func TestStreamComesBackWhereItWasAndRepeatsNothing(t *testing.T) {
	t.Parallel()
	c := serve(t, events(t, "5", 6, 7), hangUp, status(502, "a proxy's page"), events(t, "7", 6, 7, 8), events(t, "8", 9), status(401, `{"code":"unauthorized"}`))
	s := c.Stream(t.Context(), "thr", 5)
	defer s.Close()
	var lost []bool
	s.Lost = func(err error) { lost = append(lost, err != nil) }
	var got []int64
	for {
		e, err := s.Next()
		if err != nil {
			require.ErrorIs(t, err, thread.ErrUnauthorized)
			break
		}
		require.Equal(t, "t", e.TurnID)
		got = append(got, e.Seq)
	}
	require.Equal(t, []int64{6, 7, 8, 9}, got)
	require.Equal(t, []bool{true, false, true, false, true}, lost)
}

func TestStreamGoesBackWhereAGapSays(t *testing.T) {
	t.Parallel()
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "id: 3\nevent: gap\ndata: {}\n\nid: 4\nevent: turn.phase\ndata: {}\n\n")
	})
	s := c.Stream(t.Context(), "thr", 900)
	defer s.Close()
	e, err := s.Next()
	require.NoError(t, err)
	require.Equal(t, thread.EventGap, e.Name)
	e, err = s.Next()
	require.NoError(t, err)
	require.EqualValues(t, 4, e.Seq)
}

func TestStreamLeavesAConnectionThatSaysNothing(t *testing.T) {
	t.Parallel()
	c := serve(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, events(t, "0", 1))
	s := c.Stream(t.Context(), "thr", 0)
	defer s.Close()
	s.Idle = 20 * time.Millisecond
	e, err := s.Next()
	require.NoError(t, err)
	require.EqualValues(t, 1, e.Seq)
}

func TestStreamEndsWhenItIsClosed(t *testing.T) {
	t.Parallel()
	open := make(chan struct{})
	c := serve(t, func(_ http.ResponseWriter, r *http.Request) { close(open); <-r.Context().Done() })
	s := c.Stream(t.Context(), "thr", 0)
	go func() { <-open; s.Close() }()
	_, err := s.Next()
	require.ErrorIs(t, err, context.Canceled)
}

func TestSendRepeatsUnderTheSameKeyWhenTheAnswerIsLost(t *testing.T) {
	t.Parallel()
	var keys []string
	note := func(h http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			keys = append(keys, r.Header.Get("Idempotency-Key"))
			h(w, r)
		}
	}
	c := serve(t, note(hangUp), note(status(503, `{"code":"unavailable"}`)), note(status(202, `{"message":{"id":`)),
		note(status(202, `{"message":{"id":"m1","state":"queued","parts":1},"disposition":"steering","turn_id":"t1"}`)))
	s, err := c.Send(t.Context(), "home", Draft{Text: "hello"}, "key")
	require.NoError(t, err)
	require.Equal(t, "m1", s.Message.ID)
	require.Equal(t, thread.DisposedSteering, s.Disposition)
	require.Empty(t, cmp.Diff([]string{"key", "key", "key", "key"}, keys))
}

func TestSendDoesNotRepeatWhatWasRefused(t *testing.T) {
	t.Parallel()
	c := serve(t, status(409, `{"code":"stopping","detail":"It is stopping."}`), status(202, `{}`))
	_, err := c.Send(t.Context(), "home", Draft{Text: "hello", Delivery: thread.DeliverSteer}, "key")
	require.ErrorIs(t, err, thread.ErrStopping)
	require.EqualError(t, err, "It is stopping.")
	require.NotErrorIs(t, err, thread.ErrNotFound)
}

func TestSendGivesUpAfterAWhile(t *testing.T) {
	t.Parallel()
	c := serve(t, status(503, `{}`))
	_, err := c.Send(t.Context(), "home", Draft{Text: "hello"}, "key")
	var e *Error
	require.True(t, errors.As(err, &e))
	require.Equal(t, 503, e.Status)
}

func TestMergeLosesNeitherText(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ back, typed, want string }{
		{"a", "", "a"},
		{"a\n", " \n", "a\n"},
		{"a\n\n", "b", "a\n\nb"},
		{"", "b", "b"},
		{"a", "  b", "a\n\n  b"},
	} {
		require.Equal(t, test.want, merge(Draft{Text: test.back}, Draft{Text: test.typed}).Text)
	}
	got := merge(Draft{Attachments: []string{"1", "2"}}, Draft{Text: "b", Attachments: []string{"2", "3"}})
	require.Equal(t, []string{"1", "2", "3"}, got.Attachments)
}

func TestTextThatTheInputLineCannotHoldComesBackWhole(t *testing.T) {
	t.Parallel()
	s := newScreen(t.Context(), &Client{}, "home")
	long := strings.Repeat("line\t\u0001\n", 12_000)
	s.put(Draft{Text: long})
	require.Equal(t, long, s.draft().Text)
}
