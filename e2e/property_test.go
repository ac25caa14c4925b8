package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"bobbin/e2e/house"
	"bobbin/llm/scripted"
	"bobbin/thread"
)

// seedVar repeats a run's choices. What the machines do in between differs all the same.
const seedVar = "BOBBIN_E2E_SEED"

// openai/codex#34599
func TestEveryPartIsInExactlyOneModelInputOrWithdrawnWhateverHappens(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv(seedVar); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("%s=%d", seedVar, seed)
	h := house.Furnish(t, "BOBBIN_HISTORY_ROLL_OVER=300")
	var people []*person
	for i := range 3 {
		people = append(people, newPerson(h, seed+uint64(i)))
	}
	until := time.Now().Add(12 * time.Second)
	var all sync.WaitGroup
	for _, c := range people {
		all.Go(func() { c.live(until) })
	}
	all.Go(func() { killWorkers(h, rand.New(rand.NewPCG(seed, 99)), until) })
	all.Wait()
	for _, c := range people {
		c.check()
	}
}

// killWorkers kills a worker now and then; one always comes back.
func killWorkers(h *house.House, r *rand.Rand, until time.Time) {
	w := h.Worker()
	for time.Now().Before(until) {
		time.Sleep(time.Duration(500+r.IntN(2500)) * time.Millisecond)
		if r.IntN(3) == 0 {
			w.Terminate()
			<-w.Done
		} else {
			w.Kill()
		}
		w = h.Worker()
	}
}

// A person does anything at any time, and remembers what became of each part.
type person struct {
	*house.Chat
	r *rand.Rand

	sent      []string        // accepted, in order
	jumped    map[string]bool // sent to go first
	withdrawn map[string]bool
	ids       []string // messages
}

func newPerson(h *house.House, seed uint64) *person {
	c := &person{r: rand.New(rand.NewPCG(seed, 1)), jumped: map[string]bool{}, withdrawn: map[string]bool{}}
	var mu sync.Mutex
	script := rand.New(rand.NewPCG(seed, 2))
	c.Chat = h.Chat(func(r scripted.Request) scripted.Reply {
		mu.Lock()
		n := script.IntN(10)
		mu.Unlock()
		switch {
		case n < 5 && len(r.Tools) > 0:
			return house.Ask([]string{"look", "put"}[n%2], fmt.Sprintf("k%d", n))
		case n == 5:
			return scripted.Reply{Status: 503}
		}
		return scripted.Reply{Text: "This is what I found, in a few words more than are needed.", TokenDelay: 5 * time.Millisecond}
	})
	first := c.Start(c.next())
	c.sent, c.ids = []string{part(first)}, []string{first.Message.ID}
	return c
}

var parts = regexp.MustCompile(`part-\d+;`)

func (c *person) next() string { return fmt.Sprintf("part-%d;", len(c.sent)) }

func part(a house.Accepted) string { return parts.FindString(a.Message.Text) }

func (c *person) live(until time.Time) {
	c.Answered(c.Turns()[0].ID) // so that what carries the marker is never withdrawn
	for time.Now().Before(until) {
		c.act(c.r.IntN(20))
		time.Sleep(time.Duration(c.r.IntN(120)) * time.Millisecond)
	}
}

func (c *person) act(n int) {
	switch {
	case n < 8:
		c.say()
	case n < 10:
		c.say(house.Files("fil_1"))
	case n < 12:
		c.say(house.ReplyTo(c.ids[c.r.IntN(len(c.ids))]))
	case n == 12:
		c.say(house.Delivery(thread.DeliverInterrupt))
	case n == 13:
		c.say(house.Delivery(thread.DeliverSteer))
	case n == 14:
		c.say(house.Delivery(thread.DeliverTurn))
	case n < 17:
		c.takeBack(c.Withdraw())
	case n == 17:
		c.takeBack(c.WithdrawMessage(c.ids[max(0, len(c.ids)-1-c.r.IntN(3))]))
	case n == 18:
		c.stopAll("conversation")
	default:
		c.stopAll([]string{"conversation", "all"}[c.r.IntN(2)])
	}
}

// say sends a part under a key, sometimes twice at once and once more later, as clients on bad lines do.
func (c *person) say(mods ...house.With) {
	text := c.next()
	mods = append(mods, house.Key(c.Marker+text))
	repeats := 1 + c.r.IntN(8)/7
	outs, errs := make([]house.Accepted, repeats), make([]error, repeats)
	var all sync.WaitGroup
	for i := range repeats {
		all.Go(func() { outs[i], errs[i] = c.TrySend(text, mods...) })
	}
	all.Wait()
	i := slices.IndexFunc(errs, func(err error) bool { return err == nil })
	if i < 0 {
		return // refused: nothing changed, and the text is used again
	}
	c.sent = append(c.sent, text)
	c.ids = append(c.ids, outs[i].Message.ID)
	probe := map[string]any{}
	for _, m := range mods {
		m(probe, &[]string{})
	}
	c.jumped[text] = probe["delivery"] == thread.DeliverInterrupt
}

func (c *person) takeBack(w thread.Withdrawn, err error) {
	if err == nil {
		c.back(w.Text)
	}
}

func (c *person) stopAll(scope string) {
	if out := c.Stop(scope); out.Withdrawn != nil {
		c.back(out.Withdrawn.Text)
	}
}

func (c *person) back(text string) {
	for _, p := range parts.FindAllString(text, -1) {
		c.withdrawn[p] = true
	}
}

func (c *person) check() {
	t := c.T
	c.Idle()
	var last house.Accepted
	for { // one more turn, whose request shows all that came before
		last = c.Send("the end")
		if c.Ended(last.TurnID).Name == thread.EventTurnSucceeded {
			break
		}
		c.Idle()
	}
	c.Idle()
	requests := c.Requests()
	final := requests[len(requests)-1]
	var got []string
	for _, text := range final.Texts("user") {
		got = append(got, parts.FindAllString(text, -1)...)
	}
	var want []string
	for _, p := range c.sent {
		if !c.withdrawn[p] {
			want = append(want, p)
		}
	}
	sorted := func(s []string) []string { return slices.Sorted(slices.Values(s)) }
	require.Equal(t, sorted(want), sorted(got), "each part that was accepted and not withdrawn, once")
	inLine := func(s []string) []string {
		return slices.DeleteFunc(slices.Clone(s), func(p string) bool { return c.jumped[p] })
	}
	require.Equal(t, inLine(want), inLine(got), "in the order in which they were accepted")
	for _, r := range requests {
		for _, text := range r.Texts("user") {
			for _, p := range parts.FindAllString(text, -1) {
				require.False(t, c.withdrawn[p], "%s was withdrawn and reached the model", p)
			}
		}
	}
	c.CheckReplies()
	c.CheckOrder()
	t.Logf("%s %d parts, %d withdrawn, %d turns, %d requests, %d events", c.Marker, len(c.sent), len(c.withdrawn), len(c.Turns()),
		len(requests), len(c.Watch.All()))
}
