package activities

import (
	"context"
	"errors"
	"time"

	"go.temporal.io/sdk/activity"

	"bobbin/agent"
	"bobbin/store"
	"bobbin/thread"
)

// ask makes one model call, and sees that it is paid for: where the owner has a limit, what it may cost is reserved before;
// what a failed or stopped one used is settled here. The charge of one that succeeded is settled by the caller, with what it
// makes of the reply. agent.ErrSpent: the limit leaves no room.
func (s *stint) ask(ctx context.Context, round int, p thread.Prompt, show func(string)) (thread.Reply, store.Charge, error) {
	estimate := p.Estimate()
	bound := s.Model.Bound(s.read.next(estimate))
	c := store.Charge{ID: store.NewChargeID(), Round: round, Attempt: s.model, Model: bound.Model, Usage: bound.Input, Estimated: true}
	if s.limited {
		granted, err := s.reserve(ctx, store.Reservation{Charge: c, Least: bound.Least, Most: bound.Most})
		if err != nil {
			return thread.Reply{}, c, err
		}
		p.MaxOutput = s.Model.MaxOutput(bound, granted)
	}
	reply, err := s.timed(ctx, p, show)
	if c.Usage, c.Estimated = reply.Usage, reply.Estimated; reply.Model != "" {
		c.Model = reply.Model
	}
	if c.Outcome = store.ChargeOK; err != nil {
		if c.Outcome = store.ChargeFailed; ctx.Err() != nil {
			c.Outcome = store.ChargeStopped
		}
		if errors.Is(context.Cause(ctx), thread.ErrFenced) {
			s.stopped(ctx, s.ref)
		}
		s.settle(ctx, c)
		return reply, c, err
	}
	s.read = reading{estimate, reply.Usage.InputTokens}
	return reply, c, nil
}

// timed makes the call itself, and observes how long it took and what it used.
func (s *stint) timed(ctx context.Context, p thread.Prompt, show func(string)) (thread.Reply, error) {
	model, began, first := s.Model.Model(), time.Now(), show
	if show != nil {
		first = func(text string) {
			s.metrics.firstText.WithLabelValues(model).Observe(time.Since(began).Seconds())
			first = show
			show(text)
		}
	}
	ctx, span := s.chat(ctx)
	reply, err := s.Model.Call(ctx, p, func(text string) {
		if first != nil {
			first(text)
		}
	})
	s.metrics.called(model, began, err)
	s.chatted(ctx, span, reply, err)
	s.metrics.paid(model, reply.Usage)
	return reply, err
}

// reading is what a prompt was estimated to come to, and what the provider counted. Most of the next one is the same.
type reading struct{ estimate, counted int64 }

// next is what a prompt with that estimate comes to: what the last one did, and what was added.
func (r reading) next(estimate int64) int64 {
	if r.estimate == 0 || estimate < r.estimate {
		return estimate
	}
	return r.counted + estimate - r.estimate
}

// The waits between looks whether others have given back what stands in the way of a reservation.
const (
	reserveFirst = 50 * time.Millisecond
	reserveMax   = time.Second
)

// reserve waits, within ReserveWait, while only other calls' reservations stand in its way, and takes in the end what they
// leave.
func (s *stint) reserve(ctx context.Context, r store.Reservation) (granted thread.USD, err error) {
	until := time.Now().Add(s.ReserveWait)
	for wait := reserveFirst; ; wait = min(2*wait, reserveMax) {
		r.Hasty = !time.Now().Before(until)
		err = insist(ctx, func(ctx context.Context) error {
			granted, err = s.Store.Reserve(ctx, s.ref, r)
			return err
		})
		if !errors.Is(err, thread.ErrReserved) || r.Hasty {
			break
		}
		if err = s.wait(ctx, min(wait, time.Until(until))); err != nil {
			return 0, err
		}
	}
	var over *thread.UsageLimitError
	switch {
	case ctx.Err() != nil: // perhaps it was made all the same
		r.Outcome = store.ChargeUnmade
		s.settle(ctx, r.Charge)
		return 0, context.Cause(ctx)
	case errors.As(err, &over), errors.Is(err, thread.ErrReserved):
		activity.GetLogger(ctx).Warn("no model call: the spending limit leaves no room", "turn", s.turn.ID, "needs", r.Least.String(), "why", err.Error())
		return 0, agent.ErrSpent
	}
	return granted, err
}

// settleTimeout bounds the settling of a call whose stint is being stopped. What it does not come to, the turn's next stint or
// its end settles.
const settleTimeout = 5 * time.Second

func (s *stint) settle(ctx context.Context, c store.Charge) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	if err := insist(ctx, func(ctx context.Context) error { return s.Store.Settle(ctx, s.ref, c) }); err != nil {
		activity.GetLogger(ctx).Warn("model call not settled", "turn", s.turn.ID, "round", c.Round, "error", err)
	}
}
