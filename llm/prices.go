package llm

import (
	_ "embed"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/goccy/go-yaml"

	"bobbin/thread"
)

// A Price is what a model costs, in US dollars for a million tokens.
type Price struct {
	Input       float64
	CachedInput float64 // of the input tokens that the provider had in its cache
	Output      float64
	Reasoning   float64 // of the output tokens that the model thought
}

// maxPrice keeps the arithmetic inside 64 bits; no model costs a hundredth of it.
const maxPrice = 10_000

// maxTokens is what one call is taken to have used at most; a provider that reports more is wrong.
const maxTokens = 100_000_000

// of is what a call costs, rounded up to a billionth of a dollar. The sum is made in millionths of a dollar for a million
// tokens, which are whole numbers: 4 × maxPrice × 1e6 × maxTokens is below 2^62.
func (p Price) of(u thread.Usage) thread.USD {
	input, output := tokens(u.InputTokens), tokens(u.OutputTokens)
	cached, reasoning := min(tokens(u.CachedTokens), input), min(tokens(u.ReasoningTokens), output)
	sum := micro(p.Input)*(input-cached) + micro(p.CachedInput)*cached + micro(p.Output)*(output-reasoning) + micro(p.Reasoning)*reasoning
	return thread.USD((sum + 999) / 1000)
}

func micro(dollars float64) int64 { return int64(math.Round(dollars * 1e6)) }

func tokens(n int64) int64 { return min(max(n, 0), maxTokens) }

// worst is the same model with nothing in the cache, and all that it writes at its dearest.
func (p Price) worst() Price {
	in, out := max(p.Input, p.CachedInput), max(p.Output, p.Reasoning)
	return Price{in, in, out, out}
}

// Prices is a table of prices by model. The nil table knows none. It is safe for concurrent use.
type Prices struct {
	own    map[string]Price // by the operator
	known  map[string]Price // by default
	warned sync.Map         // models that were found without a price
}

//go:embed prices.yaml
var defaults string

// DefaultPrices is the table that comes with the program; prices.yaml names its sources.
func DefaultPrices() *Prices {
	known, err := parsePrices(strings.NewReader(defaults))
	if err != nil {
		panic(err) // our own file
	}
	return &Prices{known: known}
}

// LoadPrices reads the YAML file at path over the default table; see ParsePrices.
func LoadPrices(path string) (*Prices, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("prices file: %w", err)
	}
	defer f.Close()
	p, err := ParsePrices(f)
	if err != nil {
		return nil, fmt.Errorf("prices file %s:\n%w", path, err)
	}
	return p, nil
}

// ParsePrices reads a YAML mapping of models' names to their prices, in US dollars for a million tokens, over the default
// table. A price has the fields
//
//	input          required
//	cached_input   default: as input
//	output         required
//	reasoning      default: as output
//
// and no others. The error lists every mistake with the model and the field.
func ParsePrices(r io.Reader) (*Prices, error) {
	own, err := parsePrices(r)
	if err != nil {
		return nil, err
	}
	p := DefaultPrices()
	p.own = own
	return p, nil
}

// maxPricesFile is in bytes: a thousand times what a long list needs.
const maxPricesFile = 1 << 20

func parsePrices(r io.Reader) (table map[string]Price, err error) {
	defer func() {
		if recover() != nil { // the decoder has met unforeseen input before
			table, err = nil, errors.New("not valid YAML")
		}
	}()
	raw, err := io.ReadAll(io.LimitReader(r, maxPricesFile+1))
	switch {
	case err != nil:
		return nil, err
	case len(raw) > maxPricesFile:
		return nil, fmt.Errorf("want at most %d bytes", maxPricesFile)
	}
	var doc any
	if err := yaml.Unmarshal(raw, &doc); err != nil {
		if e, ok := errors.AsType[yaml.Error](err); ok {
			if p := e.GetToken().Position; p != nil {
				return nil, fmt.Errorf("not valid YAML: line %d, column %d: %s", p.Line, p.Column, e.GetMessage())
			}
		}
		return nil, errors.New("not valid YAML")
	}
	models, ok := doc.(map[string]any)
	if !ok && doc != nil {
		return nil, errors.New("want a YAML mapping of models' names to prices")
	}
	table = map[string]Price{}
	var mistakes []error
	for _, name := range slices.Sorted(maps.Keys(models)) {
		p, wrong := readPrice(models[name])
		for _, w := range wrong {
			mistakes = append(mistakes, fmt.Errorf("  %s: %s", name, w))
		}
		table[name] = p
	}
	return table, errors.Join(mistakes...)
}

func readPrice(v any) (p Price, wrong []string) {
	fields, ok := v.(map[string]any)
	if !ok {
		return p, []string{"want input and output, in US dollars for a million tokens"}
	}
	read := func(name string, fallback *float64) float64 {
		v, given := fields[name]
		delete(fields, name)
		switch {
		case !given && fallback == nil:
			wrong = append(wrong, name+" is missing")
			return 0
		case !given:
			return *fallback
		}
		f, ok := number64(v)
		if !ok || !(f >= 0 && f <= maxPrice) { // NaN is neither
			wrong = append(wrong, fmt.Sprintf("%s: want dollars for a million tokens, from 0 to %d, got %v", name, maxPrice, v))
			return 0
		}
		return f
	}
	p.Input = read("input", nil)
	p.CachedInput = read("cached_input", &p.Input)
	p.Output = read("output", nil)
	p.Reasoning = read("reasoning", &p.Output)
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		wrong = append(wrong, name+" is not known here; what is: input, cached_input, output, reasoning")
	}
	return p, wrong
}

func number64(v any) (float64, bool) {
	switch n := v.(type) {
	case float64:
		return n, true
	case uint64:
		return float64(n), true
	case int64:
		return float64(n), true
	}
	return 0, false
}

// snapshot is the date that providers put behind a model's name: gpt-5-mini-2025-08-07, claude-haiku-4-5-20251001.
var snapshot = regexp.MustCompile(`-(\d{4}-\d{2}-\d{2}|\d{8})$`)

// find returns the price of a model that has several names, the one that was asked for first. The operator's table counts
// before the other, a name as it is before a snapshot of a known model.
func (p *Prices) find(names ...string) (Price, bool) {
	if p == nil {
		return Price{}, false
	}
	for _, table := range []map[string]Price{p.own, p.known} {
		for _, cut := range []func(string) string{func(s string) string { return s }, undated} {
			for _, name := range names {
				if price, ok := table[cut(name)]; ok {
					return price, true
				}
			}
		}
	}
	return Price{}, false
}

func undated(model string) string { return snapshot.ReplaceAllString(model, "") }

// cost prices a call. A model without a price costs nothing, and is warned of once.
func (p *Prices) cost(u thread.Usage, names ...string) thread.USD {
	price, ok := p.find(names...)
	if !ok && p != nil && len(names) > 0 {
		if _, again := p.warned.LoadOrStore(names[len(names)-1], true); !again {
			slog.Warn("the model has no price, so its calls cost nothing and no limit holds them; BOBBIN_PRICES_FILE can name one",
				"model", names[len(names)-1])
		}
	}
	return price.of(u)
}
