package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"bobbin/llm/scripted"
	"bobbin/thread"
)

// A chat is one person at one thread, who watches it from its start.
type chat struct {
	h      *house
	t      *testing.T
	id     string
	marker string // stands in what the person writes first, so that the provider knows the chat by it
	watch  *watch
}

// accepted is the API's answer to a message.
type accepted struct {
	Message struct {
		ID    string              `json:"id"`
		Text  string              `json:"text"`
		State thread.MessageState `json:"state"`
		Parts int                 `json:"parts"`
	} `json:"message"`
	Disposition thread.Disposition `json:"disposition"`
	TurnID      string             `json:"turn_id"`
}

type stopped struct {
	Stopped   []string          `json:"stopped"`
	Withdrawn *thread.Withdrawn `json:"withdrawn"`
}

type problem struct {
	Status int
	Code   string `json:"code"`
	Detail string `json:"detail"`
}

func (p *problem) Error() string { return fmt.Sprintf("HTTP %d %s: %s", p.Status, p.Code, p.Detail) }

// chat opens a thread whose requests at the provider are answered by play.
func (h *house) chat(play scripted.Play) *chat {
	t := h.t
	t.Helper()
	var th thread.Thread
	require.NoError(t, h.call("POST", "/v1/threads", nil, &th))
	h.mu.Lock()
	h.chats++
	c := &chat{h: h, t: t, id: th.ID, marker: fmt.Sprintf("chat%d.", h.chats)}
	h.mu.Unlock()
	h.model.On(c.marker, play)
	c.watch = h.follow(th.ID, 0)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s is thread %s; its events: %s", c.marker, c.id, c.watch.names())
		}
		c.watch.close()
	})
	return c
}

// call makes one request and decodes its answer, or returns the problem that came instead.
func (h *house) call(method, path string, body, out any, headers ...string) error {
	var r io.Reader
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			return err
		}
		r = bytes.NewReader(raw)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, h.url()+path, r)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+apiKey)
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode >= 400 {
		p := &problem{Status: resp.StatusCode}
		_ = json.Unmarshal(raw, p) // what is no problem document has its status
		return p
	}
	return json.Unmarshal(raw, out)
}

// A with changes a message before it is sent.
type with func(body map[string]any, headers *[]string)

func delivery(d thread.Delivery) with {
	return func(b map[string]any, _ *[]string) { b["delivery"] = d }
}
func replyTo(id string) with { return func(b map[string]any, _ *[]string) { b["reply_to"] = id } }
func key(k string) with {
	return func(_ map[string]any, h *[]string) { *h = append(*h, "Idempotency-Key", k) }
}

func files(ids ...string) with { return func(b map[string]any, _ *[]string) { b["attachments"] = ids } }

func (c *chat) trySend(text string, mods ...with) (accepted, error) {
	body := map[string]any{"text": text}
	var headers []string
	for _, m := range mods {
		m(body, &headers)
	}
	var out accepted
	err := c.h.call("POST", "/v1/threads/"+c.id+"/messages", body, &out, headers...)
	return out, err
}

func (c *chat) send(text string, mods ...with) accepted {
	c.t.Helper()
	out, err := c.trySend(text, mods...)
	require.NoError(c.t, err, "send %.60q", text)
	return out
}

// start sends the first message, which carries the marker.
func (c *chat) start(text string, mods ...with) accepted { return c.send(c.marker+" "+text, mods...) }

func (c *chat) stop(scope string) stopped {
	c.t.Helper()
	var out stopped
	require.NoError(c.t, c.h.call("POST", "/v1/threads/"+c.id+"/stop", map[string]any{"scope": scope}, &out))
	return out
}

func (c *chat) withdraw() (thread.Withdrawn, error) {
	var out thread.Withdrawn
	err := c.h.call("DELETE", "/v1/threads/"+c.id+"/steering", nil, &out)
	return out, err
}

func (c *chat) withdrawMessage(id string) (thread.Withdrawn, error) {
	var out thread.Withdrawn
	err := c.h.call("DELETE", "/v1/messages/"+id, nil, &out)
	return out, err
}

