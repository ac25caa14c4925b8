// Package activities is the work that touches the world: the stint, which runs the agent loop with Postgres as its step
// log; tools with side effects; and the local steps that claim and end turns. Every write bears being made twice.
package activities

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"

	"bobbin/agent"
	"bobbin/contract"
	"bobbin/files"
	"bobbin/llm"
	"bobbin/store"
	"bobbin/thread"
	"bobbin/tools"
)

// Config is what the activities work with. All pointers must be set.
type Config struct {
	Store    *store.DB
	Deltas   *store.Deltas
	Model    *llm.Client
	Tools    *tools.Registry
	Temporal client.Client // tells the thread's workflow what a long stint does
	WorkerID string        // of this process, as store.RegisterWorker gave it

	Files        Blobs         // the content of attachments; nil: they are only named
	Reader       files.Reader  // reads them
	FilePatience time.Duration // how long a turn's start waits for a file store that does not answer
	Pictures     Pictures      // which the model is shown

	Limits        agent.Limits  // of a turn
	Window        agent.Window  // of the model; default agent.DefaultWindow
	StintRounds   int           // rounds of one stint; default 20, 1 for one activity a round
	StintDuration time.Duration // after which a stint comes back at its next round head; default 60s
	ReserveWait   time.Duration // for other calls to give back what they have reserved of a spending limit; default 20s, negative: none
	ProgressAfter time.Duration // a phase that takes longer is told to the workflow; default 2s
	Settings      contract.Settings

	StintSlots, ToolSlots int                   // how many the worker runs at once, for the metric
	Metrics               prometheus.Registerer // nil: what is counted is shown nowhere
}

// Activities are registered with a worker by name, see package contract.
type Activities struct {
	Config
	metrics  *metrics
	detached sync.WaitGroup // tools with side effects that go on after their turn was stopped
}

// New returns activities that work with cfg.
func New(cfg Config) *Activities {
	cfg.StintRounds = max(cfg.StintRounds, 0)
	if cfg.StintRounds == 0 {
		cfg.StintRounds = 20
	}
	if cfg.Window == (agent.Window{}) {
		cfg.Window = agent.DefaultWindow
	}
	if cfg.StintDuration == 0 {
		cfg.StintDuration = time.Minute
	}
	if cfg.ReserveWait == 0 {
		cfg.ReserveWait = 20 * time.Second
	}
	if cfg.ProgressAfter == 0 {
		cfg.ProgressAfter = 2 * time.Second
	}
	m := newMetrics(cfg.Metrics)
	m.slots.WithLabelValues(slotStint).Set(float64(cfg.StintSlots))
	m.slots.WithLabelValues(slotTool).Set(float64(cfg.ToolSlots))
	return &Activities{Config: cfg, metrics: m}
}

// Drain waits until the tools that go on after their turn was stopped have ended, or ctx ends.
func (a *Activities) Drain(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		a.detached.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// attempt names the activity that ctx belongs to.
func (a *Activities) attempt(ctx context.Context, turnID string) store.Attempt {
	info := activity.GetInfo(ctx)
	return store.Attempt{
		WorkerID: a.WorkerID, TurnID: turnID, WorkflowID: info.WorkflowExecution.ID, RunID: info.WorkflowExecution.RunID,
		ActivityID: info.ActivityID, Number: int(info.Attempt),
	}
}

// leave removes what Begin or BeginAttempt recorded, also when ctx has ended. What a worker cuts off as its drain is over stays:
// the SDK reports it to nobody any more, so whoever finds this worker gone must fail it, or Temporal would wait for the
// heartbeat time-out.
func (a *Activities) leave(ctx context.Context, at store.Attempt) {
	if ctx.Err() != nil && closed(activity.GetWorkerStopChannel(ctx)) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	err := insist(ctx, func(ctx context.Context) error { return a.Store.EndAttempt(ctx, at) }) // a live worker's attempt hides from the sweep
	if err != nil {
		activity.GetLogger(ctx).Warn("attempt not removed", "turn", at.TurnID, "error", err)
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// untilStopped returns a context that ends when the turn is told to stop, with thread.ErrFenced as its cause.
func (a *Activities) untilStopped(ctx context.Context, turnID string) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	forget := a.Store.OnStop(turnID, func() { cancel(thread.ErrFenced) })
	return ctx, func() {
		forget()
		cancel(nil)
	}
}

// beat heartbeats until ctx ends. Temporal's cancellation and its time-out for dead workers both ride on it. Each beat is a
// write of Temporal's, so what ends before the first is due makes none.
func (a *Activities) beat(ctx context.Context) {
	tick := time.NewTicker(max(a.Settings.Heartbeat/5, 100*time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			activity.RecordHeartbeat(ctx)
		}
	}
}

// The waits between attempts of a write that must not be lost while Postgres is away.
const (
	insistFirst = 50 * time.Millisecond
	insistMax   = 2 * time.Second
	insistFor   = time.Minute
)

// insist repeats a write while Postgres is away, for a minute at most: the model's reply or the tool's result that it
// holds would have to be asked for again.
func insist(ctx context.Context, write func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, insistFor)
	defer cancel()
	for wait := insistFirst; ; wait = min(2*wait, insistMax) {
		err := write(ctx)
		if !errors.Is(err, thread.ErrUnavailable) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
		}
	}
}

// failure turns an error into one that Temporal records. Its text holds nothing that was said.
func failure(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled), temporal.IsCanceledError(err): // the SDK tells a cancelled activity from a draining worker
		return err
	case errors.Is(err, thread.ErrNotFound):
		return temporal.NewNonRetryableApplicationError(err.Error(), contract.NotFound, nil)
	case errors.Is(err, thread.ErrUnavailable):
		return temporal.NewApplicationError(err.Error(), contract.Unavailable)
	default:
		return temporal.NewApplicationError(err.Error(), contract.Internal)
	}
}

func refOf(t contract.TurnRef) store.TurnRef {
	return store.TurnRef{ID: t.ID, ThreadID: t.ThreadID, Background: t.Kind == thread.Background}
}
