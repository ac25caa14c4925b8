package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"bobbin/e2e/tally"
)

// A part is a go test process in its long form.
type part struct {
	name, does string
	pkg        string
	run        string // pattern of test names; empty: all of the package
	timeout    time.Duration
}

// A result is what came of a part.
type result struct {
	part
	row  tally.Row
	took time.Duration
	err  error // nil: its tests passed, it left a row, and nothing was wrong
}

// sayEvery is how often a part that runs is spoken of.
const sayEvery = time.Minute

// run runs a part. What it leaves counts even if it fails.
func (l *lab) run(ctx context.Context, p part) result {
	r := result{part: p, row: tally.Row{Part: p.name}}
	rows := filepath.Join(l.dir, p.name)
	if r.err = os.Mkdir(rows, 0o700); r.err != nil {
		return r
	}
	l.say("%s: %s …", p.name, p.does)
	began := time.Now()
	stop := l.tick(p.name, began)
	out, err := l.test(ctx, suite{
		pkg: p.pkg, run: p.run, timeout: p.timeout, args: []string{"-v"}, env: []string{tally.LongVar + "=1", tally.FolderVar + "=" + rows},
	})
	stop()
	r.took = time.Since(began)
	left, read := gather(rows, &r.row)
	switch r.err = errors.Join(err, read, l.keep(p.name, out)); {
	case r.err != nil:
	case left == 0:
		r.err = errors.New("it left no row")
	case r.row.Wrong() > 0:
		r.err = fmt.Errorf("%d wrong", r.row.Wrong())
	}
	if r.err == nil {
		l.say("%s: %s runs, %s operations, %s", p.name, thousands(r.row.Runs), thousands(r.row.Operations), r.took.Round(time.Second))
		return r
	}
	l.say("%s FAILED after %s: %v", p.name, r.took.Round(time.Second), r.err)
	for _, line := range telling(out) {
		l.say("  %s", line)
	}
	return r
}

// tick speaks now and then of what runs, until stop is called.
func (l *lab) tick(name string, began time.Time) (stop func()) {
	done := make(chan struct{})
	go func() {
		tick := time.NewTicker(sayEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				l.say("%s: %s so far", name, time.Since(began).Round(time.Second))
			case <-done:
				return
			}
		}
	}()
	return func() { close(done) }
}

// A suite is one run of the go command's tests.
type suite struct {
	pkg, run string // run: a pattern of test names; empty: all
	timeout  time.Duration
	args     []string // besides
	env      []string // besides
}

// test runs tests and returns what they wrote.
func (l *lab) test(ctx context.Context, s suite) ([]byte, error) {
	args := append([]string{"test", "-count=1", "-timeout", s.timeout.String(), "-run", cmp.Or(s.run, ".")}, s.args...)
	c := exec.CommandContext(ctx, "go", append(args, s.pkg)...)
	c.Dir, c.Env = l.root, append(os.Environ(), s.env...)
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	c.WaitDelay = time.Minute
	out, err := c.CombinedOutput()
	if err == nil && strings.Contains(string(out), "[no tests to run]") {
		err = fmt.Errorf("no test of %s is called %s", s.pkg, s.run)
	}
	return out, err
}

func (l *lab) keep(name string, log []byte) error {
	return os.WriteFile(filepath.Join(l.dir, name+".log"), log, 0o600)
}

// gather adds the rows in a folder to one, and returns how many there are.
func gather(dir string, into *tally.Row) (n int, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return 0, err
	}
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			return n, err
		}
		var row tally.Row
		if err := json.Unmarshal(raw, &row); err != nil {
			return n, fmt.Errorf("%s: %w", f, err)
		}
		into.Add(row)
		n++
	}
	return n, nil
}

var tellingLine = regexp.MustCompile(`^\s*--- FAIL: |SEED=\d|^panic: `)

// telling are the lines of a log that say what failed, and how to have it again.
func telling(log []byte) []string {
	var lines []string
	for line := range strings.Lines(string(log)) {
		if line = strings.TrimSpace(line); tellingLine.MatchString(line) && !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return lines
}
