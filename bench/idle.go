package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"sync/atomic"
	"time"
)

// idle measures what threads cost that have nothing to do: memory of the worker once they have rested, and bytes in Postgres
// and in Temporal's tables. Then it makes rows of 50,000 more, and measures whether a turn is slower for it.
func idle(ctx context.Context, l *lab) ([]line, error) {
	const restAfter = 2 * time.Second
	h, err := l.furnish(ctx, "BOBBIN_THREAD_IDLE="+restAfter.String(), "GODEBUG=gctrace=1", "GOGC=25")
	if err != nil {
		return nil, err
	}
	threads := l.counts(4, 2000)
	if err := h.oneTurnEach(ctx, l.counts(2, 100)); err != nil { // pools, caches, prepared statements
		return nil, err
	}
	before, err := h.weigh(ctx)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if err := h.oneTurnEach(ctx, threads); err != nil {
		return nil, err
	}
	took := time.Since(began)
	after, err := h.weigh(ctx)
	if err != nil {
		return nil, err
	}
	per := func(bytes int64) string { return fmt.Sprintf("%.1f KiB", float64(bytes)/1024/float64(threads)) }
	grown := float64(after.worker-before.worker) / 1024 / float64(threads)
	lines := []line{{
		name: fmt.Sprintf("%d idle threads: the worker's live memory, per thread", threads), ours: fmt.Sprintf("%.1f KiB", max(0, grown)), goal: "≤ 1 KiB",
		verdict: verdictOf(grown <= 1),
	}, {
		name: "a thread of one turn in Postgres, with its indexes", ours: per(after.ours - before.ours),
	}}
	if !l.short {
		lines = append(lines, line{
			name: "a thread of one turn in Temporal, until its retention ends", ours: per(after.temporal - before.temporal),
		})
	}
	lines = append(lines, line{name: "turns of one round, by 32 clients", ours: fmt.Sprintf("%.0f/s", float64(threads)/took.Seconds())})
	slow, err := h.crowded(ctx)
	return append(lines, slow...), err
}

// oneTurnEach runs a turn of one round in each of n new threads, and waits until their workflows have ended.
func (h *house) oneTurnEach(ctx context.Context, n int) error {
	s := h.model.script(say)
	defer s.done()
	began := time.Now()
	if _, err := clients(crowdClients, func(ctx context.Context) (time.Duration, error) {
		id, err := h.thread(ctx)
		if err == nil {
			_, err = h.say(ctx, id, s.name)
		}
		return 0, err
	})(ctx, n); err != nil {
		return err
	}
	return until(ctx, "all threads to rest", func() (bool, error) {
		ended, err := h.count(ctx, `SELECT count(*) FROM turns WHERE created_at >= $1 AND status = 'succeeded'`, began)
		if err != nil || ended < int64(n) {
			return false, err
		}
		open, err := h.openWorkflows(ctx)
		return open == 0, err
	})
}

// A weight is in bytes.
type weight struct{ worker, ours, temporal int64 }

func (h *house) weigh(ctx context.Context) (w weight, err error) {
	const size = `SELECT COALESCE(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'r' AND n.nspname = $1`
	if _, err := h.sql.Exec(ctx, `VACUUM ANALYZE`); err != nil {
		return w, err
	}
	if w.ours, err = h.count(ctx, size, "public"); err != nil {
		return w, err
	}
	if h.temporalDSN != "" {
		pool, err := connect(ctx, h.temporalDSN)
		if err != nil {
			return w, err
		}
		defer pool.Close()
		for _, schema := range []string{"temporal", "temporal_visibility"} {
			var n int64
			if err := pool.QueryRow(ctx, size, schema).Scan(&n); err != nil {
				return w, err
			}
			w.temporal += n
		}
	}
	w.worker, err = h.liveMemory(ctx)
	return w, err
}

var traced = regexp.MustCompile(`(?m)^gc \d+ @.*\d+->\d+->(\d+) MB, \d+ MB goal, (\d+) MB stacks`)

// liveMemory is what the worker's last garbage collection found alive, on the heap and on stacks, after a few turns more so
// that there was one. https://pkg.go.dev/runtime#hdr-Environment_Variables
func (h *house) liveMemory(ctx context.Context) (int64, error) {
	seen := len(h.collections())
	for len(h.collections()) < seen+3 {
		if err := h.oneTurnEach(ctx, h.counts(4, 32)); err != nil {
			return 0, err
		}
	}
	all := h.collections()
	last := all[len(all)-1]
	heap, err := strconv.ParseInt(last[1], 10, 64)
	stacks, err2 := strconv.ParseInt(last[2], 10, 64)
	return (heap + stacks) << 20, errors.Join(err, err2)
}

