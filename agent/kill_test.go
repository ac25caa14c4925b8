package agent_test

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"bobbin/agent"
	"bobbin/thread"
)

// A turn may be killed at each step of each hook, before its effect or after it. Whoever goes on finds the step log, and
// the session comes out as if nothing had happened. A tool with side effects that was killed midway ends the turn instead.
func TestATurnKilledAtAnyPointGoesOnFromTheLog(t *testing.T) {
	t.Parallel()
	for _, path := range goldens(t) {
		g := readGolden(t, path)
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			t.Parallel()
			undisturbed := kill(t, g.script, 0, 0)
			require.NotZero(t, undisturbed.points)
			for n := 1; n <= undisturbed.points; n++ {
				compare(t, g.script, undisturbed, kill(t, g.script, n, 0))
			}
			for range 20 { // and twice
				n, gap := 1+rand.IntN(undisturbed.points), 1+rand.IntN(undisturbed.points)
				compare(t, g.script, undisturbed, kill(t, g.script, n, gap))
			}
		})
	}
}

// An end is how a turn came out.
type end struct {
	*house
	t      *testing.T
	result agent.Result
	points int    // passed
	at     string // where it was killed
}

// kill plays a script and kills the holder at the nth point that it passes; 0: never; and again gap points later.
func kill(t *testing.T, text string, n, gap int) *end {
	_, h := parse(t, text)
	e := &end{house: h, t: t}
	h.point = func(name string) error {
		if e.points++; e.points == n || gap > 0 && e.points == n+gap {
			e.at += " " + name
			return errKilled
		}
		return nil
	}
	watch(t, h, !strings.Contains(text, "\nother "))
	var err error
	e.result, err = h.drive(t.Context())
	require.NoError(t, err, "killed at%s", e.at)
	return e
}

// watch fails a test whose house repeats what its log holds. Where another holder may be faster, what it has done may be
// begun again, and is thrown away; a tool with side effects is not.
func watch(t *testing.T, h *house, alone bool) {
	model, tool := h.model, h.tool
	h.model = func(round int, p thread.Prompt, limit time.Duration) (thread.Reply, time.Duration, error) {
		if alone {
			require.Equal(t, h.log.rounds+1, round, "a committed round is asked for again")
			require.NotEqual(t, agent.Answer, h.log.last, "a turn that has its answer goes on")
		}
		for _, e := range p.Entries {
			for _, c := range e.Calls {
				require.False(t, c.State.Open(), "the model is shown a call without a result")
			}
		}
		return model(round, p, limit)
	}
	h.tool = func(c thread.Call) (string, bool) {
		require.True(t, !alone || h.log.call(c.Round, c.Index).State.Open(), "a call that has its result is run again")
		if h.outside[c.Name] {
			require.Equal(t, 1, h.ran[c.Key()], "a tool with side effects is run again")
		}
		return tool(c)
	}
}

func compare(t *testing.T, text string, want, got *end) {
	t.Helper()
	for key, n := range got.ran {
		require.LessOrEqual(t, n, 3, key) // two kills, each between a tool and its record
	}
	if got.unknown() {
		require.Equal(t, agent.Result{Kind: agent.Failed, Fail: thread.FailToolUnknown}, got.result, "killed at%s", got.at)
		return
	}
	got.settled()
	if mayDiffer(text) {
		return
	}
	require.Empty(t, cmp.Diff(want.result, got.result), "killed at%s", got.at)
	require.Empty(t, cmp.Diff(session(want.log.entries), session(got.log.entries)), "killed at%s", got.at)
	require.Equal(t, want.log.rounds, got.log.rounds)
	require.Empty(t, cmp.Diff(want.log.queue, got.log.queue), "killed at%s", got.at)
}

// mayDiffer reports whether a kill may change the session: where two hold a turn it decides who is first, where time is
// short it costs some, and where messages wait the next holder takes another before it calls the model.
func mayDiffer(text string) bool {
	for _, word := range []string{"\nother ", "\nlost ", "\nunable ", "\nlimit duration "} {
		if strings.Contains(text, word) {
			return true
		}
	}
	return strings.Count(text, "\nafter ") > 1
}

// unknown reports whether a call was started and nobody knows what came of it.
func (e *end) unknown() bool {
	for _, entry := range e.log.entries {
		for _, c := range entry.Calls {
			if c.State == thread.CallStarted {
				return true
			}
		}
	}
	return false
}

// settled checks what holds of each turn that ended, however it went.
func (e *end) settled() {
	e.t.Helper()
	seen := map[string]int{}
	for i, entry := range e.log.entries {
		require.Equal(e.t, int64(i), entry.Pos)
		if entry.Kind == thread.EntryUser {
			seen[entry.Text]++
			e.answeredAfter(i)
		}
		for _, c := range entry.Calls {
			require.False(e.t, e.result.Kind == agent.Answered && c.State.Open(), "%v has no result", c)
		}
	}
	for text, n := range seen {
		require.Equal(e.t, 1, n, "%q is in the session %d times", text, n)
	}
	for _, waiting := range e.log.queue {
		require.Zero(e.t, seen[waiting], "%q is loaded and waits", waiting)
	}
}

// answeredAfter checks that a message was shown to a model call whose round was written, if the turn was answered.
func (e *end) answeredAfter(pos int) {
	e.t.Helper()
	if e.result.Kind != agent.Answered {
		return
	}
	for _, entry := range e.log.entries[pos:] {
		if entry.Kind == thread.EntryAssistant {
			return
		}
	}
	require.Fail(e.t, fmt.Sprintf("entry %d is delivered yet unseen", pos))
}
