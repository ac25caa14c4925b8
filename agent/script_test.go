package agent_test

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"bobbin/agent"
	"bobbin/thread"
)

// A script says how a turn goes, a line each:
//
//	tools search send!              those with a mark have side effects
//	limit rounds 3                  or duration, calls, failures, long, tokens, cost
//	each 100 0.25                   tokens that every model call uses, and what it costs
//	request Hello                   what the turn starts with
//	after 2 And today?              a message that comes when round 2 is committed
//	lost 2                          the first take after that loads it, and the holder does not hear of it
//	unable 2                        the first take after that cannot be made
//	other 2                         while the model works on round 2 another holder makes that round
//	hand back 2                     at the round head after round 2
//	1 ask search search:bad         what the model replies in round 1: calls, by the results that they get
//	2 temporary 3s | (5m) say Hi    attempt after attempt; in parentheses how long it takes
//	3-9 ask search                  the same in several rounds
//	limit window 1000               of tokens; what results, requests and messages hold of 300x stands for 300 letters
//	summary temporary | say Notes   attempt after attempt at each summary
type script struct {
	request  string
	each     thread.Usage
	replies  map[int][]string
	arrivals map[int][]string
	lost     map[int]bool
	unable   map[int]bool
	others   map[int]bool
	backs    map[int]bool
	asked    map[[2]int]bool // attempts of rounds that were made
	summary  []string
}

func parse(t testing.TB, text string) (*script, *house) {
	t.Helper()
	s := &script{
		request: "Hello", replies: map[int][]string{}, arrivals: map[int][]string{}, lost: map[int]bool{}, unable: map[int]bool{},
		others: map[int]bool{}, backs: map[int]bool{}, asked: map[[2]int]bool{},
	}
	h := newHouse("")
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			require.NoError(t, s.line(h, line), line)
		}
	}
	h.log = newLog(s.request)
	s.attach(h)
	return s, h
}

func (s *script) line(h *house, line string) error {
	word, rest, _ := strings.Cut(line, " ")
	number, text, _ := strings.Cut(rest, " ")
	n, err := strconv.Atoi(number)
	switch word {
	case "tools":
		for _, name := range strings.Fields(rest) {
			name, effects := strings.CutSuffix(name, "!")
			h.outside[name] = effects
			h.spec.Tools = append(h.spec.Tools, thread.ToolSpec{Name: name})
		}
		return nil
	case "limit":
		if number == "window" {
			h.spec.Window.Tokens, err = strconv.Atoi(text)
			return err
		}
		return limit(&h.spec.Limits, number, text)
	case "request":
		s.request = grown(rest)
		return nil
	case "summary":
		s.summary = strings.Split(rest, " | ")
		return nil
	case "each":
		s.each.InputTokens = int64(n)
		s.each.Cost, err = thread.ParseUSD(text)
		return err
	case "after":
		s.arrivals[n] = append(s.arrivals[n], grown(text))
	case "lost":
		s.lost[n] = true
	case "unable":
		s.unable[n] = true
	case "other":
		s.others[n] = true
	case "hand":
		n, err = strconv.Atoi(text)
		s.backs[n] = true
	default:
		return s.round(word, strings.Split(rest, " | "))
	}
	return err
}

func (s *script) round(numbers string, attempts []string) error {
	from, to, isRange := strings.Cut(numbers, "-")
	if !isRange {
		to = from
	}
	first, err := strconv.Atoi(from)
	last, err2 := strconv.Atoi(to)
	for n := first; n <= last; n++ {
		s.replies[n] = attempts
	}
	return errors.Join(err, err2)
}

func limit(l *agent.Limits, name, value string) (err error) {
	switch name {
	case "duration":
		l.Duration, err = time.ParseDuration(value)
		return err
	case "long":
		l.LongWait, err = time.ParseDuration(value)
		return err
	}
	if name == "cost" {
		l.Cost, err = thread.ParseUSD(value)
		return err
	}
	n, err := strconv.Atoi(value)
	switch name {
	case "tokens":
		l.Tokens = int64(n)
	case "rounds":
		l.Rounds = n
	case "calls":
		l.ToolCalls = n
	case "failures":
		l.ToolFailures = n
	default:
		return errors.New("no such limit")
	}
	return err
}

