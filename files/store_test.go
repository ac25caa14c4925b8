package files_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"

	"bobbin/files"
	"bobbin/thread"
)

// A keeper is what both stores are.
type keeper interface {
	Put(ctx context.Context, id string, content io.Reader) error
	Open(ctx context.Context, id string, size int64) (io.ReadSeekCloser, error)
	Delete(ctx context.Context, id string) error
	Check(ctx context.Context) error
}

func TestFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f, err := files.NewFolder(dir)
	require.NoError(t, err)
	other, err := files.NewFolder(dir)
	require.NoError(t, err)
	keeps(t, f, other)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries, "nothing is left that nobody knows of")
}

func TestBucket(t *testing.T) {
	t.Parallel()
	s := serveS3(t)
	keeps(t, files.NewBucket(s), files.NewBucket(s))
	wrong := s
	wrong.SecretKey = "not the key"
	err := files.NewBucket(wrong).Check(t.Context())
	require.Error(t, err, "the server checks signatures")
	require.NotErrorIs(t, err, thread.ErrUnavailable, "it does not pass by itself")
	require.Error(t, files.NewBucket(wrong).Put(t.Context(), "fil_1", strings.NewReader("x")))
	wrong = s
	wrong.Bucket = "nobody"
	require.ErrorIs(t, files.NewBucket(wrong).Check(t.Context()), thread.ErrNotFound)
	wrong = s
	wrong.Endpoint = "http://127.0.0.1:1"
	require.ErrorIs(t, files.NewBucket(wrong).Check(t.Context()), thread.ErrUnavailable)
}

// keeps is what every store does. other is the same, of another process.
func keeps(t *testing.T, k, other keeper) {
	require.NoError(t, k.Check(t.Context()))
	const size = 3<<20 + 17
	content := strings.Repeat("wool and more wool; ", size/20+1)[:size]

	require.NoError(t, k.Put(t.Context(), "fil_1", iotest.HalfReader(strings.NewReader(content))))
	r, err := other.Open(t.Context(), "fil_1", size)
	require.NoError(t, err)
	got, err := io.ReadAll(r)
	require.NoError(t, err)
	require.True(t, content == string(got), "%d bytes", len(got))
	for _, at := range []int64{size - 5, 0, 1 << 20} {
		n, err := r.Seek(at-size, io.SeekEnd)
		require.NoError(t, err)
		require.Equal(t, at, n)
		piece := make([]byte, 5)
		_, err = io.ReadFull(r, piece)
		require.NoError(t, err)
		require.Equal(t, content[at:at+5], string(piece))
	}
	_, err = r.Seek(-1, io.SeekStart)
	require.Error(t, err)
	require.NoError(t, r.Close())

	_, err = k.Open(t.Context(), "fil_none", 1)
	require.ErrorIs(t, err, thread.ErrNotFound)

	hungUp := errors.New("the client hung up")
	err = k.Put(t.Context(), "fil_2", io.MultiReader(strings.NewReader("half"), iotest.ErrReader(hungUp)))
	require.ErrorIs(t, err, hungUp)
	_, err = k.Open(t.Context(), "fil_2", 4)
	require.ErrorIs(t, err, thread.ErrNotFound, "a half is not there")

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, k.Put(ended, "fil_3", strings.NewReader("x")), context.Canceled)

	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			id := fmt.Sprintf("fil_many_%d", i)
			if err := k.Put(t.Context(), id, strings.NewReader(id)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for i := range 8 {
		id := fmt.Sprintf("fil_many_%d", i)
		r, err := other.Open(t.Context(), id, int64(len(id)))
		require.NoError(t, err)
		got, err := io.ReadAll(r)
		require.NoError(t, err)
		require.Equal(t, id, string(got))
		require.NoError(t, r.Close())
		require.NoError(t, k.Delete(t.Context(), id))
	}
	for range 2 {
		require.NoError(t, other.Delete(t.Context(), "fil_1"), "it may be gone already")
	}
	_, err = k.Open(t.Context(), "fil_1", size)
	require.ErrorIs(t, err, thread.ErrNotFound)
}

func TestAFolderDeletesWhatAKilledProcessLeft(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f, err := files.NewFolder(dir)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "fil_1.part"), []byte("half"), 0o600))
	_, err = f.Open(t.Context(), "fil_1", 4)
	require.ErrorIs(t, err, thread.ErrNotFound)
	require.NoError(t, f.Delete(t.Context(), "fil_1"))
	require.NoFileExists(t, filepath.Join(dir, "fil_1.part"))
}

// serveS3 runs a real S3 server on a folder of the test's and returns a bucket of it. The server is a module of its own,
// built at first use, which takes some minutes, and kept beside the other programs that tests bring.
func serveS3(t *testing.T) files.BucketConfig {
	t.Helper()
	program, err := buildS3()
	require.NoError(t, err)
	root, sidecar := t.TempDir(), t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(root, "bobbin"), 0o700))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	log, err := os.Create(filepath.Join(sidecar, "log"))
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), program, "--port", addr, "--access", "key", "--secret", "secret", "--quiet", "posix", "--sidecar", sidecar, root)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = log, log, 10*time.Second
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = log.Close()
	})
	cfg := files.BucketConfig{Bucket: "bobbin", Endpoint: "http://" + addr, Region: "us-east-1", AccessKey: "key", SecretKey: "secret", PathStyle: true}
	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	}, 20*time.Second, 5*time.Millisecond, "the S3 server does not listen")
	return cfg
}

var buildS3 = sync.OnceValues(func() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "bobbin", "s3server")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	program := filepath.Join(dir, "versitygw")
	cmd := exec.Command("go", "build", "-C", "s3server", "-trimpath", "-ldflags=-s -w", "-o", program, "github.com/versity/versitygw/cmd/versitygw")
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the S3 server: %w: %s", err, out)
	}
	return program, nil
})
