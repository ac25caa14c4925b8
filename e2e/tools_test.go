package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"bobbin/llm/scripted"
)

// A toolServer is the operator's: look reads, put may be repeated, charge has side effects and may not. Every call is
// recorded as it arrives, which is when its effect happens.
type toolServer struct {
	url string

	mu    sync.Mutex
	calls []toolCall
	gates map[string]*gate
}

// A toolCall is one call as it arrived.
type toolCall struct {
	Tool string
	Key  string // what the model asked for, and the call is known by
	Once string // its Idempotency-Key
}

// A gate holds calls, or a scripted reply, until it is opened.
type gate struct {
	arrived chan toolCall
	open    chan struct{}
	once    sync.Once
}

func newGate() *gate { return &gate{arrived: make(chan toolCall, 100), open: make(chan struct{})} }

func (g *gate) release() { g.once.Do(func() { close(g.open) }) }

func newToolServer(t *testing.T) *toolServer {
	s := &toolServer{gates: map[string]*gate{}}
	web := httptest.NewServer(s)
	t.Cleanup(func() {
		s.releaseAll()
		web.CloseClientConnections()
		web.Close()
	})
	s.url = web.URL
	return s
}

func (s *toolServer) file() string {
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

// gate holds every call with a key from now on. wait for its arrival, then release it.
func (s *toolServer) gate(key string) *gate {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := newGate()
	s.gates[key] = g
	return g
}

func (s *toolServer) releaseAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.gates {
		g.release()
	}
}

// called returns the calls with a key, in the order of their arrival.
func (s *toolServer) called(key string) []toolCall {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []toolCall
	for _, c := range s.calls {
		if c.Key == key {
			list = append(list, c)
		}
	}
	return list
}

func (s *toolServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
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
	call := toolCall{Tool: strings.TrimPrefix(r.URL.Path, "/"), Key: in.Arguments.Key, Once: r.Header.Get("Idempotency-Key")}
	s.mu.Lock()
	s.calls = append(s.calls, call)
	g := s.gates[call.Key]
	s.mu.Unlock()
	if g != nil {
		g.arrived <- call
		select {
		case <-g.open:
		case <-r.Context().Done():
			return
		}
	}
	_, _ = fmt.Fprintf(w, "result of %s %s", call.Key, strings.Repeat("x", in.Arguments.Size))
}

// arrives waits until a call has come to a gate.
func (h *house) arrives(g *gate) toolCall {
	h.t.Helper()
	select {
	case c := <-g.arrived:
		return c
	case <-time.After(patience):
		h.fail("waited in vain for a tool call")
		return toolCall{}
	}
}

// ask is the model's reply that asks for one call of a tool for each key.
func ask(tool string, keys ...string) scripted.Reply {
	var r scripted.Reply
	for _, key := range keys {
		args, _ := json.Marshal(map[string]any{"key": key}) // a string always encodes
		r.Calls = append(r.Calls, scripted.Call{Name: tool, Arguments: string(args)})
	}
	return r
}
