package agent_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"bobbin/agent"
	"bobbin/thread"
)

// Turns of random replies, messages, kills, lost takes and second holders keep the promises of the loop.
func TestRandomTurnsKeepTheirPromises(t *testing.T) {
	t.Parallel()
	n := uint64(400)
	if testing.Short() {
		n = 50
	}
	for seed := range n {
		randomTurn(t, seed, nil)
	}
}

func FuzzTurns(f *testing.F) {
	f.Add(uint64(1), []byte{0, 1, 2, 3})
	f.Fuzz(func(t *testing.T, seed uint64, choices []byte) { randomTurn(t, seed, choices) })
}

// A chooser takes its choices from bytes, as long as there are some, and from chance.
type chooser struct {
	rand  *rand.Rand
	bytes []byte
}

func (c *chooser) of(n int) int {
	if len(c.bytes) > 0 {
		b := c.bytes[0]
		c.bytes = c.bytes[1:]
		return int(b) % n
	}
	return c.rand.IntN(n)
}

func (c *chooser) one(in int) bool { return c.of(in) == 0 }

// A chance is a house in which anything may happen.
type chance struct {
	*house
	*chooser
	t      *testing.T
	sent   int  // messages
	sends  int  // of those, how many may still come
	kills  int  // that may still come
	alone  bool // no second holder comes
	nested bool
}

func randomTurn(t *testing.T, seed uint64, choices []byte) {
	t.Helper()
	c := &chance{house: newHouse("message 0", "search", "read", "send"), t: t, sends: 6, kills: 8, alone: seed%2 == 0}
	c.chooser = &chooser{rand.New(rand.NewPCG(seed, 0)), choices}
	c.outside["send"] = true
	c.spec.Limits.Rounds, c.spec.Limits.ToolCalls = 1+c.of(12), 5+c.of(30)
	c.spec.Limits.Duration, c.spec.Limits.ToolFailures = time.Duration(1+c.of(60))*time.Minute, 1+c.of(4)
	c.model, c.tool = c.reply, func(thread.Call) (string, bool) { return fmt.Sprint(c.of(100)), !c.one(3) }
	c.handBack = func() bool { return c.one(6) }
	c.point = c.happens
	watch(t, c.house, c.alone)
	res, err := c.drive(t.Context())
	require.NoError(t, err, "seed %d", seed)
	c.check(res, seed)
}

// happens is called at each step of each holder.
func (c *chance) happens(string) error {
	switch {
	case c.sends > 0 && c.one(8):
		c.sends--
		c.sent++
		c.log.queue = append(c.log.queue, fmt.Sprint("message ", c.sent))
	case c.one(40):
		c.loseTake = true
	case c.one(40):
		c.noTake = true
	case c.kills > 0 && c.one(15):
		c.kills--
		return errKilled
	case !c.alone && !c.nested && c.one(20):
		c.second()
	}
	return nil
}

// second lets another holder make a round, or more, while the first stands at a point.
func (c *chance) second() {
	c.nested = true
	defer func() { c.nested = false }()
	res, err := c.holder().Run(context0)
	if err != nil {
		require.True(c.t, errors.Is(err, errKilled), "%v", err)
		return
	}
	if res.Kind == agent.Outside {
		_ = c.outsideCalls(res.Calls) // killed: somebody else finds what it did
	}
}

func (c *chance) reply(_ int, p thread.Prompt, limit time.Duration) (thread.Reply, time.Duration, error) {
	require.GreaterOrEqual(c.t, limit, time.Duration(0))
	if len(p.Tools) > 0 && c.alone {
		c.toolsRound()
	}
	took := time.Duration(c.of(8)) * time.Minute
	switch c.of(12) {
	case 0:
		return thread.Reply{Text: "Done."}, took, nil
	case 1:
		return thread.Reply{}, took, nil
	case 2:
		return thread.Reply{Text: "<tool_call>"}, took, nil
	case 3, 4:
		after := time.Duration(c.of(3)*c.of(30)) * time.Second
		return thread.Reply{}, took, &thread.ModelError{Kind: thread.ModelTemporary, RetryAfter: after}
	}
	r := thread.Reply{Text: "Let me see."}
	for i := range 1 + c.of(4) {
		name := []string{"search", "read", "send", "invented"}[c.of(4)]
		r.Calls = append(r.Calls, thread.Asked{ID: fmt.Sprint(i), Name: name, Arguments: "{}"})
	}
	return r, took, nil
}

// toolsRound checks that a round that only writes the answer is offered no tools.
func (c *chance) toolsRound() {
	k, l := c.log.counters, c.spec.Limits
	require.Less(c.t, k.Rounds, l.Rounds)
	require.Less(c.t, k.ToolCalls, l.ToolCalls)
	require.False(c.t, c.log.last == agent.Empty && k.EmptyRetries > 0, "the retry of an empty reply has tools")
	require.False(c.t, c.log.last == agent.Malformed && k.MalformedRetries > 0, "the retry of a malformed reply has tools")
}

// check is what must hold of every turn that has ended.
func (c *chance) check(res agent.Result, seed uint64) {
	c.t.Helper()
	e := &end{house: c.house, t: c.t, result: res}
	e.settled()
	require.Equal(c.t, c.sent, len(c.log.loaded)+len(c.log.queue), "seed %d: a message is lost", seed)
	for i, text := range append(c.log.loaded, c.log.queue...) {
		require.Equal(c.t, fmt.Sprint("message ", i+1), text, "seed %d: out of order", seed)
	}
	last := 0
	for _, entry := range c.log.entries {
		if entry.Kind == thread.EntryAssistant {
			require.Greater(c.t, entry.Round, last, "seed %d: rounds grow", seed)
			last = entry.Round
		}
	}
	if res.Kind == agent.Answered {
		require.Equal(c.t, agent.Answer, c.log.last)
		require.Equal(c.t, last, c.log.rounds, "seed %d: the answer is not the last round", seed)
	}
	require.Equal(c.t, res.Fail == thread.FailToolUnknown, e.unknown() && res.Kind == agent.Failed, "seed %d", seed)
}
