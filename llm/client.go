package llm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sashabaranov/go-openai"

	"bobbin/thread"
)

// The defaults of Config.
const (
	DefaultBaseURL          = "https://api.openai.com/v1"
	DefaultFirstByteTimeout = 60 * time.Second
	DefaultIdleTimeout      = 60 * time.Second
	DefaultCallTimeout      = 10 * time.Minute

	DefaultReservedOutputTokens = 16_384
	DefaultLeastOutputTokens    = 1_024
)

// A Config says which model to call and how long to wait for it. Zero durations mean the defaults.
type Config struct {
	// BaseURL is the address that ends in the version, as in DefaultBaseURL, which an empty one means. A query, such as
	// Azure's api-version, is kept.
	BaseURL string
	// APIKey is sent as a bearer token. Empty: no Authorization header, as local servers like it.
	APIKey string
	// Model is the model's name as the provider knows it; required.
	Model string
	// MaxOutputTokens bounds what one call may write, thinking included. 0: the provider's own limit.
	MaxOutputTokens int
	// ReasoningEffort is sent as it is: "none", "low", "medium" … Empty: not sent, but for the models that take tools
	// on this endpoint at "none" alone.
	ReasoningEffort string
	// Prices turns tokens into Reply.Usage.Cost. Nil: nothing costs anything.
	Prices *Prices
	// ReservedOutputTokens bounds a call of an owner with a spending limit, where MaxOutputTokens is not lower: that is
	// reserved for it, so more it may not write. 0: the default.
	ReservedOutputTokens int
	// LeastOutputTokens is the shortest bound with which a call is still worth making, where little is left to spend. 0:
	// the default.
	LeastOutputTokens int
	// ContextTokens is the model's window, in which such a call's prompt and answer must fit: some servers refuse a bound that
	// does not leave room for the prompt. 0: not known.
	ContextTokens int

	// FirstByteTimeout bounds the wait for the first byte of the answer's body; keep-alive comments count.
	FirstByteTimeout time.Duration
	// IdleTimeout bounds the wait between two pieces of the stream. Time spent in onText does not count.
	IdleTimeout time.Duration
	// CallTimeout bounds the whole call.
	CallTimeout time.Duration
}

// A Client calls one model. It is safe for concurrent use.
type Client struct {
	cfg      Config
	endpoint string
	http     *http.Client

	// What this provider has refused by name, and is not sent again.
	noStreamOptions atomic.Bool
	noMaxCompletion atomic.Bool
}

// New returns a client, or one error that lists everything that is wrong with cfg. It does not call the provider.
func New(cfg Config) (*Client, error) {
	cfg = cfg.withDefaults()
	endpoint, err := endpointOf(cfg.BaseURL)
	if cfg.Model == "" {
		err = errors.Join(err, errors.New("no model is named"))
	}
	if cfg.MaxOutputTokens < 0 {
		err = errors.Join(err, errors.New("the limit of output tokens is negative"))
	}
	if err != nil {
		return nil, fmt.Errorf("model client: %w", err)
	}
	return &Client{cfg: cfg, endpoint: endpoint, http: newHTTPClient()}, nil
}

func (c Config) withDefaults() Config {
	c.APIKey = strings.TrimSpace(c.APIKey)
	c.Model = strings.TrimSpace(c.Model)
	if c.BaseURL == "" {
		c.BaseURL = DefaultBaseURL
	}
	if c.FirstByteTimeout <= 0 {
		c.FirstByteTimeout = DefaultFirstByteTimeout
	}
	if c.IdleTimeout <= 0 {
		c.IdleTimeout = DefaultIdleTimeout
	}
	if c.CallTimeout <= 0 {
		c.CallTimeout = DefaultCallTimeout
	}
	if c.ReservedOutputTokens <= 0 {
		c.ReservedOutputTokens = DefaultReservedOutputTokens
	}
	if c.LeastOutputTokens <= 0 {
		c.LeastOutputTokens = DefaultLeastOutputTokens
	}
	return c
}