func (c *chat) turn(id string) thread.Turn {
	c.t.Helper()
	var out thread.Turn
	require.NoError(c.t, c.h.call("GET", "/v1/turns/"+id, nil, &out))
	return out
}

func (c *chat) turns() []thread.Turn {
	c.t.Helper()
	var all []thread.Turn
	for before := ""; ; {
		var out struct {
			Data    []thread.Turn `json:"data"`
			HasMore bool          `json:"has_more"`
		}
		require.NoError(c.t, c.h.call("GET", "/v1/threads/"+c.id+"/turns?limit=500&before="+before, nil, &out))
		all = append(all, out.Data...)
		if !out.HasMore {
			slices.Reverse(all)
			return all
		}
		before = out.Data[len(out.Data)-1].ID
	}
}

func (c *chat) steps(turn string) []thread.Step {
	c.t.Helper()
	var out struct {
		Data []thread.Step `json:"data"`
	}
	require.NoError(c.t, c.h.call("GET", "/v1/turns/"+turn+"/steps?limit=500", nil, &out))
	return out.Data
}

func (c *chat) messages() []thread.Message {
	c.t.Helper()
	var all []thread.Message
	for before := ""; ; {
		var out struct {
			Data    []thread.Message `json:"data"`
			HasMore bool             `json:"has_more"`
		}
		require.NoError(c.t, c.h.call("GET", "/v1/threads/"+c.id+"/messages?limit=500&before="+before, nil, &out))
		all = append(out.Data, all...)
		if !out.HasMore {
			return all
		}
		before = out.Data[0].ID
	}
}

// screen is the conversation as lines "role: text", without notices.
func (c *chat) screen() []string {
	c.t.Helper()
	var lines []string
	for _, m := range c.messages() {
		if m.Role != thread.RoleNotice {
			lines = append(lines, string(m.Role)+": "+m.Text)
		}
	}
	return lines
}

// said is the conversation of a request as lines "role: text", without what was not said to anyone.
func said(r scripted.Request) []string {
	var lines []string
	for _, m := range r.Messages {
		if (m.Role == "user" || m.Role == "assistant") && len(m.Calls) == 0 && !strings.HasPrefix(m.Text, scripted.NoteTag) {
			lines = append(lines, m.Role+": "+m.Text)
		}
	}
	return lines
}

// requests are the chat's, as the provider got them.
func (c *chat) requests() []scripted.Request { return c.h.model.RequestsOf(c.marker) }

// checkOrder checks, of a chat whose last turn has answered, that the screen shows what the model was shown, in its order,
// and then the answer.
func (c *chat) checkOrder() {
	c.t.Helper()
	all := c.requests()
	require.NotEmpty(c.t, all)
	c.checkOrderIn(all[len(all)-1:])
}

// checkOrderIn is checkOrder where two holders of a turn ask on their own: the answer is to one of the requests.
func (c *chat) checkOrderIn(requests []scripted.Request) {
	c.t.Helper()
	screen := c.screen()
	require.NotEmpty(c.t, screen)
	last := len(screen) - 1
	asked := func(r scripted.Request) bool { return slices.Equal(said(r), screen[:last]) }
	if !strings.HasPrefix(screen[last], "assistant: ") || !slices.ContainsFunc(requests, asked) {
		c.t.Fatalf("the screen is not what the model was shown, and the answer:\nscreen %s\nmodel  %s",
			brief(screen), brief(said(requests[len(requests)-1])))
	}
}

// brief is a list of lines for a failure's text.
func brief(lines []string) string {
	var b strings.Builder
	for _, l := range lines {
		fmt.Fprintf(&b, "\n  %.100q (%d)", l, len(l))
	}
	return b.String()
}

