package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"bobbin/bench/floor"
)

// rows are the lines of the table, in its order.
var rows = []row{
	{"accept", "accept, HTTP in to 202 out", accept},
	{"take", "take at the round head", take},
	{"first", "accept to the model request", first},
	{"tool", "tool result to the next model request", tool},
	{"steer", "steer: accept to the model request that shows it", steer},
	{"token", "provider's token to a subscriber of another process", token},
	{"stop", "stop to the provider's connection closed", stop},
	{"load", "many threads at once", load},
	{"kill", "everything killed with ten messages waiting", kill},
	{"idle", "idle threads", idle},
	{"age", "a thread's 500th turn", age},
}

// A row is measured by run, which returns one line or more.
type row struct {
	key, does string
	run       func(context.Context, *lab) ([]line, error)
}

func main() {
	if floor.Run() {
		return
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	only := flags.String("rows", "", "rows to measure, with commas between: "+strings.Join(keys(rows), ", ")+"; empty: all")
	short := flags.Bool("short", false, "tiny counts, a Postgres that does not sync, a Temporal in memory: shows that it works, measures nothing")
	reps := flags.Int("reps", 5, "repetitions, each with both sides")
	docs := flags.String("docs", "", "file whose measured section is written anew")
	commit := flags.String("commit", "unknown", "what was measured, for the table's head")
	profile := flags.String("profile", "", "folder for CPU profiles of API and worker, one a row")
	if err := flags.Parse(args); err != nil {
		return err
	}
	chosen, err := choose(*only)
	if err != nil {
		return err
	}
	l, err := open(ctx, options{short: *short, reps: *reps, profile: *profile})
	if err != nil {
		return err
	}
	defer l.close()
	began := time.Now()
	lines, err := measure(ctx, l, chosen)
	report := report{lines: lines, of: l.machine(ctx), commit: *commit, at: began, took: time.Since(began)}
	fmt.Print("\n", report.text())
	if err == nil && *docs != "" {
		err = report.write(*docs)
	}
	return err
}

func measure(ctx context.Context, l *lab, chosen []row) (lines []line, err error) {
	for _, r := range chosen {
		began := time.Now()
		l.say("%s: %s …", r.key, r.does)
		got, failed := r.run(ctx, l)
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", r.key, failed))
		}
		for i := range got {
			got[i].key = r.key
		}
		lines = append(lines, got...)
		l.say("%s: %s", r.key, time.Since(began).Round(100*time.Millisecond))
		l.closeHouses()
		if ctx.Err() != nil {
			return lines, errors.Join(err, ctx.Err())
		}
	}
	return lines, err
}

func choose(only string) ([]row, error) {
	if only == "" {
		return rows, nil
	}
	names := strings.Split(only, ",")
	for _, n := range names {
		if !slices.Contains(keys(rows), n) {
			return nil, fmt.Errorf("there is no row %q; there are %s", n, strings.Join(keys(rows), ", "))
		}
	}
	return slices.DeleteFunc(slices.Clone(rows), func(r row) bool { return !slices.Contains(names, r.key) }), nil
}

func keys(list []row) []string {
	var names []string
	for _, r := range list {
		names = append(names, r.key)
	}
	return names
}
