package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"bobbin/files"
	"bobbin/store"
	"bobbin/thread"
)

// Config says what the API stands on. Store and Files must be set; a zero value of the rest takes its default.
type Config struct {
	Store *store.DB

	// Ready is asked by /readyz, beside Postgres. What its error says, a line for each thing that is missing, is shown to
	// anyone. Nil: nothing else is needed.
	Ready func(context.Context) error
	// Done is closed when the process is told to end: event streams end, so that nobody need wait for them, and /readyz
	// says no.
	Done <-chan struct{}
	// LocalKey is a key of LocalOwner, an owner that the store has. It is kept nowhere, so it is worth nothing beyond this
	// handler: give it where only this machine reaches it. Empty: there is none.
	LocalKey, LocalOwner string
	// Metrics is where the API registers its own, and what /metrics shows. Nil: a registry of its own.
	Metrics *prometheus.Registry
	Version string       // shown by /healthz
	Log     *slog.Logger // nil: slog.Default

	// Rate is how many requests a second each key may make, and Burst how many at once. A stream is one request. They are
	// counted in this handler alone. Rate 0: any number.
	Rate  float64
	Burst int
	// AuthFailures is how many wrong keys a minute may come from one address; then those that it has not seen work are
	// refused unread. 0: any number.
	AuthFailures int
	// TrustedProxies are the addresses, or networks in CIDR form, whose X-Forwarded-For is believed. None: nobody's.
	TrustedProxies []string

	Files           Blobs         // keeps the content of files
	FileTypes       []string      // that may be uploaded; default files.DefaultTypes
	TransferTimeout time.Duration // of an upload or a download; default 10m

	Limits       Limits
	Timeout      time.Duration // of a request that is no stream; default 30s
	KeyTTL       time.Duration // how long a revoked key may still be taken; default 10s, negative: never
	KeepAlive    time.Duration // between comments of a silent stream; default 15s
	WriteTimeout time.Duration // after which a stream whose client reads nothing is dropped; default 30s
}

// Limits bound what one request may hold. The number of attachments of a merged message is the store's.
type Limits struct {
	Body        int64 // bytes; default 1 MiB
	Text        int   // characters of a message; default 100,000
	Title       int   // characters; default 200
	Key         int   // characters of an Idempotency-Key; default 200
	ID          int   // characters of an id in a body; default 100
	Attachments int   // entries; default 100
	Mentions    int   // entries; default 100
	Mention     int   // characters of one; default 200
	File        int64 // bytes; default 20 MiB
}

func (c *Config) fill() {
	orElse(&c.Metrics, prometheus.NewRegistry())
	orElse(&c.Log, slog.Default())
	orElse(&c.Timeout, 30*time.Second)
	orElse(&c.KeyTTL, 10*time.Second)
	orElse(&c.KeepAlive, 15*time.Second)
	orElse(&c.WriteTimeout, 30*time.Second)
	orElse(&c.Limits.Body, 1<<20)
	orElse(&c.Limits.Text, 100_000)
	orElse(&c.Limits.Title, 200)
	orElse(&c.Limits.Key, 200)
	orElse(&c.Limits.ID, 100)
	orElse(&c.Limits.Attachments, 100)
	orElse(&c.Limits.Mentions, 100)
	orElse(&c.Limits.Mention, 200)
	orElse(&c.Limits.File, 20<<20)
	orElse(&c.TransferTimeout, 10*time.Minute)
	if len(c.FileTypes) == 0 {
		c.FileTypes = files.DefaultTypes
	}
}