// An event is one of the stream, with the fields that some events have.
type event struct {
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

// A watch follows a thread's events, through whichever API process lives, and gathers them. That none is missed and none
// comes twice is checked with each.
type watch struct {
	h      *house
	path   string
	cancel context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex
	events  []event
	last    int64
	broken  string // what was wrong with the stream
	opened  int
	changed chan struct{}
}

func (h *house) follow(threadID string, after int64) *watch {
	ctx, cancel := context.WithCancel(context.Background())
	w := &watch{
		h: h, path: "/v1/threads/" + threadID + "/events", cancel: cancel, done: make(chan struct{}), last: after,
		changed: make(chan struct{}),
	}
	go func() {
		defer close(w.done)
		for ctx.Err() == nil {
			w.read(ctx)
			select {
			case <-ctx.Done():
			case <-time.After(pollEvery): // as a browser does
			}
		}
	}()
	return w
}

func (w *watch) close() {
	w.cancel()
	<-w.done
}

// read holds one connection until it breaks.
func (w *watch) read(ctx context.Context) {
	req, err := http.NewRequestWithContext(ctx, "GET", w.h.url()+w.path, nil)
	if err != nil {
		return
	}
	req.Header.Set("Authorization", "Bearer "+apiKey)
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
	var e event
	for r := bufio.NewReader(resp.Body); ; {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		switch field, value, _ := strings.Cut(strings.TrimSpace(line), ": "); field {
		case "event":
			e = event{Name: thread.EventName(value)}
		case "data":
			w.add(e, value)
		}
	}
}

func (w *watch) add(e event, data string) {
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

func (w *watch) all() []event {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.events)
}

func (w *watch) names() string {
	var names []string
	for _, e := range w.all() {
		names = append(names, string(e.Name))
	}
	return strings.Join(names[max(0, len(names)-60):], " ")
}

// await waits for an event that is wanted, those that have come included.
func (c *chat) await(what string, want func(event) bool) event {
	c.t.Helper()
	found, err := c.watch.await(want)
	if err != nil {
		c.t.Fatalf("waited in vain for %s: %v", what, err)
	}
	return found
}

func (w *watch) await(want func(event) bool) (event, error) {
	timeout := time.After(patience)
	for next := 0; ; {
		w.mu.Lock()
		events, changed, broken := w.events, w.changed, w.broken
		w.mu.Unlock()
		if broken != "" {
			return event{}, fmt.Errorf("the event stream is broken: %s", broken)
		}
		for ; next < len(events); next++ {
			if want(events[next]) {
				return events[next], nil
			}
		}
		select {
		case <-changed:
		case <-timeout:
			return event{}, context.DeadlineExceeded
		}
	}
}

func (c *chat) awaitNamed(name thread.EventName, turn string) event {
	c.t.Helper()
	return c.await(fmt.Sprintf("%s of %s", name, turn), func(e event) bool { return e.Name == name && e.TurnID == turn })
}

// ended waits for the end of a turn and returns its event.
func (c *chat) ended(turn string) event {
	c.t.Helper()
	return c.await("the end of "+turn, func(e event) bool {
		return e.TurnID == turn && (e.Name == thread.EventTurnSucceeded || e.Name == thread.EventTurnFailed || e.Name == thread.EventTurnCancelled)
	})
}

// answered waits for the end of a turn that must succeed.
func (c *chat) answered(turn string) {
	c.t.Helper()
	e := c.ended(turn)
	require.Equal(c.t, thread.EventTurnSucceeded, e.Name, "turn %s: %+v", turn, e.Turn.Error)
}

// idle waits until nothing runs or waits in the chat.
func (c *chat) idle() {
	c.t.Helper()
	c.h.until("the chat to come to rest", func() bool {
		return c.h.count(`SELECT count(*) FROM turns WHERE thread_id = $1 AND status IN ('queued', 'running')`, c.id) == 0 &&
			c.h.count(`SELECT count(*) FROM steering WHERE thread_id = $1 AND state = 'queued'`, c.id) == 0
	})
}

// times counts how often text was in a chat's delivered messages.
func (c *chat) times(text string) int {
	c.t.Helper()
	n := 0
	for _, m := range c.messages() {
		if m.State == thread.MessageDelivered && m.Role == thread.RoleUser {
			n += strings.Count(m.Text, text)
		}
	}
	return n
}