func endpointOf(base string) (string, error) {
	u, err := url.Parse(base)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		// The address is not repeated: it may hold a key.
		return "", errors.New("the base URL is not an http or https address")
	}
	return u.JoinPath("chat", "completions").String(), nil
}

// newHTTPClient returns a client that retries nothing and follows no redirect, which would carry the session elsewhere.
func newHTTPClient() *http.Client {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost = 64 // one for each turn that runs, so that rounds do not open connections
	t.MaxIdleConns = 128
	// A dead HTTP/2 connection would otherwise be handed to the next attempt as well.
	t.HTTP2 = &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 15 * time.Second}
	return &http.Client{
		Transport:     t,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Model is the model's name, as configured.
func (c *Client) Model() string { return c.cfg.Model }

// Call asks the model once and returns its whole reply, mended (see Mend).
//
// onText, which may be nil, gets the answer's text while it is written: valid UTF-8 pieces without NUL, called from the
// calling goroutine. Together they are Reply.Text. Tool calls and reasoning are not shown piece by piece.
//
// When ctx is cancelled the connection to the provider is closed at once and the error satisfies
// errors.Is(err, context.Canceled). Every other error is a *thread.ModelError; ctx's own deadline is a temporary one that
// wraps context.DeadlineExceeded. A reply without text and without calls is no error.
//
// Usage is counted by the provider, or estimated where it sent no count (see Reply.Estimated). Beside an error the reply
// holds what the failed call is estimated to have used: nothing where the provider refused it or was not reached.
//
// A provider that refuses an optional field by name (stream_options, max_completion_tokens) is asked again without it,
// inside the same call: such a refusal reached no model, and the client remembers it. A request with pictures that is
// refused is sent again with the pictures only named: one that the provider cannot read must not end every turn after it.
func (c *Client) Call(ctx context.Context, p thread.Prompt, onText func(string)) (thread.Reply, error) {
	callCtx, cancel := context.WithTimeoutCause(ctx, c.cfg.CallTimeout, errCallTimeout)
	defer cancel()

	names := nameTools(p.Tools)
	for blind := false; ; {
		req, images := c.request(p, names, blind)
		reply, err := c.attempt(callCtx, req, onText)
		var r *refusal
		if errors.As(err, &r) {
			if c.forgo(req, r) {
				continue
			}
			if images > 0 && r.kind() == thread.ModelInvalid && (r.status == http.StatusBadRequest || r.status == http.StatusUnprocessableEntity) {
				blind = true
				continue
			}
			err = r.modelError()
		}
		c.price(&reply, p)
		if err != nil {
			return thread.Reply{Model: reply.Model, Usage: reply.Usage, Estimated: reply.Estimated}, failure(ctx, callCtx, err)
		}
		return c.finish(reply, names)
	}
}

// request renders p with what the provider is known to take, and says how many pictures it shows.
func (c *Client) request(p thread.Prompt, names toolNames, blind bool) (openai.ChatCompletionRequest, int) {
	messages, images := shape(p, names, blind)
	req := openai.ChatCompletionRequest{
		Model:           c.cfg.Model,
		Messages:        messages,
		Tools:           names.tools,
		Stream:          true,
		ReasoningEffort: c.cfg.ReasoningEffort,
	}
	if !c.noStreamOptions.Load() {
		req.StreamOptions = &openai.StreamOptions{IncludeUsage: true}
	}
	if most := lower(c.cfg.MaxOutputTokens, p.MaxOutput); c.noMaxCompletion.Load() {
		req.MaxTokens = most
	} else {
		req.MaxCompletionTokens = most
	}
	return req, images
}

// lower is the lower of two bounds, of which 0 is none.
func lower(a, b int) int {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// forgo reports whether r refuses an optional field of req by name, and remembers not to send it again.
func (c *Client) forgo(req openai.ChatCompletionRequest, r *refusal) bool {
	switch {
	case r.status != http.StatusBadRequest && r.status != http.StatusUnprocessableEntity, r.kind() != thread.ModelInvalid:
		return false
	case req.StreamOptions != nil && r.names("stream_options"):
		c.noStreamOptions.Store(true)
		return true
	case req.MaxCompletionTokens != 0 && r.names("max_completion_tokens"):
		c.noMaxCompletion.Store(true)
		return true
	}
	return false
}

// attempt sends req once and reads the answer. Beside an error it returns what had come of one that had begun: a reply with a
// Model, as there is none without.
func (c *Client) attempt(ctx context.Context, req openai.ChatCompletionRequest, onText func(string)) (thread.Reply, error) {
	body, err := encode(req, c.cfg.ReasoningEffort)
	if err != nil {
		return thread.Reply{}, err
	}
	ctx, watch := newWatchdog(ctx, c.cfg.FirstByteTimeout, c.cfg.IdleTimeout)
	defer watch.stop()
	var sent atomic.Bool
	var begun thread.Reply
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteRequest: func(w httptrace.WroteRequestInfo) {
		if w.Err == nil {
			sent.Store(true)
		}
	}})
	resp, err := c.post(ctx, body)
	if err != nil {
		if sent.Load() {
			begun.Model = c.cfg.Model // it may be at work, and bill what it reads
		}
		return begun, watch.explain(err)
	}
	defer resp.Body.Close()
	watch.body = resp.Body
	if resp.StatusCode != http.StatusOK {
		return thread.Reply{}, readRefusal(resp, watch)
	}
	a := newAssembly(onText)
	a.model = c.cfg.Model // until the provider says which
	err = a.read(watch, resp.Header.Get("Content-Type"))
	if err == nil {
		return a.reply(), nil
	}
	begun = a.reply()
	if r := (*refusal)(nil); errors.As(err, &r) && begun.Estimate() == 0 {
		begun.Model = "" // refused before it wrote anything, only later than usual
	}
	return begun, watch.explain(err)
}