// attach makes the house play the script. What comes from outside comes with a commit, so that it comes once and at the
// same place however often a holder is killed.
func (s *script) attach(h *house) {
	s.arrive(h, 0)
	h.committed = func(round int) { s.arrive(h, round) }
	h.handBack = func() bool { return s.backs[h.log.rounds] }
	h.tool = func(c thread.Call) (string, bool) {
		result := grown(strings.Trim(c.Arguments, `"`))
		return result, !strings.HasPrefix(result, "bad")
	}
	h.summary = func(thread.Prompt, time.Duration) (thread.Reply, time.Duration, error) {
		if len(s.summary) == 0 {
			return thread.Reply{}, 0, errors.New("the script has no summary")
		}
		return reply(s.summary[min(h.log.counters.ModelFailures, len(s.summary)-1)])
	}
	h.model = func(round int, _ thread.Prompt, _ time.Duration) (thread.Reply, time.Duration, error) {
		attempts := s.replies[round]
		if len(attempts) == 0 {
			return thread.Reply{}, 0, fmt.Errorf("the script has no round %d", round)
		}
		i := min(h.log.counters.ModelFailures, len(attempts)-1)
		if h.log.counters.Refused > 0 {
			i = len(attempts) - 1
		}
		if s.others[round] && !s.asked[[2]int{round, i}] {
			s.asked[[2]int{round, i}] = true
			s.otherHolder(h)
		}
		r, took, err := reply(attempts[i])
		if !errors.Is(err, agent.ErrSpent) {
			r.Usage = s.each
		}
		return r, took, err
	}
}

func (s *script) arrive(h *house, round int) {
	h.log.queue = append(h.log.queue, s.arrivals[round]...)
	delete(s.arrivals, round)
	if s.lost[round] {
		h.loseTake, s.lost[round] = true, false
	}
	if s.unable[round] {
		h.noTake, s.unable[round] = true, false
	}
}

// otherHolder makes one round, as a worker that is thought dead and only slow.
func (s *script) otherHolder(h *house) {
	h.trace("another holder begins")
	back := h.handBack
	h.handBack = func() bool { return true }
	_, _ = h.holder().Run(context0)
	h.handBack = back
	h.trace("another holder ends")
}

// reply reads one attempt of a script.
func reply(text string) (r thread.Reply, took time.Duration, err error) {
	if rest, ok := strings.CutPrefix(text, "("); ok {
		var d string
		d, text, _ = strings.Cut(rest, ") ")
		if took, err = time.ParseDuration(d); err != nil {
			return r, 0, err
		}
	}
	word, rest, _ := strings.Cut(text, " ")
	switch word {
	case "say":
		r.Text = rest
	case "empty":
		r.Text = " \n"
	case "malformed":
		r.Text = "<tool_call>" + rest
	case "ask":
		for i, call := range strings.Fields(rest) {
			name, result, ok := strings.Cut(call, ":")
			if !ok {
				result = "ok"
			}
			r.Calls = append(r.Calls, thread.Asked{ID: fmt.Sprint("call_", i), Name: name, Arguments: strconv.Quote(result)})
		}
		r.Finish = thread.FinishCalls
	case "spent":
		return r, took, agent.ErrSpent
	default:
		e := &thread.ModelError{Kind: thread.ModelErrorKind(word)}
		if rest != "" {
			e.RetryAfter, err = time.ParseDuration(rest)
		}
		return r, took, errors.Join(err, e)
	}
	return r, took, nil
}

var letters = regexp.MustCompile(`\b(\d+)x\b`)

// grown writes letters out, and short takes them back.
func grown(s string) string {
	return letters.ReplaceAllStringFunc(s, func(m string) string {
		n, _ := strconv.Atoi(m[:len(m)-1])
		return strings.Repeat("x", n)
	})
}

var many = regexp.MustCompile(`x{20,}`)

func short(s string) string {
	return many.ReplaceAllStringFunc(s, func(m string) string { return fmt.Sprintf("%dx", len(m)) })
}

// shown tells what a prompt shows that the one before did not.
func shown(before, now thread.Prompt) string {
	var b strings.Builder
	same := 0
	for same < len(before.Entries) && same < len(now.Entries) && line(before.Entries[same]) == line(now.Entries[same]) {
		same++
	}
	for _, e := range now.Entries[same:] {
		fmt.Fprintf(&b, "\n    %s", line(e))
	}
	return b.String()
}

func line(e thread.Entry) string {
	s := fmt.Sprintf("%s %s", e.Kind, short(e.Text))
	for _, c := range e.Calls {
		s += fmt.Sprintf(" [%s %s: %s]", c.Name, c.State, short(c.Result))
	}
	return flat(s)
}

// lazy is a text of a trace, which mostly goes nowhere.
type lazy string

func (l lazy) String() string { return flat(string(l)) }

func flat(s string) string { return strings.ReplaceAll(short(s), "\n", "⏎") }

func session(entries []thread.Entry) string {
	var b strings.Builder
	for _, e := range entries {
		fmt.Fprintln(&b, line(e))
	}
	return b.String()
}

func names(tools []thread.ToolSpec) string {
	var list []string
	for _, t := range tools {
		list = append(list, t.Name)
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}
