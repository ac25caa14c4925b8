package crashes_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"

	"bobbin/e2e/crashes"
	"bobbin/e2e/tally"
)

// seedVar repeats a storm; what the machine does in between is its own.
const seedVar = "BOBBIN_CRASHES_SEED"

func TestProcessesKilledAtRandomLoseAndDoubleNothing(t *testing.T) {
	t.Parallel()
	seed := uint64(1)
	if set := os.Getenv(seedVar); set != "" {
		var err error
		if seed, err = strconv.ParseUint(set, 10, 64); err != nil {
			t.Fatalf("%s: %v", seedVar, err)
		}
	}
	t.Logf("%s=%d", seedVar, seed)
	book := tally.Keep(t, "crashes")
	s := crashes.NewStorm(t)
	var talkers []*crashes.Talker
	for range 3 {
		talkers = append(talkers, s.Talker())
	}
	var sent int
	var mu sync.Mutex
	var storm sync.WaitGroup
	storm.Go(func() {
		crashes.All(talkers, func(k *crashes.Talker) {
			n := k.Talk(rand.New(rand.NewPCG(seed, uint64(slices.Index(talkers, k)+1))))
			mu.Lock()
			defer mu.Unlock()
			sent += n
		})
	})
	kills, cuts := s.Rage(rand.New(rand.NewPCG(seed, 0)), tally.Pick(8, 70))
	storm.Wait()
	row := tally.Row{Runs: 1, Operations: sent, Kills: kills, Figures: map[string]string{"lines cut or slowed": fmt.Sprint(cuts)}}
	for _, k := range talkers {
		wrong := k.Judge()
		row.Add(crashes.Row(wrong))
		for _, w := range wrong {
			t.Errorf("%s: %s", w.Kind, w.What)
		}
	}
	book.Add(row)
	t.Logf("%d messages, %d kills, %d lines cut or slowed", sent, kills, cuts)
}
