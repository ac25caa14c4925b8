package races

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
)

func TestAPlanIsItsSeedsAndIsReadAsItIsPrinted(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		p := draw(seed, large)
		require.Empty(t, cmp.Diff(p, draw(seed, large)))
		again, err := parse("# a comment\n\n" + p.String())
		require.NoError(t, err)
		require.Empty(t, cmp.Diff(p, again))
	}
	require.NotEqual(t, draw(1, large).String(), draw(2, large).String())
}

func TestAPlanThatCannotBeReadSaysWhichLine(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"seed x":                                 `"seed x"`,
		"  0 +1ms api0 send":                     "no place",
		"place 1\n 0 +1ms api0 send":             "no client",
		"place 1\n client 0\n 0 +1ms api0 shout": "verbs",
		"place 1\n client 0\n 0 +1ms api0 send\n 1 soon api0 send": "soon",
		"place": "missing",
	} {
		_, err := parse(text)
		require.ErrorContains(t, err, want)
	}
}

// large is the size of the plans here, whichever form the tests have.
var large = size{places: 30, clients: 3, steps: 10, pause: time.Second, kills: 1}

// wordy is a false checker: it takes a place for broken where somebody interrupts and somebody else withdraws by id.
func wordy(p plan) bool {
	return slices.ContainsFunc(p.Places, func(at place) bool {
		who := map[string]int{}
		for _, c := range at.Clients {
			for _, s := range c.Steps {
				switch {
				case s.Do == send && s.has("interrupt"):
					who["interrupts"] = c.N + 1
				case s.Do == withdrawMessage:
					who["withdraws"] = c.N + 1
				}
			}
		}
		return who["interrupts"] > 0 && who["withdraws"] > 0 && who["interrupts"] != who["withdraws"]
	})
}

func TestAFailingPlanShrinksToWhatItNeedsToFail(t *testing.T) {
	t.Parallel()
	tried := 0
	for seed := range uint64(10) {
		p := draw(seed, large)
		require.True(t, wordy(p))
		q := shrink(p, func(p plan) bool { tried++; return wordy(p) }, time.Now().Add(time.Hour))
		require.True(t, wordy(q))
		require.Equal(t, 2, q.operations(), "%s", q)
		require.Len(t, q.Places, 1)
		require.Len(t, q.Places[0].Clients, 2)
		for _, c := range q.Places[0].Clients {
			require.Zero(t, c.Steps[0].Pause)
		}
		require.Contains(t, q.String(), "send interrupt\n")
	}
	t.Logf("%d tries a plan", tried/10)
}

func TestAPlanThatFailsNowAndThenShrinksToOneThatCanFail(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 1))
	p := draw(4, large)
	q := shrink(p, func(p plan) bool { return wordy(p) && r.IntN(3) > 0 }, time.Now().Add(time.Hour))
	require.True(t, wordy(q))
	require.Less(t, q.operations(), p.operations()/4)
}

func TestShrinkingEndsWhenItsTimeIsOver(t *testing.T) {
	t.Parallel()
	p := draw(4, large)
	require.Empty(t, cmp.Diff(p, shrink(p, wordy, time.Now().Add(-time.Second))))
}
