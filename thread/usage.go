package thread

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Usage counts what model calls used.
type Usage struct {
	InputTokens     int64 `json:"input_tokens"`
	CachedTokens    int64 `json:"cached_tokens"` // of InputTokens: those that the provider had in its cache
	OutputTokens    int64 `json:"output_tokens"`
	ReasoningTokens int64 `json:"reasoning_tokens"` // of OutputTokens: those that the model thought
	Cost            USD   `json:"cost_usd"`         // 0 where the model has no price
}

// Add returns the sum of u and v.
func (u Usage) Add(v Usage) Usage {
	return Usage{
		InputTokens: u.InputTokens + v.InputTokens, CachedTokens: u.CachedTokens + v.CachedTokens,
		OutputTokens: u.OutputTokens + v.OutputTokens, ReasoningTokens: u.ReasoningTokens + v.ReasoningTokens,
		Cost: u.Cost + v.Cost,
	}
}

// Tokens is all that was read and written.
func (u Usage) Tokens() int64 { return u.InputTokens + u.OutputTokens }

// USD is an amount of money in billionths of a US dollar. In JSON it is a number of dollars.
type USD int64

// Dollar is one US dollar; MaxUSD is the largest amount that ParseUSD takes.
const (
	Dollar USD = 1e9
	MaxUSD     = 1_000_000_000 * Dollar
)

var errUSD = errors.New("want an amount of dollars such as 20 or 12.50, from 0 to 1000000000")

// ParseUSD reads an amount of dollars such as "20" or "0.0025". What is smaller than a billionth is rounded.
func ParseUSD(s string) (USD, error) {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || !(f >= 0 && f <= MaxUSD.Dollars()) { // NaN is neither
		return 0, errUSD
	}
	return USD(math.Round(f * float64(Dollar))), nil
}

// Dollars is the amount in dollars, rounded as floating point numbers are.
func (u USD) Dollars() float64 { return float64(u) / float64(Dollar) }

// String is the amount for people: at least cents, and all of what is smaller.
func (u USD) String() string {
	whole, rest, ok := strings.Cut(u.decimal(), ".")
	if !ok || len(rest) < 2 {
		rest = (rest + "00")[:2]
	}
	if whole, minus := strings.CutPrefix(whole, "-"); minus {
		return "-$" + whole + "." + rest
	}
	return "$" + whole + "." + rest
}

// decimal is exact, without zeros at its end.
func (u USD) decimal() string {
	sign, n := "", uint64(u)
	if u < 0 {
		sign, n = "-", uint64(-u)
	}
	s := fmt.Sprintf("%s%d.%09d", sign, n/uint64(Dollar), n%uint64(Dollar))
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}

// MarshalJSON writes a number of dollars, exactly.
func (u USD) MarshalJSON() ([]byte, error) { return []byte(u.decimal()), nil }

// UnmarshalJSON reads a number of dollars.
func (u *USD) UnmarshalJSON(b []byte) error {
	f, err := strconv.ParseFloat(string(b), 64)
	if err != nil || math.Abs(f) > MaxUSD.Dollars() {
		return errUSD
	}
	*u = USD(math.Round(f * float64(Dollar)))
	return nil
}

// Spending is what an owner's model calls of a calendar month (UTC) came to.
type Spending struct {
	Limit    *USD      // of the month; nil: none
	Spent    USD       // by calls that have ended
	Reserved USD       // by calls under way: what they may cost at most
	Resets   time.Time // when the next month begins
}

// Over reports whether the limit is reached: no call starts any more.
func (s Spending) Over() bool { return s.Limit != nil && s.Spent >= *s.Limit }

// Remaining is what may still be spent, never less than 0; without a limit it has no meaning.
func (s Spending) Remaining() USD {
	if s.Limit == nil {
		return 0
	}
	return max(0, *s.Limit-s.Spent-s.Reserved)
}

// String says how the owner stands, in a sentence for people.
func (s Spending) String() string {
	if s.Limit == nil {
		return fmt.Sprintf("%v spent this month, %v reserved by calls under way, and there is no limit", s.Spent, s.Reserved)
	}
	return fmt.Sprintf("the limit of this month is %v; %v is spent, %v reserved by calls under way; it starts anew on %s",
		*s.Limit, s.Spent, s.Reserved, s.Resets.UTC().Format("2006-01-02 15:04 UTC"))
}

// A UsageLimitError says that the owner's monthly limit is reached. errors.As finds it.
type UsageLimitError struct{ Spending Spending }

func (e *UsageLimitError) Error() string { return "usage limit: " + e.Spending.String() }
