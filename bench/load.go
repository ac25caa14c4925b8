package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.temporal.io/sdk/client"

	"bobbin/bench/floor"
	"bobbin/llm/scripted"
)

// load measures 200 threads that begin at once, each with a turn of ten rounds, and the CPU that all processes use on the way
// but the one that measures, which serves the model and the tools. The floor is the bare loop on Postgres. What as many bare
// workflows of one activity cost is shown beside it, as no turn can cost less that goes through Temporal.
func load(ctx context.Context, l *lab) ([]line, error) {
	h, err := l.furnish(ctx)
	if err != nil {
		return nil, err
	}
	loop, err := h.startPostgresFloor()
	if err != nil {
		return nil, err
	}
	const queue = "floor"
	workflows, err := h.floor(floorReady, floor.KindVar+"=temporal", floor.QueueVar+"="+queue)
	if err != nil {
		return nil, err
	}
	threads := l.counts(4, 200)
	crowd, single := crowd{house: h, rounds: 10}, crowd{house: h, rounds: 1}
	var ours, bare, flows []work
	if _, err := crowd.run(ctx, min(threads, 40), crowd.ours, false); err != nil { // so that connections are open
		return nil, err
	}
	for rep := range min(l.reps, 3) {
		sides := []func() error{
			func() error {
				w, err := crowd.run(ctx, threads, crowd.ours, true, h.api, h.worker)
				ours = append(ours, w)
				return err
			},
			func() error {
				w, err := crowd.run(ctx, threads, crowd.bare, false, loop)
				bare = append(bare, w)
				return err
			},
			func() error {
				w, err := single.run(ctx, threads, single.flows(queue), true, workflows)
				flows = append(flows, w)
				return err
			},
		}
		for i := range sides {
			if err := sides[(rep+i)%len(sides)](); err != nil {
				return nil, err
			}
		}
	}
	name := fmt.Sprintf("%d threads at once, %d rounds each", threads, crowd.rounds)
	speed, cpu := compare(ours, bare, work.speed), compare(ours, bare, work.cpuPerThousand)
	lines := []line{{
		name: name + ": rounds/s", ours: fmt.Sprintf("%.0f", middle(ours, work.speed)), floor: fmt.Sprintf("%.0f", middle(bare, work.speed)),
		ratio: speed.String(), goal: "≥ 0.5 ×", verdict: verdictOf(speed.mid >= 0.5),
	}}
	if ours[0].cpu > 0 {
		lines = append(lines, line{
			name: name + ": CPU per 1,000 rounds", ours: fmt.Sprintf("%.1f s", middle(ours, work.cpuPerThousand)),
			floor: fmt.Sprintf("%.1f s", middle(bare, work.cpuPerThousand)), ratio: cpu.String(), goal: "≤ 3.0 ×", verdict: verdictOf(cpu.mid <= 3),
		})
		lines = append(lines, line{name: "  of it by API, worker, Temporal, its Postgres, Postgres; by the loop, Postgres", ours: shares(ours), floor: shares(bare)})
		per := 1 / float64(crowd.rounds) // of a round, that a turn's workflow is for
		lines = append(lines, line{
			name: "  what a bare workflow of one activity for each of these turns costs alone", ours: "–", floor: fmt.Sprintf("%.1f s", middle(flows, work.cpuPerThousand)*per),
			ratio: spreadOf(scaled(flows, bare, per)).String(),
		})
	}
	return lines, nil
}

// A work is what one crowd did.
type work struct {
	rounds int
	took   time.Duration
	cpu    time.Duration   // 0: not known
	parts  []time.Duration // of it, by process, Temporal and Postgres at the end
}

func (w work) speed() float64          { return float64(w.rounds) / w.took.Seconds() }
func (w work) cpuPerThousand() float64 { return w.cpu.Seconds() / float64(w.rounds) * 1000 }

func compare(ours, bare []work, of func(work) float64) spread {
	var all []float64
	for i := range ours {
		all = append(all, of(ours[i])/of(bare[i]))
	}
	return spreadOf(all)
}

// scaled are the ratios of what the workflows of bare's turns cost to what bare cost.
func scaled(flows, bare []work, per float64) (all []float64) {
	for i := range flows {
		all = append(all, flows[i].cpuPerThousand()*per/bare[i].cpuPerThousand())
	}
	return all
}

func middle(list []work, of func(work) float64) float64 {
	var all []float64
	for _, w := range list {
		all = append(all, of(w))
	}
	return spreadOf(all).mid
}

func shares(list []work) (s string) {
	last := list[len(list)-1]
	for i, p := range last.parts {
		if i > 0 {
			s += " + "
		}
		s += fmt.Sprintf("%.1f", p.Seconds()/float64(last.rounds)*1000)
	}
	return s + " s"
}

