package agent_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"bobbin/agent"
	"bobbin/thread"
)

// Random transcripts of many turns, in windows of random sizes, never outgrow the window, are summarised only where a cut may
// stand, lose nothing, and keep their order.
func TestRandomTranscriptsAreCutWhereTheyMayBe(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		compactRandom(t, seed)
	}
}

func FuzzCompaction(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(compactRandom)
}

func compactRandom(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	h := newHouse("the request", "search")
	old := earlier(r)
	for i := range old {
		old[i].Pos = int64(i)
	}
	own := h.log.entries
	h.log.entries = old
	h.log.append(own...)
	h.spec.Window.Tokens = 3000 + r.IntN(20_000)
	h.spec.Limits.Rounds = 1 + r.IntN(20)
	h.tool = func(thread.Call) (string, bool) { return strings.Repeat("x", r.IntN(6000)), r.IntN(4) > 0 }
	rounds := r.IntN(25)
	dense := 65 + r.IntN(45) // tokens of the provider for a hundred of ours
	summarised := int64(-1)
	h.summary = func(p thread.Prompt, _ time.Duration) (thread.Reply, time.Duration, error) {
		require.Empty(t, p.Tools)
		require.LessOrEqual(t, (len(p.System)+len(p.Entries[0].Text))/3, h.spec.Window.Tokens, "seed %d: the call for a summary is too long", seed)
		switch r.IntN(8) {
		case 0:
			return thread.Reply{}, 0, &thread.ModelError{Kind: thread.ModelTemporary}
		case 1:
			return thread.Reply{}, 0, &thread.ModelError{Kind: thread.ModelTooLong}
		case 2:
			return thread.Reply{}, 0, nil
		}
		return thread.Reply{Text: strings.Repeat("s", r.IntN(30_000)), Model: "m"}, 0, nil
	}
	h.model = func(round int, p thread.Prompt, _ time.Duration) (thread.Reply, time.Duration, error) {
		total := prompted(p) * dense / 100
		require.LessOrEqual(t, total, h.spec.Window.Tokens, "seed %d round %d: the prompt outgrew the window", seed, round)
		summarised = h.checkShown(t, p, summarised, seed)
		usage := thread.Usage{InputTokens: int64(total)}
		if len(p.Tools) == 0 || round > rounds {
			return thread.Reply{Text: "Done.", Usage: usage}, 0, nil
		}
		reply := thread.Reply{Usage: usage}
		for i := range 1 + r.IntN(3) {
			reply.Calls = append(reply.Calls, thread.Asked{ID: fmt.Sprint(i), Name: "search", Arguments: "{}"})
		}
		return reply, 0, nil
	}
	h.committed = func(int) {
		if r.IntN(5) == 0 {
			h.log.queue = append(h.log.queue, fmt.Sprint("message ", len(h.log.loaded), strings.Repeat(" y", r.IntN(500))))
		}
	}
	before := len(h.log.entries)
	res, err := h.drive(t.Context())
	require.NoError(t, err, "seed %d", seed)
	require.Equal(t, agent.Answered, res.Kind, "seed %d", seed)
	require.Greater(t, len(h.log.entries), before)
}

// earlier are the entries of turns before.
func earlier(r *rand.Rand) (list []thread.Entry) {
	text := func(n int) string { return strings.Repeat("w ", r.IntN(n)+1) }
	for turn := range r.IntN(80) {
		id := fmt.Sprint("trn_before_", turn)
		list = append(list, thread.Entry{Kind: thread.EntryUser, TurnID: id, Text: text(800)})
		if r.IntN(3) == 0 {
			list = append(list, thread.Entry{Kind: thread.EntryNote, TurnID: id, Text: "on the message"})
		}
		for round := range r.IntN(4) {
			if r.IntN(4) == 0 {
				list = append(list, thread.Entry{Kind: thread.EntryNote, TurnID: id, Round: round + 1, Text: "of the round"})
			}
			e := thread.Entry{Kind: thread.EntryAssistant, TurnID: id, Round: round + 1}
			for i := range 1 + r.IntN(4) {
				e.Calls = append(e.Calls, thread.Call{
					TurnID: id, Round: round + 1, Index: i, Name: "search", Arguments: "{}", State: thread.CallSucceeded, Result: text(2000),
				})
			}
			list = append(list, e)
		}
		list = append(list, thread.Entry{Kind: thread.EntryAssistant, TurnID: id, Round: 9, Text: text(600)})
	}
	return list
}

// prompted is an estimate of a prompt that knows nothing of the loop's.
func prompted(p thread.Prompt) int {
	n := len(p.System)
	for _, e := range p.Entries {
		n += len(e.Text) + 24
		for _, c := range e.Calls {
			n += len(c.Name) + len(c.Arguments) + len(c.Result) + 48
		}
	}
	return n / 3
}

// checkShown checks a prompt against the log: after the summary come what was asked in the turn and then all entries behind
// the cut, none left out, and the cut parts no note from what it belongs to. It returns the cut, which never goes back.
func (h *house) checkShown(t *testing.T, p thread.Prompt, before int64, seed uint64) int64 {
	t.Helper()
	if len(h.log.summaries) == 0 {
		require.Equal(t, h.log.entries[0].Kind, p.Entries[0].Kind)
		return -1
	}
	require.Contains(t, p.Entries[0].Text, "a summary", "seed %d", seed)
	upto := h.log.summaries[len(h.log.summaries)-1].Last.Pos
	require.GreaterOrEqual(t, upto, before)
	first := h.log.entries[upto+1]
	last := h.log.entries[upto]
	if first.Kind == thread.EntryNote && first.TurnID == last.TurnID {
		require.NotEqual(t, last.Round, first.Round, "seed %d: a note was parted from what it belongs to", seed)
	}
	want := []thread.Entry{}
	for _, e := range h.log.entries {
		if e.Pos > upto || e.TurnID == turnID && e.Kind == thread.EntryUser {
			want = append(want, e)
		}
	}
	got := 0
	for _, e := range p.Entries[1:] {
		if got < len(want) && e.Pos == want[got].Pos && e.Kind == want[got].Kind {
			require.Len(t, e.Calls, len(want[got].Calls), "seed %d", seed)
			got++
		}
	}
	require.Equal(t, len(want), got, "seed %d: not all that is kept is shown, in order", seed)
	return upto
}
