package races

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"bobbin/e2e/house"
	"bobbin/store/storetest"
	"bobbin/thread"
)

// files is how many files each owner has; attachments how many a message may have.
const files, attachments = 5, 3

// A site is a house with two APIs, one of them behind a line that can be cut, and two workers, where runs take place one
// after the other. Each run has owners and threads of its own.
type site struct {
	*house.House
	urls    [2]string
	line    *house.Line
	http    *http.Client
	worker  []*house.Process
	runs    atomic.Int64
	script  atomic.Pointer[script]
	effects int // calls of tools that runs before this one made
	asked   int // requests, likewise

	mu    sync.Mutex
	kills int
}

func build(t *testing.T) *site {
	t.Helper()
	h := house.Open(t, "BOBBIN_RATE_LIMIT=0", "BOBBIN_HISTORY_ROLL_OVER=300", fmt.Sprintf("BOBBIN_MAX_ATTACHMENTS=%d", attachments))
	s := &site{House: h, http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 200}}}
	t.Cleanup(s.http.CloseIdleConnections)
	h.Model.On("", func(r modelRequest) modelReply { return s.script.Load().answer(r) })
	h.Tools.Do = func(c house.ToolCall) int { return s.script.Load().tool(c) }
	h.Migrate()
	one, two := h.API(), h.API()
	s.line = house.NewLine(t, two.Addr)
	s.urls = [2]string{"http://" + one.Addr, "http://" + s.line.Addr}
	s.worker = []*house.Process{h.Worker(), h.Worker()}
	return s
}

// A visit is a run at one place.
type visit struct {
	*site
	place
	run   int64
	path  string // the thread as clients name it: its id, or home
	key   string // of the owner
	files []string

	mu       sync.Mutex
	calls    []*call
	threads  []string // that the place has had, the newest last
	messages []string // that clients have heard of
	turns    []string
	closed   string // the turn of the last message, which answered
}

// play carries a plan out, waits until everything is at rest, says one last thing everywhere, and gathers what there is to
// know.
func (s *site) play(p plan) []record {
	s.T.Helper()
	run := s.runs.Add(1)
	s.script.Store(newScript(p.Seed))
	s.effects, s.asked = len(s.Tools.All()), len(s.Model.Requests())
	var visits []*visit
	for _, at := range p.Places {
		visits = append(visits, s.visit(run, at))
	}
	var all sync.WaitGroup
	for _, v := range visits {
		for _, c := range v.Clients {
			all.Go(func() { v.live(c) })
		}
	}
	all.Wait()
	s.rest()
	for _, v := range visits {
		all.Go(v.close)
	}
	all.Wait()
	s.rest()
	return s.gather(visits)
}

// visit opens a place: an owner with files, and a thread that is not their home if the plan says so.
func (s *site) visit(run int64, at place) *visit {
	s.T.Helper()
	v := &visit{site: s, place: at, run: run, path: "home", key: fmt.Sprintf("bob_races_%d_%d", run, at.N)}
	owner := fmt.Sprintf("run%d-%d", run, at.N)
	require.NoError(s.T, s.DB.EnsureKey(s.T.Context(), owner, "races", v.key))
	for i := range files {
		v.files = append(v.files, fmt.Sprintf("fil_%d_%d_%d", run, at.N, i+1))
	}
	storetest.AddFiles(s.T, s.DSN, owner, v.files...)
	for _, id := range v.files {
		require.NoError(s.T, os.WriteFile(filepath.Join(s.Dir, ".bobbin", "files", id), []byte("words"), 0o600))
	}
	if !at.Home {
		var th thread.Thread
		require.NoError(s.T, v.get("POST", "/v1/threads", &th))
		v.path, v.threads = th.ID, []string{th.ID}
	}
	return v
}

// live takes a client's steps.
func (v *visit) live(c client) {
	for _, st := range c.Steps {
		time.Sleep(st.Pause) // the plan's own
		switch st.Do {
		case cut:
			v.line.Cut()
			v.line.Mend()
		case kill:
			v.killWorker()
		case reset:
			v.reset(c, st)
		default:
			v.do(v.callOf(c, st), st)
		}
	}
}

func (s *site) killWorker() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.worker[s.kills%len(s.worker)].Kill()
	s.worker[s.kills%len(s.worker)] = s.Worker()
	s.kills++
}

// pick is the nth newest of a list, or empty.
func pick(list []string, n int) string {
	if len(list) == 0 {
		return ""
	}
	return list[len(list)-1-n%len(list)]
}

