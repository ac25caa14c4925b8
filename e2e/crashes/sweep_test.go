package crashes_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"bobbin/e2e/crashes"
	"bobbin/e2e/tally"
)

// A job is a scene to be played.
type job struct {
	at    crashes.Point
	fault crashes.Fault
	times int
}

func (j job) String() string { return j.at.String() + ", " + j.fault.String() }

// cell is where the laboratory counts the visit.
func (j job) cell() string { return j.at.Kind() + ", " + j.fault.String() }

// pointsOf are the points of a scene in which each operation was seen so often, and those beside Postgres.
func pointsOf(seen map[crashes.Point]int) []crashes.Point {
	var list []crashes.Point
	add := func(role, op string, times int, sides ...crashes.Side) {
		for n := range times {
			for _, side := range sides {
				list = append(list, crashes.Point{Role: role, Op: op, N: n + 1, Side: side})
			}
		}
	}
	for op, times := range seen {
		add(op.Role, op.Op, times, crashes.Before, crashes.After)
	}
	add("worker", "model request", 5, crashes.Arrived, crashes.Piece, crashes.Finished)
	for _, tool := range []string{"look", "put", "charge"} {
		add("worker", "call "+tool, 1, crashes.Called, crashes.Answered)
	}
	slices.SortFunc(list, func(a, b crashes.Point) int { return cmp.Compare(a.String(), b.String()) })
	return list
}

// faults are what Postgres may say, beside nothing: https://www.postgresql.org/docs/current/errcodes-appendix.html
var faults = []crashes.Fault{
	{Kind: crashes.Refuse, Code: "53100"}, // the disk is full
	{Kind: crashes.Refuse, Code: "53300"}, // too many connections
	{Kind: crashes.Refuse, Code: "25006"}, // read-only: a standby, after its primary was lost
	{Kind: crashes.Reset},
}

// jobsOf are what is played at the points: all of it, or of each kind of point one kill and one other fault.
func jobsOf(points []crashes.Point, all bool, chance *rand.Rand) []job {
	var jobs []job
	kinds := map[string][]crashes.Point{}
	for _, p := range points {
		if all {
			jobs = append(jobs, job{p, crashes.Fault{Kind: crashes.Kill}, 1})
		}
		kinds[p.Role+p.Op] = append(kinds[p.Role+p.Op], p)
	}
	if !all { // the stories of ../crash_test.go have these
		delete(kinds, "workercall look")
		delete(kinds, "workercall put")
	}
	names := make([]string, 0, len(kinds))
	for name := range kinds {
		names = append(names, name)
	}
	slices.Sort(names)
	for i, name := range names {
		some := kinds[name]
		p := some[chance.IntN(len(some))]
		if !all {
			jobs = append(jobs, job{p, crashes.Fault{Kind: crashes.Kill}, 1})
		}
		for n, f := range faults {
			if p.OnWire() && (all || n == i%len(faults)) {
				at := p
				at.Side = map[bool]crashes.Side{true: crashes.After, false: crashes.Before}[f.Kind == crashes.Reset]
				jobs = append(jobs, job{at, f, 2})
			}
		}
	}
	return jobs
}

// Every commit of every process is a point to be killed at, and so is what the provider and the tools see. The first lanes
// have one worker, for which another is started when it is killed; the last has two, of which one lives on.
func TestProcessesKilledAtEachNamedPointLoseAndDoubleNothing(t *testing.T) {
	t.Parallel()
	book := tally.Keep(t, "crashes")
	chance := rand.New(rand.NewPCG(1, 0))
	plain := crashes.NewLane(t, 1, limit)
	dry := plain.Play(t, nil, crashes.Fault{}, 0)
	require.Empty(t, dry.Wrong, "without a fault")
	points := pointsOf(dry.Seen)
	for _, p := range points {
		require.NotContains(t, p.Op, "INSERT", "an operation without a name; rules wants another row")
	}
	s := &sweep{book: book}
	jobs := jobsOf(points, tally.Long(), chance)
	pairs := slices.DeleteFunc(slices.Clone(jobs), func(j job) bool {
		return j.at.Role != "worker" || !j.at.OnWire() || j.fault.Kind != crashes.Kill
	})
	if !tally.Long() {
		pairs = pairs[len(pairs)/2:]
		jobs = slices.DeleteFunc(jobs, func(j job) bool { return slices.Contains(pairs, j) })
	}
	alone, together := queue(jobs), queue(pairs)
	t.Run("Lanes", func(t *testing.T) {
		t.Run("One", func(t *testing.T) { t.Parallel(); s.run(t, plain, alone) })
		t.Run("Two", func(t *testing.T) { t.Parallel(); s.run(t, crashes.NewLane(t, 1, limit), alone) })
		t.Run("OfTwoWorkers", func(t *testing.T) { t.Parallel(); s.run(t, crashes.NewLane(t, 2, limit), together) })
	})
	s.report(t)
}

// limit makes every model call reserve and settle.
const limit = "BOBBIN_MONTHLY_LIMIT_USD=1000000"

func queue(jobs []job) <-chan job {
	c := make(chan job, len(jobs))
	for _, j := range jobs {
		c <- j
	}
	close(c)
	return c
}

// A sweep gathers what its lanes find.
type sweep struct {
	book *tally.Book

	mu     sync.Mutex
	row    tally.Row
	kinds  map[crashes.Kind]int
	missed []string
}

func (s *sweep) run(t *testing.T, l *crashes.Lane, jobs <-chan job) {
	for j := range jobs {
		t.Run(j.String(), func(t *testing.T) {
			began := time.Now()
			r := l.Play(t, &j.at, j.fault, j.times)
			t.Logf("%s: reached %t, %v, recovered after %v", j, r.Reached, time.Since(began).Round(time.Millisecond), r.Recovery.Round(time.Millisecond))
			s.add(t, j, r)
		})
	}
}

func (s *sweep) add(t *testing.T, j job, r crashes.Result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	piece := crashes.Row(r.Wrong)
	piece.Runs, piece.Operations = 1, 5
	for _, w := range r.Wrong {
		if s.kinds == nil {
			s.kinds = map[crashes.Kind]int{}
		}
		s.kinds[w.Kind]++
		t.Errorf("%s: %s", w.Kind, w.What)
	}
	switch {
	case !r.Reached:
		s.missed = append(s.missed, j.String())
	case j.fault.Kind == crashes.Kill:
		piece.Kills = 1
		fallthrough
	default:
		piece.Cells = map[string]int{j.cell(): 1}
	}
	if r.Recovery > 0 {
		piece.Recovery = []time.Duration{r.Recovery}
	}
	s.row.Add(piece)
	s.book.Add(piece)
}

func (s *sweep) report(t *testing.T) {
	var cells []string
	for cell, visits := range s.row.Cells {
		cells = append(cells, fmt.Sprintf("%4d  %s", visits, cell))
	}
	slices.SortFunc(cells, func(a, b string) int { return cmp.Compare(a[6:], b[6:]) })
	for _, c := range cells {
		t.Log(c)
	}
	for k, n := range s.kinds {
		t.Logf("%d times: %s", n, k)
	}
	for _, m := range s.missed {
		t.Logf("not reached: %s", m)
	}
	require.Less(t, len(s.missed), max(3, len(cells)/5), "most points must be reached, or they tell nothing")
}
