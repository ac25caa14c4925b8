package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"bobbin/llm/scripted"
)

// A model is the provider. Each turn carries the name of its script in what is written to it.
type model struct {
	*scripted.Server
	web     *httptest.Server
	scripts sync.Map // *script by name
	next    atomic.Int64
}

// A script says how the requests of one turn are answered, and tells of them.
type script struct {
	name    string // as it stands in messages
	play    func(r scripted.Request, round int) scripted.Reply
	arrived chan scripted.Request // each request of the turn
	model   *model
}

// keep is how many requests the provider remembers.
const keep = 64

func openModel() (*model, error) {
	m := &model{}
	m.Server = scripted.New(scripted.Options{Play: m.answer, OnRequest: m.tell, Keep: keep})
	m.web = httptest.NewServer(m.Server)
	return m, nil
}

func (m *model) close() {
	m.Close()
	m.web.CloseClientConnections()
	m.web.Close()
}

func (m *model) url() string { return m.web.URL + "/v1" }

// script enters a new script. Done must be called.
func (m *model) script(play func(r scripted.Request, round int) scripted.Reply) *script {
	s := &script{name: fmt.Sprintf("[b%d]", m.next.Add(1)), play: play, arrived: make(chan scripted.Request, 100), model: m}
	m.scripts.Store(s.name, s)
	return s
}

func (s *script) done() { s.model.scripts.Delete(s.name) }

// next waits for the turn's next request.
func (s *script) next() (scripted.Request, error) {
	select {
	case r := <-s.arrived:
		return r, nil
	case <-time.After(patience):
		return scripted.Request{}, errors.New("the model request did not come")
	}
}

var named = regexp.MustCompile(`\[b\d+\]`)

// find returns the script that a request is of, the last one that is named, and how often the assistant spoke since.
func (m *model) find(r scripted.Request) (s *script, round int) {
	for i := len(r.Messages) - 1; i >= 0; i-- {
		msg := r.Messages[i]
		if msg.Role == "assistant" {
			round++
		}
		if msg.Role != "user" {
			continue
		}
		if name := named.FindString(msg.Text); name != "" {
			if v, ok := m.scripts.Load(name); ok {
				return v.(*script), round
			}
		}
	}
	return nil, round
}

func (m *model) tell(r scripted.Request) {
	if s, _ := m.find(r); s != nil {
		select {
		case s.arrived <- r:
		default: // nobody counts them
		}
	}
}

func (m *model) answer(r scripted.Request) scripted.Reply {
	s, round := m.find(r)
	if s == nil {
		return scripted.Say("Nobody asked.")
	}
	return s.play(r, round)
}

// say is a script of one round.
func say(scripted.Request, int) scripted.Reply { return scripted.Say("Done.") }

// looks is a script of n rounds: one call of the tool look in each, with a key of its own, and the answer in the last.
func looks(n int, key string) func(scripted.Request, int) scripted.Reply {
	return func(_ scripted.Request, round int) scripted.Reply {
		if round >= n-1 {
			return scripted.Say("Done.")
		}
		return look(fmt.Sprintf("%s-%d", key, round))
	}
}

func look(key string) scripted.Reply { return scripted.Ask("look", fmt.Sprintf(`{"key":%q}`, key)) }

// A toolServer is the operator's, with one tool, look, which only reads.
type toolServer struct {
	web *httptest.Server

	mu    sync.Mutex
	gates map[string]*gate
	log   func(key string) // called with each call as it arrives; nil: not
	ends  map[string]time.Time
}

// A gate holds a call until it is opened.
type gate struct {
	arrived chan struct{}
	open    chan struct{}
}

func openTools() (*toolServer, error) {
	s := &toolServer{gates: map[string]*gate{}, ends: map[string]time.Time{}}
	s.web = httptest.NewServer(s)
	return s, nil
}

func (s *toolServer) close() {
	s.web.CloseClientConnections()
	s.web.Close()
}

func (s *toolServer) url() string { return s.web.URL + "/look" }

// file is the tools file of a worker.
func (s *toolServer) file() string {
	return fmt.Sprintf(`- name: look
  description: Looks something up.
  url: %s
  read_only: true
  parameters: {type: object, required: [key], properties: {key: {type: string}}}
`, s.url())
}

// hold makes calls with key wait.
func (s *toolServer) hold(key string) *gate {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := &gate{arrived: make(chan struct{}, 10), open: make(chan struct{})}
	s.gates[key] = g
	return g
}

// comes waits until a call is held.
func (g *gate) comes() error {
	select {
	case <-g.arrived:
		return nil
	case <-time.After(patience):
		return errors.New("the tool call did not come")
	}
}

// ended returns when the result of a call was sent.
func (s *toolServer) ended(key string) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.ends[key]
	delete(s.ends, key)
	return at
}

func (s *toolServer) listen(f func(key string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = f
}

func (s *toolServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key, err := keyOf(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	g, log := s.gates[key], s.log
	s.mu.Unlock()
	if log != nil {
		log(key)
	}
	if g != nil {
		g.arrived <- struct{}{}
		select {
		case <-g.open:
		case <-r.Context().Done():
			return
		}
	}
	s.mu.Lock()
	s.ends[key] = time.Now()
	delete(s.gates, key)
	s.mu.Unlock()
	_, _ = fmt.Fprintf(w, "What is known of %s: %s", key, strings.Repeat("x", 200))
}

// lastKey is the key of the last call of the tool in a request.
func lastKey(r scripted.Request) string {
	for i := len(r.Messages) - 1; i >= 0; i-- {
		for _, c := range r.Messages[i].Calls {
			var in struct{ Key string }
			if json.Unmarshal([]byte(c.Arguments), &in) == nil {
				return in.Key
			}
		}
	}
	return ""
}
