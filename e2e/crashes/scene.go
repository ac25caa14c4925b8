package crashes

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"bobbin/e2e/house"
	"bobbin/llm/scripted"
	"bobbin/thread"
)

// A Lane is a house of its own in which one scene is played after the other.
type Lane struct {
	h       *house.House
	plan    *Plan
	workers int // that live at once
	env     []string

	mu    sync.Mutex
	procs []*wired
	now   *scene
}

type wired struct {
	*house.Process
	wire *Wire
}

// NewLane opens a house with an API and so many workers.
func NewLane(t *testing.T, workers int, env ...string) *Lane {
	t.Helper()
	h := house.Open(t, env...)
	h.Migrate()
	return OpenLane(h, workers)
}

// OpenLane is NewLane in a house that is there. env is for its processes.
func OpenLane(h *house.House, workers int, env ...string) *Lane {
	h.T.Helper()
	l := &Lane{h: h, plan: &Plan{}, workers: workers, env: env}
	l.staff(h)
	return l
}

// staff starts what is missing.
func (l *Lane) staff(h *house.House) {
	h.T.Helper()
	for role, want := range map[string]int{"api": 1, "worker": l.workers} {
		for l.alive(role) < want {
			l.start(h, role)
		}
	}
}

func (l *Lane) alive(role string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, p := range l.procs {
		if p.wire.Role == role && !p.Ended() {
			n++
		}
	}
	return n
}

