package scripted

import (
	"context"
	"crypto/subtle"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"
)

// A Play decides what is answered to a request. It may be called concurrently, and may block: the client waits.
type Play func(Request) Reply

// Options say how a Server behaves. The zero value takes every key and every model, and echoes.
type Options struct {
	// Key, if set, must come as a bearer token.
	Key string
	// Play answers what no Play of Server.On answers; nil: Echo.
	Play Play
	// Models, if set, are the models there are; others get a 404.
	Models []string
	// Refuse names fields of a request that are refused with a 400 as unknown, as older servers do with stream_options.
	Refuse []string
	// Keep bounds how many requests, and how many refusals, are remembered: the newest; 0: all.
	Keep int
	// Fast skips every Delay and TokenDelay.
	Fast bool
	// OnRequest, if set, is called with each accepted request before it is answered. It may block.
	OnRequest func(Request)
}

// A Server is the scripted provider. It is an http.Handler and safe for concurrent use.
type Server struct {
	opt    Options
	mux    *http.ServeMux
	closed chan struct{}
	close  func()

	mu       sync.Mutex
	changed  chan struct{} // closed and replaced at every change below
	total    int
	requests []*Request // the last of total, at most opt.Keep
	refusals []*Refusal
	routes   []*route
}

type route struct {
	marker string
	play   Play
}

// New returns a Server. Close it before the httptest.Server that serves it, which would wait for replies that hang.
func New(opt Options) *Server {
	if opt.Play == nil {
		opt.Play = Echo
	}
	s := &Server{opt: opt, mux: http.NewServeMux(), closed: make(chan struct{}), changed: make(chan struct{})}
	s.close = sync.OnceFunc(func() { close(s.closed) })
	s.mux.HandleFunc("POST /v1/chat/completions", s.completions)
	s.mux.HandleFunc("GET /v1/models", s.models)
	s.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		(&Refusal{http.StatusNotFound, fmt.Sprintf("Invalid URL (%s %s)", r.Method, r.URL.Path), "invalid_request_error", "", ""}).write(w)
	})
	return s
}

// Close ends every reply that waits or hangs. It may be called twice.
func (s *Server) Close() { s.close() }

// On gives requests in which marker occurs (Request.Mentions) a Play of their own, before Options.Play; where several
// markers occur the newest wins. Many tests share a server this way, each with a marker in what it writes.
func (s *Server) On(marker string, play Play) (remove func()) {
	r := &route{marker, play}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.routes = append(s.routes, r)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.routes = slices.DeleteFunc(s.routes, func(other *route) bool { return other == r })
	}
}

func (s *Server) playFor(req Request) Play {
	s.mu.Lock()
	routes := slices.Clone(s.routes)
	s.mu.Unlock()
	for _, r := range slices.Backward(routes) {
		if req.Mentions(r.marker) {
			return r.play
		}
	}
	return s.opt.Play
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	want := "Bearer " + s.opt.Key
	if s.opt.Key != "" && subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte(want)) != 1 {
		(&Refusal{http.StatusUnauthorized, "Incorrect API key provided.", "invalid_request_error", "", "invalid_api_key"}).write(w)
		return
	}
	s.mux.ServeHTTP(w, r)
}

func (s *Server) models(w http.ResponseWriter, _ *http.Request) {
	data := []any{}
	for _, m := range s.opt.Models {
		data = append(data, object{"id": m, "object": "model", "created": 0, "owned_by": "scripted"})
	}
	writeJSON(w, http.StatusOK, object{"object": "list", "data": data})
}

func (s *Server) completions(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		s.refuse(w, &Refusal{http.StatusRequestEntityTooLarge, "The request is too large.", "invalid_request_error", "", ""})
		return
	}
	req, refusal := s.accept(r, body)
	if refusal != nil {
		s.refuse(w, refusal)
		return
	}
	rec := s.record(&req)
	st := stage{w: w, ctx: r.Context(), closed: s.closed, fast: s.opt.Fast, req: req, reply: s.decide(r.Context(), rec, req)}
	ok := st.play()
	if ok || st.cut {
		s.mark(rec, &rec.Finished)
	} else {
		s.mark(rec, &rec.Gone)
	}
	if !ok {
		panic(http.ErrAbortHandler) // closes the connection with the reply unfinished
	}
}

// decide asks the Play, which may block, and meanwhile notices that the client goes.
func (s *Server) decide(ctx context.Context, rec *Request, req Request) Reply {
	defer context.AfterFunc(ctx, func() { s.mark(rec, &rec.Gone) })()
	if s.opt.OnRequest != nil {
		s.opt.OnRequest(req)
	}
	return s.playFor(req)(req)
}