func (h *house) collections() [][]string {
	raw, _ := os.ReadFile(h.worker.log) // without it there is none, and the wait for one ends with the turns
	return traced.FindAllStringSubmatch(string(raw), -1)
}

// crowded compares accepts and turns in this database with those after rows of 50,000 idle threads came to it.
func (h *house) crowded(ctx context.Context) ([]line, error) {
	more := h.counts(100, 50_000)
	sample := func() (accepts, turns samples, err error) {
		for range h.counts(2, 60) {
			id, err := h.thread(ctx)
			if err != nil {
				return nil, nil, err
			}
			s := h.model.script(say)
			began := time.Now()
			out, err := h.say(ctx, id, s.name)
			if err != nil {
				return nil, nil, err
			}
			accepts = append(accepts, time.Since(began))
			if err := h.ended(ctx, out.TurnID); err != nil {
				return nil, nil, err
			}
			turns = append(turns, time.Since(began))
			s.done()
		}
		return accepts, turns, nil
	}
	a1, t1, err := sample()
	if err != nil {
		return nil, err
	}
	if err := h.fill(ctx, more); err != nil {
		return nil, err
	}
	a2, t2, err := sample()
	ratio := func(a, b samples) string { return fmt.Sprintf("%.2f", float64(b.at(0.5))/float64(a.at(0.5))) }
	name := fmt.Sprintf("with rows of %d idle threads", more)
	return []line{
		{name: "accept " + name + ", p50", ours: ms(a2.at(0.5)), floor: ms(a1.at(0.5)), ratio: ratio(a1, a2)},
		{name: "turn of one round " + name + ", p50", ours: ms(t2.at(0.5)), floor: ms(t1.at(0.5)), ratio: ratio(t1, t2)},
	}, err
}

var filled atomic.Int64

// fill writes the rows that n threads leave which had one turn each.
func (h *house) fill(ctx context.Context, n int) error {
	args := []any{fmt.Sprintf("f%d_", filled.Add(1)), n, owner}
	for _, q := range []string{
		`INSERT INTO threads (id, owner_id) SELECT 'thr_' || $1 || i, $3 FROM generate_series(1, $2::int) i`,
		`INSERT INTO streams (thread_id, last_seq) SELECT 'thr_' || $1 || i, 5 FROM generate_series(1, $2::int) i WHERE $3 <> ''`,
		`INSERT INTO turns (id, thread_id, source, kind, mode, status, rank, reply_channel, created_at, started_at, finished_at, driven_at, attempt, rounds)
		 SELECT 'trn_' || $1 || i, 'thr_' || $1 || i, 'user', 'conversation', 'chat', 'succeeded', 0, 'web', now(), now(), now(), now(), 1, 1
		 FROM generate_series(1, $2::int) i WHERE $3 <> ''`,
		`INSERT INTO runs (thread_id) SELECT 'thr_' || $1 || i FROM generate_series(1, $2::int) i WHERE $3 <> ''`,
		`INSERT INTO messages (id, thread_id, turn_id, role, state, channel, text, seq, created_at)
		 SELECT 'msg_' || $1 || i || r, 'thr_' || $1 || i, 'trn_' || $1 || i, r, 'delivered', 'web', 'What does the wool trade look like?', CASE r WHEN 'user' THEN 1 ELSE 4 END, now()
		 FROM generate_series(1, $2::int) i, unnest(ARRAY['user', 'assistant']) r WHERE $3 <> ''`,
		`INSERT INTO entries (session_id, pos, kind, turn_id, text)
		 SELECT 'thr_' || $1 || i, p, CASE p WHEN 0 THEN 'user' ELSE 'assistant' END, 'trn_' || $1 || i, 'What does the wool trade look like?'
		 FROM generate_series(1, $2::int) i, generate_series(0, 1) p WHERE $3 <> ''`,
		`INSERT INTO events (thread_id, seq, name, turn_id, data, created_at)
		 SELECT 'thr_' || $1 || i, s, 'turn.started', 'trn_' || $1 || i, '{"turn":{"id":"trn_01a2b3c4","status":"running"}}', now()
		 FROM generate_series(1, $2::int) i, generate_series(1, 5) s WHERE $3 <> ''`,
	} {
		if _, err := h.sql.Exec(ctx, q, args...); err != nil {
			return err
		}
	}
	_, err := h.sql.Exec(ctx, `VACUUM ANALYZE`)
	return err
}