func orElse[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

type api struct {
	cfg     Config
	store   *store.DB
	keys    *keys
	metrics *metrics

	rates    *limiter[[sha256.Size]byte]
	failures *limiter[netip.Prefix]
}

func init() { gin.SetMode(gin.ReleaseMode) } // gin keeps it for the process, and prints to stdout in other modes

// New returns the handler of all routes. It is safe for concurrent use, as many handlers on one database are.
func New(cfg Config) http.Handler {
	a, e := newEngine(cfg)
	e.GET("/v1/openapi.yaml", a.openapi)
	a.routes(e.Group("/v1", a.authorize))
	return e
}

// Operator returns a handler of /healthz, /readyz and /metrics alone, for a process without an API.
func Operator(cfg Config) http.Handler {
	_, e := newEngine(cfg)
	return e
}

func newEngine(cfg Config) (*api, *gin.Engine) {
	cfg.fill()
	a := &api{cfg: cfg, store: cfg.Store, keys: newKeys(cfg.Store.OwnerOf, cfg.KeyTTL), metrics: newMetrics(cfg.Metrics)}
	a.rates = newLimiter[[sha256.Size]byte](cfg.Rate, cfg.Burst)
	a.failures = newLimiter[netip.Prefix](float64(cfg.AuthFailures)/60, cfg.AuthFailures)
	e := gin.New()
	if err := e.SetTrustedProxies(cfg.TrustedProxies); err != nil {
		cfg.Log.Error("nobody's X-Forwarded-For is believed", "error", err)
		_ = e.SetTrustedProxies(nil)
	}
	e.HandleMethodNotAllowed = true
	e.RedirectTrailingSlash = false
	e.Use(identify, a.bound, a.observe, a.recovered)
	e.NoRoute(func(c *gin.Context) { a.fail(c, thread.ErrNotFound) })
	e.NoMethod(func(c *gin.Context) {
		a.fail(c, &Problem{Status: http.StatusMethodNotAllowed, Code: CodeMethodNotAllowed, Detail: "The header Allow names the methods of this address."})
	})
	a.operatorRoutes(e)
	return a, e
}

func (a *api) operatorRoutes(e *gin.Engine) {
	for _, method := range []string{http.MethodGet, http.MethodHead} {
		e.Handle(method, "/healthz", a.healthz)
		e.Handle(method, "/readyz", a.readyz)
	}
	e.GET("/metrics", gin.WrapH(promhttp.HandlerFor(a.cfg.Metrics, promhttp.HandlerOpts{})))
}

func (a *api) routes(v1 *gin.RouterGroup) {
	v1.POST("/threads", a.answer(http.StatusCreated, a.openThread))
	v1.GET("/threads", a.answer(http.StatusOK, a.listThreads))
	v1.GET("/threads/:thread", a.answer(http.StatusOK, a.getThread))
	v1.POST("/threads/:thread/messages", a.answer(http.StatusAccepted, a.accept))
	v1.GET("/threads/:thread/messages", a.answer(http.StatusOK, a.listMessages))
	v1.DELETE("/threads/:thread/steering", a.answer(http.StatusOK, a.withdrawSteering))
	v1.DELETE("/messages/:message", a.answer(http.StatusOK, a.withdrawMessage))
	v1.POST("/threads/:thread/stop", a.answer(http.StatusOK, a.stop))
	v1.POST("/threads/:thread/reset", a.answer(http.StatusOK, a.reset))
	v1.GET("/threads/:thread/events", a.events)
	v1.GET("/threads/:thread/turns", a.answer(http.StatusOK, a.listTurns))
	v1.GET("/turns/:turn", a.answer(http.StatusOK, a.getTurn))
	v1.GET("/turns/:turn/steps", a.answer(http.StatusOK, a.listSteps))
	v1.POST("/turns/:turn/cancel", a.answer(http.StatusOK, a.cancel))
	v1.POST("/turns/:turn/replay", a.answer(http.StatusOK, a.replay))
	v1.POST("/files", a.transfer(a.upload))
	v1.GET("/files", a.answer(http.StatusOK, a.listFiles))
	v1.GET("/files/:file", a.answer(http.StatusOK, a.getFile))
	v1.GET("/files/:file/content", a.transfer(a.download))
	v1.DELETE("/files/:file", a.answer(http.StatusOK, a.deleteFile))
	v1.GET("/health", a.answer(http.StatusOK, a.backlog))
	v1.GET("/usage", a.answer(http.StatusOK, a.usage))
}

// answer makes a handler of a function that returns the body of its answer, or an error.
func (a *api) answer(status int, h func(*gin.Context) (any, error)) gin.HandlerFunc {
	return func(c *gin.Context) {
		ctx := c.Request.Context()
		if c.Request.Method != http.MethodGet {
			ctx = context.WithoutCancel(ctx) // what was read whole is carried through
		}
		ctx, cancel := context.WithTimeout(ctx, a.cfg.Timeout)
		defer cancel()
		c.Request = c.Request.WithContext(ctx)
		body, err := h(c)
		if err != nil {
			a.fail(c, err)
			return
		}
		a.say(c, status, body)
	}
}

// say writes an answer. One that cannot be encoded is a failure of ours, and not an empty success.
func (a *api) say(c *gin.Context, status int, body any) {
	var raw bytes.Buffer
	enc := json.NewEncoder(&raw)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(body); err != nil {
		a.fail(c, fmt.Errorf("encode the answer: %w", err))
		return
	}
	c.Data(status, "application/json; charset=utf-8", raw.Bytes())
}

// Server returns a server for the handler, with the time limits that streams allow: none on writing as a whole.
func Server(addr string, h http.Handler) *http.Server {
	return &http.Server{
		Addr: addr, Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
	}
}
