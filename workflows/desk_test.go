package workflows_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/workflow"

	"bobbin/contract"
	"bobbin/thread"
	"bobbin/workflows"
)

// A desk is what the workflows see of Postgres and the agent: it claims, runs stints and tools, and ends turns as the
// activities do. The test says what each stint comes back with.
type desk struct {
	settings contract.Settings
	stint    func(ctx context.Context, turn contract.TurnRef, n int) (contract.StintResult, error)
	tool     func(contract.ToolRef) error
	after    func(turnID string) // called, with the desk locked, when the end of a conversation turn has looked what is next

	mu         sync.Mutex
	waiting    []contract.TurnRef // conversation turns
	running    *contract.TurnRef
	background []contract.TurnRef
	stopping   map[string]bool
	retryIn    time.Duration // holds the waiting turns back at the next claim
	stints     map[string]int
	ended      map[string]contract.Ended
	log        []string
	changed    chan struct{} // closed and replaced with each entry of the log
}

func newDesk() *desk {
	return &desk{
		settings: contract.Settings{Idle: 5 * time.Minute, RollOver: 2000, Heartbeat: 10 * time.Second},
		stint: func(context.Context, contract.TurnRef, int) (contract.StintResult, error) {
			return contract.StintResult{Outcome: contract.StintAnswered}, nil
		},
		tool:     func(contract.ToolRef) error { return nil },
		after:    func(string) {},
		stopping: map[string]bool{}, stints: map[string]int{}, ended: map[string]contract.Ended{}, changed: make(chan struct{}),
	}
}

func conversation(ids ...string) []contract.TurnRef {
	var list []contract.TurnRef
	for _, id := range ids {
		list = append(list, contract.TurnRef{
			ID: id, ThreadID: "thr_1", Kind: thread.Conversation, Source: thread.SourceUser, Mode: thread.Chat, Attempt: 1,
		})
	}
	return list
}

func background(id string) contract.TurnRef {
	t := conversation(id)[0]
	t.Kind, t.Source = thread.Background, thread.SourceEvent
	return t
}

// note writes an entry of the log. d.mu is held.
func (d *desk) note(format string, args ...any) {
	d.log = append(d.log, fmt.Sprintf(format, args...))
	close(d.changed)
	d.changed = make(chan struct{})
}

func (d *desk) noted() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.log)
}

// add changes what waits; it is what an accept, a stop or a schedule commits.
func (d *desk) add(change func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change()
}

// has waits until the log has an entry n times.
func (d *desk) has(ctx context.Context, entry string, n int) error {
	for {
		d.mu.Lock()
		count, changed := 0, d.changed
		for _, e := range d.log {
			if e == entry {
				count++
			}
		}
		log := strings.Join(d.log, "\n")
		d.mu.Unlock()
		if count >= n {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%q came %d times, not %d, in:\n%s", entry, count, n, log)
		}
	}
}

func (d *desk) Claim(_ context.Context, threadID string) (contract.Claimed, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.note("claim")
	c := contract.Claimed{OwnerID: "own_1", Settings: d.settings, Background: slices.Clone(d.background)}
	if c.RetryIn = d.retryIn; c.RetryIn > 0 {
		d.retryIn = 0
		return c, nil
	}
	c.Conversation = d.next()
	c.Waiting = len(d.waiting)
	return c, nil
}

// next is what the run row names, after the next turn is claimed if it names none.
func (d *desk) next() *contract.TurnRef {
	if d.running == nil && len(d.waiting) > 0 {
		d.running, d.waiting = &d.waiting[0], d.waiting[1:]
	}
	return d.running
}

func (d *desk) Stint(ctx context.Context, in contract.StintInput) (contract.StintResult, error) {
	d.mu.Lock()
	d.stints[in.Turn.ID]++
	n := d.stints[in.Turn.ID]
	d.note("stint %s %d", in.Turn.ID, n)
	d.mu.Unlock()
	return d.stint(ctx, in.Turn, n)
}

func (d *desk) Tool(_ context.Context, args converter.EncodedValues) (struct{}, error) {
	var in contract.ToolRef
	if err := args.Get(&in); err != nil {
		return struct{}{}, err
	}
	d.mu.Lock()
	d.note("tool %s", in.Name)
	d.mu.Unlock()
	return struct{}{}, d.tool(in)
}

func (d *desk) End(_ context.Context, in contract.EndInput) (contract.Ended, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	out, again := d.ended[in.Turn.ID]
	if again { // a local activity is repeated when the workflow task that ran it was not accepted
		return out, nil
	}
	defer func() { d.ended[in.Turn.ID] = out }()
	out = contract.Ended{Status: thread.TurnSucceeded, Rounds: 2, Tokens: 350, CostUSD: 0.012}
	switch {
	case d.stopping[in.Turn.ID]:
		out.Status = thread.TurnCancelled
	case in.Fail != "":
		out.Status = thread.TurnFailed
	}
	d.note("end %s %s %s", in.Turn.ID, out.Status, in.Fail)
	if in.Turn.Kind == thread.Background {
		d.background = slices.DeleteFunc(d.background, func(t contract.TurnRef) bool { return t.ID == in.Turn.ID })
		return out, nil
	}
	d.running = nil
	out.Next = d.next()
	d.after(in.Turn.ID)
	return out, nil
}

// registry is what the test environment and a worker have in common.
type registry interface {
	RegisterWorkflowWithOptions(any, workflow.RegisterOptions)
	RegisterActivityWithOptions(any, activity.RegisterOptions)
	RegisterDynamicActivity(any, activity.DynamicRegisterOptions)
}

func (d *desk) register(r registry) {
	registerWorkflows(r)
	r.RegisterActivityWithOptions(d.Claim, activity.RegisterOptions{Name: contract.ClaimActivity})
	r.RegisterActivityWithOptions(d.Stint, activity.RegisterOptions{Name: contract.StintActivity})
	r.RegisterActivityWithOptions(d.End, activity.RegisterOptions{Name: contract.EndActivity})
	r.RegisterDynamicActivity(d.Tool, activity.DynamicRegisterOptions{})
}

func registerWorkflows(r interface {
	RegisterWorkflowWithOptions(any, workflow.RegisterOptions)
},
) {
	r.RegisterWorkflowWithOptions(workflows.Thread, workflow.RegisterOptions{Name: contract.ThreadWorkflow})
	r.RegisterWorkflowWithOptions(workflows.Background, workflow.RegisterOptions{Name: contract.BackgroundWorkflow})
}

// untilCancelled is a stint that works until somebody cancels it.
func untilCancelled(ctx context.Context) (contract.StintResult, error) {
	for {
		activity.RecordHeartbeat(ctx)
		select {
		case <-ctx.Done():
			return contract.StintResult{}, ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// only keeps the entries of a log that begin with one of the words.
func only(log []string, words ...string) []string {
	var kept []string
	for _, e := range log {
		if slices.ContainsFunc(words, func(w string) bool { return strings.HasPrefix(e, w) }) {
			kept = append(kept, e)
		}
	}
	return kept
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
