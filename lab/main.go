package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// parts are run in this order.
var parts = []part{
	{
		name: "cells", does: "every pair of operations that can meet, in both orders, a hundred times and more", pkg: "./store",
		run: "TestEveryCellOfTheRaceTable", timeout: time.Hour,
	},
	{
		name: "races", does: "random clients on the real binary, held against an executable model of the engine", pkg: "./e2e/races",
		run: "TestClientsThatRace", timeout: time.Hour,
	},
	{
		name: "crashes", does: "processes killed at every named point and at random, connections cut, Postgres refusing", pkg: "./e2e/crashes",
		run: "TestProcessesKilled", timeout: time.Hour,
	},
	{
		name: "life", does: "one thread through two thousand turns and many roll-overs", pkg: "./e2e/life",
		run: "TestOneThread", timeout: time.Hour,
	},
	{
		name: "deploys", does: "build after build, in the middle of turns", pkg: "./e2e/life",
		run: "TestBuildAfterBuild", timeout: time.Hour,
	},
	{
		name: "soak", does: "a steady load, under which nothing may grow; BOBBIN_LAB_SOAK says how long", pkg: "./e2e/life",
		run: "TestUnderASteadyLoad", timeout: 72 * time.Hour,
	},
	{
		name: "leaks", does: "texts planted everywhere, looked for where they do not belong", pkg: "./e2e",
		run: "TestNothingThatWasSaid", timeout: 20 * time.Minute,
	},
}

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("lab", flag.ContinueOnError)
	only := flags.String("parts", "", "parts to run, with commas between: "+strings.Join(names(), ", ")+"; empty: all")
	broken := flags.String("mutations", "", "pattern of the names of mutations to try; alone it leaves out the other parts; empty: all")
	verbose := flags.Bool("v", false, "show each race cell and each mutation")
	docs := flags.String("docs", "", "page whose section is written anew")
	readme := flags.String("readme", "", "page whose summary is written anew")
	commit := flags.String("commit", "unknown", "what is examined, for the table's head")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *only == "" && *broken != "" {
		*only = mutationsPart
	}
	chosen, err := choose(*only)
	if err != nil {
		return err
	}
	list, err := chooseMutations(*broken)
	if err != nil {
		return err
	}
	l, err := open(ctx)
	if err != nil {
		return err
	}
	r := report{commit: *commit, at: time.Now(), of: fmt.Sprintf("%d cores, %s", runtime.NumCPU(), runtime.Version())}
	for _, name := range chosen {
		if name == mutationsPart {
			r.mutations = l.mutate(ctx, list)
			continue
		}
		r.results = append(r.results, l.run(ctx, parts[slices.IndexFunc(parts, func(p part) bool { return p.name == name })]))
	}
	r.took = time.Since(r.at)
	fmt.Print("\n", r.text(*verbose))
	if ctx.Err() != nil {
		return ctx.Err()
	}
	err = r.err()
	if err == nil {
		_ = os.RemoveAll(l.dir) // it is beneath the system's folder for such
	} else {
		l.say("the logs are in %s", l.dir)
	}
	return errors.Join(r.write(*docs, *readme), err)
}

// choose returns the names of the parts to run, in order.
func choose(only string) ([]string, error) {
	if only == "" {
		return names(), nil
	}
	wanted := strings.Split(only, ",")
	for _, n := range wanted {
		if !slices.Contains(names(), n) {
			return nil, fmt.Errorf("there is no part %q; there are %s", n, strings.Join(names(), ", "))
		}
	}
	return slices.DeleteFunc(names(), func(n string) bool { return !slices.Contains(wanted, n) }), nil
}

// names are those of all parts.
func names() []string {
	var list []string
	for _, p := range parts {
		list = append(list, p.name)
	}
	return append(list, mutationsPart)
}

// A lab is what all parts share.
type lab struct {
	root string // of the checkout
	dir  string // for logs, rows, and what is broken
}

func open(ctx context.Context) (*lab, error) {
	mod, err := goEnv(ctx, "GOMOD")
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "bobbin-lab-")
	return &lab{root: filepath.Dir(mod), dir: dir}, err
}

func goEnv(ctx context.Context, name string) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", name).Output()
	return strings.TrimSpace(string(out)), err
}

func (l *lab) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s "+format+"\n", append([]any{time.Now().Format("15:04:05")}, args...)...)
}