// start starts a process behind a wire of its own. The wire lives as long as the lane.
func (l *Lane) start(h *house.House, role string) {
	h.T.Helper()
	p := &wired{}
	p.wire = NewWire(l.h.T, h.DSN, role, l.plan, func(at Point) { l.struck(p, at) })
	env := append([]string{"DATABASE_URL=" + p.wire.DSN}, l.env...)
	if role == "api" {
		p.Process = h.API(env...)
	} else {
		p.Process = h.Worker(env...)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.procs = append(l.procs, p)
}

// struck kills a process at a point, for the scene that is played.
func (l *Lane) struck(p *wired, at Point) {
	p.Kill()
	l.mu.Lock()
	s := l.now
	l.mu.Unlock()
	if s != nil {
		s.killed(at)
	}
}

// living is the newest process of a role that lives; nil: none.
func (l *Lane) living(role string) *wired {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range slices.Backward(l.procs) {
		if p.wire.Role == role && !p.Ended() {
			return p
		}
	}
	return nil
}

// A scene is one conversation with all in it that can be interrupted: a turn with text, a tool that reads, one that may be
// repeated, one that may not, a message that is loaded in mid-turn and one that cannot be; and the turn that follows.
type scene struct {
	l    *Lane
	h    *house.House
	chat *house.Chat
	at   *Point // where the fault is to be; nil: nowhere
	rec  Record

	asked, put        *once // the model was asked first, and for what to do after the put
	steered, attached *once // the message was accepted
	over              *once // for what still waits

	mu       sync.Mutex
	snapshot *Snapshot
	since    time.Time     // of the database, when the process was dead
	dead     chan struct{} // closed then
}

// once is something that happens, perhaps again.
type once struct {
	sync.Once
	c chan struct{}
}

func newOnce() *once { return &once{c: make(chan struct{})} }

func (o *once) happened() { o.Do(func() { close(o.c) }) }

// late is less than the sweep's interval: an accept that only the sweep finds had nothing in the outbox.
const late = 25 * time.Second

// Result is what a scene came to.
type Result struct {
	Reached  bool // the fault was made
	Seen     map[Point]int
	Wrong    []Wrong
	Recovery time.Duration // from the kill to the next event of the thread; 0: none came, or none was killed
}

// Play plays one scene with a fault at a point, and judges it.
func (l *Lane) Play(t *testing.T, at *Point, fault Fault, times int) Result {
	t.Helper()
	h := l.h.In(t)
	l.staff(h)
	s := &scene{
		l: l, h: h, at: at, asked: newOnce(), put: newOnce(), steered: newOnce(), attached: newOnce(), over: newOnce(), dead: make(chan struct{}),
	}
	t.Cleanup(s.over.happened)
	s.chat = h.Chat(s.play)
	l.mu.Lock()
	l.now = s
	l.mu.Unlock()
	l.plan.Arm(at, fault, times)
	s.holdTools()
	var replaced sync.WaitGroup
	done := make(chan struct{})
	replaced.Go(func() { s.replace(done) })
	s.act()
	seen := l.plan.Disarm()
	if fault.Kind == Kill && l.plan.made() > 0 { // perhaps at this very moment
		<-s.dead
	}
	close(done)
	replaced.Wait()
	s.last()
	s.read()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rec.At = s.snapshot
	r := Result{Reached: s.snapshot != nil || l.plan.made() > 0, Seen: seen, Recovery: s.recovery()}
	r.Wrong = Judge(&s.rec)
	if r.Recovery > late && at.Role == "api" {
		r.Wrong = append(r.Wrong, Wrong{Late, fmt.Sprintf("nothing happened for %v after the kill", r.Recovery)})
	}
	return r
}

// act is what the person does: a first message, one while the model thinks, one with a file while a tool has run.
func (s *scene) act() {
	s.send("first;")
	s.wait(s.asked)
	s.send("steered;")
	s.steered.happened()
	s.wait(s.put)
	file := "fil_" + strings.Trim(s.chat.Marker, ".") // its text is kept when it is read first
	s.h.Stock(file)
	s.send("attached;", house.Files(file))
	s.send("more;") // another part of it
	s.attached.happened()
	s.settle()
}

// last is the message after all that, which must be served.
func (s *scene) last() {
	a := s.send("continue;")
	_, err := s.chat.Watch.Await(func(e house.Event) bool { return e.TurnID == a.TurnID && e.Name == thread.EventTurnSucceeded })
	if err != nil {
		s.rec.Left = append(s.rec.Left, fmt.Sprintf("the next message: %v", err))
	}
	s.settle()
}

func (s *scene) wait(o *once) {
	s.h.T.Helper()
	select {
	case <-o.c:
	case <-time.After(house.Patience):
		s.h.Fail("waited in vain for a request at the provider")
	}
}

// send sends a message until it is accepted, under one key.
func (s *scene) send(text string, mods ...house.With) house.Accepted {
	s.h.T.Helper()
	var out house.Accepted
	mods = append(mods, house.Key(s.chat.Marker+text))
	first := s.chat.Marker + " " + text
	s.h.Until("the API to accept", func() bool {
		var err error
		out, err = s.chat.TrySend(first, mods...)
		var p *house.Problem
		if errors.As(err, &p) && p.Code != "unavailable" {
			s.rec.Other = append(s.rec.Other, p.Error())
		}
		return err == nil
	})
	s.rec.Sent = append(s.rec.Sent, Sent{Text: first, ID: out.Message.ID})
	return out
}

// settle waits until nothing is left to do, by anyone.
func (s *scene) settle() {
	s.h.T.Helper()
	if left := rest(s.h, s.chat.ID, house.Patience); left != "" {
		s.rec.Left = append(s.rec.Left, left)
	}
}

// rest waits until a thread has come to rest, and returns what is left if it does not.
func rest(h *house.House, threadID string, patience time.Duration) string {
	h.T.Helper()
	left := ""
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(house.PollEvery) { // between two looks
		err := h.SQL.QueryRow(h.T.Context(), `
			SELECT concat_ws(', ',
				(SELECT string_agg('turn ' || id || ' is ' || status, ', ') FROM turns WHERE thread_id = $1 AND status IN ('queued', 'running')),
				(SELECT 'a message is on the steering row' FROM steering WHERE thread_id = $1 AND state = 'queued'),
				(SELECT 'the run row names ' || turn_id FROM runs WHERE thread_id = $1 AND turn_id IS NOT NULL),
				(SELECT string_agg('nudge ' || kind, ', ') FROM outbox WHERE thread_id = $1),
				(SELECT string_agg('attempt of ' || a.worker_id, ', ') FROM attempts a JOIN turns t ON t.id = a.turn_id WHERE t.thread_id = $1),
				(SELECT string_agg('reserved for round ' || round, ', ') FROM ledger WHERE thread_id = $1 AND state = 'reserved'))`,
			threadID).Scan(&left)
		switch {
		case err != nil:
			left = err.Error()
		case left == "":
			return ""
		}
	}
	return left
}

func (s *scene) key(tool string) string { return s.chat.Marker + tool }

// play answers by what the request shows, so that one that is repeated gets the same answer.
func (s *scene) play(r scripted.Request) scripted.Reply {
	reply := scripted.Say(fmt.Sprintf("That was all of %d.", len(r.Messages)))
	asked := func(tool string) bool {
		return slices.ContainsFunc(r.Messages, func(m scripted.Message) bool {
			return slices.ContainsFunc(m.Calls, func(c scripted.Call) bool { return c.Name == tool })
		})
	}
	switch {
	case !asked("look"):
		reply = house.Ask("look", s.key("look"))
		reply.Text = "I look first."
		s.asked.happened()
		s.hold(s.steered)
	case !asked("put"):
		reply = house.Ask("put", s.key("put"))
	case !asked("charge"):
		reply = house.Ask("charge", s.key("charge"))
		s.put.happened()
		s.hold(s.attached)
	}
	return s.strikeAtModel(r, reply)
}

func (s *scene) hold(o *once) {
	select {
	case <-o.c:
	case <-s.over.c:
	}
}

const modelOp = "model request"

// strikeAtModel kills the worker that asks, where that is the point.
func (s *scene) strikeAtModel(r scripted.Request, reply scripted.Reply) scripted.Reply {
	n := len(r.Texts("assistant")) + 1
	if s.at == nil || s.at.Op != modelOp || s.at.N != n || s.isDead() {
		return reply
	}
	w := s.l.living("worker")
	switch s.at.Side {
	case Arrived:
		s.l.struck(w, *s.at)
	case Piece:
		gate := make(chan struct{})
		reply.Gate = gate
		go func() {
			for range 3 { // start, before the first piece, before the second
				select {
				case gate <- struct{}{}:
				case <-s.over.c:
				}
			}
			s.l.struck(w, *s.at)
			close(gate)
		}()
	case Finished:
		w.Freeze()
		go func() {
			_, _ = s.h.Model.WaitEnd(s.h.Ctx(), r.N)
			s.l.struck(w, *s.at)
		}()
	}
	return reply
}

// holdTools kills the worker that calls a tool, where that is the point.
func (s *scene) holdTools() {
	if s.at == nil || s.at.Side != Called && s.at.Side != Answered {
		return
	}
	_, tool, _ := strings.Cut(s.at.Op, " ")
	gate := s.h.Tools.Gate(s.key(tool))
	go func() {
		select {
		case <-gate.Arrived():
		case <-s.over.c:
			return
		}
		w := s.l.living("worker")
		if s.at.Side == Answered {
			w.Freeze()
			gate.Release()
			<-gate.Answered()
		}
		s.l.struck(w, *s.at)
		gate.Release()
	}()
}

func (s *scene) isDead() bool {
	select {
	case <-s.dead:
		return true
	default:
		return false
	}
}

// killed notes what stands when a process is dead.
func (s *scene) killed(at Point) {
	if s.isDead() {
		return
	}
	snap := &Snapshot{Worker: at.Role == "worker", Recorded: map[string]int{}}
	var since time.Time
	ctx := s.h.Ctx()
	err := s.h.SQL.QueryRow(ctx, `
		SELECT (SELECT count(*) FROM rounds r JOIN turns t ON t.id = r.turn_id WHERE t.thread_id = $1 AND r.outcome IN ('calls', 'answer')),
			(SELECT count(*) > 0 FROM calls c JOIN turns t ON t.id = c.turn_id WHERE t.thread_id = $1 AND c.state = 'started' AND c.side_effects),
			clock_timestamp()`, s.chat.ID).Scan(&snap.Rounds, &snap.Started, &since)
	if err == nil {
		snap.Recorded, err = s.recorded()
	}
	snap.Requests, snap.Calls = len(s.chat.Requests()), len(callsOf(s.h, s.chat))
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.rec.Other = append(s.rec.Other, err.Error())
	}
	s.snapshot, s.since = snap, since
	close(s.dead)
}

