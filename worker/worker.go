// Package worker is a process that runs workflows and activities.
package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"bobbin/activities"
	"bobbin/contract"
	"bobbin/store"
	"bobbin/workflows"
)

// Config says how a worker runs. Zero values mean the defaults.
type Config struct {
	Namespace     string
	Activities    activities.Config // WorkerID, Deltas and Temporal are filled in
	MaxStints     int               // stints at once; default 100
	MaxTools      int               // tools with side effects at once; default 100
	MaxTasks      int               // workflow tasks at once, each with the claim or the end that it makes; default 50
	Deployment    Deployment        // tells this build's workers from those of others
	DrainTimeout  time.Duration     // how long a stopping worker waits for rounds under way; default 30s
	Polling       func(bool)        // told true when the worker has begun to ask for work, and false when it ends; may be nil
	StickyTimeout time.Duration     // how long a workflow task waits for the worker that has it cached; default 1s
}

// A cancelled activity hears of it with its next heartbeat, which the SDK holds back for so long.
const heartbeatThrottle = time.Second

// Dead workers' attempts are looked for so often.
const reapEvery = time.Second

// Run registers a worker and runs it until ctx ends, then drains: each stint comes back at its next round head. It ends
// with an error where Temporal refuses the worker for good, as when the namespace is gone.
func Run(ctx context.Context, db *store.DB, c client.Client, cfg Config) error {
	if cfg.MaxStints == 0 {
		cfg.MaxStints = 100
	}
	if cfg.MaxTools == 0 {
		cfg.MaxTools = 100
	}
	if cfg.MaxTasks == 0 {
		cfg.MaxTasks = 50
	}
	if cfg.DrainTimeout == 0 {
		cfg.DrainTimeout = 30 * time.Second
	}
	if cfg.StickyTimeout == 0 {
		cfg.StickyTimeout = time.Second
	}
	if cfg.Polling == nil {
		cfg.Polling = func(bool) {}
	}
	entry, err := db.RegisterWorker(ctx)
	if err != nil {
		return fmt.Errorf("run worker: %w", err)
	}
	defer entry.Close()
	deltas := db.NewDeltas()
	defer deltas.Close()

	cfg.Activities.Store, cfg.Activities.Deltas, cfg.Activities.Temporal = db, deltas, c
	cfg.Activities.WorkerID, cfg.Activities.StintSlots, cfg.Activities.ToolSlots = entry.ID, cfg.MaxStints, cfg.MaxTools
	acts := activities.New(cfg.Activities)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	refused := make(chan error, 2) // the SDK calls OnFatalError once a worker
	options := worker.Options{
		Identity:                               entry.ID,
		MaxConcurrentActivityExecutionSize:     cfg.MaxStints,
		MaxConcurrentWorkflowTaskExecutionSize: cfg.MaxTasks,
		WorkerStopTimeout:                      cfg.DrainTimeout,
		StickyScheduleToStartTimeout:           cfg.StickyTimeout,
		MaxHeartbeatThrottleInterval:           heartbeatThrottle,
		DefaultHeartbeatThrottleInterval:       heartbeatThrottle,
		DeploymentOptions:                      cfg.Deployment.options(),
		OnFatalError: func(err error) {
			refused <- err
			cancel()
		},
	}
	w := worker.New(c, contract.TaskQueue, options)
	Register(w, acts)
	options.DisableWorkflowWorker, options.MaxConcurrentActivityExecutionSize = true, cfg.MaxTools
	tools := worker.New(c, contract.ToolQueue, options)
	RegisterTools(tools, acts)
	reapOnce(ctx, db, c, cfg.Namespace) // before this worker can be handed what a dead one held
	if err := errors.Join(w.Start(), tools.Start()); err != nil {
		return fmt.Errorf("run worker: %w", err)
	}
	cfg.Polling(true)
	if cfg.Deployment.On && cfg.Deployment.Promote {
		go cfg.Deployment.promote(ctx, c)
	}
	reap(ctx, db, c, cfg.Namespace)
	cfg.Polling(false)
	stop(w, tools)
	drain, end := context.WithTimeout(context.WithoutCancel(ctx), cfg.DrainTimeout)
	defer end()
	acts.Drain(drain)
	select {
	case err := <-refused:
		return fmt.Errorf("run worker: %w", err)
	default:
		return nil
	}
}

// stop ends workers side by side, as each waits for what it runs.
func stop(workers ...worker.Worker) {
	var ended sync.WaitGroup
	for _, w := range workers {
		ended.Go(w.Stop)
	}
	ended.Wait()
}

// Register enters the workflows and activities of contract.TaskQueue under the names of package contract.
func Register(r worker.Registry, a *activities.Activities) {
	r.RegisterWorkflowWithOptions(workflows.Thread, workflow.RegisterOptions{Name: contract.ThreadWorkflow})
	r.RegisterWorkflowWithOptions(workflows.Background, workflow.RegisterOptions{Name: contract.BackgroundWorkflow})
	r.RegisterActivityWithOptions(a.Claim, activity.RegisterOptions{Name: contract.ClaimActivity})
	r.RegisterActivityWithOptions(a.End, activity.RegisterOptions{Name: contract.EndActivity})
	r.RegisterActivityWithOptions(a.Stint, activity.RegisterOptions{Name: contract.StintActivity})
}

// RegisterTools enters what contract.ToolQueue has: the activities of tools with side effects, under any name.
func RegisterTools(r worker.ActivityRegistry, a *activities.Activities) {
	r.RegisterDynamicActivity(a.Tool, activity.DynamicRegisterOptions{})
}

// reap fails the attempts of dead workers until ctx ends.
func reap(ctx context.Context, db *store.DB, c client.Client, namespace string) {
	tick := time.NewTicker(reapEvery)
	defer tick.Stop()
	for {
		reapOnce(ctx, db, c, namespace)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// reapOnce fails the attempts of dead workers by activity id, so that Temporal hands them out at once instead of after the
// heartbeat time-out.
func reapOnce(ctx context.Context, db *store.DB, c client.Client, namespace string) {
	dead, err := db.DeadAttempts(ctx)
	if err != nil && ctx.Err() == nil {
		slog.Warn("dead attempts not looked for", "error", err)
	}
	for _, a := range dead {
		if err := fail(ctx, c, namespace, a); err != nil && ctx.Err() == nil {
			slog.Warn("a dead attempt was not failed, its heartbeat time-out will", "turn", a.TurnID, "error", err)
		}
	}
}

// fail fails an attempt if its worker still holds the activity: the id is the same for the next attempt, which may have
// begun elsewhere.
func fail(ctx context.Context, c client.Client, namespace string, a store.Attempt) error {
	desc, err := c.DescribeWorkflowExecution(ctx, a.WorkflowID, a.RunID)
	if notFound := (*serviceerror.NotFound)(nil); errors.As(err, &notFound) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, p := range desc.GetPendingActivities() {
		if p.GetActivityId() == a.ActivityID && p.GetLastWorkerIdentity() == a.WorkerID && p.GetState() != enums.PENDING_ACTIVITY_STATE_SCHEDULED {
			gone := temporal.NewApplicationError("the worker died", contract.WorkerGone)
			return c.CompleteActivityByID(ctx, namespace, a.WorkflowID, a.RunID, a.ActivityID, nil, gone)
		}
	}
	return nil
}
