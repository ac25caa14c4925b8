package thread

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestUSDIsExactInJSONAndForPeople(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		amount       USD
		json, people string
	}{
		{0, "0", "$0.00"},
		{1, "0.000000001", "$0.000000001"},
		{5 * Dollar, "5", "$5.00"},
		{Dollar / 10, "0.1", "$0.10"},
		{4_750_000_000, "4.75", "$4.75"},
		{123_456_789, "0.123456789", "$0.123456789"},
		{-1_500_000_000, "-1.5", "-$1.50"},
		{MaxUSD, "1000000000", "$1000000000.00"},
	} {
		raw, err := json.Marshal(c.amount)
		require.NoError(t, err)
		require.Equal(t, c.json, string(raw))
		require.Equal(t, c.people, c.amount.String())
		var back USD
		require.NoError(t, json.Unmarshal(raw, &back))
		require.Equal(t, c.amount, back)
	}
}

func TestParseUSDRefusesWhatIsNoAmount(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"", "-1", "NaN", "Inf", "-0.01", "1e300", "five", "5$", "1,5"} {
		_, err := ParseUSD(s)
		require.Error(t, err, s)
	}
	for s, want := range map[string]USD{"0": 0, "5": 5 * Dollar, "0.0025": 2_500_000, "0.0000000001": 0, "1e3": 1000 * Dollar} {
		got, err := ParseUSD(s)
		require.NoError(t, err, s)
		require.Equal(t, want, got, s)
	}
}

func TestALimitIsReachedWhenItIsSpent(t *testing.T) {
	t.Parallel()
	limit, none := 5*Dollar, USD(0)
	require.False(t, Spending{Spent: 100 * Dollar}.Over(), "no limit")
	require.False(t, Spending{Limit: &limit, Spent: limit - 1, Reserved: limit}.Over(), "what is reserved may be given back")
	require.True(t, Spending{Limit: &limit, Spent: limit}.Over())
	require.True(t, Spending{Limit: &none}.Over(), "a limit of 0 allows nothing")
	require.Zero(t, Spending{Limit: &limit, Spent: 2 * limit}.Remaining(), "the limit was lowered below what is spent")
	s := Spending{Limit: &limit, Spent: 4_950_000_000, Reserved: 30_000_000, Resets: time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)}
	require.Equal(t, "the limit of this month is $5.00; $4.95 is spent, $0.03 reserved by calls under way; it starts anew on 2026-12-01 00:00 UTC", s.String())
}
