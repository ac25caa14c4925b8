package api

import (
	"crypto/rand"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"

	"bobbin/tracing"
)

const requestKey = "bobbin.request"

// identify gives the request an id: the one that came with it, where it is fit to be logged, or a new one.
func identify(c *gin.Context) {
	id := c.GetHeader("X-Request-Id")
	if !isID(id) {
		id = rand.Text()
	}
	c.Set(requestKey, id)
	c.Header("X-Request-Id", id)
}

func requestID(c *gin.Context) string { return c.GetString(requestKey) }

type metrics struct {
	requests    *prometheus.CounterVec
	durations   *prometheus.HistogramVec
	operations  *prometheus.HistogramVec
	subscribers prometheus.Gauge
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "bobbin_http_requests_total", Help: "Requests answered, by route and status.",
		}, []string{"method", "route", "status"}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "bobbin_http_request_seconds", Help: "Time to answer a request. Event streams are not among them.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 14),
		}, []string{"method", "route"}),
		operations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "bobbin_api_operation_seconds", Help: "Time of accept and stop, the two that a person waits for.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14),
		}, []string{"operation"}),
		subscribers: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "bobbin_event_subscribers", Help: "Event streams that are open.",
		}),
	}
	r.MustRegister(m.requests, m.durations, m.operations, m.subscribers)
	return m
}

// timer starts to time an operation; what it returns ends that.
func (m *metrics) timer(operation string) func() {
	start := time.Now()
	return func() { m.operations.WithLabelValues(operation).Observe(time.Since(start).Seconds()) }
}

// observe counts and logs a request: what it was and how it went, nothing that it held.
func (a *api) observe(c *gin.Context) {
	start := time.Now()
	end := trace(c)
	c.Next()
	end()
	took, route, status := time.Since(start), c.FullPath(), c.Writer.Status()
	if route == "" {
		route = "none"
	}
	method := c.Request.Method
	if !knownMethod[method] {
		method = "other" // a client must not be able to make up label values
	}
	a.metrics.requests.WithLabelValues(method, route, strconv.Itoa(status)).Inc()
	if route != eventsRoute {
		a.metrics.durations.WithLabelValues(method, route).Observe(took.Seconds())
	}
	level := slog.LevelInfo
	if operatorRoute[route] {
		level = slog.LevelDebug // probes and scrapes, every few seconds
	}
	a.cfg.Log.LogAttrs(c.Request.Context(), level, "request",
		slog.String("method", method), slog.String("route", route), slog.Int("status", status), slog.Duration("took", took),
		slog.String("owner", owner(c)), slog.String("request_id", requestID(c)))
}

// trace makes the span of a request. Probes and streams have none.
func trace(c *gin.Context) (end func()) {
	route := c.FullPath()
	if route == "" || operatorRoute[route] || route == eventsRoute {
		return func() {}
	}
	ctx, span := tracing.Serve(c.Request.Context(), c.Request.Method+" "+route, c.Request.Header,
		tracing.Method.String(c.Request.Method), tracing.Route.String(route))
	c.Request = c.Request.WithContext(ctx)
	return func() {
		kind := ""
		if status := c.Writer.Status(); status >= http.StatusInternalServerError {
			kind = strconv.Itoa(status)
		}
		span.Set(tracing.Status.Int(c.Writer.Status()))
		span.End(kind)
	}
}

var (
	knownMethod = map[string]bool{
		http.MethodGet: true, http.MethodHead: true, http.MethodPost: true, http.MethodPut: true, http.MethodPatch: true,
		http.MethodDelete: true, http.MethodOptions: true,
	}
	operatorRoute = map[string]bool{"/healthz": true, "/readyz": true, "/metrics": true}
)

// recovered answers for a handler that panicked. It logs where, and only what Go itself says, as other values may hold
// what a person wrote.
func (a *api) recovered(c *gin.Context) {
	defer func() {
		v := recover()
		switch {
		case v == nil:
			return
		case v == http.ErrAbortHandler: //nolint:errorlint // the very value
			panic(v)
		}
		what := fmt.Sprintf("%T", v)
		if err, ok := v.(runtime.Error); ok {
			what = err.Error()
		}
		a.cfg.Log.ErrorContext(c.Request.Context(), "handler panicked",
			"route", c.FullPath(), "request_id", requestID(c), "panic", what, "stack", string(debug.Stack()))
		if c.Writer.Written() {
			panic(http.ErrAbortHandler) // the client must not take what it got for the whole
		}
		a.fail(c, fmt.Errorf("panic: %s", what))
	}()
	c.Next()
}
