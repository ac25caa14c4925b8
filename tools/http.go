package tools

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
)

const (
	// failureLimit is how many bytes of a failure's body the model reads: enough for a sentence or a problem document.
	failureLimit = 2 << 10
	// minSecret is the length, in bytes, from which a value from the environment is taken out of a server's answers. A
	// shorter one is no secret and would be found by chance.
	minSecret = 8
)

// httpTool runs calls by a request to the operator's server.
type httpTool struct {
	method  string
	url     string
	headers http.Header
	secrets []string // values from the environment: they never reach the model, even if the server repeats them
	limit   int      // bytes of a result
	once    bool     // a request that may have arrived is not sent again
	clients httpClients
}

// httpClients follow no redirect, which would take the headers elsewhere. A kept connection may turn out to be closed, and
// net/http then repeats a request that carries an Idempotency-Key (https://pkg.go.dev/net/http#Transport). So a tool with side
// effects has a connection of its own for each call; for the others, of which a turn makes many, connections are kept.
type httpClients struct{ fresh, kept *http.Client }

// keptConns is how many connections to one server wait for the next call: as many as a worker has stints by default.
const keptConns = 100

func newHTTPClients() httpClients {
	client := func(t *http.Transport) *http.Client {
		return &http.Client{
			Transport:     t,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	}
	fresh, kept := http.DefaultTransport.(*http.Transport).Clone(), http.DefaultTransport.(*http.Transport).Clone()
	fresh.DisableKeepAlives = true
	kept.MaxIdleConns, kept.MaxIdleConnsPerHost = 0, keptConns
	return httpClients{fresh: client(fresh), kept: client(kept)}
}

// payload is what Bobbin sends.
type payload struct {
	CallID    string          `json:"call_id"`
	ThreadID  string          `json:"thread_id"`
	TurnID    string          `json:"turn_id"`
	Arguments json.RawMessage `json:"arguments"`
}

func (h *httpTool) run(ctx context.Context, c Call) (string, error) {
	req, err := h.request(ctx, c)
	if err != nil {
		return "", err
	}
	client := h.clients.kept
	if h.once {
		client = h.clients.fresh
		req.GetBody = nil // without it net/http cannot repeat the request
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", unanswered(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return "", h.refused(resp)
	}
	text, err := h.read(resp.Body, h.limit+1)
	if err != nil {
		return "", fmt.Errorf("its server broke off in its answer (%w). Whether it took effect is unknown", err)
	}
	return text, nil
}

func (h *httpTool) request(ctx context.Context, c Call) (*http.Request, error) {
	body, err := json.Marshal(payload{c.Key, c.ThreadID, c.TurnID, c.Arguments})
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, h.method, h.url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header = h.headers.Clone()
	req.Header.Set("Content-Type", "application/json")
	// https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/
	req.Header.Set("Idempotency-Key", c.Key)
	return req, nil
}

// unanswered tells a request without an answer. A failed dial means that nothing was sent.
func unanswered(err error) error {
	err = inner(err)
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return fmt.Errorf("its server could not be reached (%w). Try again later or go on without it", err)
	}
	return fmt.Errorf("its server gave no answer (%w). Whether it took effect is unknown", err)
}

// refused tells an answer other than 2xx.
func (h *httpTool) refused(resp *http.Response) error {
	body, _ := h.read(resp.Body, failureLimit+1) // what could be read says more than why the rest could not
	short, long := cut(strings.TrimSpace(body), failureLimit)
	if long {
		short += " …"
	}
	if short == "" {
		short = "(no text)"
	}
	return fmt.Errorf("its server answered HTTP %d %s: %s", resp.StatusCode, http.StatusText(resp.StatusCode), short)
}

// read returns the first limit bytes, with asterisks for secrets. It reads so much further that it sees whole what
// begins before the limit.
func (h *httpTool) read(r io.Reader, limit int) (string, error) {
	longest := 0
	for _, s := range h.secrets {
		longest = max(longest, len(s))
	}
	raw, err := io.ReadAll(io.LimitReader(r, int64(limit+longest)))
	text := string(raw)
	for _, s := range h.secrets {
		text = strings.ReplaceAll(text, s, strings.Repeat("*", len(s)))
	}
	return text[:min(len(text), limit)], err
}

// inner takes the address off an error of net/http: it may hold a key in its query.
func inner(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}