func (s *scene) recorded() (map[string]int, error) {
	list := map[string]int{}
	rows, err := s.h.SQL.Query(s.h.Ctx(), `
		SELECT c.arguments::json ->> 'key'
		FROM calls c
		JOIN turns t ON t.id = c.turn_id
		WHERE t.thread_id = $1 AND c.state IN ('succeeded', 'failed')`, s.chat.ID)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var key string
		if err := rows.Scan(&key); err != nil {
			return nil, err
		}
		list[key]++
	}
	return list, rows.Err()
}

// callsOf are those of a chat's tools.
func callsOf(h *house.House, c *house.Chat) []house.ToolCall {
	return slices.DeleteFunc(h.Tools.All(), func(call house.ToolCall) bool { return !strings.HasPrefix(call.Key, c.Marker) })
}

// replace starts another process for the one that died, unless another worker lives.
func (s *scene) replace(done <-chan struct{}) {
	select {
	case <-s.dead:
	case <-done:
		return
	}
	s.mu.Lock()
	role := map[bool]string{true: "worker", false: "api"}[s.snapshot.Worker]
	s.mu.Unlock()
	if s.l.alive(role) == 0 {
		s.l.start(s.h, role)
	}
}

// read reads what the conversation has come to.
func (s *scene) read() {
	s.h.T.Helper()
	s.rec.Charges = []string{s.key("charge")}
	s.rec.read(s.h, s.chat)
}

