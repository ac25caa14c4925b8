package agent_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"bobbin/agent"
	"bobbin/thread"
)

// says makes a model that gives one reply after the other, whatever it is shown.
func (h *house) says(replies ...string) {
	h.model = func(int, thread.Prompt, time.Duration) (thread.Reply, time.Duration, error) {
		r, took, err := reply(replies[0])
		replies = replies[1:]
		return r, took, err
	}
}

func TestRunHandsBackOnlyAfterARoundWasTried(t *testing.T) {
	t.Parallel()
	h := newHouse("Hello", "search")
	h.says("ask search", "say Done.")
	h.handBack = func() bool { return true }
	res, err := h.holder().Run(t.Context())
	require.NoError(t, err)
	require.Equal(t, agent.Result{Kind: agent.HandBack}, res)
	require.Equal(t, 1, h.log.rounds)
	require.Empty(t, h.log.load().Open)
}

func TestRunEndsWithoutAModelCallIfTheLogHoldsTheAnswer(t *testing.T) {
	t.Parallel()
	h := newHouse("Hello")
	h.says("say Done.")
	_, err := h.drive(t.Context())
	require.NoError(t, err)
	h.handBack = func() bool { return true }
	res, err := h.holder().Run(t.Context()) // the model has no more to say
	require.NoError(t, err)
	require.Equal(t, agent.Answered, res.Kind)
}

func TestRunReturnsWhatAHookDoesNotExplain(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"load", "take", "model", "commit", "run search", "finish search", "failed", "wait"} {
		for _, cause := range []error{thread.ErrFenced, context.Canceled, errors.New("disk full")} {
			h := newHouse("Hello", "search")
			h.says("temporary", "ask search", "say Done.")
			reached := false
			h.point = func(at string) error {
				require.False(t, reached, "%s after %s has failed", at, name)
				if reached = at == name; reached {
					return cause
				}
				return nil
			}
			_, err := h.holder().Run(t.Context())
			require.ErrorIs(t, err, cause, name)
		}
	}
}

func TestRunFailsATurnWhoseCallWasStartedAndHasNoResult(t *testing.T) {
	t.Parallel()
	h := newHouse("Hello", "search", "send")
	h.outside["send"] = true
	h.says("ask search send")
	res, err := h.holder().Run(t.Context())
	require.NoError(t, err)
	require.Equal(t, agent.Outside, res.Kind)
	require.True(t, h.log.start(res.Calls[0])) // and its worker dies
	res, err = h.holder().Run(t.Context())
	require.NoError(t, err)
	require.Equal(t, agent.Result{Kind: agent.Failed, Fail: thread.FailToolUnknown}, res)
	require.False(t, h.log.start(thread.Call{Round: 1, Index: 1}), "it must not run again")
}

func TestRunFailsAtOnceWithTheCodeOfWhatDoesNotPass(t *testing.T) {
	t.Parallel()
	for kind, want := range map[thread.ModelErrorKind]thread.FailCode{
		thread.ModelTooLong:  thread.FailContextTooLong,
		thread.ModelInvalid:  thread.FailModelInvalid,
		thread.ModelFiltered: thread.FailModelFiltered,
		thread.ModelQuota:    thread.FailModelQuota,
	} {
		h := newHouse("Hello")
		h.says(string(kind))
		before := h.log.load()
		res, err := h.holder().Run(t.Context())
		require.NoError(t, err)
		require.Equal(t, agent.Result{Kind: agent.Failed, Fail: want}, res)
		require.Empty(t, cmp.Diff(before, h.log.load()), "it leaves nothing")
	}
}

func TestRunTakesAgainAfterAnotherClaim(t *testing.T) {
	t.Parallel()
	for _, last := range []string{"empty", "malformed"} {
		h := newHouse("Hello", "search")
		h.says(last, last, "ask search", "say Done.")
		res, err := h.drive(t.Context())
		require.NoError(t, err)
		require.Equal(t, agent.Failed, res.Kind)
		h.log.counters = thread.Counters{} // as a claim leaves them
		h.log.queue = []string{"Go on."}
		res, err = h.drive(t.Context())
		require.NoError(t, err)
		require.Equal(t, agent.Answered, res.Kind)
		require.Equal(t, []string{"Go on."}, h.log.loaded)
	}
}

