package house

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"bobbin/thread"
)

// An Event is one of the stream, with the fields that some events have.
type Event struct {
	Name    thread.EventName
	Seq     int64           `json:"seq"`
	TurnID  string          `json:"turn_id"`
	Turn    *thread.Turn    `json:"turn"`
	Message *thread.Message `json:"message"`
	Step    json.RawMessage `json:"step"` // a boundary names its number, the others hold it
	Phase   thread.Phase    `json:"phase"`
	Round   int             `json:"round"`
	Attempt int             `json:"attempt"`
	Offset  int             `json:"offset"`
	Text    string          `json:"text"`
	Reason  string          `json:"reason"`
}

// A Watch follows a thread's events, through whichever API process lives, and gathers them. That none is missed and none
// comes twice is checked with each.
type Watch struct {
	h      *House
	path   string
	cancel context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex
	events  []Event
	last    int64
	broken  string // what was wrong with the stream
	opened  int
	changed chan struct{}
}

// Follow watches a thread from behind an event on, 0 for all of them, until it is closed.
func (h *House) Follow(threadID string, after int64) *Watch {
	ctx, cancel := context.WithCancel(context.Background())
	w := &Watch{
		h: h, path: "/v1/threads/" + threadID + "/events", cancel: cancel, done: make(chan struct{}), last: after,
		changed: make(chan struct{}),
	}
	go func() {
		defer close(w.done)
		for ctx.Err() == nil {
			w.read(ctx)
			select {
			case <-ctx.Done():
			case <-time.After(PollEvery): // as a browser does
			}
		}
	}()
	return w
}

// Close ends the watch, and waits until it has ended.
func (w *Watch) Close() {
	w.cancel()
	<-w.done
}

// read holds one connection until it breaks.
func (w *Watch) read(ctx context.Context) {
	req, err := http.NewRequestWithContext(ctx, "GET", w.h.URL()+w.path, nil)
	if err != nil {
		return
	}
	req.Header.Set("Authorization", "Bearer "+APIKey)
	w.mu.Lock()
	req.Header.Set("Last-Event-ID", fmt.Sprint(w.last))
	w.mu.Unlock()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return
	}
	w.mu.Lock()
	w.opened++
	w.mu.Unlock()
	var e Event
	for r := bufio.NewReader(resp.Body); ; {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		switch field, value, _ := strings.Cut(strings.TrimSpace(line), ": "); field {
		case "event":
			e = Event{Name: thread.EventName(value)}
		case "data":
			w.add(e, value)
		}
	}
}

func (w *Watch) add(e Event, data string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := json.Unmarshal([]byte(data), &e); err != nil {
		w.broken = err.Error()
	}
	if e.Seq != w.last+1 || e.Name == thread.EventGap {
		w.broken += fmt.Sprintf("%s %d came after %d; ", e.Name, e.Seq, w.last)
	}
	w.last = e.Seq
	w.events = append(w.events, e)
	close(w.changed)
	w.changed = make(chan struct{})
}

// Opened is how often a connection was opened.
func (w *Watch) Opened() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.opened
}

// All are the events that have come, in order.
func (w *Watch) All() []Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.events)
}

// Names are the names of the newest sixty events.
func (w *Watch) Names() string {
	var names []string
	for _, e := range w.All() {
		names = append(names, string(e.Name))
	}
	return strings.Join(names[max(0, len(names)-60):], " ")
}

// Await waits for an event that is wanted, those that have come included.
func (c *Chat) Await(what string, want func(Event) bool) Event {
	c.T.Helper()
	found, err := c.Watch.Await(want)
	if err != nil {
		c.T.Fatalf("waited in vain for %s: %v", what, err)
	}
	return found
}

// Await waits for an event that is wanted, those that have come included. The error says what was wrong with the stream.
func (w *Watch) Await(want func(Event) bool) (Event, error) {
	timeout := time.After(Patience)
	for next := 0; ; {
		w.mu.Lock()
		events, changed, broken := w.events, w.changed, w.broken
		w.mu.Unlock()
		if broken != "" {
			return Event{}, fmt.Errorf("the event stream is broken: %s", broken)
		}
		for ; next < len(events); next++ {
			if want(events[next]) {
				return events[next], nil
			}
		}
		select {
		case <-changed:
		case <-timeout:
			return Event{}, context.DeadlineExceeded
		}
	}
}

// AwaitNamed waits for an event of a turn.
func (c *Chat) AwaitNamed(name thread.EventName, turn string) Event {
	c.T.Helper()
	return c.Await(fmt.Sprintf("%s of %s", name, turn), func(e Event) bool { return e.Name == name && e.TurnID == turn })
}

// Ended waits for the end of a turn and returns its event.
func (c *Chat) Ended(turn string) Event {
	c.T.Helper()
	return c.Await("the end of "+turn, func(e Event) bool {
		return e.TurnID == turn && (e.Name == thread.EventTurnSucceeded || e.Name == thread.EventTurnFailed || e.Name == thread.EventTurnCancelled)
	})
}

// Answered waits for the end of a turn that must succeed.
func (c *Chat) Answered(turn string) {
	c.T.Helper()
	e := c.Ended(turn)
	require.Equal(c.T, thread.EventTurnSucceeded, e.Name, "turn %s: %+v", turn, e.Turn.Error)
}
