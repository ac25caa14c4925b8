package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"bobbin/store"
)

// accept measures what a person waits for: a message that starts a turn and one that steers a running turn, from one client
// and from 32. The floor writes the same rows into the same tables in one pgx batch, without HTTP, locks or reads. No worker
// runs; the nudges of what starts turns go to Temporal all the same. Each batch begins when the last one's are gone. One
// client sends at the pace of a person, so that each message finds the nudge before it gone and processes asleep, and so
// does each batch of its floor; with 32 there is always a nudge on its way.
func accept(ctx context.Context, l *lab) ([]line, error) {
	h, err := l.house(ctx)
	if err != nil {
		return nil, err
	}
	if err := h.startAPI(); err != nil {
		return nil, err
	}
	var lines []line
	for _, kind := range []struct {
		name    string
		running bool
		batch   func(threadID, id string) *pgx.Batch
	}{
		{"accept that starts a turn", false, startBatch},
		{"accept that steers", true, steerBatch},
	} {
		for _, count := range []int{1, 32} {
			d, err := h.accepts(ctx, count, kind.running, kind.batch)
			if err != nil {
				return lines, err
			}
			name := fmt.Sprintf("%s, %d clients", kind.name, count)
			if count == 1 {
				name = kind.name + ", 1 client"
			}
			lines = append(lines, d.line(name, 0.5, 1.5), d.line(name, 0.99, 2))
		}
	}
	return lines, nil
}

func (h *house) accepts(ctx context.Context, count int, running bool, batch func(threadID, id string) *pgx.Batch) (duel, error) {
	batches, size := h.counts(1, 5), h.counts(count, max(20, 4*count))
	threads, err := h.threads(ctx, 2*(h.reps*batches*size+warm(size)), running)
	if err != nil {
		return duel{}, err
	}
	var next atomic.Int64
	take := func() string { return threads[next.Add(1)-1] }
	ours := clients(count, func(ctx context.Context) (time.Duration, error) {
		id := take()
		if count == 1 {
			if err := errors.Join(h.quiet(ctx), rest(ctx)); err != nil {
				return 0, err
			}
		}
		return timed(func() error {
			_, err := h.say(ctx, id, "What does the wool trade look like?")
			return err
		})
	})
	floor := clients(count, func(ctx context.Context) (time.Duration, error) {
		id := take()
		if count == 1 {
			if err := rest(ctx); err != nil {
				return 0, err
			}
		}
		b := batch(id, id)
		return timed(func() error { return h.sql.SendBatch(ctx, b).Close() })
	})
	settled := func(s side) side {
		return func(ctx context.Context, n int) (samples, error) {
			if err := h.quiet(ctx); err != nil {
				return nil, err
			}
			return s(ctx, n)
		}
	}
	return fight(ctx, h.reps, batches, size, settled(ours), settled(floor))
}

// threads makes n threads, idle or with a turn that runs and that nobody drives.
func (h *house) threads(ctx context.Context, n int, running bool) ([]string, error) {
	prefix := fmt.Sprintf("thr_b%d_", h.model.next.Add(1))
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprint(prefix, i)
	}
	b := &pgx.Batch{}
	b.Queue(`INSERT INTO threads (id, owner_id) SELECT id, $2 FROM unnest($1::text[]) AS id`, ids, owner)
	b.Queue(`INSERT INTO streams (thread_id) SELECT unnest($1::text[])`, ids)
	if running {
		b.Queue(`
			INSERT INTO turns (id, thread_id, source, kind, mode, status, rank, reply_channel, created_at, started_at, driven_at, attempt)
			SELECT 'trn_' || id, id, 'user', 'conversation', 'chat', 'running', 0, 'web', now(), now(), now() + interval '1 day', 1
			FROM unnest($1::text[]) AS id`, ids)
	}
	b.Queue(`INSERT INTO runs (thread_id, turn_id) SELECT id, CASE WHEN $2 THEN 'trn_' || id END FROM unnest($1::text[]) AS id`, ids, running)
	b.Queue(`ANALYZE threads, streams, turns, runs`)
	return ids, h.sql.SendBatch(ctx, b).Close()
}

const events = `
	WITH counter AS (UPDATE streams SET last_seq = $2 WHERE thread_id = $1)
	INSERT INTO events (thread_id, seq, name, turn_id, data, created_at)
	SELECT $1, n, e, $3, $5::json, now()
	FROM unnest($4::text[]) WITH ORDINALITY AS x (e, n)`

const eventData = `{"message":{"id":"msg_01a2b3c4d5e6f7","role":"user","text":"What does the wool trade look like?","state":"queued"}}`

