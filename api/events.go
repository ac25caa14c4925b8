package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"bobbin/store"
	"bobbin/thread"
)

const eventsRoute = "/v1/threads/:thread/events"

// retryHint is how long a client that lost the stream waits before it comes back.
const retryHint = time.Second

// events streams a thread's events until the client goes away, reads nothing for too long, or the server shuts down.
func (a *api) events(c *gin.Context) {
	s, err := a.openStream(c)
	if err != nil {
		a.fail(c, err)
		return
	}
	a.metrics.subscribers.Inc()
	defer a.metrics.subscribers.Dec()
	h := c.Writer.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // nginx would hold events back
	c.Status(http.StatusOK)
	s.run(c.Request.Context())
}

func (a *api) openStream(c *gin.Context) (*stream, error) {
	id, err := param(c, "thread")
	if err != nil {
		return nil, err
	}
	q := newQuery(c, "after")
	from := startOf(c, q)
	if err := mistaken(q.mistakes); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(c.Request.Context(), a.cfg.Timeout)
	defer cancel()
	t, err := a.store.Thread(ctx, owner(c), id)
	if err != nil {
		return nil, err
	}
	s := &stream{
		cfg: &a.cfg, store: a.store, w: c.Writer, rc: http.NewResponseController(c.Writer), threadID: t.ID, home: id == store.Home,
	}
	s.after, s.gap = from.in(t)
	return s, nil
}

// A start is where a client wants a stream to begin.
type start struct {
	given    bool
	threadID string // that the number counts in; empty: the one asked for
	after    int64
}

func startOf(c *gin.Context, q *query) start {
	field, s := "Last-Event-ID", c.GetHeader("Last-Event-ID")
	if s == "" {
		field, s = "after", c.Query("after")
	}
	if s == "" {
		return start{}
	}
	threadID, number, ok := strings.Cut(s, ":")
	if !ok {
		threadID, number = "", s
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 || ok && !isID(threadID) {
		q.wrong(field, CodeInvalidField, 0, "must be the id of an event of this stream, or 0")
	}
	return start{given: true, threadID: threadID, after: n}
}

// in returns the number to start after in t, and whether the client must be told that it misses something: its number
// counts in another thread, or lies ahead of all events, as after a restored backup.
func (s start) in(t *thread.Thread) (after int64, gap bool) {
	switch {
	case !s.given:
		return t.LastEvent, false
	case s.threadID != "" && s.threadID != t.ID:
		return 0, true
	case s.after > t.LastEvent:
		return t.LastEvent, true
	}
	return s.after, false
}

// A stream writes one client's events. It holds one batch of them at most.
type stream struct {
	cfg      *Config
	store    *store.DB
	w        http.ResponseWriter
	rc       *http.ResponseController
	threadID string
	home     bool
	after    int64
	gap      bool

	buf bytes.Buffer
}

func (s *stream) run(ctx context.Context) {
	defer func() { _ = s.rc.SetWriteDeadline(time.Time{}) }() // the connection may serve on
	fmt.Fprintf(&s.buf, "retry: %d\n\n", retryHint.Milliseconds())
	if s.gap {
		s.write(thread.Event{ThreadID: s.threadID, Seq: s.after, Name: thread.EventGap, Data: []byte("{}")})
	}
	if s.flush() != nil {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	batches := s.follow(ctx)
	defer func() { // waits until the subscription is closed
		cancel()
		for range batches { //nolint:revive // drained
		}
	}()
	s.copy(ctx, batches)
}

// follow reads the thread's events, no faster than they are taken.
func (s *stream) follow(ctx context.Context) <-chan []thread.Event {
	batches := make(chan []thread.Event)
	sub := s.store.Subscribe(s.threadID, s.after)
	go func() {
		defer close(batches)
		defer sub.Close()
		for {
			list, err := sub.Next(ctx)
			if err != nil {
				if ctx.Err() == nil && !errors.Is(err, thread.ErrUnavailable) {
					s.cfg.Log.ErrorContext(ctx, "event stream failed", "thread", s.threadID, "error", err)
				}
				return // the client comes back with its last event's id
			}
			select {
			case batches <- list:
			case <-ctx.Done():
				return
			}
		}
	}()
	return batches
}

func (s *stream) copy(ctx context.Context, batches <-chan []thread.Event) {
	idle := time.NewTicker(s.cfg.KeepAlive)
	defer idle.Stop()
	for {
		last := false
		select {
		case <-ctx.Done():
			return
		case <-s.cfg.Done:
			// Told apart from a broken stream, and not all at once at those that are left.
			fmt.Fprintf(&s.buf, "retry: %d\n: this server ends, come back with the last id\n\n", (retryHint/4 + rand.N(retryHint)).Milliseconds())
			_ = s.flush()
			return
		case <-idle.C:
			s.buf.WriteString(": still here\n\n")
		case list, ok := <-batches:
			if !ok {
				return
			}
			for _, e := range list {
				s.write(e)
				last = last || s.home && e.Name == thread.EventThreadReset
			}
		}
		if s.flush() != nil || last {
			return
		}
	}
}

// flush sends what has been written. A client that takes nothing of it in time is given up.
func (s *stream) flush() error {
	defer s.buf.Reset()
	_ = s.rc.SetWriteDeadline(time.Now().Add(s.cfg.WriteTimeout)) // a recorder in a test has none
	if _, err := s.w.Write(s.buf.Bytes()); err != nil {
		return err
	}
	return s.rc.Flush()
}

// write adds one event to the buffer. The members of its data stand beside those that all events have.
func (s *stream) write(e thread.Event) {
	data := map[string]any{}
	var own map[string]json.RawMessage
	if err := json.Unmarshal(e.Data, &own); err != nil {
		own = map[string]json.RawMessage{"data": e.Data} // no object: never written by the store
	}
	for name, value := range own {
		data[name] = value
	}
	data["thread_id"], data["seq"] = s.threadID, e.Seq
	if e.TurnID != "" {
		data["turn_id"] = e.TurnID
	}
	if !e.CreatedAt.IsZero() {
		data["created_at"] = e.CreatedAt.UTC()
	}
	raw, err := json.Marshal(data) // one line, whatever the data held
	if err != nil {
		raw = []byte("{}")
	}
	id := strconv.FormatInt(e.Seq, 10)
	if s.home {
		id = s.threadID + ":" + id
	}
	fmt.Fprintf(&s.buf, "id: %s\nevent: %s\ndata: %s\n\n", id, e.Name, raw)
}