func (c *Client) post(ctx context.Context, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.endpoint, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "text/event-stream")
	req.Header.Set("User-Agent", "bobbin")
	if c.cfg.APIKey != "" {
		req.Header.Set("Authorization", "Bearer "+c.cfg.APIKey)
	}
	return c.http.Do(req)
}

// encode checks req against go-openai's rules for reasoning models and encodes it. Where tools are taken at effort "none"
// alone and no effort was asked for, it asks for that.
func encode(req openai.ChatCompletionRequest, effort string) ([]byte, error) {
	rules := openai.NewReasoningValidator()
	err := rules.Validate(req)
	if errors.Is(err, openai.ErrReasoningToolsRequireResponses) && effort == "" {
		req.ReasoningEffort = openai.ReasoningEffortNone
		err = rules.Validate(req)
	}
	if err != nil {
		return nil, &thread.ModelError{Kind: thread.ModelInvalid, Code: "unsupported_by_model", Err: err}
	}
	body, err := json.Marshal(req)
	if err != nil {
		// Not wrapped: the encoder may quote what it could not encode.
		return nil, &thread.ModelError{Kind: thread.ModelInvalid, Code: "unencodable_request"}
	}
	return body, nil
}

// finish turns what was read into the reply that the caller gets.
func (c *Client) finish(r thread.Reply, names toolNames) (thread.Reply, error) {
	if r.Finish == thread.FinishFiltered && r.Text == "" && len(r.Calls) == 0 {
		return thread.Reply{Model: r.Model, Usage: r.Usage, Estimated: r.Estimated},
			&thread.ModelError{Kind: thread.ModelFiltered, Status: http.StatusOK, Code: "content_filter"}
	}
	r = Mend(r)
	for i := range r.Calls {
		r.Calls[i].Name = names.original(r.Calls[i].Name)
	}
	return r, nil
}
