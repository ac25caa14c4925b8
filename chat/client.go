package chat

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"bobbin/thread"
)

// A Client speaks to one server as one owner. It is safe for concurrent use.
type Client struct {
	BaseURL string // http://127.0.0.1:8080
	Key     string
	HTTP    *http.Client // nil: http.DefaultClient. It must have no time limit, as streams stay open

	// Wait pauses before try n (from 1) of what is tried again, and returns ctx's error if that ends first. Nil: from
	// 250 ms, twice as long each time, 8 s at most.
	Wait func(ctx context.Context, n int) error
}

// A Draft is a message as it is sent. Only Text or Attachments must be given.
type Draft struct {
	Text        string          `json:"text"`
	Attachments []string        `json:"attachments,omitempty"`
	Mentions    []string        `json:"mentions,omitempty"`
	ReplyTo     string          `json:"reply_to,omitempty"`
	Mode        thread.Mode     `json:"mode,omitempty"`
	Delivery    thread.Delivery `json:"delivery,omitempty"`
}

// Sent is what became of a message.
type Sent struct {
	Message struct {
		ID    string              `json:"id"`
		Text  string              `json:"text"`
		State thread.MessageState `json:"state"`
		Parts int                 `json:"parts"`
	} `json:"message"`
	Disposition thread.Disposition `json:"disposition"`
	TurnID      string             `json:"turn_id"`
}

// Stopped is what a stop, a cancel or a reset did.
type Stopped struct {
	Turns     []string          `json:"stopped"`
	Withdrawn *thread.Withdrawn `json:"withdrawn"`
}

// An Error is a refusal of the server. errors.Is matches it with the sentinels of package thread.
type Error struct {
	Status int
	Code   string `json:"code"`
	Detail string `json:"detail"`
	Field  string `json:"field"`
}

func (e *Error) Error() string {
	if e.Detail == "" {
		return fmt.Sprintf("the server answered %d", e.Status)
	}
	return e.Detail
}

var codes = map[error]string{
	thread.ErrNotFound: "not_found", thread.ErrArchived: "thread_archived", thread.ErrNoRunningTurn: "no_running_turn",
	thread.ErrStopping: "stopping", thread.ErrNotSteerable: "not_steerable", thread.ErrAlreadyDelivered: "already_delivered",
	thread.ErrAlreadyWithdrawn: "already_withdrawn", thread.ErrKeyReused: "idempotency_key_reused", thread.ErrConflict: "conflict",
	thread.ErrUnauthorized: "unauthorized", thread.ErrUnavailable: "unavailable",
}

// Is reports whether target is the sentinel that e's code stands for.
func (e *Error) Is(target error) bool { return codes[target] == e.Code && e.Code != "" }

// passing reports whether trying again may help: no answer came, or one that says so.
func passing(err error) bool {
	var e *Error
	if errors.As(err, &e) {
		return e.Status == http.StatusTooManyRequests || e.Status >= 502 && e.Status <= 504
	}
	return err != nil && !errors.Is(err, context.Canceled)
}

func (c *Client) wait(ctx context.Context, n int) error {
	if c.Wait != nil {
		return c.Wait(ctx, n)
	}
	t := time.NewTimer(min(250*time.Millisecond<<min(n-1, 10), 8*time.Second))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

func (c *Client) request(ctx context.Context, method, path string, body any) (*http.Request, error) {
	var r io.Reader
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		r = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimRight(c.BaseURL, "/")+path, r)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+c.Key)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return req, nil
}

func (c *Client) do(req *http.Request) (*http.Response, error) {
	h := c.HTTP
	if h == nil {
		h = http.DefaultClient
	}
	resp, err := h.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode < 300 {
		return resp, nil
	}
	defer func() { _ = resp.Body.Close() }()
	e := &Error{}
	_ = json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(e) // a proxy's page has none
	e.Status = resp.StatusCode
	return nil, e
}

