package main

import (
	"context"
	"slices"
	"sync"
	"time"
)

// samples are times of one operation.
type samples []time.Duration

// at returns the quantile q, from 0 to 1; 0 for no samples.
func (s samples) at(q float64) time.Duration {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

// A duel holds both sides of a comparison, a pair for each repetition.
type duel struct{ ours, floor []samples }

// ratio is that of a quantile: the median over the repetitions, the least and the greatest.
func (d duel) ratio(q float64) spread {
	var all []float64
	for i := range d.ours {
		if f := d.floor[i].at(q); f > 0 {
			all = append(all, float64(d.ours[i].at(q))/float64(f))
		}
	}
	return spreadOf(all)
}

func pool(reps []samples) samples { return slices.Concat(reps...) }

// A spread is the median of some repetitions, with the least and the greatest.
type spread struct{ mid, low, high float64 }

func spreadOf(all []float64) spread {
	if len(all) == 0 {
		return spread{}
	}
	slices.Sort(all)
	mid := all[len(all)/2]
	if n := len(all); n%2 == 0 {
		mid = (all[n/2-1] + all[n/2]) / 2
	}
	return spread{mid, all[0], all[len(all)-1]}
}

// A side measures n operations.
type side func(ctx context.Context, n int) (samples, error)

// fight measures both sides in turns, batch by batch, so that what disturbs the machine disturbs both. The first batch of
// each is thrown away: connections are opened and statements prepared in it.
func fight(ctx context.Context, reps, batches, size int, ours, floor side) (duel, error) {
	var d duel
	for _, s := range []side{ours, floor} {
		if _, err := s(ctx, warm(size)); err != nil {
			return d, err
		}
	}
	for rep := range reps {
		d.ours, d.floor = append(d.ours, nil), append(d.floor, nil)
		for batch := range batches {
			order := []struct {
				run  side
				into *samples
			}{{ours, &d.ours[rep]}, {floor, &d.floor[rep]}}
			if (rep+batch)%2 == 1 {
				slices.Reverse(order)
			}
			for _, s := range order {
				got, err := s.run(ctx, size)
				if err != nil {
					return d, err
				}
				*s.into = append(*s.into, got...)
			}
		}
	}
	return d, nil
}

// each makes a side of one operation, done by one client after the other's.
func each(op func(context.Context) (time.Duration, error)) side { return clients(1, op) }

// clients makes a side of an operation that several clients do at once.
func clients(count int, op func(context.Context) (time.Duration, error)) side {
	return func(ctx context.Context, n int) (samples, error) {
		var mu sync.Mutex
		var all samples
		var failed error
		left := make(chan struct{}, n)
		for range n {
			left <- struct{}{}
		}
		close(left)
		var done sync.WaitGroup
		for range count {
			done.Go(func() {
				for range left {
					took, err := op(ctx)
					mu.Lock()
					if all = append(all, took); err != nil {
						failed = err
					}
					stop := failed != nil
					mu.Unlock()
					if stop {
						return
					}
				}
			})
		}
		done.Wait()
		return all, failed
	}
}

// timed measures a call.
func timed(f func() error) (time.Duration, error) {
	began := time.Now()
	err := f()
	return time.Since(began), err
}

// warm is how many operations go before the first that counts.
func warm(size int) int { return min(size, 64) }