func TestRunGoesOnCountingFailuresOfARoundWhoseMessageIsLoaded(t *testing.T) {
	t.Parallel()
	h := newHouse("Hello", "search")
	h.spec.Limits.LongWait = 0 // each wait is the workflow's
	h.says("temporary", "temporary", "temporary", "temporary")
	waits := 0
	h.trace = func(format string, _ ...any) {
		if waits++; format == "failed" {
			h.log.queue = []string{"Are you there?"}
		}
	}
	res, err := h.drive(t.Context())
	require.NoError(t, err)
	require.Equal(t, agent.Result{Kind: agent.Failed, Fail: thread.FailModelUnavailable}, res)
	require.Len(t, h.log.loaded, 3)
}

func TestRunTakesAtTheHeadsOfRoundsWithToolsOnly(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		replies []string
		rounds  int // limit
		takes   int
	}{
		"rounds with tools":            {[]string{"ask search", "ask search", "say x"}, 9, 3},
		"retries of a call":            {[]string{"temporary", "say x"}, 9, 1},
		"the retry of an empty reply":  {[]string{"empty", "say x"}, 9, 1},
		"the retry of a malformed one": {[]string{"malformed", "say x"}, 9, 1},
		"the wrap-up":                  {[]string{"ask search", "say x"}, 1, 1},
		"an empty wrap-up":             {[]string{"ask search", "empty", "say x"}, 1, 1},
	} {
		h := newHouse("Hello", "search")
		h.spec.Limits.Rounds = c.rounds
		h.says(c.replies...)
		_, err := h.drive(t.Context())
		require.NoError(t, err, name)
		require.Equal(t, c.takes, h.takes, name)
	}
}

func TestRunStartsTheClockOverWhenAMessageIsLoaded(t *testing.T) {
	t.Parallel()
	h := newHouse("Hello", "search")
	h.spec.Limits.Duration = 10 * time.Minute
	var limits []time.Duration
	replies := []string{"(6m) ask search", "(6m) ask search", "say Done."}
	h.model = func(_ int, _ thread.Prompt, limit time.Duration) (thread.Reply, time.Duration, error) {
		limits = append(limits, limit)
		return reply(replies[len(limits)-1])
	}
	h.committed = func(round int) {
		if round == 1 {
			h.log.queue = []string{"More."}
		}
	}
	_, err := h.drive(t.Context())
	require.NoError(t, err)
	require.Equal(t, []time.Duration{10 * time.Minute, 10 * time.Minute, 4 * time.Minute}, limits)
}

func TestBackoffDoublesAndHonoursTheProvider(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		n    int
		asks time.Duration
		want time.Duration
	}{
		{0, 0, time.Second},
		{1, 0, 2 * time.Second},
		{2, 0, 4 * time.Second},
		{2, 3 * time.Second, 4 * time.Second},
		{0, 7 * time.Second, 7 * time.Second},
		{0, time.Hour, 5 * time.Minute},
	} {
		require.Equal(t, c.want, agent.Backoff(c.n, c.asks), "%d %v", c.n, c.asks)
	}
}

func TestCheckAnswerRefusesCallsWrittenAsText(t *testing.T) {
	t.Parallel()
	for text, ok := range map[string]bool{
		"Hello.":                         true,
		"":                               true, // empty is judged elsewhere
		"Write <tool_call> to call one.": true,
		"  <tool_call>{}</tool_call>":    false,
		"<function=search>":              false,
		"<|tool_calls|>":                 false,
	} {
		require.Equal(t, ok, agent.CheckAnswer(thread.Reply{Text: text}) == nil, text)
	}
}
