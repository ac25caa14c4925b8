package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"

	"bobbin/api"
	"bobbin/monitor"
	"bobbin/relay"
	"bobbin/store"
	"bobbin/thread"
	"bobbin/worker"
)

// retryEvery is how long a command waits between attempts to reach what it needs at start.
const retryEvery = 2 * time.Second

// openStore connects to Postgres, and tries again until ctx ends: in a cluster the parts start in any order.
func openStore(ctx context.Context, cfg store.Config) (*store.DB, error) {
	return persist(ctx, "Postgres (DATABASE_URL)", func() (*store.DB, error) { return store.Open(ctx, cfg) }, passes)
}

func dialTemporal(ctx context.Context, cfg config) (client.Client, error) {
	return persist(ctx, "Temporal (TEMPORAL_ADDRESS)", func() (client.Client, error) {
		return client.DialContext(ctx, client.Options{
			HostPort: cfg.TemporalAddress, Namespace: cfg.TemporalNamespace, Logger: quieter{sdklog.NewStructuredLogger(slog.Default())},
		})
	}, func(error) bool { return true })
}

// passes reports whether an error of the store may pass by itself. A missing database, say, does not.
func passes(err error) bool { return errors.Is(err, thread.ErrUnavailable) }

func persist[T any](ctx context.Context, what string, connect func() (T, error), passes func(error) bool) (T, error) {
	for {
		v, err := connect()
		if err == nil || ctx.Err() != nil || !passes(err) {
			return v, err
		}
		slog.Warn("not reached, trying again", "what", what, "every", retryEvery, "error", err)
		select {
		case <-ctx.Done():
			return v, ctx.Err()
		case <-time.After(retryEvery):
		}
	}
}

// quieter lowers what the SDK says of single activity attempts: they are retried, and the turn's row tells how it ended.
type quieter struct{ sdklog.Logger }

func (q quieter) Info(msg string, kv ...any) { q.Debug(msg, kv...) }

// plant is what every process that serves works with.
type plant struct {
	db       *store.DB
	temporal client.Client
	outbox   *relay.Relay
	files    fileStore

	metrics *prometheus.Registry

	cfg       config
	namespace string
	local     bool          // the API takes devKey
	delay     time.Duration // between saying that it ends and refusing requests
}

// connect reaches Postgres and Temporal. close must be called.
func connect(ctx context.Context, cfg config) (p plant, closeAll func(), err error) {
	p.outbox, p.cfg, p.namespace, p.delay = relay.New(), cfg, cfg.TemporalNamespace, cfg.DrainDelay
	sc := cfg.store()
	sc.OnNudge = p.outbox.Kick
	if p.files, err = openFiles(ctx, cfg); err != nil {
		return p, nil, err
	}
	if p.db, err = openStore(ctx, sc); err != nil {
		return p, nil, err
	}
	if p.temporal, err = dialTemporal(ctx, cfg); err != nil {
		p.db.Close()
		return p, nil, err
	}
	p.metrics = monitor.Registry(p.db, version)
	return p, func() {
		p.temporal.Close()
		p.db.Close()
	}, nil
}

// run runs the parts, and the relay until the last of them has ended: also those that finish their work send nudges.
func (p plant) run(ctx context.Context, parts ...func(context.Context) error) error {
	return upon(ctx, func(ctx context.Context) { p.outbox.Run(ctx, p.db, p.temporal) }, parts...)
}

func runAPI(ctx context.Context, cfg config, _ []string) error {
	p, closeAll, err := connect(ctx, cfg)
	if err != nil {
		return err
	}
	defer closeAll()
	l, err := net.Listen("tcp", cfg.Addr)
	if err != nil {
		return fmt.Errorf("BOBBIN_ADDR: %w", err)
	}
	slog.Info("API listens", "addr", l.Addr().String())
	return p.run(ctx, func(ctx context.Context) error { return p.serve(ctx, l) }, p.sweep)
}

// serve answers HTTP until ctx ends. Balancers hear of that first; requests under way are finished, event streams are ended.
func (p plant) serve(ctx context.Context, l net.Listener, needs ...need) error {
	cfg := api.Config{Store: p.db, Done: ctx.Done(), Version: version, Metrics: p.metrics, Ready: ready(append(p.needs(), needs...)...)}
	cfg.Rate, cfg.Burst, cfg.AuthFailures, cfg.TrustedProxies = p.cfg.Rate, p.cfg.Burst, p.cfg.AuthFailures, p.cfg.TrustedProxies
	cfg.Files, cfg.FileTypes, cfg.TransferTimeout, cfg.Limits.File = p.files, p.cfg.FileTypes, p.cfg.TransferTimeout, p.cfg.MaxFile
	if p.local {
		cfg.LocalKey, cfg.LocalOwner = devKey, devOwner
	}
	srv := api.Server(l.Addr().String(), api.New(cfg))
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(l) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		time.Sleep(p.delay) // served on, while balancers see that readyz refuses and send nobody more
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return srv.Shutdown(bounded)
}

func runWorker(ctx context.Context, cfg config, _ []string) error {
	wc, err := cfg.worker()
	if err != nil {
		return err
	}
	p, closeAll, err := connect(ctx, cfg)
	if err != nil {
		return err
	}
	defer closeAll()
	wc.Activities.Files = p.files
	polls := p.watch(&wc)
	if cfg.WorkerAddr != "" {
		l, err := net.Listen("tcp", cfg.WorkerAddr)
		if err != nil {
			return fmt.Errorf("BOBBIN_WORKER_ADDR: %w", err)
		}
		slog.Info("operator listens", "addr", l.Addr().String())
		srv := api.Server(l.Addr().String(), api.Operator(api.Config{
			Store: p.db, Done: ctx.Done(), Version: version, Metrics: p.metrics, Ready: ready(append(p.needs(), polls)...),
		}))
		defer func() { _ = srv.Close() }() // when the worker has drained
		go func() { _ = srv.Serve(l) }()
	}
	slog.Info("worker runs", "model", cfg.Model)
	return p.run(ctx, func(ctx context.Context) error { return worker.Run(ctx, p.db, p.temporal, wc) })
}

// watch makes the worker show its metrics, and returns what says whether it asks for work.
func (p plant) watch(wc *worker.Config) need {
	polls := &atomic.Bool{}
	wc.Activities.Metrics, wc.Polling = p.metrics, polls.Store
	return func(context.Context) error {
		if !polls.Load() {
			return errors.New("the worker does not ask Temporal for work")
		}
		return nil
	}
}

// upon runs all parts as together does. base starts first and is told to end when they have ended.
func upon(ctx context.Context, base func(context.Context), parts ...func(context.Context) error) error {
	below, end := context.WithCancel(context.WithoutCancel(ctx))
	var ended sync.WaitGroup
	ended.Go(func() { base(below) })
	err := together(ctx, parts...)
	end()
	ended.Wait()
	return err
}

// together runs all parts until ctx ends or one fails, and waits for all to end.
func together(ctx context.Context, parts ...func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make(chan error, len(parts))
	for _, part := range parts {
		go func() {
			errs <- part(ctx)
			cancel()
		}()
	}
	var all []error
	for range parts {
		all = append(all, <-errs)
	}
	return errors.Join(all...)
}
