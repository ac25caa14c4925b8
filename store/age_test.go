package store_test

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"bobbin/store"
	"bobbin/thread"
)

// reads gathers the statements that only read.
type reads struct {
	mu   sync.Mutex
	list []pgx.TraceBatchQueryData
}

func (r *reads) add(sql string, args []any) {
	text := strings.TrimSpace(sql)
	if (strings.HasPrefix(text, "SELECT") || strings.HasPrefix(text, "WITH")) && !strings.Contains(text, "INSERT") &&
		!strings.Contains(text, "pg_") && !strings.Contains(text, "set_config") {
		r.mu.Lock()
		r.list = append(r.list, pgx.TraceBatchQueryData{SQL: text, Args: args})
		r.mu.Unlock()
	}
}

func (r *reads) taken() []pgx.TraceBatchQueryData {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.list
	r.list = nil
	return list
}

func (r *reads) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	r.add(d.SQL, d.Args)
	return ctx
}
func (r *reads) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (r *reads) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (r *reads) TraceBatchQuery(_ context.Context, _ *pgx.Conn, d pgx.TraceBatchQueryData) {
	r.add(d.SQL, d.Args)
}
func (r *reads) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// A turn of an old thread visits no more rows than one of a young one, by Postgres's own count, nor does who looks at it.
func TestATurnOfAnOldThreadReadsNoMoreThanOneOfAYoungThread(t *testing.T) {
	tracer := &reads{}
	b := setup(t, func(c *store.Config) { c.Tracer = tracer })
	old := *b
	old.thread = b.open()
	old.age(500)
	for range 8 { // no thread is most of a table
		other := *b
		other.thread = b.open()
		other.age(500)
	}
	for _, house := range []*bundle{b, &old} {
		house.turns("one", "two") // what both are shown
		if house == &old {
			r := old.start("three")
			n := len(r.load().Session.Entries)
			r.compact("five hundred turns", n-6)
			r.answer("yes")
			continue
		}
		house.turns("three")
	}
	b.exec(`ANALYZE`)
	young, aged := b.visited(tracer), old.visited(tracer)
	for name, rows := range young {
		const summary = 30 // a summary and what it leaves out are looked up
		require.LessOrEqual(t, aged[name], rows+rows/5+summary, "%s: %v rows in a young thread", name, rows)
		t.Logf("%s: %d rows, of an old thread %d", name, rows, aged[name])
	}
}

// age gives the thread n turns that were answered long ago.
func (b *bundle) age(n int) {
	b.t.Helper()
	for _, sql := range []string{
		`INSERT INTO turns (id, thread_id, source, kind, mode, status, rank, reply_channel, created_at, started_at, finished_at, driven_at, attempt, rounds, steps)
			SELECT 'trn_0' || $1 || to_char(i, 'FM00000'), $1, 'user', 'conversation', 'chat', 'succeeded', i, 'web', now(), now(), now(), now(), 1, 1, 2
			FROM generate_series(1, $2::int) i`,
		`INSERT INTO entries (session_id, pos, kind, turn_id, round, text)
			SELECT $1, 2 * i - 2 + k, CASE k WHEN 0 THEN 'user' ELSE 'assistant' END, 'trn_0' || $1 || to_char(i, 'FM00000'), k, 'text'
			FROM generate_series(1, $2::int) i, generate_series(0, 1) k`,
		`INSERT INTO rounds (turn_id, n, outcome, entry_pos, model, finish, input_tokens, output_tokens, attempts, finished_at)
			SELECT 'trn_0' || $1 || to_char(i, 'FM00000'), 1, 'answer', 2 * i - 1, 'm', 'stop', 1, 1, 1, now()
			FROM generate_series(1, $2::int) i`,
		`INSERT INTO events (thread_id, seq, name, turn_id, data, created_at)
			SELECT $1, 6 * i - 6 + k, 'answer.delta', 'trn_0' || $1 || to_char(i, 'FM00000'), '{}', now()
			FROM generate_series(1, $2::int) i, generate_series(1, 6) k`,
		`INSERT INTO messages (id, thread_id, turn_id, role, state, channel, text, seq, created_at)
			SELECT 'msg_0' || $1 || to_char(2 * i + k, 'FM00000'), $1, 'trn_0' || $1 || to_char(i, 'FM00000'), CASE k WHEN 0 THEN 'user' ELSE 'assistant' END,
				'delivered', 'web', 'text', 6 * i - 5 + k, now()
			FROM generate_series(1, $2::int) i, generate_series(0, 1) k`,
		`UPDATE streams SET last_seq = 6 * $2::int WHERE thread_id = $1`,
	} {
		b.exec(sql, b.thread, n)
	}
}

