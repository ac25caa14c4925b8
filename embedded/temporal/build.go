package temporal

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"bobbin/embedded/internal/process"
)

const (
	builtPrefix = "devserver-"
	// buildWord is how often a long build says that it goes on.
	buildWord = 15 * time.Second
)

// findSource is the folder devserver in the working folder or the nearest one
// above it, or "".
func findSource() string {
	dir, err := os.Getwd()
	if err != nil {
		return ""
	}
	for {
		source := filepath.Join(dir, "devserver")
		if _, err := os.Stat(filepath.Join(source, "go.mod")); err == nil {
			return source
		}
		if dir == filepath.Dir(dir) {
			return ""
		}
		dir = filepath.Dir(dir)
	}
}

// builtEarlier is the program made from the sources as they are now, or "". Where
// there are no sources, the newest that was ever built will do.
func builtEarlier(c Config) string {
	if c.SourceDir == "" {
		files, err := filepath.Glob(filepath.Join(c.CacheDir, builtPrefix+"*"))
		if err != nil {
			return ""
		}
		return newest(slices.DeleteFunc(files, isPartial))
	}
	path, err := builtPath(c)
	if err != nil {
		return ""
	}
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}

func isPartial(path string) bool { return strings.HasSuffix(path, ".new") }

// builtPath names the program after the content of its sources, so a program in
// the cache is never stale, and checkouts with the same sources share one.
func builtPath(c Config) (string, error) {
	var files []string
	for _, pattern := range []string{"*.go", "go.mod", "go.sum"} {
		matches, err := filepath.Glob(filepath.Join(c.SourceDir, pattern))
		if err != nil {
			return "", fmt.Errorf("sources of devserver: %w", err)
		}
		files = append(files, matches...)
	}
	sum := sha256.New()
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		b, err := os.ReadFile(f)
		if err != nil {
			return "", fmt.Errorf("sources of devserver: %w", err)
		}
		fmt.Fprintf(sum, "%s %d\n", filepath.Base(f), len(b))
		sum.Write(b)
	}
	return filepath.Join(c.CacheDir, fmt.Sprintf("%s%x", builtPrefix, sum.Sum(nil)[:6])), nil
}

// build makes devserver and returns its path. Processes that want it at the same
// time wait for the one that builds.
func build(ctx context.Context, c Config) (string, error) {
	if c.SourceDir == "" {
		return "", errors.New("build devserver: no folder devserver here or above, as the repository has it; start from there")
	}
	path, err := builtPath(c)
	if err != nil {
		return "", err
	}
	goTool, err := exec.LookPath("go")
	if err != nil {
		return "", errors.New("build devserver: there is no Go (the command go) on PATH")
	}
	c.Log("building the Temporal server in %s: 5 to 10 minutes the first time, seconds later", c.SourceDir)
	lock, err := process.WaitLock(ctx, filepath.Join(c.CacheDir, "build.lock"), false)
	if err != nil {
		return "", fmt.Errorf("build devserver: %w", err)
	}
	defer lock.Close()
	if builtEarlier(c) != "" { // by the process that had the lock
		return path, nil
	}
	begin := time.Now()
	if err := goBuild(ctx, c, goTool, path+".new"); err != nil {
		return "", fmt.Errorf("build devserver: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return "", fmt.Errorf("build devserver: %w", err)
	}
	c.Log("built the Temporal server in %v", time.Since(begin).Round(time.Second))
	removeOlder(c.CacheDir, path)
	return path, nil
}

// goBuild runs the compiler and says now and then how far it is.
func goBuild(ctx context.Context, c Config, goTool, out string) error {
	cmd := exec.CommandContext(ctx, goTool, "build", "-C", c.SourceDir, "-v", "-trimpath", "-ldflags=-s -w", "-o", out, ".")
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // it stops its compilers
	cmd.WaitDelay = stopPatience
	var said buildOutput
	cmd.Stdout, cmd.Stderr = &said, &said
	done := make(chan error, 1)
	begin := time.Now()
	go func() { done <- cmd.Run() }()
	for {
		select {
		case err := <-done:
			if err != nil {
				return fmt.Errorf("%w: %s", err, said.tail())
			}
			return nil
		case <-time.After(buildWord):
			c.Log("still building the Temporal server: %v, %d packages compiled", time.Since(begin).Round(time.Second), said.packages())
		}
	}
}

// buildOutput counts the lines that `go build -v` writes, one a package, and
// keeps them for an error.
type buildOutput struct {
	mu    sync.Mutex
	lines bytes.Buffer
}

var _ io.Writer = (*buildOutput)(nil)

func (o *buildOutput) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.lines.Write(b)
}

func (o *buildOutput) packages() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return bytes.Count(o.lines.Bytes(), []byte("\n")) - bytes.Count(o.lines.Bytes(), []byte("go: "))
}

func (o *buildOutput) tail() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	b := bytes.TrimSpace(o.lines.Bytes())
	return string(b[max(0, len(b)-4<<10):])
}

// removeOlder removes other builds, of 150 MB each. One that still runs goes on.
func removeOlder(dir, keep string) {
	files, err := filepath.Glob(filepath.Join(dir, builtPrefix+"*"))
	if err != nil {
		return
	}
	for _, f := range files {
		if f != keep {
			os.Remove(f) // it is only disk space
		}
	}
}