type crowd struct {
	*house
	rounds int
}

const crowdClients = 32

// A way submits a message, and counts those that were answered.
type way func(n int) (submit func(context.Context, string) error, done func(context.Context) (int64, error))

// run submits a message to each of n threads from 32 clients and waits until all have been answered. processes are those
// whose CPU counts, beside Postgres and perhaps Temporal.
func (c crowd) run(ctx context.Context, n int, side way, temporal bool, processes ...*process) (work, error) {
	w := work{rounds: n * c.rounds}
	submit, done := side(n)
	before, _ := c.cpu(ctx, temporal, processes) // the second one tells of an error
	names := make([]string, n)
	var last atomic.Int64
	for i := range names {
		play := looks(c.rounds, fmt.Sprint("k", c.model.next.Add(1)))
		s := c.model.script(func(r scripted.Request, round int) scripted.Reply {
			if round == c.rounds-1 {
				last.Add(1)
			}
			return play(r, round)
		})
		defer s.done()
		names[i] = s.name
	}
	var next atomic.Int64
	began := time.Now()
	_, err := clients(crowdClients, func(ctx context.Context) (time.Duration, error) {
		return 0, submit(ctx, names[next.Add(1)-1])
	})(ctx, n)
	if err != nil {
		return w, err
	}
	if err := until(ctx, "all turns to end", func() (bool, error) {
		if last.Load() < int64(n) { // no query before, as it would count
			return false, nil
		}
		ended, err := done(ctx)
		return ended == int64(n), err
	}); err != nil {
		return w, err
	}
	w.took = time.Since(began)
	if err := errors.Join(c.quiet(ctx), rest(ctx)); err != nil {
		return w, err
	}
	after, err := c.cpu(ctx, temporal, processes)
	if errors.Is(err, errNoProc) || len(processes) == 0 {
		return w, nil
	}
	for i := range after {
		w.parts = append(w.parts, after[i]-before[i])
		w.cpu += after[i] - before[i]
	}
	return w, err
}

func (c crowd) cpu(ctx context.Context, temporal bool, processes []*process) (list []time.Duration, err error) {
	for _, p := range processes {
		used, err := cpuOf(p)
		if err != nil {
			return nil, err
		}
		list = append(list, used)
	}
	used, err := c.postgresCPU(ctx)
	if temporal && err == nil { // else it is the server's own work while it is idle
		var server time.Duration
		server, err = c.temporalCPU()
		list = append(list, server, used.temporal)
	}
	return append(list, used.rest), err
}

// ours sends the messages over HTTP, each to a new thread.
func (c crowd) ours(n int) (submit func(context.Context, string) error, done func(context.Context) (int64, error)) {
	began := time.Now()
	submit = func(ctx context.Context, text string) error {
		id, err := c.thread(ctx)
		if err == nil {
			_, err = c.say(ctx, id, text)
		}
		return err
	}
	done = func(ctx context.Context) (int64, error) {
		failed, err := c.count(ctx, `SELECT count(*) FROM turns WHERE created_at >= $1 AND status = 'failed'`, began)
		if err == nil && failed > 0 {
			err = fmt.Errorf("%d of %d turns failed", failed, n)
		}
		if err != nil {
			return 0, err
		}
		return c.count(ctx, `SELECT count(*) FROM turns WHERE created_at >= $1 AND status = 'succeeded'`, began)
	}
	return submit, done
}

// bare gives the messages to the loop.
func (c crowd) bare(int) (submit func(context.Context, string) error, done func(context.Context) (int64, error)) {
	prefix := fmt.Sprintf("crowd%d-", c.model.next.Add(1))
	submit = func(ctx context.Context, text string) error {
		_, err := floor.Submit(ctx, c.sql, prefix+text, text)
		return err
	}
	done = func(ctx context.Context) (int64, error) {
		return c.count(ctx, `SELECT count(*) FROM floor.jobs WHERE status = 'done' AND starts_with(thread, $1)`, prefix)
	}
	return submit, done
}

// flows gives each message to a bare workflow of its own.
func (c crowd) flows(queue string) way {
	return func(n int) (submit func(context.Context, string) error, done func(context.Context) (int64, error)) {
		runs := make(chan client.WorkflowRun, n)
		submit = func(ctx context.Context, text string) error {
			run, err := floor.SignalWithStart(ctx, c.temporal, queue, "floor-"+text, text)
			runs <- run
			return err
		}
		done = func(ctx context.Context) (ended int64, err error) {
			for ended < int64(n) && err == nil {
				err = (<-runs).Get(ctx, nil)
				ended++
			}
			return ended, err
		}
		return submit, done
	}
}
