// Package relay carries nudges from the outbox to the threads' workflows. A process that commits one sends it at once;
// what did not go out (the process died, Temporal was away) is sent by any relay a second later. A sweep nudges threads
// that have work which nobody has moved.
package relay

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"

	"bobbin/contract"
	"bobbin/store"
	"bobbin/tracing"
)

const (
	senders     = 8
	backlog     = 8192                   // nudges in memory; what does not fit is found in the outbox
	ownerMax    = 1024                   // of them one owner's
	lookEvery   = time.Second            // at the outbox
	lookLimit   = 200                    // nudges at once
	resendAfter = 5 * time.Second        // a nudge whose sending is not known to have worked
	holdEvery   = 500 * time.Millisecond // before a row is due: what waits in this process is left to it
	holdFor     = 3 * holdEvery
	sendTimeout = 4 * time.Second  // less than resendAfter
	sweepEvery  = 30 * time.Second // and at start
	taskTimeout = 5 * time.Second  // of a workflow task, which a worker may die in: half of Temporal's default
)

// Relay sends nudges. Make it with New, give its Kick to store.Config.OnNudge, and run it.
type Relay struct {
	waiting *line
}

// New returns a relay that holds what it is given until it runs.
func New() *Relay { return &Relay{waiting: newLine(backlog, ownerMax)} }

// Kick sends a nudge soon. It does not block.
func (r *Relay) Kick(n store.Nudge) { r.waiting.add(n) }

// Run sends nudges until ctx ends.
func (r *Relay) Run(ctx context.Context, db *store.DB, server client.Client) {
	var done sync.WaitGroup
	for range senders {
		done.Go(func() { r.send(ctx, db, server) })
	}
	done.Go(func() {
		every(ctx, lookEvery, func() {
			if room := r.waiting.room(); room > 0 {
				r.queue(ctx)(db.NudgesDue(ctx, min(lookLimit, room), resendAfter))
			}
		})
	})
	done.Go(func() { every(ctx, holdEvery, func() { r.hold(ctx, db) }) })
	done.Go(func() {
		var settled int64
		every(ctx, sweepEvery, func() {
			settled = prune(ctx, db, settled)
			r.queue(ctx)(db.Sweep(ctx, sweepEvery))
		})
	})
	done.Wait()
}

// hold keeps the outbox rows of what is held up here from coming due. When Temporal is slow every nudge would be sent twice, by
// this process and by another, and it would be slower for that.
func (r *Relay) hold(ctx context.Context, db *store.DB) {
	rows := r.waiting.rows()
	if len(rows) == 0 {
		return
	}
	if err := db.NudgesHeld(ctx, rows, holdFor); err != nil && ctx.Err() == nil {
		slog.Warn("nudges not put off, they may be sent twice", "error", err)
	}
}

const pruneLimit = 10_000 // rows of a table a sweep

// prune removes what is kept no longer. settled is the last steering row that was looked at, and so is what it returns.
func prune(ctx context.Context, db *store.DB, settled int64) int64 {
	_, events := db.PruneEvents(ctx, pruneLimit)
	_, keys := db.PruneKeys(ctx, pruneLimit)
	last, _, steering := db.PruneSteering(ctx, settled, pruneLimit)
	if err := errors.Join(events, keys, steering); err != nil && ctx.Err() == nil {
		slog.Warn("not pruned, the next sweep tries again", "error", err)
	}
	if steering != nil {
		return settled
	}
	return last
}

// queue hands nudges to the senders.
func (r *Relay) queue(ctx context.Context) func([]store.Nudge, error) {
	return func(list []store.Nudge, err error) {
		if err != nil && ctx.Err() == nil {
			slog.Warn("outbox not read", "error", err)
		}
		for _, n := range list {
			r.waiting.add(n)
		}
	}
}

func (r *Relay) send(ctx context.Context, db *store.DB, server client.Client) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.waiting.ready:
			n := r.waiting.next()
			deliver(ctx, db, server, n)
			r.waiting.letGo(n)
		}
	}
}

// deliver sends a nudge and takes it from the outbox.
func deliver(ctx context.Context, db *store.DB, server client.Client, n store.Nudge) {
	if err := nudge(ctx, server, n); err != nil {
		if ctx.Err() == nil {
			slog.Warn("nudge not sent, it stays in the outbox", "thread", n.ThreadID, "kind", string(n.Kind), "error", err)
		}
		return
	}
	if n.ID == 0 {
		return
	}
	if err := sent(ctx, db, n); err != nil {
		slog.Warn("nudge not removed, it is sent again", "thread", n.ThreadID, "error", err)
	}
}

// sent takes a nudge from the outbox, also when ctx has ended meanwhile.
func sent(ctx context.Context, db *store.DB, n store.Nudge) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sendTimeout)
	defer cancel()
	return db.NudgesSent(ctx, []int64{n.ID})
}

// nudge signals the thread's workflow, and starts it if it does not run.
func nudge(ctx context.Context, server client.Client, n store.Nudge) (err error) {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	if n.Trace != "" {
		_, span := tracing.Call(tracing.Within(ctx, n.Trace), "nudge", tracing.ThreadID.String(n.ThreadID), tracing.TurnID.String(n.TurnID))
		defer func() { span.End(kindOf(err)) }()
	}
	id := contract.ThreadWorkflowID(n.ThreadID)
	_, err = server.SignalWithStartWorkflow(ctx, id, contract.NudgeSignal,
		contract.Nudge{Kind: contract.NudgeKind(n.Kind), TurnID: n.TurnID},
		client.StartWorkflowOptions{
			ID: id, TaskQueue: contract.TaskQueue, StaticSummary: "Thread " + n.ThreadID, WorkflowTaskTimeout: taskTimeout,
			WorkflowIDReusePolicy: enums.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE,
			TypedSearchAttributes: temporal.NewSearchAttributes(threadKey.ValueSet(n.ThreadID), ownerKey.ValueSet(n.OwnerID)),
			Priority:              temporal.Priority{PriorityKey: contract.ConversationPriority, FairnessKey: contract.FairnessKey(n.OwnerID)},
		},
		contract.ThreadWorkflow, contract.ThreadInput{ThreadID: n.ThreadID})
	return err
}

var (
	threadKey = temporal.NewSearchAttributeKeyKeyword(contract.ThreadAttribute)
	ownerKey  = temporal.NewSearchAttributeKeyKeyword(contract.OwnerAttribute)
)

// kindOf names an error for a trace.
func kindOf(err error) string {
	if err == nil {
		return ""
	}
	return "temporal"
}

// every calls f now and then every d, until ctx ends.
func every(ctx context.Context, d time.Duration, f func()) {
	tick := time.NewTicker(d)
	defer tick.Stop()
	for {
		f()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
