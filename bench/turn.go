package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"bobbin/bench/floor"
)

var floorReady = regexp.MustCompile(`(` + floor.Ready + `)`)

func (h *house) startPostgresFloor() (*process, error) {
	return h.floor(floorReady, floor.KindVar+"=postgres")
}

// first measures from the moment that a person sends to the moment that the provider has the model request, each time in a
// new thread. The floor is a bare Temporal workflow of one activity on the same server.
func first(ctx context.Context, l *lab) ([]line, error) {
	h, err := l.furnish(ctx)
	if err != nil {
		return nil, err
	}
	const queue = "floor"
	if _, err := h.floor(floorReady, floor.KindVar+"=temporal", floor.QueueVar+"="+queue); err != nil {
		return nil, err
	}
	ours := each(func(ctx context.Context) (time.Duration, error) {
		id, err := h.thread(ctx)
		if err != nil {
			return 0, err
		}
		s := h.model.script(say)
		defer s.done()
		began := time.Now()
		out, err := h.say(ctx, id, s.name)
		if err != nil {
			return 0, err
		}
		r, err := s.next()
		return r.Arrived.Sub(began), errors.Join(err, h.ended(ctx, out.TurnID), rest(ctx))
	})
	bare := each(func(ctx context.Context) (time.Duration, error) {
		s := h.model.script(say)
		defer s.done()
		began := time.Now()
		run, err := floor.SignalWithStart(ctx, h.temporal, queue, "floor-"+s.name, s.name)
		if err != nil {
			return 0, err
		}
		r, err := s.next()
		return r.Arrived.Sub(began), errors.Join(err, run.Get(ctx, nil), rest(ctx))
	})
	d, err := fight(ctx, l.reps, l.counts(1, 2), l.counts(2, 8), ours, bare)
	return []line{d.line("accept to the model request", 0.5, 1.3)}, err
}

// rest lets what follows the end of a turn pass, so that it is not counted to the next.
func rest(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(40 * time.Millisecond):
		return nil
	}
}

// tool measures from the moment that a tool's server has answered to the moment that the provider has the next model
// request, in turns of ten rounds. The floor is the bare loop on Postgres.
func tool(ctx context.Context, l *lab) ([]line, error) {
	h, err := l.furnish(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := h.startPostgresFloor(); err != nil {
		return nil, err
	}
	const rounds = 10
	side := func(submit func(ctx context.Context, text string) (ended func() error, err error)) side {
		return func(ctx context.Context, n int) (all samples, err error) {
			for range n {
				s := l.model.script(looks(rounds, fmt.Sprint("k", l.model.next.Add(1))))
				ended, err := submit(ctx, s.name)
				if err != nil {
					return all, err
				}
				for round := range rounds {
					r, err := s.next()
					if err != nil {
						return all, err
					}
					if round > 0 {
						all = append(all, r.Arrived.Sub(l.tools.ended(lastKey(r))))
					}
				}
				if err := errors.Join(ended(), rest(ctx)); err != nil {
					return all, err
				}
				s.done()
			}
			return all, nil
		}
	}
	d, err := fight(ctx, l.reps, l.counts(1, 2), l.counts(1, 4), side(h.ourTurn), side(h.floorTurn))
	return []line{d.line("tool result to the next model request", 0.5, 3)}, err
}

// ourTurn starts a turn in a new thread.
func (h *house) ourTurn(ctx context.Context, text string) (func() error, error) {
	id, err := h.thread(ctx)
	if err != nil {
		return nil, err
	}
	out, err := h.say(ctx, id, text)
	return func() error { return h.ended(ctx, out.TurnID) }, err
}

// floorTurn starts a job of the bare loop in a new thread.
func (h *house) floorTurn(ctx context.Context, text string) (func() error, error) {
	job, err := floor.Submit(ctx, h.sql, "thread-"+text, text)
	return func() error {
		return until(ctx, "a job of the floor", func() (bool, error) {
			n, err := h.count(ctx, `SELECT count(*) FROM floor.jobs WHERE id = $1 AND status = 'done'`, job)
			return n == 1, err
		})
	}, err
}

// steer measures from the moment that a person sends, while a tool runs that ends as soon as the message is accepted, to the
// moment that the provider has the model request that shows it.
func steer(ctx context.Context, l *lab) ([]line, error) {
	h, err := l.furnish(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := h.startPostgresFloor(); err != nil {
		return nil, err
	}
	const more = "Only domestic companies"
	ours := each(func(ctx context.Context) (time.Duration, error) {
		id, err := h.thread(ctx)
		if err != nil {
			return 0, err
		}
		return h.steered(ctx, more,
			func(text string) (func() error, error) {
				out, err := h.say(ctx, id, text)
				return func() error { return h.ended(ctx, out.TurnID) }, err
			},
			func() error {
				out, err := h.say(ctx, id, more)
				if err == nil && out.Disposition != "steering" {
					err = errors.New("the message did not steer: " + out.Disposition)
				}
				return err
			})
	})
	bare := each(func(ctx context.Context) (time.Duration, error) {
		var threadID string
		return h.steered(ctx, more,
			func(text string) (func() error, error) {
				threadID = "thread-" + text
				return h.floorTurn(ctx, text)
			},
			func() error { return floor.Steer(ctx, h.sql, threadID, more) })
	})
	d, err := fight(ctx, l.reps, l.counts(1, 2), l.counts(2, 8), ours, bare)
	return []line{d.line("steer: accept to the model request that shows it", 0.5, 4)}, err
}

func (h *house) steered(ctx context.Context, text string, start func(string) (func() error, error), send func() error) (time.Duration, error) {
	key := fmt.Sprint("k", h.model.next.Add(1))
	s := h.model.script(looks(2, key))
	defer s.done()
	g := h.tools.hold(key + "-0")
	ended, err := start(s.name)
	if err != nil {
		return 0, err
	}
	if _, err := s.next(); err != nil {
		return 0, err
	}
	if err := errors.Join(g.comes(), rest(ctx)); err != nil {
		return 0, err
	}
	began := time.Now()
	if err := send(); err != nil {
		return 0, err
	}
	close(g.open)
	r, err := s.next()
	if err == nil && !r.Mentions(text) {
		err = errors.New("the next model request does not show the message")
	}
	return r.Arrived.Sub(began), errors.Join(err, ended(), rest(ctx))
}
