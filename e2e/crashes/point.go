package crashes

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// A Point is a place where a process can be killed.
type Point struct {
	Role string // api or worker
	Op   string // what it was about to do, or had done
	N    int    // the how manyth of its kind in a scene, from 1
	Side Side
}

// Side says on which side of its operation a point is.
type Side string

// The sides of a commit, of a model request, and of a tool call.
const (
	Before Side = "before" // nothing of it has reached Postgres but the locks
	After  Side = "after"  // Postgres has committed, and the process does not know

	Arrived  Side = "arrived"     // the request is at the provider
	Piece    Side = "first piece" // some of the answer was sent
	Finished Side = "not read"    // all of the answer was sent, nothing was read

	Called   Side = "called"   // the tool has had its effect
	Answered Side = "answered" // and has answered, which was not read
)

func (p Point) String() string { return fmt.Sprintf("%s: %s %d, %s", p.Role, p.Op, p.N, p.Side) }

// Kind is the point without its number, for the table.
func (p Point) Kind() string { return fmt.Sprintf("%s: %s, %s", p.Role, p.Op, p.Side) }

// OnWire reports whether a Wire finds the point.
func (p Point) OnWire() bool { return p.Side == Before || p.Side == After }

var written = regexp.MustCompile(`(?i)\b(INSERT INTO|UPDATE|DELETE FROM)\s+([a-z_]+)`)

// writes lists what a statement writes, as "UPDATE turns".
func writes(sql string) []string {
	var list []string
	for _, m := range written.FindAllStringSubmatch(sql, -1) {
		verb, table := strings.ToUpper(m[1]), strings.ToLower(m[2])
		if verb == "UPDATE" && slices.Contains([]string{"of", "set", "skip"}, table) {
			continue // a lock, or what ON CONFLICT does
		}
		list = append(list, verb+" "+table)
	}
	return list
}

// A rule names what writes all of these, and none of those.
type rule struct {
	name string
	all  []string
	none []string
	text string // which occurs in it, if set
}

// rules: the first that fits counts. One without a name is of what a process does by the clock, which is no point of a scene.
var rules = []rule{
	{name: "accept of a turn", all: []string{"INSERT INTO deliveries", "INSERT INTO turns"}},
	{name: "accept of a steering message", all: []string{"INSERT INTO deliveries", "INSERT INTO steering"}},
	{name: "accept of another part", all: []string{"INSERT INTO deliveries"}},
	{name: "open thread", all: []string{"INSERT INTO threads"}},
	{name: "end", all: []string{"UPDATE runs", "UPDATE turns"}, text: "turn_id = NULL"},
	{name: "take", all: []string{"UPDATE steering", "INSERT INTO entries"}},
	{name: "claim", all: []string{"UPDATE runs", "UPDATE turns"}},
	{name: "commit round", all: []string{"INSERT INTO rounds"}},
	{name: "start call", all: []string{"UPDATE calls"}, text: "state = 'started', started_at"},
	{name: "finish call", all: []string{"UPDATE calls", "UPDATE steps"}},
	{name: "record outcome", all: []string{"UPDATE calls"}},
	{name: "", all: []string{"INSERT INTO workers"}},
	{name: "", all: []string{"DELETE FROM workers"}},
	{name: "", all: []string{"UPDATE outbox"}},
	{name: "", all: []string{"DELETE FROM events"}},
	{name: "", all: []string{"DELETE FROM deliveries"}},
	{name: "", all: []string{"DELETE FROM repeats"}},
	{name: "", all: []string{"DELETE FROM steering"}},
	{name: "", all: []string{"UPDATE turns"}, text: "SKIP LOCKED"},
	{name: "begin stint", all: []string{"INSERT INTO attempts", "UPDATE turns"}},
	{name: "begin tool", all: []string{"INSERT INTO attempts"}},
	{name: "end attempt", all: []string{"DELETE FROM attempts"}},
	{name: "clear outbox", all: []string{"DELETE FROM outbox"}},
	{name: "reserve", all: []string{"INSERT INTO ledger"}, none: []string{"UPDATE turns"}},
	{name: "settle", all: []string{"INSERT INTO ledger"}},
	{name: "fail attempt", all: []string{"UPDATE turns"}, text: "model_failures + 1"},
	{name: "keep text of a file", all: []string{"INSERT INTO file_texts"}},
	{name: "write deltas", all: []string{"INSERT INTO events"}, none: []string{"UPDATE turns"}},
}

// nameOf says which operation writes the statements. What no rule knows is named by what it writes, so that it is no less a
// point; "" is none.
func nameOf(statements []string) string {
	var all []string
	for _, s := range statements {
		all = append(all, writes(s)...)
	}
	if len(all) == 0 {
		return ""
	}
	text := strings.Join(statements, "\n")
	for _, r := range rules {
		has := func(w string) bool { return slices.Contains(all, w) }
		lacks := func(w string) bool { return !has(w) }
		if !slices.ContainsFunc(r.all, lacks) && !slices.ContainsFunc(r.none, has) && strings.Contains(text, r.text) {
			return r.name
		}
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), ", ")
}

// A Fault is what a Wire does at a point.
type Fault struct {
	Kind FaultKind
	Code string // of Refuse: the SQLSTATE
}

// FaultKind says what kind of fault.
type FaultKind int

func (f Fault) String() string {
	return map[FaultKind]string{NoFault: "nothing", Kill: "killed", Refuse: "refused " + f.Code, Reset: "reset"}[f.Kind]
}

// The kinds of fault. The zero value is none.
const (
	NoFault FaultKind = iota
	Kill              // SIGKILL to the process, and its connections end
	Refuse            // Postgres is made to answer with an error
	Reset             // the connection breaks in the middle of the answer
)

// A Plan says where the next fault of a lane is, and counts what passes. Wires of several processes share one.
type Plan struct {
	mu    sync.Mutex
	armed *Point
	fault Fault
	times int // how often it is still to happen
	done  int // how often it has
	seen  map[Point]int
}

// Arm starts the count afresh; the point is where fault happens, times times in a row of its kind; nil: nowhere.
func (p *Plan) Arm(at *Point, fault Fault, times int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed, p.fault, p.times, p.done, p.seen = at, fault, times, 0, map[Point]int{}
}

// made is how often the fault has been made.
func (p *Plan) made() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.done
}

// Disarm ends the count, and returns how often each operation was seen: a point that stands for all of its kind, without
// number and side.
func (p *Plan) Disarm() map[Point]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	seen := p.seen
	p.armed, p.seen = nil, nil
	return seen
}

// pass counts an operation, and says what is to happen with it.
func (p *Plan) pass(role, op string) (Point, Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := Point{Role: role, Op: op}
	if p.seen == nil || op == "" {
		return at, Fault{}
	}
	p.seen[at]++
	at.N = p.seen[at]
	if a := p.armed; a == nil || p.times == 0 || a.Role != role || a.Op != op || at.N < a.N {
		return at, Fault{}
	}
	p.times--
	p.done++
	at.Side = p.armed.Side
	return at, p.fault
}
