package races

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A plan is all that clients will do in a run. It is made before the run starts, so it can be printed, cut and done again;
// what the machines do in between differs all the same.
type plan struct {
	Seed   uint64 // of the plan, and of what the model and the tools do in the run
	Places []place
}

// A place is a thread and the people at it. Where it is an owner's home, it is a line of threads: after a reset comes the
// next.
type place struct {
	N       int // what its parts are known by, the same in every cut of the plan
	Home    bool
	Clients []client
}

// A client takes its steps one after the other.
type client struct {
	N     int
	Steps []step
}

// A step is one operation of one client.
type step struct {
	N     int           // the client's steps, the same in every cut of the plan
	Pause time.Duration // before it: pauses are the plan's own, to make interleavings
	API   int           // which of the API processes is asked
	Do    verb
	With  []string // see the words below; in the order in which they were drawn
}

type verb string

// The verbs.
const (
	send            verb = "send"
	withdraw        verb = "withdraw"         // of the steering message
	withdrawMessage verb = "withdraw-message" // by id: pick=N chooses among those that the place has heard of, from the newest
	stop            verb = "stop"
	cancel          verb = "cancel" // of a turn, chosen likewise
	replay          verb = "replay" // likewise
	reset           verb = "reset"  // then a late message to the old thread
	cut             verb = "cut"    // breaks every connection to the API behind the line
	kill            verb = "kill"   // a worker dies and another comes
)

// The words of a step, beside a delivery's name, file=1,2, mention=a, reply=N, mode=chat and pick=N.
const (
	scopeAll = "all"
	twin     = "twin"   // a second request under the same key at the same time, at the other API
	again    = "again"  // and once more after the answer
	lost     = "lost"   // the connection breaks when the answer comes, and the client repeats
	hangUp   = "hangup" // the client goes once the request is written, and repeats
)

func (s step) has(word string) bool { return slices.Contains(s.With, word) }

// value is that of a word name=value, or empty.
func (s step) value(name string) string {
	for _, w := range s.With {
		if v, ok := strings.CutPrefix(w, name+"="); ok {
			return v
		}
	}
	return ""
}

// number is a value that is a number.
func (s step) number(name string) int {
	n, _ := strconv.Atoi(s.value(name)) // absent: 0
	return n
}

// A size says how large a plan is.
type size struct {
	places, clients, steps int // clients of a place at most, steps of a client
	pause                  time.Duration
	kills                  int
}

// draw makes a plan.
func draw(seed uint64, z size) plan {
	r := rand.New(rand.NewPCG(seed, 1))
	p := plan{Seed: seed}
	for n := range z.places {
		at := place{N: n, Home: r.IntN(4) == 0}
		calm := r.IntN(2) == 0 // people who only write, most of the time: what they write is loaded
		for c := range 2 + r.IntN(max(1, z.clients-1)) {
			who := client{N: c}
			for i := range z.steps {
				s := drawStep(r, at.Home, calm && r.IntN(6) > 0)
				s.N, s.API, s.Pause = i, r.IntN(2), drawPause(r, z.pause)
				who.Steps = append(who.Steps, s)
			}
			at.Clients = append(at.Clients, who)
		}
		p.Places = append(p.Places, at)
	}
	for k := range z.kills { // somebody kills workers too
		at := &p.Places[k%len(p.Places)]
		at.Clients = append(at.Clients, client{N: 90 + k, Steps: []step{{Pause: z.pause * time.Duration(1+r.IntN(2*z.steps)), Do: kill}}})
	}
	return p
}

// drawPause draws none half of the time, as races are where clients do not wait.
func drawPause(r *rand.Rand, most time.Duration) time.Duration {
	if most <= 0 || r.IntN(2) == 0 {
		return 0
	}
	return time.Duration(r.Int64N(int64(most))).Truncate(100 * time.Microsecond)
}

func drawStep(r *rand.Rand, home, calm bool) step {
	s := step{Do: send}
	if calm {
		return addWords(r, s)
	}
	switch n := r.IntN(100); {
	case n < 72:
		s.With = drawMessage(r)
	case n < 78:
		s.Do = withdraw
	case n < 84:
		s.Do, s.With = withdrawMessage, []string{fmt.Sprintf("pick=%d", r.IntN(4))}
	case n < 89:
		if s.Do = stop; r.IntN(3) == 0 {
			s.With = []string{scopeAll}
		}
	case n < 92:
		s.Do, s.With = cancel, []string{fmt.Sprintf("pick=%d", r.IntN(4))}
	case n < 97:
		return step{Do: replay, With: []string{fmt.Sprintf("pick=%d", r.IntN(6))}}
	case n < 98:
		return step{Do: cut}
	case home:
		s.Do = reset
	default:
		s.Do = withdraw
	}
	return addWords(r, s)
}

