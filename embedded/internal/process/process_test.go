package process

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// shell starts a child that runs script.
func shell(t *testing.T, script string, change func(*Options)) *Process {
	t.Helper()
	dir := t.TempDir()
	o := Options{Path: "/bin/sh", Args: []string{"-c", script}, Dir: dir, LogFile: filepath.Join(dir, "log"), Env: []string{"PATH=/usr/bin:/bin"}}
	if change != nil {
		change(&o)
	}
	p, err := Start(o)
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.Stop(context.Background(), time.Second) })
	return p
}

func TestTryLockReturnsErrLockedUntilTheFileIsClosed(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	first, err := TryLock(path, false)
	require.NoError(t, err)
	_, err = TryLock(path, true)
	require.ErrorIs(t, err, ErrLocked)
	first.Close()

	shared, err := TryLock(path, true)
	require.NoError(t, err)
	defer shared.Close()
	also, err := TryLock(path, true)
	require.NoError(t, err)
	defer also.Close()
	_, err = TryLock(path, false)
	require.ErrorIs(t, err, ErrLocked)
}

func TestWaitLockReturnsWhenTheLockIsFreeOrTheContextEnds(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	first, err := TryLock(path, false)
	require.NoError(t, err)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = WaitLock(ended, path, false)
	require.ErrorIs(t, err, ErrLocked)
	require.ErrorIs(t, err, context.Canceled)

	go first.Close()
	second, err := WaitLock(t.Context(), path, false)
	require.NoError(t, err)
	second.Close()
}

func TestLockIsHeldUntilTheChildAndItsChildrenAreGone(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	lock, err := TryLock(path, false)
	require.NoError(t, err)
	fifo := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	// The child leaves a grandchild, which lives until somebody opens the pipe.
	p := shell(t, "(read x <"+fifo+") &", func(o *Options) { o.Lock = lock })
	lock.Close()
	<-p.Done()
	_, err = TryLock(path, false)
	require.ErrorIs(t, err, ErrLocked)

	pipe, err := os.OpenFile(fifo, os.O_WRONLY, 0)
	require.NoError(t, err)
	pipe.Close()
	again, err := WaitLock(t.Context(), path, false)
	require.NoError(t, err)
	again.Close()
}

func TestErrAndLogTailSayHowTheChildEnded(t *testing.T) {
	t.Parallel()
	p := shell(t, "echo out; echo error >&2; exit 3", nil)
	<-p.Done()
	require.ErrorContains(t, p.Err(), "exit status 3")
	require.Equal(t, "out\nerror\n", p.LogTail())
}

func TestLogTailLeavesOutWhatEarlierChildrenWrote(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "log")
	for _, word := range []string{"one", "two"} {
		p := shell(t, "echo "+word, func(o *Options) { o.LogFile = log })
		<-p.Done()
		require.Equal(t, word+"\n", p.LogTail())
	}
}

func TestLogIsShortenedAtItsBound(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	l, err := openLog(path, 10_000)
	require.NoError(t, err)
	defer l.close()
	for range 2_000 {
		_, err := l.file.WriteString("0123456789\n")
		require.NoError(t, err)
	}
	_, err = l.file.WriteString("the last line\n")
	require.NoError(t, err)
	l.shorten()
	st, err := os.Stat(path)
	require.NoError(t, err)
	require.Less(t, st.Size(), int64(10_000))
	require.Contains(t, l.tail(), "the last line\n")
	_, err = l.file.WriteString("and one more\n") // as the child does
	require.NoError(t, err)
	require.True(t, strings.HasSuffix(l.tail(), "and one more\n"))
}

func TestStopGoesOnToTheNextSignalAndToSIGKILL(t *testing.T) {
	t.Parallel()
	p := shell(t, "trap '' INT TERM; echo ready; while :; do sleep 0.01; done", nil)
	require.Eventually(t, func() bool { return p.LogTail() == "ready\n" }, time.Minute, time.Millisecond)
	err := p.Stop(t.Context(), 50*time.Millisecond, syscall.SIGINT, syscall.SIGTERM)
	require.ErrorContains(t, err, "killed")
	require.Equal(t, err, p.Stop(t.Context(), time.Second), "a second Stop")
}

func TestStartReturnsErrorIfTheProgramDoesNotExist(t *testing.T) {
	t.Parallel()
	_, err := Start(Options{Path: "/does/not/exist", Dir: "/", LogFile: filepath.Join(t.TempDir(), "log")})
	require.ErrorIs(t, err, os.ErrNotExist)
}
