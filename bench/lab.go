package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"bobbin/embedded/postgres"
	"bobbin/embedded/temporal"
)

// patience bounds each wait. Nothing is decided by its passing, but that something is broken.
const patience = 5 * time.Minute

type options struct {
	short   bool
	reps    int
	profile string
}

// A lab is what all rows share: a Postgres, a Temporal server in it, the binary, the provider and the tools.
type lab struct {
	options
	dir         string
	admin       string // DSN of the server's own database
	postgres    *postgres.Server
	temporal    *temporal.Server
	temporalDSN string // empty: it keeps its state in memory
	binary      string
	model       *model
	tools       *toolServer
	houses      []*house
}

// open starts all that rows share. close must be called.
func open(ctx context.Context, o options) (_ *lab, err error) {
	l := &lab{options: o}
	if o.short {
		l.reps = 1
	}
	if l.dir, err = os.MkdirTemp("", "bobbin-bench-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	l.say("building the binary …")
	l.binary = filepath.Join(l.dir, "bobbin")
	if err := l.build(ctx); err != nil {
		return nil, err
	}
	if err := l.openServers(ctx); err != nil {
		return nil, err
	}
	if l.model, err = openModel(); err != nil {
		return nil, err
	}
	l.tools, err = openTools()
	return l, err
}

//go:embed hook.go.txt
var hook []byte

// build makes the binary as it is shipped; where profiles are wanted, with one file more.
func (l *lab) build(ctx context.Context) error {
	args := []string{"build", "-o", l.binary}
	if l.profile != "" {
		overlay, err := l.overlay(ctx)
		if err != nil {
			return err
		}
		args = append(args, "-overlay", overlay)
	}
	if out, err := exec.CommandContext(ctx, "go", append(args, "bobbin/cmd/bobbin")...).CombinedOutput(); err != nil {
		return fmt.Errorf("build: %w\n%s", err, out)
	}
	return nil
}

func (l *lab) overlay(ctx context.Context) (file string, err error) {
	if l.profile, err = filepath.Abs(l.profile); err != nil {
		return "", err
	}
	where, err := exec.CommandContext(ctx, "go", "list", "-f", "{{.Dir}}", "bobbin/cmd/bobbin").Output()
	if err != nil {
		return "", fmt.Errorf("find the binary's source: %w", err)
	}
	source := filepath.Join(l.dir, "hook.go")
	raw, err := json.Marshal(map[string]any{"Replace": map[string]string{
		filepath.Join(strings.TrimSpace(string(where)), "bench_hook.go"): source,
	}})
	file = filepath.Join(l.dir, "overlay.json")
	return file, errors.Join(err, os.MkdirAll(l.profile, 0o750), os.WriteFile(source, hook, 0o600), os.WriteFile(file, raw, 0o600))
}

func (l *lab) openServers(ctx context.Context) (err error) {
	l.say("starting Postgres and Temporal …")
	if l.short {
		l.admin, err = postgres.Shared(ctx)
	} else {
		c := postgres.Config{Dir: filepath.Join(l.dir, "postgres"), Log: l.say}
		if l.profile != "" {
			c.Settings = map[string]string{"shared_preload_libraries": "pg_stat_statements", "track_io_timing": "on"}
		}
		if l.postgres, err = postgres.Start(ctx, c); err == nil {
			l.admin = l.postgres.DSN()
		}
	}
	if err != nil {
		return err
	}
	cfg := temporal.Config{
		Dir: filepath.Join(l.dir, "temporal"), Namespace: "default", Headless: true, Log: l.say,
		Program: os.Getenv("BOBBIN_TEST_TEMPORAL_PROGRAM"), Memory: l.short,
	}
	if !l.short {
		if l.temporalDSN, err = l.database(ctx, "temporal"); err != nil {
			return err
		}
		cfg.PostgresDSN = l.temporalDSN
	}
	l.temporal, err = temporal.Start(ctx, cfg)
	return err
}

// database makes a database and returns its DSN.
func (l *lab) database(ctx context.Context, name string) (string, error) {
	conn, err := pgx.Connect(ctx, l.admin)
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)
	if l.short {
		name = fmt.Sprintf("bench_%d_%s", os.Getpid(), name)
	}
	if _, err := conn.Exec(ctx, "CREATE DATABASE "+name); err != nil {
		return "", fmt.Errorf("make a database: %w", err)
	}
	before, after, _ := strings.Cut(l.admin, "?")
	return before[:strings.LastIndexByte(before, '/')+1] + name + "?" + after, nil
}

func (l *lab) closeHouses() {
	for _, h := range l.houses {
		h.close()
	}
	l.houses = nil
}

func (l *lab) close() {
	l.closeHouses()
	ctx := context.Background()
	if l.model != nil {
		l.model.close()
	}
	if l.tools != nil {
		l.tools.close()
	}
	var err error
	if l.temporal != nil {
		err = l.temporal.Stop(ctx)
	}
	if l.postgres != nil {
		err = errors.Join(err, l.postgres.Stop(ctx), os.RemoveAll(l.postgres.Dir()))
	}
	if err = errors.Join(err, os.RemoveAll(l.dir)); err != nil {
		l.say("not all was cleaned up: %v", err)
	}
}

func (l *lab) say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// counts returns few in the short form, and else many.
func (l *lab) counts(few, many int) int {
	if l.short {
		return few
	}
	return many
}
