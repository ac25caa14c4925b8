package house

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"bobbin/contract"
	"bobbin/llm/scripted"
	"bobbin/thread"
)

// A Chat is one person at one thread, who watches it from its start.
type Chat struct {
	H      *House
	T      *testing.T
	ID     string
	Marker string // stands in what the person writes first, so that the provider knows the chat by it
	Watch  *Watch
}

// Accepted is the API's answer to a message.
type Accepted struct {
	Message struct {
		ID    string              `json:"id"`
		Text  string              `json:"text"`
		State thread.MessageState `json:"state"`
		Parts int                 `json:"parts"`
	} `json:"message"`
	Disposition thread.Disposition `json:"disposition"`
	TurnID      string             `json:"turn_id"`
}

// Stopped is the API's answer to a stop.
type Stopped struct {
	Stopped   []string          `json:"stopped"`
	Withdrawn *thread.Withdrawn `json:"withdrawn"`
}

// A Problem is what the API answers instead. What is no problem document has a status alone.
type Problem struct {
	Status int
	Code   string `json:"code"`
	Detail string `json:"detail"`
}

func (p *Problem) Error() string { return fmt.Sprintf("HTTP %d %s: %s", p.Status, p.Code, p.Detail) }

// Chat opens a thread whose requests at the provider are answered by play.
func (h *House) Chat(play scripted.Play) *Chat {
	t := h.T
	t.Helper()
	var th thread.Thread
	require.NoError(t, h.Call("POST", "/v1/threads", nil, &th))
	h.mu.Lock()
	h.chats++
	c := &Chat{H: h, T: t, ID: th.ID, Marker: fmt.Sprintf("chat%d.", h.chats)}
	h.mu.Unlock()
	h.Model.On(c.Marker, play)
	c.Watch = h.Follow(th.ID, 0)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s is thread %s; its events: %s", c.Marker, c.ID, c.Watch.Names())
		}
		c.Watch.Close()
	})
	return c
}

// WorkflowID is that of the chat's thread.
func (c *Chat) WorkflowID() string { return contract.ThreadWorkflowID(c.ID) }

// Call makes one request and decodes its answer, or returns the Problem that came instead. headers are names and
// values in turn.
func (h *House) Call(method, path string, body, out any, headers ...string) error {
	var r io.Reader
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			return err
		}
		r = bytes.NewReader(raw)
	}
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, h.URL()+path, r)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+APIKey)
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
		p := &Problem{Status: resp.StatusCode}
		_ = json.Unmarshal(raw, p)
		return p
	}
	return json.Unmarshal(raw, out)
}

// A With changes a message before it is sent.
type With func(body map[string]any, headers *[]string)

// Delivery says how a message is to be delivered.
func Delivery(d thread.Delivery) With {
	return func(b map[string]any, _ *[]string) { b["delivery"] = d }
}

// ReplyTo makes a message a reply to another, and so a turn of its own.
func ReplyTo(id string) With { return func(b map[string]any, _ *[]string) { b["reply_to"] = id } }

// Key makes a message known by an idempotency key.
func Key(k string) With {
	return func(_ map[string]any, h *[]string) { *h = append(*h, "Idempotency-Key", k) }
}

// Files are what a message brings. fil_1 and fil_7 are there in every house.
func Files(ids ...string) With { return func(b map[string]any, _ *[]string) { b["attachments"] = ids } }

// TrySend sends a message; the error is a Problem, or that nobody answered.
func (c *Chat) TrySend(text string, mods ...With) (Accepted, error) {
	body := map[string]any{"text": text}
	var headers []string
	for _, m := range mods {
		m(body, &headers)
	}
	var out Accepted
	err := c.H.Call("POST", "/v1/threads/"+c.ID+"/messages", body, &out, headers...)
	return out, err
}

// Send sends a message that must be accepted.
func (c *Chat) Send(text string, mods ...With) Accepted {
	c.T.Helper()
	out, err := c.TrySend(text, mods...)
	require.NoError(c.T, err, "send %.60q", text)
	return out
}

// Start sends the first message, which carries the marker.
func (c *Chat) Start(text string, mods ...With) Accepted { return c.Send(c.Marker+" "+text, mods...) }

