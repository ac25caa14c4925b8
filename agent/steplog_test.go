package agent_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"bobbin/agent"
	"bobbin/thread"
)

const turnID = "trn_1"

// A steplog is the store's step log in memory: what is written is written once, a round only onto the end that it was
// built from, and a loaded message starts the counters over in the same step.
type steplog struct {
	now      time.Duration
	since    time.Duration // the limits count from here
	entries  []thread.Entry
	rounds   int
	last     agent.Outcome
	counters thread.Counters
	queue    []string // messages that wait to be loaded
	loaded   []string

	summaries []agent.Compaction
	base      int64 // the session's end at the last of them
}

// unwarn stands for the line with which the store revokes a warning.
const unwarn = "(the warning is revoked)"

func newLog(request string) *steplog {
	g := &steplog{}
	g.append(thread.Entry{Kind: thread.EntryUser, Text: request})
	return g
}

func (g *steplog) append(list ...thread.Entry) []thread.Entry {
	for i := range list {
		list[i].Pos, list[i].TurnID = int64(len(g.entries)), turnID
		g.entries = append(g.entries, list[i])
	}
	return copied(list)
}

// copied shares nothing with entries, as what comes from Postgres does not.
func copied(entries []thread.Entry) []thread.Entry {
	entries = slices.Clone(entries)
	for i := range entries {
		entries[i].Calls = slices.Clone(entries[i].Calls)
	}
	return entries
}

func (g *steplog) load() agent.State {
	s := agent.State{Counters: g.counters, Round: g.rounds, Last: g.last}
	s.TurnID = turnID
	s.Session = thread.Session{Entries: copied(g.entries), End: int64(len(g.entries)) - 1}
	g.summarised(&s.Session)
	s.Counters.Elapsed = g.now - g.since
	s.Counters.ToolFailures = map[string]int{}
	for name, n := range g.counters.ToolFailures {
		s.Counters.ToolFailures[name] = n
	}
	for _, e := range g.entries {
		for _, c := range e.Calls {
			if c.State.Open() {
				s.Open = append(s.Open, c)
			}
		}
	}
	return s
}

// summarised leaves out what the newest summary stands for, but for what was asked in the turn.
func (g *steplog) summarised(s *thread.Session) {
	if len(g.summaries) == 0 {
		return
	}
	last := g.summaries[len(g.summaries)-1]
	s.Summary = thread.Summary{N: last.N, Text: last.Text}
	s.Entries = slices.DeleteFunc(s.Entries, func(e thread.Entry) bool {
		asked := e.TurnID == turnID && e.Round == 0 && e.Kind != thread.EntryAssistant
		if e.Pos <= last.Last.Pos && asked {
			s.Pinned++
		}
		return e.Pos <= last.Last.Pos && !asked
	})
	for i := range s.Entries {
		if s.Entries[i].Pos <= g.base {
			s.Entries[i].Input = 0
		}
	}
}

func (g *steplog) compact(c agent.Compaction) error {
	if c.N != len(g.summaries)+1 {
		return thread.ErrMoved
	}
	g.summaries, g.base = append(g.summaries, c), int64(len(g.entries))-1
	g.counters.ModelFailures = 0
	return nil
}

func (g *steplog) recover(r agent.Recovery) {
	g.counters.Refused = max(g.counters.Refused, r.Refused)
	if r.NoSummary {
		g.counters.SummaryFailed, g.counters.ModelFailures = true, 0
	}
}

// take loads nothing once the turn has its answer, which could only be in another holder's round: nobody would read it.
func (g *steplog) take() []thread.Entry {
	if len(g.queue) == 0 || g.last == agent.Answer {
		return nil
	}
	list := []thread.Entry{{Kind: thread.EntryUser, Text: g.queue[0]}}
	g.loaded, g.queue = append(g.loaded, g.queue[0]), g.queue[1:]
	if g.counters.WrapUpWarned {
		list = append(list, thread.Entry{Kind: thread.EntryNote, Text: unwarn})
	}
	g.counters = thread.Counters{ModelFailures: g.counters.ModelFailures, Used: g.counters.Used}
	g.since = g.now
	return g.append(list...)
}

func (g *steplog) commit(r agent.Round) ([]thread.Entry, error) {
	if r.Base != int64(len(g.entries))-1 || r.N != g.rounds+1 {
		return nil, thread.ErrMoved
	}
	g.rounds, g.last = r.N, r.Outcome
	g.count(r)
	var list []thread.Entry
	for _, note := range r.Notes {
		list = append(list, thread.Entry{Kind: thread.EntryNote, Round: r.N, Text: note})
	}
	if r.Outcome == agent.Calls || r.Outcome == agent.Answer {
		list = append(list, thread.Entry{Kind: thread.EntryAssistant, Round: r.N, Text: r.Reply.Text, Input: r.Reply.Usage.InputTokens})
	}
	for i, c := range r.Reply.Calls {
		e := &list[len(list)-1]
		e.Calls = append(e.Calls, thread.Call{
			TurnID: turnID, Round: r.N, Index: i, ID: c.ID, Name: c.Name, Arguments: c.Arguments, State: thread.CallPending,
		})
	}
	return g.append(list...), nil
}

