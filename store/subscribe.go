package store

import (
	"context"
	"sync"
	"time"

	"bobbin/thread"
)

// A Subscription reads one thread's events from where its reader stands. It keeps no events: a reader that is slow
// neither holds others back nor makes anything grow. Close must be called.
type Subscription struct {
	db       *DB
	threadID string
	after    int64
	wake     chan struct{}
	close    sync.Once
}

const (
	subscriptionPage = 500 // events read at once
	readTimeout      = 10 * time.Second
)

// Subscribe starts after the event with the given sequence number; 0 is the beginning.
func (db *DB) Subscribe(threadID string, after int64) *Subscription {
	s := &Subscription{db: db, threadID: threadID, after: after, wake: make(chan struct{}, 1)}
	w := db.wake
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.feeds[threadID] == nil {
		w.feeds[threadID] = map[chan struct{}]bool{}
	}
	w.feeds[threadID][s.wake] = true
	return s
}

// Next waits for events and returns them in order. A first event named Gap says that events before the next one can no
// longer be served. It returns ctx's error when ctx ends.
func (s *Subscription) Next(ctx context.Context) ([]thread.Event, error) {
	look := time.NewTicker(lookInterval)
	defer look.Stop()
	for {
		events, gap, err := s.read(ctx)
		if err != nil {
			return nil, err
		}
		if len(events) > 0 {
			s.after = events[len(events)-1].Seq
			if gap {
				lost := thread.Event{ThreadID: s.threadID, Seq: events[0].Seq - 1, Name: thread.EventGap, Data: []byte("{}")}
				events = append([]thread.Event{lost}, events...)
			}
			return events, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-s.wake:
		case <-look.C:
		}
	}
}

// read is bounded, so that a reader whose database has gone silent hears of it and comes back elsewhere.
func (s *Subscription) read(ctx context.Context) ([]thread.Event, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return s.db.Events(ctx, s.threadID, s.after, subscriptionPage)
}

// Close ends the subscription. It may be called twice.
func (s *Subscription) Close() {
	s.close.Do(func() {
		w := s.db.wake
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.feeds[s.threadID], s.wake)
		if len(w.feeds[s.threadID]) == 0 {
			delete(w.feeds, s.threadID)
		}
	})
}
