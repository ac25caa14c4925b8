package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// ErrLocked is returned when another process holds the lock.
var ErrLocked = errors.New("locked by another process")

// lockPoll is how often a wait for a lock looks again. flock can also wait in
// the kernel, but then no context could end the wait.
const lockPoll = 20 * time.Millisecond

// TryLock opens path, making it if need be, and takes its lock: exclusive, or
// shared with others that ask for shared. Closing the file gives the lock back,
// and so does the kernel when the process ends, however it ends. It returns
// ErrLocked if the lock is taken.
func TryLock(path string, shared bool) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	how := syscall.LOCK_EX
	if shared {
		how = syscall.LOCK_SH
	}
	if err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s: %w", path, ErrLocked)
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

// WaitLock is TryLock that waits until the lock is free or ctx ends; then the
// error is both ErrLocked and ctx's.
func WaitLock(ctx context.Context, path string, shared bool) (*os.File, error) {
	for {
		f, err := TryLock(path, shared)
		if !errors.Is(err, ErrLocked) {
			return f, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w (%w)", err, ctx.Err())
		case <-time.After(lockPoll):
		}
	}
}