func (g *steplog) count(r agent.Round) {
	c := &g.counters
	c.Rounds++
	c.ToolCalls += len(r.Reply.Calls)
	c.Used = c.Used.Add(r.Reply.Usage)
	c.ModelFailures = 0
	c.WrapUpWarned = c.WrapUpWarned || r.WrapUp
	switch r.Outcome {
	case agent.Empty:
		c.EmptyRetries++
	case agent.Malformed:
		c.MalformedRetries++
	}
}

func (g *steplog) call(round, index int) *thread.Call {
	for i := range g.entries {
		if e := &g.entries[i]; e.TurnID == turnID && e.Round == round && e.Kind == thread.EntryAssistant {
			return &e.Calls[index]
		}
	}
	return nil
}

func (g *steplog) start(c thread.Call) (ok bool) {
	row := g.call(c.Round, c.Index)
	if row.State != thread.CallPending {
		return false
	}
	row.State = thread.CallStarted
	return true
}

// finish records a result once, and returns what stands.
func (g *steplog) finish(c thread.Call) thread.Call {
	row := g.call(c.Round, c.Index)
	if !row.State.Open() {
		return *row
	}
	*row = c
	if g.counters.ToolFailures == nil {
		g.counters.ToolFailures = map[string]int{}
	}
	if g.counters.ToolFailures[c.Name]++; c.State != thread.CallFailed {
		g.counters.ToolFailures[c.Name] = 0
	}
	return c
}

// errKilled is what a hook of a killed process returns: nothing of the loop goes on.
var errKilled = errors.New("killed")

// A house is a step log and what surrounds it. Its holders are workers that run the loop on the log.
type house struct {
	log     *steplog
	spec    agent.Spec
	outside map[string]bool // tools with side effects

	model    func(round int, p thread.Prompt, limit time.Duration) (thread.Reply, time.Duration, error)
	summary  func(p thread.Prompt, limit time.Duration) (thread.Reply, time.Duration, error)
	tool     func(thread.Call) (result string, ok bool)
	handBack func() bool
	point    func(string) error // every step of a holder passes it, before its effect and after
	trace    func(format string, args ...any)
	ran      map[string]int // runs of tools, by call
	takes    int            // take hooks called
	loseTake bool           // the next take that loads something loads it, and its holder does not hear of it
	noTake   bool           // the next take cannot be made

	committed func(round int) // called with each commit
}

func newHouse(request string, tools ...string) *house {
	h := &house{log: newLog(request), outside: map[string]bool{}, ran: map[string]int{}}
	h.spec = agent.Spec{System: "Be brief.", Limits: agent.DefaultLimits, Window: agent.DefaultWindow, Check: agent.CheckAnswer}
	for _, name := range tools {
		h.spec.Tools = append(h.spec.Tools, thread.ToolSpec{Name: name})
	}
	h.tool = func(thread.Call) (string, bool) { return "ok", true }
	h.handBack = func() bool { return false }
	h.point = func(string) error { return nil }
	h.trace = func(string, ...any) {}
	h.committed = func(int) {}
	return h
}

// holder returns a loop of one worker's own on the house's log.
func (h *house) holder() *agent.Loop {
	var read time.Duration // when the counters were read
	return &agent.Loop{Spec: h.spec, Hooks: agent.Hooks{
		Load: func(context.Context) (agent.State, error) {
			if err := h.point("load"); err != nil {
				return agent.State{}, err
			}
			read = h.log.now
			h.trace("load")
			return h.log.load(), nil
		},
		Summarise: func(_ context.Context, p thread.Prompt, limit time.Duration) (thread.Reply, error) {
			return h.ask("summarise", limit, func() (thread.Reply, time.Duration, error) { return h.summary(p, limit) })
		},
		Compact: h.compact, Recover: h.recover,
		Take: h.take, Model: h.call, Failed: h.failed, Wait: h.wait, Commit: h.commit, Run: h.run,
		HandBack: func() bool { return h.handBack() },
		Elapsed:  func() time.Duration { return h.log.now - read },
	}}
}

func (h *house) take(context.Context) (entries []thread.Entry, err error) {
	h.takes++
	return entries, h.step("take", func() {
		if h.noTake {
			h.noTake = false
			h.trace("take fails")
			return
		}
		if entries = h.log.take(); len(entries) > 0 {
			h.trace("take %q", flat(entries[0].Text))
		}
		if len(entries) > 0 && h.loseTake {
			entries, h.loseTake = nil, false
			h.trace("nobody hears of it")
		}
	})
}

func (h *house) call(_ context.Context, round int, p thread.Prompt, limit time.Duration) (reply thread.Reply, err error) {
	p.Entries = copied(p.Entries)
	return h.ask("model", limit, func() (thread.Reply, time.Duration, error) { return h.model(round, p, limit) })
}

