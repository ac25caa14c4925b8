package llm

import (
	"bytes"
	"log/slog"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"bobbin/llm/scripted"
	"bobbin/thread"
)

func TestAPricesFileNamesAllItsMistakes(t *testing.T) {
	t.Parallel()
	_, err := ParsePrices(strings.NewReader(`
cheap: {input: -1, output: 2}
odd: {input: .nan, output: two, cached: 1}
short: {input: 1}
fine: {input: 1, output: 2}
flat: 7
`))
	require.EqualError(t, err, `  cheap: input: want dollars for a million tokens, from 0 to 10000, got -1
  flat: want input and output, in US dollars for a million tokens
  odd: input: want dollars for a million tokens, from 0 to 10000, got NaN
  odd: output: want dollars for a million tokens, from 0 to 10000, got two
  odd: cached is not known here; what is: input, cached_input, output, reasoning
  short: output is missing`)
	for _, text := range []string{"- a\n- b", "7", "{", "a: {input: 1, output: .inf}", "a: {input: 1e9, output: 1}", "a: {input: 1, input: 2, output: 1}"} {
		_, err := ParsePrices(strings.NewReader(text))
		require.Error(t, err, text)
	}
	p, err := ParsePrices(strings.NewReader(""))
	require.NoError(t, err, "an empty file adds nothing")
	_, ok := p.find("gpt-5-mini")
	require.True(t, ok)
}

func TestAModelIsFoundByItsNameOrAsASnapshot(t *testing.T) {
	t.Parallel()
	p, err := ParsePrices(strings.NewReader(`
mine: {input: 1, output: 2}
gpt-5-nano: {input: 7, output: 8}
gpt-5-mini-2025-08-07: {input: 9, output: 9}
`))
	require.NoError(t, err)
	for _, c := range []struct {
		names []string
		input float64
	}{
		{[]string{"mine", "gpt-5"}, 1},                       // a deployment that the operator names
		{[]string{"gpt-5-nano", "gpt-5-nano-2025-08-07"}, 7}, // the file counts before the default
		{[]string{"gpt-5-mini", "gpt-5-mini-2025-08-07"}, 9}, // and so does a snapshot that it names
		{[]string{"gpt-5-2025-08-07"}, 1.25},                 // a snapshot of a known model
		{[]string{"claude-sonnet-5-20260701"}, 2},            // as others date theirs
		{[]string{"router", "gpt-5.1-2025-11-13"}, 1.25},     // what a router chose
		{[]string{"gpt-5-mini-2"}, -1}, {[]string{"gpt"}, -1}, {nil, -1},
	} {
		got, ok := p.find(c.names...)
		require.Equal(t, c.input >= 0, ok, c.names)
		if ok {
			require.Equal(t, c.input, got.Input, c.names)
		}
	}
}

func TestTheDefaultTableIsWhole(t *testing.T) {
	t.Parallel()
	for name, p := range DefaultPrices().known {
		require.Positive(t, p.Input, name)
		require.Positive(t, p.Output, name)
		require.LessOrEqual(t, p.CachedInput, p.Input, name)
		require.Equal(t, p.Output, p.Reasoning, name)
	}
}

func TestACostIsRoundedUpAndNeverOverflows(t *testing.T) {
	t.Parallel()
	p := Price{Input: 0.25, CachedInput: 0.025, Output: 2, Reasoning: 2}
	require.Equal(t, thread.USD(25), p.of(thread.Usage{InputTokens: 1, CachedTokens: 1}), "25 billionths")
	require.Equal(t, thread.USD(1), Price{Input: 0.0001}.of(thread.Usage{InputTokens: 1}), "a tenth of a billionth")
	require.Equal(t, thread.USD(2_025_000), p.of(thread.Usage{InputTokens: 1000, CachedTokens: 1000, OutputTokens: 1000, ReasoningTokens: 900}))
	require.Equal(t, thread.USD(250), p.of(thread.Usage{InputTokens: 1, CachedTokens: -5}), "a provider that reports nonsense")
	most := Price{maxPrice, maxPrice, maxPrice, maxPrice}.of(thread.Usage{InputTokens: math.MaxInt64, OutputTokens: math.MaxInt64})
	require.Equal(t, 2*maxPrice*100*thread.Dollar, most)
}

// Not parallel: it takes the process's log.
func TestAModelWithoutAPriceIsWarnedOfOnce(t *testing.T) {
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	b := setup(t, scripted.Options{}, func(c *Config) { c.Prices = DefaultPrices() })
	for range 3 {
		got, err := b.client.Call(t.Context(), prompt("q"), nil)
		require.NoError(t, err)
		require.Zero(t, got.Usage.Cost)
	}
	require.Equal(t, 1, strings.Count(log.String(), "has no price"), log.String())
}

