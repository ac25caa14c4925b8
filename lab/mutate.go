package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

const (
	mutationsPart   = "mutations"
	mutationTimeout = 2 * time.Minute // a mutation may make tests wait for what never comes
)

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
	by  []string // the tests that caught it
	err error    // it could not be tried
}

func (v verdict) caught() bool { return len(v.by) > 0 }

// mutate tries one mutation after the other, if all their tests pass on the engine as it is.
func (l *lab) mutate(ctx context.Context, list []mutation) []verdict {
	var all []verdict
	l.say("mutations: their tests on the engine as it is …")
	if err := l.sound(ctx, list); err != nil {
		l.say("mutations FAILED: %v", err)
		for _, m := range list {
			all = append(all, verdict{mutation: m, err: err})
		}
		return all
	}
	for i, m := range list {
		if ctx.Err() != nil {
			return all
		}
		v := verdict{mutation: m}
		v.by, v.err = l.try(ctx, i, m)
		switch {
		case v.err != nil:
			l.say("mutation %d of %d, %s: %v", i+1, len(list), m.name, v.err)
		case !v.caught():
			l.say("mutation %d of %d, %s: NOT CAUGHT", i+1, len(list), m.name)
		default:
			l.say("mutation %d of %d, %s: caught by %s", i+1, len(list), m.name, strings.Join(v.by, ", "))
		}
		all = append(all, v)
	}
	return all
}

// sound reports a test that fails without any mutation.
func (l *lab) sound(ctx context.Context, list []mutation) error {
	patterns := map[string][]string{}
	var pkgs []string
	for _, m := range list {
		if _, known := patterns[m.pkg]; !known {
			pkgs = append(pkgs, m.pkg)
		}
		if !slices.Contains(patterns[m.pkg], m.run) {
			patterns[m.pkg] = append(patterns[m.pkg], m.run)
		}
	}
	for _, pkg := range pkgs {
		out, err := l.test(ctx, suite{pkg: pkg, run: strings.Join(patterns[pkg], "|"), timeout: 4 * mutationTimeout})
		if err != nil {
			return errors.Join(fmt.Errorf("tests of %s fail on the engine as it is: %w\n  %s", pkg, err, strings.Join(telling(out), "\n  ")),
				l.keep("as-it-is", out))
		}
	}
	return nil
}

// try runs the tests of a mutation on an engine that has it, and returns those that fail. The overlay stands in GOFLAGS, so
// that tests which build the binary build a broken one.
func (l *lab) try(ctx context.Context, i int, m mutation) ([]string, error) {
	overlay, err := l.overlay(i, m)
	if err != nil {
		return nil, err
	}
	flags, err := goEnv(ctx, "GOFLAGS")
	if err != nil {
		return nil, err
	}
	out, err := l.test(ctx, suite{
		pkg: m.pkg, run: m.run, timeout: mutationTimeout, args: []string{"-vet=off"}, env: []string{"GOFLAGS=" + flags + " -overlay=" + overlay},
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

var failure = regexp.MustCompile(`(?m)^--- FAIL: (\S+)|^(panic: test timed out)`)

// failures are the tests that fail in a log. A test that never ends is one.
func failures(log []byte) (by []string) {
	for _, m := range failure.FindAllSubmatch(log, -1) {
		name := string(m[1])
		if len(m[2]) > 0 {
			name = "a time-out"
		}
		if !slices.Contains(by, name) {
			by = append(by, name)
		}
	}
	return by
}
