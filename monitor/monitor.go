// Package monitor shows Prometheus what stands in Postgres, and what this process does with it: what no single process
// counts. Many scrapers cost no more than one.
package monitor

import (
	"context"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"bobbin/store"
	"bobbin/thread"
)

const (
	keepFor   = 5 * time.Second // what was read is shown again for so long
	readLimit = time.Second     // of the query; scrapers commonly wait ten seconds
)

// Registry returns a registry of a process: what Go and the operating system say, the version, and what db holds.
func Registry(db *store.DB, version string) *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "bobbin_build_info", Help: "1; the labels say what runs.",
			ConstLabels: prometheus.Labels{"version": version, "go_version": runtime.Version()},
		}, func() float64 { return 1 }),
		&backlog{read: db.Gauges}, pool{db},
	)
	return r
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

var (
	databaseUp    = desc("bobbin_database_up", "1 if what follows could be read within a second, else 0 and it is missing.")
	turns         = desc("bobbin_turns", "Turns that run or wait, in the whole database.", "state", "source")
	waiting       = desc("bobbin_waiting", "What waits, in the whole database.", "what")
	waitingOldest = desc("bobbin_waiting_oldest_seconds", "How long the first of them has waited.", "what")
	outboxDue     = desc("bobbin_outbox_due", "Nudges that should have gone out to Temporal.")
	outboxOldest  = desc("bobbin_outbox_oldest_seconds", "How long the first of them has waited.")
	workers       = desc("bobbin_workers", "Worker processes that live.")
)

// backlog is what waits and runs in the whole database, so that every process shows the same.
type backlog struct {
	read func(context.Context, time.Duration) (store.Gauges, error)

	mu   sync.Mutex // held while reading: who scrapes meanwhile gets the same
	last store.Gauges
	at   time.Time
	err  error
}

// Describe implements prometheus.Collector.
func (b *backlog) Describe(c chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{databaseUp, turns, waiting, waitingOldest, outboxDue, outboxOldest, workers} {
		c <- d
	}
}

// Collect implements prometheus.Collector.
func (b *backlog) Collect(c chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		c <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	g, err := b.gauges()
	if err != nil {
		gauge(databaseUp, 0)
		return
	}
	gauge(databaseUp, 1)
	for _, n := range counts(g.Turns) {
		gauge(turns, float64(n.Count), string(n.Status), string(n.Source))
	}
	for what, w := range map[string]store.Waiting{"turn": g.Turn, "undriven": g.Undriven, "steering": g.Steering} {
		gauge(waiting, float64(w.Count), what)
		gauge(waitingOldest, w.Oldest.Seconds(), what)
	}
	gauge(outboxDue, float64(g.Outbox.Count))
	gauge(outboxOldest, g.Outbox.Oldest.Seconds())
	gauge(workers, float64(g.Workers))
}

// counts fills in the combinations that no turn has: a series that goes away is not zero to Prometheus.
func counts(have []store.TurnCount) (list []store.TurnCount) {
	for _, status := range []thread.TurnStatus{thread.TurnQueued, thread.TurnRunning} {
		for _, source := range []thread.Source{thread.SourceUser, thread.SourceSchedule, thread.SourceEvent, thread.SourceResume} {
			n := store.TurnCount{Status: status, Source: source}
			for _, h := range have {
				if h.Status == status && h.Source == source {
					n.Count = h.Count
				}
			}
			list = append(list, n)
		}
	}
	return list
}

func (b *backlog) gauges() (store.Gauges, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.at.IsZero() && time.Since(b.at) < keepFor {
		return b.last, b.err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*readLimit) // for a database that says nothing at all
	defer cancel()
	if b.last, b.err = b.read(ctx, readLimit); b.err != nil {
		slog.Warn("gauges not read", "error", b.err)
	}
	b.at = time.Now()
	return b.last, b.err
}

var (
	connections  = desc("bobbin_database_connections", "Connections of this process's pool.", "state")
	maxConns     = desc("bobbin_database_connections_max", "BOBBIN_DATABASE_CONNECTIONS.")
	acquireWaits = desc("bobbin_database_waits_total", "How often no connection was free.")
	acquireTime  = desc("bobbin_database_wait_seconds_total", "How long was waited for connections.")
)

type pool struct{ db *store.DB }

// Describe implements prometheus.Collector.
func (pool) Describe(c chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{connections, maxConns, acquireWaits, acquireTime} {
		c <- d
	}
}

// Collect implements prometheus.Collector.
func (p pool) Collect(c chan<- prometheus.Metric) {
	s := p.db.Pool()
	c <- prometheus.MustNewConstMetric(connections, prometheus.GaugeValue, float64(s.InUse), "in_use")
	c <- prometheus.MustNewConstMetric(connections, prometheus.GaugeValue, float64(s.Idle), "idle")
	c <- prometheus.MustNewConstMetric(maxConns, prometheus.GaugeValue, float64(s.Max))
	c <- prometheus.MustNewConstMetric(acquireWaits, prometheus.CounterValue, float64(s.Waits))
	c <- prometheus.MustNewConstMetric(acquireTime, prometheus.CounterValue, s.Waited.Seconds())
}