// Stop stops what runs; scope is conversation or all.
func (c *Chat) Stop(scope string) Stopped {
	c.T.Helper()
	var out Stopped
	require.NoError(c.T, c.H.Call("POST", "/v1/threads/"+c.ID+"/stop", map[string]any{"scope": scope}, &out))
	return out
}

// Withdraw takes the steering message back.
func (c *Chat) Withdraw() (thread.Withdrawn, error) {
	var out thread.Withdrawn
	err := c.H.Call("DELETE", "/v1/threads/"+c.ID+"/steering", nil, &out)
	return out, err
}

// WithdrawMessage takes back any message that still waits.
func (c *Chat) WithdrawMessage(id string) (thread.Withdrawn, error) {
	var out thread.Withdrawn
	err := c.H.Call("DELETE", "/v1/messages/"+id, nil, &out)
	return out, err
}

// Turn reads one turn.
func (c *Chat) Turn(id string) thread.Turn {
	c.T.Helper()
	var out thread.Turn
	require.NoError(c.T, c.H.Call("GET", "/v1/turns/"+id, nil, &out))
	return out
}

// Turns reads all turns of the chat, the oldest first.
func (c *Chat) Turns() []thread.Turn {
	c.T.Helper()
	var all []thread.Turn
	for before := ""; ; {
		var out struct {
			Data    []thread.Turn `json:"data"`
			HasMore bool          `json:"has_more"`
		}
		require.NoError(c.T, c.H.Call("GET", "/v1/threads/"+c.ID+"/turns?limit=500&before="+before, nil, &out))
		all = append(all, out.Data...)
		if !out.HasMore {
			slices.Reverse(all)
			return all
		}
		before = out.Data[len(out.Data)-1].ID
	}
}

// Steps reads the steps of a turn.
func (c *Chat) Steps(turn string) []thread.Step {
	c.T.Helper()
	var out struct {
		Data []thread.Step `json:"data"`
	}
	require.NoError(c.T, c.H.Call("GET", "/v1/turns/"+turn+"/steps?limit=500", nil, &out))
	return out.Data
}

// Messages reads the whole conversation.
func (c *Chat) Messages() []thread.Message {
	c.T.Helper()
	var all []thread.Message
	for before := ""; ; {
		var out struct {
			Data    []thread.Message `json:"data"`
			HasMore bool             `json:"has_more"`
		}
		require.NoError(c.T, c.H.Call("GET", "/v1/threads/"+c.ID+"/messages?limit=500&before="+before, nil, &out))
		all = append(out.Data, all...)
		if !out.HasMore {
			return all
		}
		before = out.Data[0].ID
	}
}

// Requests are the chat's, as the provider got them.
func (c *Chat) Requests() []scripted.Request { return c.H.Model.RequestsOf(c.Marker) }

// Idle waits until nothing runs or waits in the chat.
func (c *Chat) Idle() {
	c.T.Helper()
	c.H.Until("the chat to come to rest", func() bool {
		return c.H.Count(`SELECT count(*) FROM turns WHERE thread_id = $1 AND status IN ('queued', 'running')`, c.ID) == 0 &&
			c.H.Count(`SELECT count(*) FROM steering WHERE thread_id = $1 AND state = 'queued'`, c.ID) == 0
	})
}

// Insist sends a message under a key, again and again while the API says that it is unavailable.
func (c *Chat) Insist(text string) Accepted {
	c.T.Helper()
	var out Accepted
	c.H.Until("the API to accept", func() (done bool) {
		var err error
		if out, err = c.TrySend(text, Key(c.Marker+text)); err != nil {
			RequireOneOf(c.T, err, "unavailable")
		}
		return err == nil
	})
	return out
}

// RequireProblem fails the test unless err is that problem.
func RequireProblem(t require.TestingT, err error, status int, code string) {
	var p *Problem
	require.ErrorAs(t, err, &p)
	require.Equal(t, []any{status, code}, []any{p.Status, p.Code})
}

// RequireOneOf fails the test unless err is a problem with one of the codes.
func RequireOneOf(t require.TestingT, err error, codes ...string) {
	var p *Problem
	require.ErrorAs(t, err, &p)
	require.Contains(t, codes, p.Code)
}

// Through is the same chat, written to through one of the house's APIs. What it sees comes as before.
func (c *Chat) Through(api *Process) *Chat {
	other := *c
	other.H = c.H.Through(api)
	return &other
}