// callOf is what a step asks for, given what its client has heard of. It is nil where there is nothing to ask for.
func (v *visit) callOf(c client, st step) *call {
	v.mu.Lock()
	defer v.mu.Unlock()
	who := fmt.Sprintf("%d-%d-%d", v.N, c.N, st.N)
	op := &call{Who: who, Do: st.Do, Thread: v.path, Key: fmt.Sprintf("run%d %s", v.run, who), All: st.has(scopeAll)}
	switch st.Do {
	case send:
		op.Said = said{text: "part-" + who + ";", mode: st.value("mode")}
		for _, d := range []thread.Delivery{thread.DeliverSteer, thread.DeliverTurn, thread.DeliverInterrupt} {
			if st.has(string(d)) {
				op.Said.delivery = d
			}
		}
		for n := range strings.SplitSeq(st.value("file"), ",") {
			if n != "" {
				op.Said.files = append(op.Said.files, v.files[(int(n[0]-'1'))%files])
			}
		}
		if m := st.value("mention"); m != "" {
			op.Said.mentions = []string{m}
		}
		if st.value("reply") != "" {
			op.Said.reply = pick(v.messages, st.number("reply"))
		}
	case withdrawMessage:
		op.Target = pick(v.messages, st.number("pick"))
	case cancel, replay:
		op.Target = pick(v.turns, st.number("pick"))
	}
	if op.Target == "" && (st.Do == withdrawMessage || st.Do == cancel || st.Do == replay) {
		return nil
	}
	if st.Do == replay {
		op.Key = ""
	}
	v.calls = append(v.calls, op)
	return op
}

// do makes a call, as badly as its step says, until it has an answer.
func (v *visit) do(op *call, st step) {
	if op == nil {
		return
	}
	switch {
	case st.has(twin):
		var other sync.WaitGroup
		other.Go(func() { v.insist(op, 1-st.API) })
		v.insist(op, st.API)
		other.Wait()
		return
	case st.has(lost):
		v.try(op, st.API, deaf)
	case st.has(hangUp):
		v.try(op, st.API, gone)
	}
	v.insist(op, st.API)
	if st.has(again) {
		v.insist(op, 1-st.API)
	}
}

// insist repeats while nobody answers.
func (v *visit) insist(op *call, api int) {
	for deadline := time.Now().Add(house.Patience); !v.try(op, api, nil); {
		if op.Key == "" { // it may have been done, and nobody can tell
			return
		}
		if time.Now().After(deadline) {
			v.T.Errorf("%s has no answer", op.Who)
			return
		}
		time.Sleep(house.PollEvery) // between two tries
	}
}

