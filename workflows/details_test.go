package workflows

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"bobbin/contract"
	"bobbin/thread"
)

func TestDetailsTellWhatATurnDoesAndNothingThatWasSaid(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	r := newTurnRun(contract.TurnRef{ID: "trn_1", Source: thread.SourceUser, Mode: thread.Chat}, contract.Settings{})
	r.started, r.stints, r.waiting = began, 2, 1
	r.rounds = []contract.RoundLine{
		{Round: 1, Tools: []string{"search", "read"}, Duration: 1500 * time.Millisecond, InputTokens: 900, OutputTokens: 40},
		{Round: 2, Tools: []string{"read"}, Loaded: true, Duration: 80 * time.Millisecond, InputTokens: 1200, OutputTokens: 5},
	}
	r.heard(contract.Progress{TurnID: "another", Round: 9})
	r.heard(contract.Progress{TurnID: "trn_1", Round: 3, Tools: []string{"search"}, Waiting: 1})
	require.Empty(t, cmp.Diff(`**Turn trn_1** (user, chat) runs search

Round 3 · stint 2 · 1m15s so far · 1 waiting

| round | tools | took | tokens in | out |
| --- | --- | --- | --- | --- |
| 1 | search, read | 1.5s | 900 | 40 |
| 2 | message loaded; read | 80ms | 1200 | 5 |
`, r.details(began.Add(75*time.Second))))
}

func TestDetailsShowTheRecentRounds(t *testing.T) {
	t.Parallel()
	r := newTurnRun(contract.TurnRef{ID: "trn_1"}, contract.Settings{})
	for n := range 100 {
		r.rounds = append(r.rounds, contract.RoundLine{Round: n + 1})
	}
	text := r.details(time.Time{})
	require.Contains(t, text, "| 100 |")
	require.NotContains(t, text, "| 92 |")
	require.Less(t, len(text), 20<<10, "what Temporal takes")
}
