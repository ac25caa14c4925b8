package races

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"bobbin/e2e/house"
	"bobbin/e2e/tally"
	"bobbin/thread"
)

func TestMain(m *testing.M) { house.Main(m) }

const (
	seedVar = "BOBBIN_RACES_SEED" // of the first run; the following runs have the numbers after it
	planVar = "BOBBIN_RACES_PLAN" // a file with a plan, as it is printed, to be done in place of one that is drawn
)

// usual is the size of a run. It belongs to what a seed says, so a seed of the long form is one of the long form.
var usual = size{places: tally.Pick(10, 24), clients: 3, steps: 8, pause: 300 * time.Millisecond}

// shrinkFor bounds how long a failing plan is cut.
var shrinkFor = time.Duration(tally.Pick(1, 4)) * time.Minute

func TestClientsThatRaceAreToldWhatHappensAndEachPartIsAnsweredOnceOrGivenBack(t *testing.T) {
	plans := planned(t)
	book := tally.Keep(t, "races")
	s := build(t)
	saw := seen{}
	var failed *plan
	var why violation
	var all []violation
	for _, p := range plans {
		found := s.judge(p, book, saw)
		if len(found) == 0 {
			t.Logf("seed %d: %d operations at %d threads", p.Seed, p.operations(), len(p.Places))
			continue
		}
		t.Logf("%s=%d: %d operations at %d threads, %d faults", seedVar, p.Seed, p.operations(), len(p.Places), len(found))
		if failed == nil {
			failed, why = &p, found[0]
		}
		all = append(all, found...)
	}
	t.Log(saw)
	if failed == nil {
		return
	}
	report(t, all)
	small := s.shrink(*failed, why)
	t.Logf("a plan that fails, for %s:\n%s", planVar, small)
}

// planned is what there is to do.
func planned(t *testing.T) []plan {
	t.Helper()
	if file := os.Getenv(planVar); file != "" {
		raw, err := os.ReadFile(file)
		require.NoError(t, err)
		p, err := parse(string(raw))
		require.NoError(t, err)
		return slices.Repeat([]plan{p}, 3)
	}
	first := uint64(tally.Pick(3, int(time.Now().Unix())))
	if s := os.Getenv(seedVar); s != "" {
		var err error
		first, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
	}
	var plans []plan
	for seed := first; seed < first+uint64(tally.Pick(1, 22)); seed++ {
		z := usual
		if seed%3 == 0 {
			z.kills = 2
		}
		plans = append(plans, draw(seed, z))
	}
	return plans
}

// judge does a plan and looks for what is wrong.
func (s *site) judge(p plan, book *tally.Book, saw seen) []violation {
	var found []violation
	row := tally.Row{Runs: 1, Operations: p.operations()}
	kills := s.kills
	for _, r := range s.play(p) {
		found = append(found, check(r, attachments)...)
		saw.add(r)
		steers, stops := r.latencies()
		row.Steer, row.Stop = append(row.Steer, steers...), append(row.Stop, stops...)
	}
	row.Kills = s.kills - kills
	row.Add(count(found))
	row.Figures = saw.figures(row.Figures)
	if book != nil {
		book.Add(row)
	}
	return found
}

// report fails the test with how many of each kind there are, and the first of each.
func report(t *testing.T, all []violation) {
	t.Helper()
	byKind := map[kind][]violation{}
	for _, v := range all {
		byKind[v.Kind] = append(byKind[v.Kind], v)
	}
	for k, of := range byKind {
		text := ""
		for _, v := range of[:min(3, len(of))] {
			text += fmt.Sprintf("\n  %.1200s", v)
		}
		t.Errorf("%d %s%s", len(of), k, text)
	}
}

// shrink cuts a plan for as long as it fails in the same way, each cut tried thrice.
func (s *site) shrink(p plan, why violation) plan {
	fails := func(p plan) bool {
		for range 3 {
			if slices.ContainsFunc(s.judge(p, nil, seen{}), func(v violation) bool { return v.Kind == why.Kind }) {
				return true
			}
		}
		return false
	}
	until := time.Now().Add(shrinkFor)
	if one := p.only(why.Place); fails(one) { // places have nothing to do with each other, but for the time that they take
		p = one
	}
	return shrink(p, fails, until)
}

// seen counts what came about, so that a run in which nothing meets anything shows.
type seen map[string]int

func (s seen) add(r record) {
	for _, c := range r.Calls {
		for _, t := range c.Tries {
			switch {
			case t.Ended.IsZero():
				s["requests without an answer"]++
			case t.Replayed:
				s["answers given again"]++
			case t.Told.code != "":
				s["refused: "+t.Told.code]++
			case c.Do == send:
				s["accepted: "+string(t.Told.disposition)]++
			case t.Told.withdrawn != "":
				s["gave something back: "+string(c.Do)]++
			default:
				s["done: "+string(c.Do)]++
			}
		}
	}
	for _, th := range r.Threads {
		s["threads"]++
		for _, e := range th.Events {
			switch {
			case e.Name == thread.EventTurnBoundary:
				s["taken"]++
			case e.Name == thread.EventTurnQueued && e.Turn.FollowUpOf != "":
				s["follow-up turns"]++
			case e.Turn != nil && e.Name != thread.EventTurnQueued && e.Name != thread.EventTurnStarted:
				s[string(e.Name)]++
			case e.Name == thread.EventAnswerRestarted:
				s["answers begun anew"]++
			}
		}
	}
	s["model requests"] += len(r.Requests)
	s["side effects"] += len(r.Effects)
}

func (s seen) String() string {
	var parts []string
	for _, what := range slices.Sorted(maps.Keys(s)) {
		parts = append(parts, fmt.Sprintf("%s %d", what, s[what]))
	}
	return strings.Join(parts, ", ")
}

// figures are those of a row, with what is worth a line in a table.
func (s seen) figures(others map[string]string) map[string]string {
	all := map[string]string{}
	maps.Copy(all, others)
	for _, what := range []string{"threads", "model requests", "taken", "requests without an answer"} {
		all[what] = strconv.Itoa(s[what])
	}
	return all
}
