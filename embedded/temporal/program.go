package temporal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/testsuite"
)

// program is a server's program: devserver, or else a stock `temporal`.
type program struct {
	path      string
	devserver bool
}

const (
	// firstByteLimit bounds the wait for a download to begin; a machine without
	// a way out must not wait for it.
	firstByteLimit = 5 * time.Second
	// stallLimit bounds the time in which nothing more of a download comes.
	stallLimit   = 15 * time.Second
	downloadPoll = 50 * time.Millisecond
)

// findProgram goes from quick to slow.
func findProgram(ctx context.Context, c Config) (program, error) {
	if c.Program != "" {
		name := filepath.Base(c.Program)
		return program{path: c.Program, devserver: strings.HasPrefix(name, "devserver")}, nil
	}
	if path := builtEarlier(c); path != "" {
		return program{path: path, devserver: true}, nil
	}
	var tried []error
	if _, err := os.Stat(markPath(c)); c.Memory || err != nil {
		path, err := findStock(ctx, c)
		if err == nil {
			return program{path: path}, nil
		}
		tried = append(tried, err)
	}
	path, err := build(ctx, c)
	if err != nil {
		return program{}, fmt.Errorf("there is no Temporal server here: put a `temporal` program on PATH, "+
			"or set TEMPORAL_ADDRESS; tried: %w", errors.Join(append(tried, err)...))
	}
	return program{path: path, devserver: true}, nil
}

// findStock finds or downloads a `temporal` program.
func findStock(ctx context.Context, c Config) (string, error) {
	if path, err := exec.LookPath("temporal"); err == nil {
		return path, nil
	}
	if path := downloaded(c.CacheDir); path != "" {
		return path, nil
	}
	if c.NoDownload {
		return "", errors.New("temporal: not on PATH, and a download isn't allowed")
	}
	c.Log("downloading the temporal program (once, about 100 MB)")
	if err := download(ctx, c.CacheDir); err != nil {
		c.Log("no download: %v", err)
		return "", fmt.Errorf("download temporal: %w", err)
	}
	return downloaded(c.CacheDir), nil
}

const (
	downloadPrefix = "temporal-cli-"
	partialPrefix  = "temporal-cli-downloading-"
)

// downloaded is the newest program that the SDK put into dir, or "".
func downloaded(dir string) string {
	files, err := filepath.Glob(filepath.Join(dir, downloadPrefix+"*"))
	if err != nil {
		return ""
	}
	files = slices.DeleteFunc(files, func(f string) bool { return strings.HasPrefix(filepath.Base(f), partialPrefix) })
	return newest(files)
}

// newest is the file that was written last, or "".
func newest(files []string) string {
	var best string
	var when time.Time
	for _, f := range files {
		if st, err := os.Stat(f); err == nil && st.ModTime().After(when) {
			best, when = f, st.ModTime()
		}
	}
	return best
}

// download lets the SDK do it. The SDK only downloads in order to start a server;
// that one is stopped at once, which also shows that the program runs here. The
// SDK sets no time limits; what it writes into dir shows whether bytes come.
func download(ctx context.Context, dir string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go watchDownload(ctx, dir, cancel)
	s, err := testsuite.StartDevServer(ctx, testsuite.DevServerOptions{
		CachedDownload: testsuite.CachedDownload{DestDir: dir},
		ClientOptions:  &client.Options{Logger: quiet()},
		LogLevel:       "error",
	})
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if err != nil {
		return err
	}
	return s.Stop()
}

// watchDownload cancels a download that doesn't begin or stops half-way.
func watchDownload(ctx context.Context, dir string, cancel context.CancelCauseFunc) {
	size, changed := int64(0), time.Now()
	limit := firstByteLimit
	for downloaded(dir) == "" {
		select {
		case <-ctx.Done():
			return
		case <-time.After(downloadPoll):
		}
		if now := partialSize(dir); now != size {
			size, changed, limit = now, time.Now(), stallLimit
		}
		if time.Since(changed) > limit {
			cancel(fmt.Errorf("nothing came for %v", limit))
			return
		}
	}
}

func partialSize(dir string) int64 {
	files, err := filepath.Glob(filepath.Join(dir, partialPrefix+"*"))
	if err != nil {
		return 0
	}
	var size int64
	for _, f := range files {
		if st, err := os.Stat(f); err == nil {
			size += st.Size()
		}
	}
	return size
}