// try makes one request, and reports whether it was answered.
func (v *visit) try(op *call, api int, bad func(context.Context) (context.Context, *http.Client)) bool {
	ctx, cancelIt := context.WithTimeout(context.Background(), house.Patience)
	defer cancelIt()
	by := v.http
	if bad != nil {
		ctx, by = bad(ctx)
		defer by.CloseIdleConnections()
	}
	method, path, body := op.request()
	t := try{Began: time.Now()}
	resp, err := v.ask(ctx, by, api, method, path, op.Key, body)
	ended := time.Now()
	if err == nil && resp.status != http.StatusServiceUnavailable && resp.status != http.StatusTooManyRequests {
		t.Ended, t.Replayed, t.Told = ended, resp.replayed, resp.told(op.Do)
		if resp.status >= 500 {
			v.T.Errorf("%s: HTTP %d %s", op.Who, resp.status, resp.body)
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	op.Tries = append(op.Tries, t)
	if t.Ended.IsZero() {
		return false
	}
	if t.Told.message != "" {
		v.messages = unique(v.messages, []string{t.Told.message})
	}
	if t.Told.turn != "" {
		v.turns = unique(v.turns, []string{t.Told.turn})
	}
	return true
}

func (op *call) request() (method, path string, body map[string]any) {
	base := "/v1/threads/" + op.Thread
	switch op.Do {
	case send:
		body = map[string]any{"text": op.Said.text}
		if op.Said.delivery != "" {
			body["delivery"] = op.Said.delivery
		}
		if len(op.Said.files) > 0 {
			body["attachments"] = op.Said.files
		}
		if len(op.Said.mentions) > 0 {
			body["mentions"] = op.Said.mentions
		}
		if op.Said.reply != "" {
			body["reply_to"] = op.Said.reply
		}
		if op.Said.mode != "" {
			body["mode"] = op.Said.mode
		}
		return "POST", base + "/messages", body
	case withdraw:
		return "DELETE", base + "/steering", nil
	case withdrawMessage:
		return "DELETE", "/v1/messages/" + op.Target, nil
	case stop:
		if op.All {
			body = map[string]any{"scope": "all"}
		}
		return "POST", base + "/stop", body
	case cancel, replay:
		return "POST", "/v1/turns/" + op.Target + "/" + string(op.Do), nil
	default:
		return "POST", base + "/reset", nil
	}
}

// reset archives the home thread by its id, and then writes to it once more, which must be refused.
func (v *visit) reset(c client, st step) {
	var th thread.Thread
	if err := v.get("GET", "/v1/threads/home", &th); err != nil {
		v.T.Errorf("%d-%d-%d: %v", v.N, c.N, st.N, err)
		return
	}
	op := v.callOf(c, st)
	op.Thread = th.ID
	v.do(op, st)
	late := v.callOf(c, step{N: st.N + 500, Do: send}) // a number that no step of a plan has
	late.Thread = th.ID
	v.do(late, step{API: st.API})
}

// settle repeats what may have been done by a request that had no answer, and was refused when it was repeated: that request
// may have come behind its repeat. Uncertain is not refused, and nobody can tell before all is at rest.
func (v *visit) settle() {
	for _, op := range slices.Clone(v.calls) {
		unanswered := func(t try) bool { return t.Ended.IsZero() }
		if n := len(op.Tries); n > 0 && op.Key != "" && op.Tries[n-1].Told.code != "" && slices.ContainsFunc(op.Tries, unanswered) {
			v.insist(op, 0)
		}
	}
}

// close says one last thing, and again until it is answered: the request for that shows all that came before.
func (v *visit) close() {
	v.settle()
	for n := 900; v.closed == "" && !v.T.Failed(); n++ {
		op := v.callOf(client{N: 99}, step{N: n, Do: send})
		v.do(op, step{})
		turn := op.Tries[len(op.Tries)-1].Told.turn
		var got thread.Turn
		ended := func() bool { return v.get("GET", "/v1/turns/"+turn, &got) == nil && got.Status.Ended() }
		for deadline := time.Now().Add(house.Patience); !ended(); time.Sleep(house.PollEvery) { // between two looks
			if time.Now().After(deadline) {
				v.T.Errorf("place %d: the last turn, %s, does not end", v.N, turn)
				return
			}
		}
		if got.Status == thread.TurnSucceeded {
			v.closed = got.ThreadID
		}
	}
}

// rest waits until nothing runs or waits. What does not come to rest is seen by the checker.
func (s *site) rest() {
	s.T.Helper()
	for deadline := time.Now().Add(house.Patience); time.Now().Before(deadline); time.Sleep(house.PollEvery) { // between two looks
		if s.Count(`SELECT count(*) FROM turns WHERE status IN ('queued', 'running')`)+
			s.Count(`SELECT count(*) FROM steering WHERE state = 'queued'`) == 0 {
			return
		}
	}
	s.T.Error("not all threads come to rest")
}

// An answer is what came back.
type answer struct {
	status   int
	replayed bool
	body     []byte
}

func (v *visit) ask(ctx context.Context, by *http.Client, api int, method, path, key string, body map[string]any) (answer, error) {
	var raw []byte
	if body != nil {
		var err error
		if raw, err = json.Marshal(body); err != nil {
			return answer{}, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, v.urls[api]+path, bytes.NewReader(raw))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Authorization", "Bearer "+v.key)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := by.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header.Get("Idempotency-Replayed") != "", got}, err
}

// told reads an answer.
func (a answer) told(do verb) told {
	var b struct {
		Code        string
		Message     struct{ ID string }
		Disposition thread.Disposition
		TurnID      string `json:"turn_id"`
		ID          string
		Stopped     []string
		Withdrawn   *thread.Withdrawn
	}
	if err := json.Unmarshal(a.body, &b); err != nil {
		return told{code: fmt.Sprintf("HTTP %d that is no JSON: %v", a.status, err)}
	}
	switch {
	case a.status >= 400:
		return told{code: b.Code}
	case do == send:
		return told{disposition: b.Disposition, message: b.Message.ID, turn: b.TurnID}
	case do == replay:
		return told{turn: b.ID}
	case do == withdraw, do == withdrawMessage:
		var w thread.Withdrawn
		_ = json.Unmarshal(a.body, &w) // it was read before
		return told{withdrawn: back(w.Text, w.Attachments, w.Mentions)}
	}
	t := told{stopped: set(b.Stopped)}
	if b.Withdrawn != nil {
		t.withdrawn = back(b.Withdrawn.Text, b.Withdrawn.Attachments, b.Withdrawn.Mentions)
	}
	return t
}

// get asks for something that is only read, until there is an answer.
func (v *visit) get(method, path string, out any) error {
	ctx, done := context.WithTimeout(context.Background(), house.Patience)
	defer done()
	a, err := v.ask(ctx, v.http, 0, method, path, "", nil)
	if err != nil {
		return err
	}
	if a.status >= 400 {
		return fmt.Errorf("%s %s: HTTP %d %s", method, path, a.status, a.body)
	}
	return json.Unmarshal(a.body, out)
}

var errDeaf = errors.New("the answer was lost")

// A deafConn breaks when the first byte of an answer comes.
type deafConn struct{ net.Conn }

func (c deafConn) Read(b []byte) (int, error) {
	if _, err := c.Conn.Read(b); err != nil {
		return 0, err
	}
	_ = c.Close()
	return 0, errDeaf
}

// deaf is a client whose connection breaks when the answer comes.
func deaf(ctx context.Context) (context.Context, *http.Client) {
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		return deafConn{c}, err
	}
	return ctx, &http.Client{Transport: &http.Transport{DialContext: dial}}
}

// gone is a client that goes as soon as its request is written.
func gone(ctx context.Context) (context.Context, *http.Client) {
	ctx, leave := context.WithCancel(ctx)
	trace := &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { leave() }}
	return httptrace.WithClientTrace(ctx, trace), &http.Client{Transport: &http.Transport{}}
}
