package main

import (
	"context"
	"fmt"
	"time"
)

// age measures whether a thread grows slow. The orchestration of a turn is what passes from the moment that a person sends to
// the provider's having the model request, and from the provider's last byte to the turn's end. A thread of nearly five
// hundred turns and new ones go in turns; a new thread's very first turn starts its workflow and is not counted.
func age(ctx context.Context, l *lab) ([]line, error) {
	h, err := l.furnish(ctx)
	if err != nil {
		return nil, err
	}
	turns, tail := l.counts(6, 500), l.counts(2, 20)
	old, err := h.thread(ctx)
	if err != nil {
		return nil, err
	}
	for range turns - tail {
		if _, err := h.orchestration(ctx, old); err != nil {
			return nil, err
		}
	}
	var d duel
	for range min(l.reps, 2) {
		young, err := h.thread(ctx)
		if err != nil {
			return nil, err
		}
		if _, err := h.orchestration(ctx, young); err != nil {
			return nil, err
		}
		pair, err := fight(ctx, 1, tail/2, 1, h.ages(old), h.ages(young))
		if err != nil {
			return nil, err
		}
		d.ours, d.floor = append(d.ours, pair.ours...), append(d.floor, pair.floor...)
	}
	return []line{d.line(fmt.Sprintf("a thread's turn %d against its first ones", turns), 0.5, 1.2)}, nil
}

func (h *house) ages(threadID string) side {
	return each(func(ctx context.Context) (time.Duration, error) { return h.orchestration(ctx, threadID) })
}

// orchestration runs a turn of one round and returns what it took without the provider.
func (h *house) orchestration(ctx context.Context, threadID string) (time.Duration, error) {
	s := h.model.script(say)
	defer s.done()
	began := time.Now()
	out, err := h.say(ctx, threadID, s.name)
	if err != nil {
		return 0, err
	}
	r, err := s.next()
	if err != nil {
		return 0, err
	}
	end, err := h.model.WaitEnd(ctx, r.N)
	if err != nil {
		return 0, err
	}
	if err := h.ended(ctx, out.TurnID); err != nil {
		return 0, err
	}
	var finished time.Time
	err = h.sql.QueryRow(ctx, `SELECT finished_at FROM turns WHERE id = $1`, out.TurnID).Scan(&finished)
	return r.Arrived.Sub(began) + finished.Sub(end.Finished), err
}
