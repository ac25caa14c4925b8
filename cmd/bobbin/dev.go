package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"bobbin/contract"
	"bobbin/embedded/postgres"
	"bobbin/embedded/temporal"
	"bobbin/llm/scripted"
	"bobbin/store"
	"bobbin/tools"
	"bobbin/worker"
)

// The key and owner that dev accepts, on a loopback address alone. The key is never stored: it would be good elsewhere, too.
const devKey, devOwner = "dev", "dev"

// devDrain is how long Ctrl-C waits for rounds under way. A turn that is cut off goes on at the next start.
const devDrain = 3 * time.Second

// dev is what runs beside the API and the worker.
type dev struct {
	cfg     config
	extra   []tools.Tool
	own     string // DSN of the Postgres that was started here
	ui      string
	model   string
	stops   []func() // in the order of starting
	parts   []part   // servers that were started here
	started time.Time
}

// part is a server that was started here.
type part struct {
	name string
	done <-chan struct{}
}

// watch ends dev when the part ends by itself: the data is whole, and the next start brings all up again.
func (p part) watch(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-p.done:
		return fmt.Errorf("%s has ended by itself; stopping. The data is kept: start again", p.name)
	}
}

// runDev runs everything in one process group: what DATABASE_URL, TEMPORAL_ADDRESS and OPENAI_* name is used, the rest is
// started here.
func runDev(ctx context.Context, cfg config, _ []string) error {
	d := &dev{cfg: cfg, started: time.Now()}
	defer d.stop()
	for _, start := range []func(context.Context) error{d.postgres, d.temporal, d.scripted} {
		if err := start(ctx); err != nil {
			return err
		}
	}
	return d.run(ctx)
}

func (d *dev) say(format string, args ...any) { fmt.Printf("  "+format+"\n", args...) }

func (d *dev) stop() {
	if len(d.stops) > 0 {
		fmt.Println("Stopping …")
	}
	for i := range d.stops {
		d.stops[len(d.stops)-1-i]()
	}
}

// stopping bounds the end of each embedded part.
func (d *dev) stopping(f func(context.Context) error) {
	d.stops = append(d.stops, func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := f(ctx); err != nil {
			d.say("%v", err)
		}
	})
}

func (d *dev) postgres(ctx context.Context) error {
	if d.cfg.DatabaseURL != "" {
		return nil
	}
	srv, err := postgres.Start(ctx, postgres.Config{Dir: filepath.Join(d.cfg.DataDir, "postgres"), Log: d.say})
	if err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	d.stopping(srv.Stop)
	d.parts = append(d.parts, part{"Postgres", srv.Done()})
	d.own = srv.DSN()
	d.cfg.DatabaseURL = d.own
	d.say("Postgres %s keeps its data in %s", srv.Version(), srv.Dir())
	return nil
}

func (d *dev) temporal(ctx context.Context) error {
	if d.cfg.TemporalAddress != "" {
		return nil
	}
	attributes := map[string]string{}
	for _, name := range contract.SearchAttributes {
		attributes[name] = "Keyword"
	}
	srv, err := temporal.Start(ctx, temporal.Config{
		Dir: filepath.Join(d.cfg.DataDir, "temporal"), PostgresDSN: d.cfg.DatabaseURL, Namespace: d.cfg.TemporalNamespace,
		SearchAttributes: attributes, Port: 7233, UIPort: d.cfg.TemporalUIPort, Log: d.say,
	})
	if err != nil {
		return fmt.Errorf("temporal: %w", err)
	}
	d.stopping(srv.Stop)
	d.parts = append(d.parts, part{"Temporal", srv.Done()})
	d.cfg.TemporalAddress, d.ui = srv.Address(), srv.UIURL()
	return nil
}