func TestWhatWasThoughtCountsAsWrittenWhereverTheProviderPutsIt(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		usage string
		want  thread.Usage
	}{
		"Inside":  {`{"prompt_tokens":10,"completion_tokens":8,"total_tokens":18,"prompt_tokens_details":{"cached_tokens":4},"completion_tokens_details":{"reasoning_tokens":5}}`, thread.Usage{InputTokens: 10, CachedTokens: 4, OutputTokens: 8, ReasoningTokens: 5}},
		"Outside": {`{"prompt_tokens":10,"completion_tokens":3,"total_tokens":18,"completion_tokens_details":{"reasoning_tokens":5}}`, thread.Usage{InputTokens: 10, OutputTokens: 8, ReasoningTokens: 5}},
		"Nulls":   {`{"prompt_tokens":10,"completion_tokens":3,"prompt_tokens_details":null,"completion_tokens_details":null}`, thread.Usage{InputTokens: 10, OutputTokens: 3}},
		"Nonsense": {
			`{"prompt_tokens":10,"completion_tokens":-3,"prompt_tokens_details":{"cached_tokens":99},"completion_tokens_details":{"reasoning_tokens":99}}`,
			thread.Usage{InputTokens: 10, CachedTokens: 10},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := raw(t, 200, nil, events("", `{"content":"a"}`)+"data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}],\"usage\":"+c.usage+"}\n\ndata: [DONE]\n\n").
				Call(t.Context(), prompt("q"), nil)
			require.NoError(t, err)
			require.Equal(t, c.want, got.Usage)
			require.False(t, got.Estimated)
		})
	}
}

func TestAFailedCallCostsWhatItIsEstimatedToHaveUsed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		reply  scripted.Reply
		output int64
		billed bool
	}{
		"Refused":            {scripted.Reply{Status: 400}, 0, false},
		"Overloaded":         {scripted.Reply{Status: 503}, 0, false},
		"RefusedInTheStream": {scripted.Reply{Fault: scripted.StreamError, ErrorCode: "server_error"}, 0, false},
		"BrokenAtOnce":       {scripted.Reply{Text: "a", Fault: scripted.Break}, 0, true},
		"BrokenHalfway":      {scripted.Reply{Pieces: []string{"abcdef", "g"}, Fault: scripted.Break, After: 1}, 2, true},
		"WithoutAnEnd":       {scripted.Reply{Pieces: []string{"abcdef"}, Fault: scripted.NoFinish, After: 1}, 2, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, scripted.Options{Play: scripted.Always(c.reply)}, func(cfg *Config) {
				cfg.Prices = &Prices{own: map[string]Price{"m": {Input: 1, CachedInput: 1, Output: 1, Reasoning: 1}}}
			})
			p := prompt("what is it?")
			got, err := b.client.Call(t.Context(), p, nil)
			require.Error(t, err)
			require.Equal(t, c.billed, got.Usage.Cost > 0)
			require.Equal(t, c.output, got.Usage.OutputTokens)
			if c.billed {
				require.True(t, got.Estimated)
				require.Equal(t, p.Estimate(), got.Usage.InputTokens)
			}
		})
	}
}

func TestABoundCoversTheDearestAnswerAndFitsWhatIsGranted(t *testing.T) {
	t.Parallel()
	c, err := New(Config{Model: "m", ReservedOutputTokens: 1000, LeastOutputTokens: 100, Prices: &Prices{own: map[string]Price{
		"m": {Input: 10, CachedInput: 1, Output: 20, Reasoning: 30},
	}}})
	require.NoError(t, err)
	b := c.Bound(1000)
	require.Equal(t, [3]thread.USD{10_000_000, 13_000_000, 40_000_000}, [3]thread.USD{b.Input.Cost, b.Least, b.Most}, "nothing cached, all thought")
	require.Equal(t, 1000, c.MaxOutput(b, b.Most))
	require.Equal(t, 100, c.MaxOutput(b, b.Least))
	require.Equal(t, 333, c.MaxOutput(b, 20_000_000))
	free, err := New(Config{Model: "m", MaxOutputTokens: 50})
	require.NoError(t, err)
	require.Zero(t, free.Bound(1000).Most)
	require.Equal(t, 50, free.MaxOutput(free.Bound(1000), 0))
}

func TestABoundLeavesRoomForThePromptInTheWindow(t *testing.T) {
	t.Parallel()
	for _, priced := range []bool{true, false} {
		cfg := Config{Model: "m", ReservedOutputTokens: 1000, LeastOutputTokens: 100, ContextTokens: 2000}
		if priced {
			cfg.Prices = &Prices{own: map[string]Price{"m": {Input: 1, CachedInput: 1, Output: 1, Reasoning: 1}}}
		}
		c, err := New(cfg)
		require.NoError(t, err)
		for _, tt := range []struct {
			input int64
			want  int
		}{{0, 1000}, {1000, 1000}, {1600, 400}, {1950, 100}, {5000, 100}} {
			b := c.Bound(tt.input)
			require.Equal(t, tt.want, c.MaxOutput(b, b.Most), "input %d, priced %v", tt.input, priced)
			if priced {
				require.Equal(t, thread.USD(tt.input+int64(tt.want))*1000, b.Most, "what cannot be written is not reserved")
			}
		}
	}
}
