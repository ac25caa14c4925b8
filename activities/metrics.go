package activities

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"bobbin/store"
	"bobbin/thread"
)

// metrics are what this process counts of its turns. Labels are few: a tool is named only if the server has it, a model as
// the configuration does.
type metrics struct {
	slots, used   *prometheus.GaugeVec
	rounds        *prometheus.CounterVec
	modelCalls    *prometheus.HistogramVec
	firstText     *prometheus.HistogramVec
	modelFailures *prometheus.CounterVec
	tokens        *prometheus.CounterVec
	cost          *prometheus.CounterVec
	toolCalls     *prometheus.HistogramVec
	takes         *prometheus.HistogramVec
	stops         prometheus.Histogram
	turns         *prometheus.CounterVec
}

var (
	quick = prometheus.ExponentialBuckets(0.001, 2, 13) // to 4 s
	long  = prometheus.ExponentialBuckets(0.05, 2, 15)  // to 14 min
)

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		slots: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "bobbin_worker_slots", Help: "Stints, and tools with side effects, that this worker runs at once, at most.",
		}, []string{"kind"}),
		used: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "bobbin_worker_slots_used", Help: "Stints, and tools with side effects, that this worker runs.",
		}, []string{"kind"}),
		rounds: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "bobbin_rounds_total", Help: "Rounds committed, by what the model came back with.",
		}, []string{"outcome"}),
		modelCalls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "bobbin_model_call_seconds", Help: "Time of a model call, to the end of its stream.", Buckets: long,
		}, []string{"model", "result"}),
		firstText: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "bobbin_model_first_text_seconds", Help: "Time from a model call's start to the first text of its answer.", Buckets: long,
		}, []string{"model"}),
		modelFailures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "bobbin_model_failures_total", Help: "Model calls that failed, by kind; temporary ones are tried again.",
		}, []string{"model", "kind"}),
		tokens: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "bobbin_model_tokens_total", Help: "Tokens of model calls, also of those that failed: input, cached (part of input), output, reasoning (part of output).",
		}, []string{"model", "kind"}),
		cost: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "bobbin_model_cost_usd_total", Help: "What model calls cost, also those that failed, where the price is known.",
		}, []string{"model"}),
		toolCalls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "bobbin_tool_call_seconds", Help: "Time of a tool call, by how it ended.", Buckets: long,
		}, []string{"tool", "result"}),
		takes: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "bobbin_take_seconds", Help: "Time of a take at a round head.", Buckets: quick,
		}, []string{"result"}),
		stops: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "bobbin_stop_seconds", Help: "Time from a stop's commit to the end of the model call it cut off, by the database's clock.", Buckets: quick,
		}),
		turns: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "bobbin_turns_ended_total", Help: "Turns that ended, by status and error; queued is one that is tried again later.",
		}, []string{"source", "status", "code"}),
	}
	if r != nil {
		r.MustRegister(m.slots, m.used, m.rounds, m.modelCalls, m.firstText, m.modelFailures, m.tokens, m.cost, m.toolCalls, m.takes, m.stops, m.turns)
	}
	return m
}

const slotStint, slotTool = "stint", "tool"

// use counts a slot as used until the returned function is called.
func (m *metrics) use(kind string) func() {
	g := m.used.WithLabelValues(kind)
	g.Inc()
	return g.Dec
}

func (m *metrics) took(began time.Time, entries int, err error) {
	result := "nothing"
	switch {
	case errors.Is(err, thread.ErrFenced), errors.Is(err, context.Canceled):
		result = "stopped"
	case err != nil:
		result = "failed"
	case entries > 0:
		result = "loaded"
	}
	m.takes.WithLabelValues(result).Observe(time.Since(began).Seconds())
}

func (m *metrics) called(model string, began time.Time, err error) {
	result := "ok"
	if failed := thread.AsModelError(err); failed != nil {
		result = "failed"
		m.modelFailures.WithLabelValues(model, string(failed.Kind)).Inc()
	} else if err != nil {
		result = "cut_off"
	}
	m.modelCalls.WithLabelValues(model, result).Observe(time.Since(began).Seconds())
}

// paid counts what a call used, also one that failed: cached tokens are input as well, thought ones output.
func (m *metrics) paid(model string, u thread.Usage) {
	m.tokens.WithLabelValues(model, "input").Add(float64(u.InputTokens))
	m.tokens.WithLabelValues(model, "output").Add(float64(u.OutputTokens))
	m.tokens.WithLabelValues(model, "cached").Add(float64(u.CachedTokens))
	m.tokens.WithLabelValues(model, "reasoning").Add(float64(u.ReasoningTokens))
	m.cost.WithLabelValues(model).Add(u.Cost.Dollars())
}

func (m *metrics) ended(t *thread.Turn, status thread.TurnStatus) {
	code := ""
	if t.Error != nil && status != thread.TurnSucceeded && status != thread.TurnCancelled {
		code = string(t.Error.Code)
	}
	m.turns.WithLabelValues(string(t.Source), string(status), code).Inc()
}

// stopped observes a model call that a stop cut off.
func (a *Activities) stopped(ctx context.Context, ref store.TurnRef) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if d, ok, err := a.Store.StoppedFor(ctx, ref); err == nil && ok {
		a.metrics.stops.Observe(d.Seconds())
	}
}

// ran observes a call of a tool.
func (m *metrics) ran(tool string, c *thread.Call, began time.Time) {
	result := "cut_off"
	if !c.State.Open() {
		result = string(c.State)
	}
	m.toolCalls.WithLabelValues(tool, result).Observe(time.Since(began).Seconds())
}