func (s *Server) refuse(w http.ResponseWriter, r *Refusal) {
	s.mu.Lock()
	s.refusals = append(s.refusals, r)
	if over := len(s.refusals) - s.opt.Keep; s.opt.Keep > 0 && over > 0 {
		s.refusals = slices.Delete(s.refusals, 0, over)
	}
	s.announce()
	s.mu.Unlock()
	r.write(w)
}

// accept checks a request as the provider does.
func (s *Server) accept(r *http.Request, body []byte) (Request, *Refusal) {
	if refusal := Check(body); refusal != nil {
		return Request{}, refusal
	}
	req, err := parse(r.Header.Clone(), body)
	if err != nil {
		return Request{}, invalid("", "", "We could not parse the JSON body of your request.")
	}
	if len(s.opt.Models) > 0 && !slices.Contains(s.opt.Models, req.Model) {
		return Request{}, &Refusal{
			http.StatusNotFound, fmt.Sprintf("The model '%s' does not exist or you do not have access to it.", req.Model),
			"invalid_request_error", "", "model_not_found",
		}
	}
	for _, field := range s.opt.Refuse {
		if hasField(body, field) {
			return Request{}, invalid(field, "unknown_parameter", "Unknown parameter: '%s'.", field)
		}
	}
	return req, nil
}

// record numbers and remembers a request, and returns the remembered one.
func (s *Server) record(req *Request) *Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total++
	req.N, req.Arrived = s.total, time.Now()
	rec := *req
	s.requests = append(s.requests, &rec)
	if over := len(s.requests) - s.opt.Keep; s.opt.Keep > 0 && over > 0 {
		s.requests = slices.Delete(s.requests, 0, over)
	}
	s.announce()
	return &rec
}

// mark sets how a remembered request ended. The first end counts.
func (s *Server) mark(rec *Request, at *time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if rec.Finished.IsZero() && rec.Gone.IsZero() {
		*at = time.Now()
		s.announce()
	}
}

// announce wakes who waits. s.mu is held.
func (s *Server) announce() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Keep is Options.Keep from now on.
func (s *Server) Keep(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opt.Keep = n
}

// Requests returns what was accepted so far and is remembered, in order of arrival.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.snapshot()
}

func (s *Server) snapshot() []Request {
	all := make([]Request, len(s.requests))
	for i, r := range s.requests {
		all[i] = *r
	}
	return all
}

// RequestsOf returns the requests in which marker occurs.
func (s *Server) RequestsOf(marker string) []Request {
	return slices.DeleteFunc(s.Requests(), func(r Request) bool { return !r.Mentions(marker) })
}

// Refusals returns what was refused so far, but for wrong keys. A test of a client that mends its shape expects none.
func (s *Server) Refusals() []*Refusal {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.refusals)
}

// Wait returns the nth request, from 1, as soon as it has arrived.
func (s *Server) Wait(ctx context.Context, n int) (Request, error) { return s.WaitOf(ctx, "", n) }

// WaitOf returns the nth request in which marker occurs, as soon as it has arrived.
func (s *Server) WaitOf(ctx context.Context, marker string, n int) (Request, error) {
	next := 1
	var found Request
	err := s.until(ctx, func() bool {
		for ; n > 0 && next <= s.total; next++ {
			i := next - 1 - (s.total - len(s.requests))
			if i >= 0 && s.requests[i].Mentions(marker) {
				n, found = n-1, *s.requests[i]
			}
		}
		return n <= 0
	})
	if err != nil {
		return Request{}, fmt.Errorf("%d more requests with %q: %w", n, marker, err)
	}
	return found, nil
}

// WaitEnd returns the request that N numbers once it is finished, or its client gone.
func (s *Server) WaitEnd(ctx context.Context, n int) (Request, error) {
	var found Request
	err := s.until(ctx, func() bool {
		for _, r := range s.requests {
			if r.N == n && (!r.Finished.IsZero() || !r.Gone.IsZero()) {
				found = *r
				return true
			}
		}
		return false
	})
	if err != nil {
		return Request{}, fmt.Errorf("the end of request %d: %w", n, err)
	}
	return found, nil
}

// Await returns when done is true of Requests; it is asked again at every change.
func (s *Server) Await(ctx context.Context, done func([]Request) bool) error {
	return s.until(ctx, func() bool { return done(s.snapshot()) })
}

// until returns when done, which is called with s.mu held, is true.
func (s *Server) until(ctx context.Context, done func() bool) error {
	for {
		s.mu.Lock()
		ok, changed := done(), s.changed
		s.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