// read reads what a chat has come to.
func (r *Record) read(h *house.House, c *house.Chat) {
	t := h.T
	t.Helper()
	r.Messages, r.Turns, r.Requests, r.Calls = c.Messages(), c.Turns(), c.Requests(), callsOf(h, c)
	r.Streamed, r.Entries = map[string]string{}, map[string]int{}
	for _, turn := range r.Turns {
		r.Streamed[turn.ID] = ""
	}
	for _, e := range c.Watch.All() {
		switch {
		case e.Name == thread.EventAnswerRestarted:
			r.Streamed[e.TurnID] = ""
		case e.Name == thread.EventAnswerDelta && e.Offset != len(r.Streamed[e.TurnID]):
			r.Other = append(r.Other, fmt.Sprintf("a piece of an answer is for byte %d, after %d bytes", e.Offset, len(r.Streamed[e.TurnID])))
			fallthrough
		case e.Name == thread.EventAnswerDelta:
			r.Streamed[e.TurnID] += e.Text
		}
	}
	rows, err := h.SQL.Query(h.Ctx(), `SELECT message_id, count(*) FROM entries WHERE session_id = $1 AND message_id IS NOT NULL GROUP BY 1`, c.ID)
	require.NoError(t, err)
	defer rows.Close()
	for rows.Next() {
		var id string
		var n int
		require.NoError(t, rows.Scan(&id, &n))
		r.Entries[id] = n
	}
	require.NoError(t, rows.Err())
}

// recovery is the time from the death to the thread's next event.
func (s *scene) recovery() time.Duration {
	if s.snapshot == nil {
		return 0
	}
	var micros int64
	err := s.h.SQL.QueryRow(s.h.Ctx(), `
		SELECT COALESCE(extract(epoch FROM min(created_at) - $2::timestamptz) * 1000000, 0)::bigint
		FROM events
		WHERE thread_id = $1 AND created_at > $2 AND turn_id IN (SELECT id FROM turns WHERE thread_id = $1 AND created_at <= $2)`,
		s.chat.ID, s.since).Scan(&micros)
	if err != nil {
		s.rec.Other = append(s.rec.Other, err.Error())
	}
	return time.Duration(micros) * time.Microsecond
}
