package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	mutationsPart    = "mutations"
	mutationsAtOnce  = 2               // one compiles while the tests of another wait for their database
	asItIsTimeout    = 5 * time.Minute // for the tests of a package on the engine as it is
	mutationPatience = 15 * time.Second
)

// hangsAfter is when the tests of a mutation are taken to hang, as one may make them wait for what never comes: all those of
// the package took asItIs together, without any.
func hangsAfter(asItIs time.Duration) time.Duration { return mutationPatience + 3*asItIs }

// A mutation is one way of breaking the engine, and the short tests that must notice.
type mutation struct {
	name     string // what is broken
	file     string // from the root of the checkout
	old, new string // old is there once
	pkg, run string
}

// apply returns the file's text with the mutation in it.
func (m mutation) apply(root string) (string, error) {
	raw, err := os.ReadFile(filepath.Join(root, m.file))
	if err != nil {
		return "", err
	}
	switch n := strings.Count(string(raw), m.old); {
	case n != 1:
		return "", fmt.Errorf("%s: what it changes in %s is there %d times, and must be there once", m.name, m.file, n)
	case m.old == m.new:
		return "", fmt.Errorf("%s: it changes nothing", m.name)
	}
	return strings.Replace(string(raw), m.old, m.new, 1), nil
}

// A verdict is what came of a mutation.
type verdict struct {
	mutation
	by   []string      // the tests that caught it
	took time.Duration // to compile and to run
	err  error         // it could not be tried
}

func (v verdict) caught() bool { return len(v.by) > 0 }

// chooseMutations returns the mutations whose name matches a pattern.
func chooseMutations(pattern string) ([]mutation, error) {
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, err
	}
	list := slices.DeleteFunc(slices.Clone(mutations), func(m mutation) bool { return !re.MatchString(m.name) })
	if len(list) == 0 {
		return nil, fmt.Errorf("no mutation is called %s", pattern)
	}
	return list, nil
}

// mutate tries mutations, if all their tests pass on the engine as it is. It returns a verdict for each, in their order.
func (l *lab) mutate(ctx context.Context, list []mutation) []verdict {
	all := make([]verdict, len(list))
	l.say("mutations: their tests on the engine as it is …")
	took, err := l.sound(ctx, list)
	if err != nil {
		l.say("mutations FAILED: %v", err)
		for i, m := range list {
			all[i] = verdict{mutation: m, err: err}
		}
		return all
	}
	var group errgroup.Group
	group.SetLimit(mutationsAtOnce)
	for i, m := range list {
		group.Go(func() error {
			began := time.Now()
			v := verdict{mutation: m}
			v.by, v.err = l.try(ctx, i, m, hangsAfter(took[m.pkg]))
			v.took = time.Since(began)
			l.say("mutation %d of %d, %s: %s (%s)", i+1, len(list), m.name, v.outcome(), v.took.Round(time.Second))
			all[i] = v
			return nil
		})
	}
	_ = group.Wait() // each has its error in its verdict
	return all
}

// sound reports a test that fails without any mutation, and returns how long those of each package took.
func (l *lab) sound(ctx context.Context, list []mutation) (took map[string]time.Duration, err error) {
	patterns := map[string][]string{}
	for _, m := range list {
		if !slices.Contains(patterns[m.pkg], m.run) {
			patterns[m.pkg] = append(patterns[m.pkg], m.run)
		}
	}
	took = map[string]time.Duration{}
	for _, pkg := range slices.Sorted(maps.Keys(patterns)) {
		out, err := l.test(ctx, suite{pkg: pkg, run: strings.Join(patterns[pkg], "|"), timeout: asItIsTimeout, args: quick})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("tests of %s fail on the engine as it is: %w\n  %s", pkg, err, strings.Join(telling(out), "\n  ")),
				l.keep("as-it-is", out))
		}
		if m := passed.FindSubmatch(out); m != nil {
			took[pkg], _ = time.ParseDuration(string(m[1])) // without it there is the patience
		}
	}
	return took, nil
}

var passed = regexp.MustCompile(`(?m)^ok\s+\S+\s+(\S+)`)

// quick is what makes a run of tests shorter: neither vet nor a symbol table is needed, nor a test behind one that failed.
var quick = []string{"-vet=off", "-ldflags=-s", "-failfast"}

// try runs the tests of a mutation on an engine that has it, and returns those that fail. The overlay stands in GOFLAGS, so
// that tests which build the binary build a broken one.
func (l *lab) try(ctx context.Context, i int, m mutation, timeout time.Duration) ([]string, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	overlay, err := l.overlay(i, m)
	if err != nil {
		return nil, err
	}
	flags, err := goEnv(ctx, "GOFLAGS")
	if err != nil {
		return nil, err
	}
	out, err := l.test(ctx, suite{
		pkg: m.pkg, run: m.run, timeout: timeout, args: quick, env: []string{"GOFLAGS=" + flags + " -overlay=" + overlay},
	})
	if err := l.keep(fmt.Sprintf("mutation-%d", i+1), out); err != nil {
		return nil, err
	}
	switch by := failures(out); {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err == nil:
		return nil, nil
	case len(by) > 0:
		return by, nil
	}
	return nil, fmt.Errorf("its tests were not run: %w", err)
}

// overlay writes the broken file, and what tells the go command of it.
func (l *lab) overlay(i int, m mutation) (string, error) {
	text, err := m.apply(l.root)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(l.dir, fmt.Sprintf("mutation-%d", i+1))
	broken := filepath.Join(dir, filepath.Base(m.file))
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(l.root, m.file): broken}})
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "overlay.json")
	return file, errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(broken, []byte(text), 0o600), os.WriteFile(file, replace, 0o600))
}

var (
	failure = regexp.MustCompile(`(?m)^--- FAIL: (\S+)`)
	hanging = regexp.MustCompile(`(?m)^panic: test timed out after .*\n\s+running tests:\n((?:\t\t.*\n)+)`)
	broken  = regexp.MustCompile(`(?m)^panic: `)
)

// failures are the tests that fail in a log. A test that never ends is one, and so is a panic that no test names.
func failures(log []byte) (by []string) {
	add := func(name string) {
		if !slices.Contains(by, name) {
			by = append(by, name)
		}
	}
	for _, m := range failure.FindAllSubmatch(log, -1) {
		add(string(m[1]))
	}
	if m := hanging.FindSubmatch(log); m != nil {
		name, _, _ := strings.Cut(strings.Fields(string(m[1]))[0], "/")
		add(name + ", which hung")
	}
	if len(by) == 0 && broken.Match(log) {
		add("a panic")
	}
	return by
}