// scripted starts the built-in model where no real one is configured.
func (d *dev) scripted(context.Context) error {
	d.model = d.cfg.Model
	if d.cfg.OpenAIKey != "" || d.cfg.OpenAIURL != "" {
		return nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: scripted.New(scripted.Options{Play: scripted.Demo(), Keep: 100}), ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = srv.Serve(l) }()
	d.stops = append(d.stops, func() { _ = srv.Close() })
	d.cfg.OpenAIURL, d.cfg.Model = "http://"+l.Addr().String()+"/v1", "scripted"
	d.model = "the built-in scripted one; set OPENAI_API_KEY or OPENAI_BASE_URL for a real one"
	d.extra = append(d.extra, tools.DemoWork())
	return nil
}

func (d *dev) run(ctx context.Context) error {
	if err := store.Migrate(ctx, d.cfg.DatabaseURL); err != nil {
		return err
	}
	wc, err := d.cfg.worker(d.extra...)
	if err != nil {
		return err
	}
	wc.DrainTimeout = min(wc.DrainTimeout, devDrain)
	p, closeAll, err := connect(ctx, d.cfg)
	if err != nil {
		return err
	}
	defer closeAll()
	wc.Activities.Files = p.files
	if err := registerAttributes(ctx, p.temporal, d.cfg.TemporalNamespace); err != nil {
		return err
	}
	l, err := d.listen()
	if err != nil {
		return err
	}
	if p.local = loopback(l.Addr()); p.local {
		if err := p.db.EnsureOwner(ctx, devOwner); err != nil {
			return err
		}
	}
	polls := p.watch(&wc)
	p.delay = 0 // nobody balances
	parts := []func(context.Context) error{
		func(ctx context.Context) error { return worker.Run(ctx, p.db, p.temporal, wc) },
		func(ctx context.Context) error { return p.serve(ctx, l, polls) },
		p.sweep,
		func(ctx context.Context) error { d.welcome(l.Addr()); <-ctx.Done(); return nil },
	}
	for _, started := range d.parts {
		parts = append(parts, started.watch)
	}
	return p.run(ctx, parts...)
}

// listen takes the configured address, or another port where that is in use.
func (d *dev) listen() (net.Listener, error) {
	l, err := net.Listen("tcp", d.cfg.Addr)
	if err == nil {
		return l, nil
	}
	host, _, _ := net.SplitHostPort(d.cfg.Addr)
	other, otherErr := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if otherErr != nil {
		return nil, errors.Join(err, otherErr)
	}
	d.say("%s cannot be used (%v); taking %s", d.cfg.Addr, err, other.Addr())
	return other, nil
}

func loopback(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

func (d *dev) welcome(a net.Addr) {
	url := "http://" + a.String()
	lines := []string{
		"", "Bobbin runs, after " + time.Since(d.started).Round(100*time.Millisecond).String() + ".", "",
		"  API          " + url,
	}
	if d.ui != "" {
		lines = append(lines, "  Temporal UI  "+d.ui)
	}
	lines = append(lines, "  model        "+d.model, "")
	if loopback(a) {
		lines = append(lines,
			"Talk to it from another terminal:", "",
			"  BOBBIN_URL="+url+" bin/bobbin chat", "",
			"or by hand:", "",
			"  curl -H 'Authorization: Bearer "+devKey+"' -H 'Content-Type: application/json' \\",
			"       -d '{\"text\": \"Work slowly for 20 seconds\"}' "+url+"/v1/threads/home/messages",
			"  curl -N -H 'Authorization: Bearer "+devKey+"' '"+url+"/v1/threads/home/events?after=0'", "")
	}
	if !loopback(a) {
		lines = append(lines, "The key "+devKey+" is accepted on a loopback address alone.")
	}
	lines = append(lines, "For a key of another owner:", "", "  "+d.command("key create --owner NAME"), "")
	lines = append(lines, "Ctrl-C stops everything; the data stays in "+d.cfg.DataDir+".", "")
	fmt.Println(strings.Join(lines, "\n"))
}

// command is what to type so that a command meets this database. One that DATABASE_URL names is in the person's environment
// already, and has a password perhaps.
func (d *dev) command(args string) string {
	if d.own == "" {
		return "bin/bobbin " + args
	}
	return "DATABASE_URL='" + d.own + "' bin/bobbin " + args
}