func (h *house) compact(_ context.Context, c agent.Compaction) (err error) {
	killed := h.step("compact", func() {
		err = h.log.compact(c)
		h.trace("compact %d: %d entries upto %d%s\n    %s", c.N, c.Entries, c.Last.Pos, moved(err), lazy(c.Text))
	})
	return errors.Join(killed, err)
}

func (h *house) recover(_ context.Context, r agent.Recovery) error {
	return h.step("recover", func() {
		h.log.recover(r)
		h.trace("recover %+v", r)
	})
}

func (h *house) ask(name string, limit time.Duration, model func() (thread.Reply, time.Duration, error)) (reply thread.Reply, err error) {
	before := h.log.now
	killed := h.step(name, func() {
		var took time.Duration
		reply, took, err = model()
		if h.log.now += min(took, limit); took > limit {
			err = agent.ErrTimeUp
		}
	})
	if killed != nil { // the attempt is made again, and its time is not the test's subject
		h.log.now = before
		return thread.Reply{}, killed
	}
	if err != nil {
		h.log.counters.Used = h.log.counters.Used.Add(reply.Usage) // it is in the ledger at once
	}
	return reply, err
}

func (h *house) failed(context.Context) error {
	return h.step("failed", func() {
		h.log.counters.ModelFailures++
		h.trace("failed")
	})
}

func (h *house) wait(_ context.Context, d time.Duration) error {
	return h.step("wait", func() {
		h.log.now += d
		h.trace("wait %v", d)
	})
}

func (h *house) commit(_ context.Context, r agent.Round) (entries []thread.Entry, err error) {
	killed := h.step("commit", func() {
		entries, err = h.log.commit(r)
		h.trace("commit %d %s%s", r.N, r.Outcome, moved(err))
		if err == nil {
			h.committed(r.N)
		}
	})
	return entries, errors.Join(killed, err)
}

func moved(err error) string {
	if err == nil {
		return ""
	}
	return ": " + err.Error()
}

func (h *house) run(_ context.Context, calls []thread.Call, limit time.Duration) ([]thread.Call, error) {
	for i := range calls {
		c := &calls[i]
		if h.outside[c.Name] && c.State.Open() {
			continue
		}
		if c.State.Open() {
			if err := h.step("run "+c.Name, func() { h.runOne(c, limit) }); err != nil {
				return nil, err
			}
		}
		err := h.step("finish "+c.Name, func() {
			*c = h.log.finish(*c)
			h.trace("finish %s %s: %s", c.Name, c.State, lazy(c.Result))
		})
		if err != nil {
			return nil, err
		}
	}
	return calls, nil
}

func (h *house) runOne(c *thread.Call, limit time.Duration) {
	if limit <= 0 {
		c.State, c.Result = thread.CallFailed, "cut off"
		return
	}
	h.ran[c.Key()]++
	result, ok := h.tool(*c)
	if c.State, c.Result = thread.CallSucceeded, result; !ok {
		c.State = thread.CallFailed
	}
}

// step passes a point, does what it does, and passes another: a kill comes before the effect, or after it while nobody
// has heard of it.
func (h *house) step(name string, effect func()) error {
	if err := h.point(name); err != nil {
		return err
	}
	effect()
	return h.point(name + " done")
}

// outsideCalls is what the workflow does with the calls that must run elsewhere: one attempt each.
func (h *house) outsideCalls(calls []thread.Call) error {
	for _, c := range calls {
		ok := false
		if err := h.step("start "+c.Name, func() { ok = h.log.start(c) }); err != nil {
			return err
		}
		if !ok {
			continue
		}
		if err := h.step("run "+c.Name, func() { h.runOne(&c, time.Hour) }); err != nil {
			return err
		}
		if err := h.step("finish "+c.Name, func() { h.log.finish(c) }); err != nil {
			return err
		}
		h.trace("outside %s %s", c.Name, c.State)
	}
	return nil
}

// drive is what the workflow does: one holder after the other until the turn is over. A killed one is followed by the next.
func (h *house) drive(ctx context.Context) (agent.Result, error) {
	for range 1000 {
		res, err := h.holder().Run(ctx)
		if err == nil {
			h.trace("-> %s", said(res))
			switch res.Kind {
			case agent.Answered, agent.Failed:
				return res, nil
			case agent.Outside:
				err = h.outsideCalls(res.Calls)
			case agent.Wait:
				h.log.now += res.Wait
			}
		}
		if err != nil && !errors.Is(err, errKilled) {
			return res, err
		}
	}
	return agent.Result{}, errors.New("the turn does not end")
}

func said(r agent.Result) string {
	switch r.Kind {
	case agent.Failed:
		return fmt.Sprintf("%s %s", r.Kind, r.Fail)
	case agent.Wait:
		return fmt.Sprintf("%s %v", r.Kind, r.Wait)
	}
	return string(r.Kind)
}
