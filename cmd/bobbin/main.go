// Bobbin is a server for long-running conversations with an AI agent. Without an argument it lists its commands.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"syscall"
)

// version is set by the linker.
var version = "dev"

type command struct {
	name, args, does string
	run              func(ctx context.Context, cfg config, args []string) error
}

func commands() []command {
	return []command{
		{"dev", "", "Postgres, Temporal, API and worker in one, all set up; Ctrl-C stops everything", runDev},
		{"api", "", "the HTTP API", runAPI},
		{"worker", "", "a worker that runs turns", runWorker},
		{"health", "[ready]", "ask the process on this machine whether it lives, or is ready; for images", runHealth},
		{"deploy", "[set-current BUILD]", "list the builds that Temporal knows, or choose the one that gets the work", runDeploy},
		{"migrate", "", "bring the database and Temporal's search attributes to this version", runMigrate},
		{"chat", "[thread]", "talk to a server from the terminal; thread is an id, or home", runChat},
		{"key", "create|list|revoke …", "make an API key of an owner and print it once, list keys, make one worthless", runKey},
		{"owner", "list|limit …", "list owners and what they spent this month, set an owner's monthly limit", runOwner},
	}
}

// gcPercent is how much the heap may grow before it is collected, where GOGC does not say. It is small, and the runtime's
// default of 100 spends a tenth of a busy worker's CPU on it.
const gcPercent = 400

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err == nil || errors.Is(err, context.Canceled) {
		return
	}
	fmt.Fprintln(os.Stderr, "bobbin:", err)
	if errors.Is(err, errNoCommand) {
		usage(os.Stderr)
		os.Exit(2)
	}
	os.Exit(1)
}

var errNoCommand = errors.New("there is no such command")

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		usage(os.Stdout)
		return nil
	}
	if slices.ContainsFunc(args, func(a string) bool { return a == "help" || a == "-h" || a == "--help" }) {
		usage(os.Stdout)
		return nil
	}
	for _, c := range commands() {
		if c.name == args[0] {
			if c.args == "" && len(args) > 1 {
				return fmt.Errorf("bobbin %s takes no arguments, got %q", c.name, args[1:])
			}
			cfg, err := readConfig(c.name)
			if err != nil {
				return err
			}
			slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: cfg.LogLevel})))
			end, err := traces(ctx, cfg, c.name)
			if err != nil {
				return fmt.Errorf("OTEL_EXPORTER_OTLP_ENDPOINT: %w", err)
			}
			defer end()
			return c.run(ctx, cfg, args[1:])
		}
	}
	if args[0] == "version" || args[0] == "--version" {
		fmt.Println("bobbin", version)
		return nil
	}
	return fmt.Errorf("%q: %w", args[0], errNoCommand)
}

func usage(w io.Writer) {
	fmt.Fprint(w, "Bobbin, a server for long-running conversations with an AI agent.\n\n")
	for _, c := range commands() {
		fmt.Fprintf(w, "  bobbin %-28s %s\n", c.name+" "+c.args, c.does)
	}
	fmt.Fprintln(w, "\nConfiguration is in environment variables; docs/operations.md lists them.")
}