// visited drives a turn and looks at it, and returns how many rows each operation's statements visit.
func (b *bundle) visited(r *reads) map[string]int {
	b.t.Helper()
	rows := map[string]int{}
	op := func(name string, f func()) {
		r.taken()
		f()
		for _, s := range r.taken() {
			rows[name] += b.visits(s)
		}
	}
	var turn run
	page := store.Page{Limit: 5}
	op("accept", func() { b.accept("request") })
	op("claim", func() { turn = b.running() })
	op("begin", func() {
		_, err := b.db.Begin(b.ctx(), turn.ref, turn.attempt, store.Attempt{TurnID: turn.ref.ID, ActivityID: b.thread})
		require.NoError(b.t, err)
	})
	op("steer", func() { b.accept("more") })
	op("take", func() { require.Len(b.t, turn.take(), 1) })
	op("commit", func() { turn.commit(store.RoundCalls, "", tool("t")) })
	op("finish", func() { require.NoError(b.t, turn.finish(0, "found")) })
	op("end", func() { turn.answer("done") })
	op("add background turn", func() {
		_, err := b.db.AddBackground(b.ctx(), b.thread, thread.SourceEvent, "look")
		require.NoError(b.t, err)
	})
	var bg run
	op("claim background", func() {
		c, err := b.db.Claim(b.ctx(), b.thread)
		require.NoError(b.t, err)
		bg = b.run(&c.Background[0])
	})
	op("load background", func() { bg.load() })
	op("thread", func() { _, err := b.db.Thread(b.ctx(), owner, b.thread); require.NoError(b.t, err) })
	op("messages", func() { _, err := b.db.Messages(b.ctx(), owner, b.thread, page); require.NoError(b.t, err) })
	op("turns", func() { _, err := b.db.Turns(b.ctx(), owner, b.thread, page); require.NoError(b.t, err) })
	op("steps", func() { _, err := b.db.Steps(b.ctx(), owner, turn.ref.ID, 0, 5); require.NoError(b.t, err) })
	op("events", func() {
		_, _, err := b.db.Events(b.ctx(), b.thread, b.lastEvent()-5, 10)
		require.NoError(b.t, err)
	})
	return rows
}

// visits is how many rows a statement's scans look at, those that they drop among them.
func (b *bundle) visits(s pgx.TraceBatchQueryData) int {
	b.t.Helper()
	tx, err := b.sql.Begin(b.ctx())
	require.NoError(b.t, err)
	defer func() { _ = tx.Rollback(b.ctx()) }()
	var raw []byte
	require.NoError(b.t, tx.QueryRow(b.ctx(), `EXPLAIN (ANALYZE, FORMAT JSON) `+s.SQL, s.Args...).Scan(&raw), s.SQL)
	var plans []struct{ Plan plan }
	require.NoError(b.t, json.Unmarshal(raw, &plans))
	return plans[0].Plan.visits()
}

type plan struct {
	Type    string  `json:"Node Type"`
	Rows    float64 `json:"Actual Rows"`
	Loops   float64 `json:"Actual Loops"`
	Removed float64 `json:"Rows Removed by Filter"`
	Plans   []plan
}

func (p plan) visits() (n int) {
	if strings.HasSuffix(p.Type, "Scan") && p.Type != "CTE Scan" && p.Type != "Subquery Scan" {
		n = int((p.Rows + p.Removed) * max(p.Loops, 1))
	}
	for _, c := range p.Plans {
		n += c.visits()
	}
	return n
}
