// Prepare brings what tests need beside Go: PostgreSQL's programs and the Temporal server. It starts and stops each once,
// so what has to be installed or built is, with its progress shown. Where both are there it takes a few seconds.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"bobbin/embedded/postgres"
	"bobbin/embedded/temporal"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := prepare(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "prepare:", err)
		os.Exit(1)
	}
}

func say(format string, args ...any) { fmt.Printf("  "+format+"\n", args...) }

func prepare(ctx context.Context) error {
	fmt.Println("Looking for PostgreSQL and a Temporal server …")
	dir, err := os.MkdirTemp("", "bobbin-prepare")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil { // PostgreSQL may run as another user
		return err
	}
	pg, err := postgres.Start(ctx, postgres.Config{Dir: filepath.Join(dir, "postgres"), Ephemeral: true, Log: say})
	if err != nil {
		return err
	}
	defer func() { _ = pg.Stop(context.WithoutCancel(ctx)) }()
	srv, err := temporal.Start(ctx, temporal.Config{
		Dir: filepath.Join(dir, "temporal"), Memory: true, Namespace: "default", Headless: true, NoDownload: true, Log: say,
	})
	if err != nil {
		return err
	}
	say("both are there: %s", srv.Program())
	return srv.Stop(ctx)
}
