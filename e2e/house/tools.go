package house

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"bobbin/llm/scripted"
)

// Tools are the operator's server of tools: look reads, put may be repeated, charge has side effects and may not. Every call is
// recorded as it arrives, which is when its effect happens.
type Tools struct {
	// Do, if set before a process starts, is called with each call once it is recorded, and may block. What it returns is the
	// status of the answer, 0 for 200.
	Do func(ToolCall) int

	url string

	mu    sync.Mutex
	calls []ToolCall
	gates map[string]*Gate
}

// A ToolCall is one call as it arrived.
type ToolCall struct {
	Tool string // look, put or charge
	Key  string // what the model asked for, and the call is known by
	Once string // its Idempotency-Key
}

// A Gate holds calls, or a scripted reply, until it is opened.
type Gate struct {
	Open chan struct{} // closed by Release

	arrived, answered chan ToolCall
	once              sync.Once
}

// NewGate makes a closed gate, for a scripted reply.
func NewGate() *Gate {
	return &Gate{arrived: make(chan ToolCall, 100), answered: make(chan ToolCall, 100), Open: make(chan struct{})}
}

// Arrived has each call that comes to the gate.
func (g *Gate) Arrived() <-chan ToolCall { return g.arrived }

// Answered has each call whose answer was sent, perhaps to nobody.
func (g *Gate) Answered() <-chan ToolCall { return g.answered }

// Release opens the gate for good. It may be called again.
func (g *Gate) Release() { g.once.Do(func() { close(g.Open) }) }

func newTools(t *testing.T) *Tools {
	s := &Tools{gates: map[string]*Gate{}}
	web := httptest.NewServer(s)
	t.Cleanup(func() {
		s.releaseAll()
		web.CloseClientConnections()
		web.Close()
	})
	s.url = web.URL
	return s
}

func (s *Tools) file() string {
	var b strings.Builder
	for _, tool := range []string{"look: read_only: true", "put: idempotent: true", "charge: timeout: 1m"} {
		name, more, _ := strings.Cut(tool, ": ")
		fmt.Fprintf(&b, `- name: %s
  description: A tool of the tests.
  url: %s/%s
  %s
  parameters:
    type: object
    required: [key]
    properties:
      key: {type: string}
      size: {type: integer}
`, name, s.url, name, more)
	}
	return b.String()
}

// Gate holds every call with a key from now on. Wait for its arrival, then release it.
func (s *Tools) Gate(key string) *Gate {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := NewGate()
	s.gates[key] = g
	return g
}

func (s *Tools) releaseAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.gates {
		g.Release()
	}
}

// Called returns the calls with a key, in the order of their arrival.
func (s *Tools) Called(key string) []ToolCall {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []ToolCall
	for _, c := range s.calls {
		if c.Key == key {
			list = append(list, c)
		}
	}
	return list
}

// All returns every call, in the order of their arrival.
func (s *Tools) All() []ToolCall {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

func (s *Tools) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Arguments struct {
			Key  string `json:"key"`
			Size int    `json:"size"`
		} `json:"arguments"`
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	call := ToolCall{Tool: strings.TrimPrefix(r.URL.Path, "/"), Key: in.Arguments.Key, Once: r.Header.Get("Idempotency-Key")}
	s.mu.Lock()
	s.calls = append(s.calls, call)
	g := s.gates[call.Key]
	s.mu.Unlock()
	if g != nil {
		g.arrived <- call
		select {
		case <-g.Open:
		case <-r.Context().Done():
			return
		}
	}
	if s.Do != nil {
		if status := s.Do(call); status >= 400 {
			http.Error(w, "The tool cannot do that.", status)
			return
		}
	}
	_, _ = fmt.Fprintf(w, "result of %s %s", call.Key, strings.Repeat("x", in.Arguments.Size))
	if g != nil {
		_ = http.NewResponseController(w).Flush() // who is gone is told nothing
		g.answered <- call
	}
}

// Arrives waits until a call has come to a gate.
func (h *House) Arrives(g *Gate) ToolCall {
	h.T.Helper()
	select {
	case c := <-g.arrived:
		return c
	case <-time.After(Patience):
		h.Fail("waited in vain for a tool call")
		return ToolCall{}
	}
}

// Ask is the model's reply that asks for one call of a tool for each key.
func Ask(tool string, keys ...string) scripted.Reply {
	var r scripted.Reply
	for _, key := range keys {
		args, _ := json.Marshal(map[string]any{"key": key}) // a string always encodes
		r.Calls = append(r.Calls, scripted.Call{Name: tool, Arguments: string(args)})
	}
	return r
}

// Step lets a gated reply pass n points.
func Step(g chan<- struct{}, n int) {
	for range n {
		g <- struct{}{}
	}
}