func drawMessage(r *rand.Rand) []string {
	var with []string
	switch r.IntN(10) {
	case 0, 1:
		with = append(with, "steer")
	case 2:
		with = append(with, "turn")
	case 3:
		with = append(with, "interrupt")
	}
	switch r.IntN(14) {
	case 0:
		with = append(with, fmt.Sprintf("file=%d", 1+r.IntN(files)))
	case 1:
		with = append(with, fmt.Sprintf("file=%d,%d", 1+r.IntN(files), 1+r.IntN(files)))
	case 2:
		with = append(with, "mention="+[]string{"ada", "bo"}[r.IntN(2)])
	case 3:
		with = append(with, fmt.Sprintf("reply=%d", r.IntN(4)))
	case 4:
		with = append(with, "mode=chat")
	}
	return with
}

// addWords makes the line a bad one, or the client a nervous one.
func addWords(r *rand.Rand, s step) step {
	if word := []string{twin, again, lost, hangUp, "", "", "", "", "", "", "", ""}[r.IntN(12)]; word != "" {
		s.With = append(s.With, word)
	}
	return s
}

// operations counts the steps.
func (p plan) operations() int {
	n := 0
	for _, at := range p.Places {
		for _, c := range at.Clients {
			n += len(c.Steps)
		}
	}
	return n
}

// String is the plan in the form that parse reads, a line a step.
func (p plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d\n", p.Seed)
	for _, at := range p.Places {
		fmt.Fprintf(&b, "place %d", at.N)
		if at.Home {
			b.WriteString(" home")
		}
		b.WriteString("\n")
		for _, c := range at.Clients {
			fmt.Fprintf(&b, "  client %d\n", c.N)
			for _, s := range c.Steps {
				fmt.Fprintln(&b, "   ", s)
			}
		}
	}
	return b.String()
}

func (s step) String() string {
	return strings.TrimSpace(fmt.Sprintf("%d +%s api%d %s %s", s.N, s.Pause, s.API, s.Do, strings.Join(s.With, " ")))
}

// parse reads what plan.String wrote. Empty lines and those that begin with # are skipped.
func parse(text string) (plan, error) {
	var p plan
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) == 0 || strings.HasPrefix(f[0], "#") {
			continue
		}
		if err := p.add(f); err != nil {
			return p, fmt.Errorf("%q: %w", lines.Text(), err)
		}
	}
	return p, lines.Err()
}

func (p *plan) add(f []string) (err error) {
	if len(f) < 2 {
		return fmt.Errorf("a word is missing")
	}
	switch f[0] {
	case "seed":
		p.Seed, err = strconv.ParseUint(f[1], 10, 64)
		return err
	case "place":
		at := place{Home: len(f) > 2 && f[2] == "home"}
		at.N, err = strconv.Atoi(f[1])
		p.Places = append(p.Places, at)
		return err
	}
	if len(p.Places) == 0 {
		return fmt.Errorf("no place before it")
	}
	at := &p.Places[len(p.Places)-1]
	if f[0] == "client" {
		var c client
		c.N, err = strconv.Atoi(f[1])
		at.Clients = append(at.Clients, c)
		return err
	}
	if len(at.Clients) == 0 {
		return fmt.Errorf("no client before it")
	}
	s, err := parseStep(f)
	c := &at.Clients[len(at.Clients)-1]
	c.Steps = append(c.Steps, s)
	return err
}

func parseStep(f []string) (s step, err error) {
	if len(f) < 4 {
		return s, fmt.Errorf("a step is: number +pause apiN verb words")
	}
	if s.N, err = strconv.Atoi(f[0]); err != nil {
		return s, err
	}
	if s.Pause, err = time.ParseDuration(strings.TrimPrefix(f[1], "+")); err != nil {
		return s, err
	}
	if s.API, err = strconv.Atoi(strings.TrimPrefix(f[2], "api")); err != nil {
		return s, err
	}
	s.Do, s.With = verb(f[3]), f[4:]
	if len(s.With) == 0 {
		s.With = nil
	}
	verbs := []verb{send, withdraw, withdrawMessage, stop, cancel, replay, reset, cut, kill}
	if !slices.Contains(verbs, s.Do) {
		return s, fmt.Errorf("the verbs are %v", verbs)
	}
	return s, nil
}