// call sends one request and decodes the answer into out. key is an Idempotency-Key or empty.
func (c *Client) call(ctx context.Context, method, path string, body, out any, key string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	req, err := c.request(ctx, method, path, body)
	if err != nil {
		return err
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := c.do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	return nil
}

// OpenThread opens a thread. The title may be empty.
func (c *Client) OpenThread(ctx context.Context, title string) (*thread.Thread, error) {
	var t thread.Thread
	return &t, c.call(ctx, http.MethodPost, "/v1/threads", map[string]string{"title": title}, &t, "")
}

// Thread reads a thread; "home" names the owner's home thread.
func (c *Client) Thread(ctx context.Context, id string) (*thread.Thread, error) {
	var t thread.Thread
	return &t, c.call(ctx, http.MethodGet, "/v1/threads/"+url.PathEscape(id), nil, &t, "")
}

// Messages reads the newest limit messages, or those before one that is named, oldest first, and whether there are more.
func (c *Client) Messages(ctx context.Context, threadID, before string, limit int) (list []*thread.Message, more bool, err error) {
	q := url.Values{"limit": {strconv.Itoa(limit)}}
	if before != "" {
		q.Set("before", before)
	}
	return page[*thread.Message](ctx, c, "/v1/threads/"+url.PathEscape(threadID)+"/messages?"+q.Encode())
}

// Turns reads the newest limit turns, newest first.
func (c *Client) Turns(ctx context.Context, threadID string, limit int) (list []*thread.Turn, more bool, err error) {
	return page[*thread.Turn](ctx, c, "/v1/threads/"+url.PathEscape(threadID)+"/turns?limit="+strconv.Itoa(limit))
}

// Turn reads one turn.
func (c *Client) Turn(ctx context.Context, id string) (*thread.Turn, error) {
	var t thread.Turn
	return &t, c.call(ctx, http.MethodGet, "/v1/turns/"+url.PathEscape(id), nil, &t, "")
}

// Steps reads at most limit steps of a turn after step number after.
func (c *Client) Steps(ctx context.Context, turnID string, after, limit int) (list []*thread.Step, more bool, err error) {
	return page[*thread.Step](ctx, c, fmt.Sprintf("/v1/turns/%s/steps?after=%d&limit=%d", url.PathEscape(turnID), after, limit))
}

func page[T any](ctx context.Context, c *Client, path string) ([]T, bool, error) {
	var p struct {
		Data    []T  `json:"data"`
		HasMore bool `json:"has_more"`
	}
	err := c.call(ctx, http.MethodGet, path, nil, &p, "")
	return p.Data, p.HasMore, err
}

// sendTries is how often a message is sent before it is given up: 14 seconds with the default waits, which a restart of
// the server needs.
const sendTries = 7

// Send sends a message under an idempotency key, and again under the same key where the answer was lost or the server is
// away for the moment. After an error that is no *Error it is uncertain whether the message arrived; sending it again with
// the same key finds out.
func (c *Client) Send(ctx context.Context, threadID string, d Draft, key string) (Sent, error) {
	for n := 1; ; n++ {
		var s Sent
		err := c.call(ctx, http.MethodPost, "/v1/threads/"+url.PathEscape(threadID)+"/messages", d, &s, key)
		if err == nil || !passing(err) || n == sendTries {
			return s, err
		}
		if c.wait(ctx, n) != nil {
			return s, err
		}
	}
}

// Withdraw takes a message back that was not loaded.
func (c *Client) Withdraw(ctx context.Context, messageID string) (thread.Withdrawn, error) {
	var w thread.Withdrawn
	err := c.call(ctx, http.MethodDelete, "/v1/messages/"+url.PathEscape(messageID), nil, &w, "")
	return w, err
}

// WithdrawSteering takes back the message that waits to be loaded into the running turn.
func (c *Client) WithdrawSteering(ctx context.Context, threadID string) (thread.Withdrawn, error) {
	var w thread.Withdrawn
	err := c.call(ctx, http.MethodDelete, "/v1/threads/"+url.PathEscape(threadID)+"/steering", nil, &w, "")
	return w, err
}

// Stop stops the conversation turn; scope "all" stops background turns and cancels what waits, too.
func (c *Client) Stop(ctx context.Context, threadID, scope string) (Stopped, error) {
	body := map[string]string{}
	if scope != "" {
		body["scope"] = scope
	}
	var s Stopped
	err := c.call(ctx, http.MethodPost, "/v1/threads/"+url.PathEscape(threadID)+"/stop", body, &s, "")
	return s, err
}

// Reset archives a thread. Name it by its own id: a repeat of a reset of "home" archives the fresh one.
func (c *Client) Reset(ctx context.Context, threadID string) (Stopped, error) {
	var s Stopped
	err := c.call(ctx, http.MethodPost, "/v1/threads/"+url.PathEscape(threadID)+"/reset", nil, &s, "")
	return s, err
}

// Cancel stops one turn, or cancels it if it waits.
func (c *Client) Cancel(ctx context.Context, turnID string) (Stopped, error) {
	var s Stopped
	err := c.call(ctx, http.MethodPost, "/v1/turns/"+url.PathEscape(turnID)+"/cancel", nil, &s, "")
	return s, err
}

// Replay puts a failed turn at the end of the line.
func (c *Client) Replay(ctx context.Context, turnID string) (*thread.Turn, error) {
	var t thread.Turn
	return &t, c.call(ctx, http.MethodPost, "/v1/turns/"+url.PathEscape(turnID)+"/replay", nil, &t, "")
}
