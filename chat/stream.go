package chat

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"bobbin/thread"
)

// A Stream reads a thread's events in order, each once, and comes back by itself where its connection is lost. It is not
// safe for concurrent use. Close must be called.
type Stream struct {
	// Lost, if set, is called when the connection was lost, with the reason, and with nil when it is back.
	Lost func(error)
	// Idle is how long a connection may say nothing, not even that it is there; default 45s.
	Idle time.Duration

	c        *Client
	ctx      context.Context
	cancel   context.CancelFunc
	threadID string
	last     int64

	conn *connection
	down int // tries since the connection was lost
}

type connection struct {
	lines  *bufio.Scanner
	alive  *time.Timer
	cancel context.CancelFunc
	close  func() error
}

// largestLine is far above what a message of 100,000 characters needs.
const largestLine = 16 << 20

// Stream starts after the event with the given number; 0 is the thread's first. The thread must be named by its own id:
// the numbers of "home" start over with a reset. It ends with ctx.
func (c *Client) Stream(ctx context.Context, threadID string, after int64) *Stream {
	s := &Stream{c: c, threadID: threadID, last: after, Idle: 45 * time.Second}
	s.ctx, s.cancel = context.WithCancel(ctx)
	return s
}

// Close ends the stream. It may be called from another goroutine, which ends Next.
func (s *Stream) Close() { s.cancel() }

// Next waits for the next event. Its Data is the whole object that the server sent. It returns ctx's error, or the *Error
// of a refusal that stays.
func (s *Stream) Next() (thread.Event, error) {
	for {
		if err := s.ctx.Err(); err != nil {
			s.drop()
			return thread.Event{}, err
		}
		e, err := s.try()
		switch {
		case err == nil && (e.Seq > s.last || e.Name == thread.EventGap):
			s.last = e.Seq
			return e, nil
		case err == nil: // seen before
			continue
		}
		s.drop()
		if !passing(err) && s.ctx.Err() == nil && !errors.Is(err, context.Canceled) {
			return thread.Event{}, err
		}
		s.down++
		if s.down == 1 && s.Lost != nil && s.ctx.Err() == nil {
			s.Lost(err)
		}
		_ = s.c.wait(s.ctx, s.down)
	}
}

func (s *Stream) drop() {
	if s.conn == nil {
		return
	}
	s.conn.alive.Stop()
	s.conn.cancel()
	_ = s.conn.close()
	s.conn = nil
}

func (s *Stream) try() (thread.Event, error) {
	if s.conn == nil {
		if err := s.connect(); err != nil {
			return thread.Event{}, err
		}
	}
	return s.read()
}

func (s *Stream) connect() error {
	ctx, cancel := context.WithCancel(s.ctx)
	alive := time.AfterFunc(s.Idle, cancel)
	req, err := s.c.request(ctx, http.MethodGet, "/v1/threads/"+url.PathEscape(s.threadID)+"/events", nil)
	if err == nil {
		req.Header.Set("Accept", "text/event-stream")
		req.Header.Set("Last-Event-ID", strconv.FormatInt(s.last, 10))
		var resp *http.Response
		if resp, err = s.c.do(req); err == nil {
			lines := bufio.NewScanner(resp.Body)
			lines.Buffer(nil, largestLine)
			s.conn = &connection{lines: lines, alive: alive, cancel: cancel, close: resp.Body.Close}
			return nil
		}
	}
	alive.Stop()
	cancel()
	return err
}

// read takes the lines of one event, as https://html.spec.whatwg.org/multipage/server-sent-events.html has them; the
// server writes each field's line once.
func (s *Stream) read() (thread.Event, error) {
	var id, name string
	var data []byte
	for s.conn.lines.Scan() {
		s.conn.alive.Reset(s.Idle)
		if s.down > 0 {
			if s.down = 0; s.Lost != nil {
				s.Lost(nil)
			}
		}
		line := s.conn.lines.Bytes()
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "id":
			id = string(value)
		case "event":
			name = string(value)
		case "data":
			data = append(data, value...)
		}
		if len(line) == 0 && name != "" {
			return s.event(id, name, data)
		}
	}
	if err := s.conn.lines.Err(); err != nil && !errors.Is(err, context.Canceled) {
		return thread.Event{}, err
	}
	return thread.Event{}, errEnded
}

var errEnded = errors.New("the connection ended")

func (s *Stream) event(id, name string, data []byte) (thread.Event, error) {
	var head struct {
		TurnID    string    `json:"turn_id"`
		CreatedAt time.Time `json:"created_at"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return thread.Event{}, fmt.Errorf("event %s: %w", name, err)
	}
	seq, err := strconv.ParseInt(id[strings.LastIndex(id, ":")+1:], 10, 64)
	if err != nil {
		return thread.Event{}, fmt.Errorf("event %s: its id %q has no number", name, id)
	}
	return thread.Event{
		ThreadID: s.threadID, Seq: seq, Name: thread.EventName(name), TurnID: head.TurnID, Data: data, CreatedAt: head.CreatedAt,
	}, nil
}