// startBatch writes what an accept leaves that starts a turn.
func startBatch(threadID, id string) *pgx.Batch {
	turn, msg, text := "trn_"+id, "msg_"+id, "What does the wool trade look like?"
	b := &pgx.Batch{}
	b.Queue(`
		INSERT INTO turns (id, thread_id, source, kind, mode, status, rank, reply_channel, created_at, started_at, driven_at, attempt)
		VALUES ($1, $2, 'user', 'conversation', 'chat', 'running', 0, 'web', now(), now(), now(), 1)`, turn, threadID)
	b.Queue(`UPDATE runs SET turn_id = $2 WHERE thread_id = $1`, threadID, turn)
	b.Queue(`
		INSERT INTO messages (id, thread_id, turn_id, role, state, channel, text, seq, created_at)
		VALUES ($1, $2, $3, 'user', 'delivered', 'web', $4, 1, now())`, msg, threadID, turn, text)
	b.Queue(`INSERT INTO message_parts (message_id, n, text, sent_at) VALUES ($1, 1, $2, now())`, msg, text)
	b.Queue(`
		INSERT INTO entries (session_id, pos, kind, turn_id, message_id, text)
		VALUES ($1, 0, 'user', $2, $3, $4)`, threadID, turn, msg, text)
	b.Queue(events, threadID, 3, turn, []string{"message.created", "turn.started", "message.delivered"}, eventData)
	b.Queue(`INSERT INTO outbox (thread_id, kind, turn_id, due_at) VALUES ($1, 'work', $2, now() + interval '1 day')`, threadID, turn)
	b.Queue(`DELETE FROM outbox WHERE thread_id = $1`, threadID) // else quiet would wait for it
	return b
}

// steerBatch writes what an accept leaves that steers.
func steerBatch(threadID, id string) *pgx.Batch {
	turn, msg, text := "trn_"+threadID, "msg_"+id, "Only domestic companies"
	b := &pgx.Batch{}
	b.Queue(`
		INSERT INTO messages (id, thread_id, turn_id, role, state, channel, text, created_at)
		VALUES ($1, $2, $3, 'user', 'queued', 'web', $4, now())`, msg, threadID, turn, text)
	b.Queue(`INSERT INTO message_parts (message_id, n, text, sent_at) VALUES ($1, 1, $2, now())`, msg, text)
	b.Queue(`INSERT INTO steering (thread_id, message_id, state) VALUES ($1, $2, 'queued')`, threadID, msg)
	b.Queue(events, threadID, 1, turn, []string{"message.created"}, eventData)
	return b
}

// take measures the take as the stint calls it, against one bare round trip and one bare commit.
func take(ctx context.Context, l *lab) ([]line, error) {
	h, err := l.house(ctx)
	if err != nil {
		return nil, err
	}
	db, err := store.Open(ctx, store.Config{DSN: h.dsn})
	if err != nil {
		return nil, err
	}
	defer db.Close()
	batches, size := l.counts(1, 5), l.counts(3, 40)
	threads, err := h.threads(ctx, l.reps*batches*size+warm(size), true)
	if err != nil {
		return nil, err
	}
	var next int
	empty := each(func(ctx context.Context) (time.Duration, error) {
		return timed(func() error { return taken(db.Take(ctx, "trn_"+threads[0]))(0) })
	})
	roundTrip := each(func(ctx context.Context) (time.Duration, error) {
		return timed(func() error {
			_, err := h.sql.Exec(ctx, `SELECT 1`)
			return err
		})
	})
	nothing, err := fight(ctx, l.reps, batches, size, empty, roundTrip)
	if err != nil {
		return nil, err
	}
	queued := func(ctx context.Context, n int) (all samples, err error) {
		ids := threads[next : next+n]
		next += n
		for _, id := range ids {
			if _, err := db.Accept(ctx, store.Incoming{OwnerID: owner, ThreadID: id, Channel: "web", Text: "Only domestic companies"}); err != nil {
				return nil, err
			}
		}
		for _, id := range ids {
			took, err := timed(func() error { return taken(db.Take(ctx, "trn_"+id))(1) })
			if err != nil {
				return nil, err
			}
			all = append(all, took)
		}
		return all, nil
	}
	commit := each(func(ctx context.Context) (time.Duration, error) {
		return timed(func() error {
			_, err := h.sql.Exec(ctx, `UPDATE floor.bare SET n = n + 1 WHERE id = 1`)
			return err
		})
	})
	one, err := fight(ctx, l.reps, batches, size, queued, commit)
	return []line{
		nothing.line("take with nothing queued", 0.5, 1.5),
		one.line("take with one queued", 0.5, 1.5),
	}, err
}

// taken checks how many entries a take returned.
func taken[T any](entries []T, err error) func(want int) error {
	return func(want int) error {
		if err == nil && len(entries) != want {
			return errors.New("the take returned another number of entries")
		}
		return err
	}
}
