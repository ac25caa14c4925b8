package races

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"bobbin/e2e/house"
	"bobbin/e2e/tally"
)

func TestMain(m *testing.M) { house.Main(m) }

const (
	seedVar = "BOBBIN_RACES_SEED" // of the first run; the following runs have the numbers after it
	planVar = "BOBBIN_RACES_PLAN" // a file with a plan, as it is printed, to be done in place of one that is drawn
)

// usual is the size of a run. It belongs to what a seed says, so a seed of the long form is one of the long form.
var usual = size{places: tally.Pick(10, 24), clients: 3, steps: 8, pause: 30 * time.Millisecond}

// shrinkFor bounds how long a failing plan is cut.
const shrinkFor = 3 * time.Minute

func TestClientsThatRaceAreToldWhatHappensAndEachPartIsAnsweredOnceOrGivenBack(t *testing.T) {
	plans := planned(t)
	book := tally.Keep(t, "races")
	s := build(t)
	var failed *plan
	var why violation
	var all []violation
	for _, p := range plans {
		found := s.judge(p, book)
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
func (s *site) judge(p plan, book *tally.Book) []violation {
	var found []violation
	row := tally.Row{Runs: 1, Operations: p.operations()}
	kills := s.kills
	for _, r := range s.play(p) {
		found = append(found, check(r, attachments)...)
		steers, stops := r.latencies()
		row.Steer, row.Stop = append(row.Steer, steers...), append(row.Stop, stops...)
	}
	row.Kills = s.kills - kills
	row.Add(count(found))
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
			if slices.ContainsFunc(s.judge(p, nil), func(v violation) bool { return v.Kind == why.Kind }) {
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
