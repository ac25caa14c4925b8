package llm

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"
)

var (
	errFirstByte   = errors.New("the provider did not begin to answer in time")
	errIdle        = errors.New("the provider stopped sending")
	errCallTimeout = errors.New("the call took too long")
)

// usageGrace is how long the stream may stay silent after its finish reason, when only the usage is still to come.
const usageGrace = 5 * time.Second

// drainGrace is how long the body's own end may take after the stream's. A body that is read to its end leaves the
// connection for the next round; one that is not, costs that round a new one.
const drainGrace = 100 * time.Millisecond

// A watchdog reads an answer's body and cancels the call when the provider keeps it waiting. Its clock runs only while
// a read waits, so that a slow reader is not taken for a slow provider.
type watchdog struct {
	body   io.Reader
	idle   time.Duration
	timer  *time.Timer
	begun  atomic.Bool
	ctx    context.Context
	cancel context.CancelCauseFunc
}

// newWatchdog starts to wait for the first byte.
func newWatchdog(ctx context.Context, first, idle time.Duration) (context.Context, *watchdog) {
	w := &watchdog{idle: idle}
	w.ctx, w.cancel = context.WithCancelCause(ctx)
	w.timer = time.AfterFunc(first, w.bite)
	return w.ctx, w
}

func (w *watchdog) bite() {
	if w.begun.Load() {
		w.cancel(errIdle)
		return
	}
	w.cancel(errFirstByte)
}

func (w *watchdog) Read(p []byte) (int, error) {
	if w.begun.Load() {
		w.timer.Reset(w.idle)
	}
	n, err := w.body.Read(p)
	if n > 0 || err != nil {
		w.timer.Stop()
		w.begun.Store(true)
	}
	return n, err
}

// drain reads the end of the body. Whether it comes does not matter to this call.
func (w *watchdog) drain() {
	const most = 4 << 10
	w.idle = drainGrace
	_, _ = io.CopyN(io.Discard, w, most)
}

func (w *watchdog) stop() {
	w.timer.Stop()
	w.cancel(nil)
}

// explain returns what made a read fail: the watchdog itself, the caller's context, or err.
func (w *watchdog) explain(err error) error {
	if cause := context.Cause(w.ctx); cause != nil {
		return cause
	}
	return err
}
