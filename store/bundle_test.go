package store_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"bobbin/store"
	"bobbin/store/storetest"
	"bobbin/thread"
)

const owner = "anna"

// patience is how long a test waits for what must come. Nothing is ever decided by its passing.
const patience = 20 * time.Second

// A bundle is a database with one owner and one thread.
type bundle struct {
	t      *testing.T
	dsn    string
	db     *store.DB
	sql    *pgxpool.Pool // looks at what no function of the store shows, and makes time pass
	owner  string
	thread string
}

func setup(t *testing.T, opts ...storetest.Option) *bundle {
	t.Helper()
	t.Parallel()
	b := &bundle{t: t, dsn: storetest.DSN(t), owner: owner}
	b.db = storetest.Open(t, b.dsn, opts...)
	var err error
	b.sql, err = pgxpool.New(t.Context(), b.dsn)
	require.NoError(t, err)
	t.Cleanup(b.sql.Close)
	require.NoError(t, b.db.EnsureKey(t.Context(), owner, "test", "bob_test"))
	storetest.AddFiles(t, b.dsn, owner, append(strings.Split("abcdefghijk", ""), "file_1")...)
	b.thread = b.open()
	return b
}

// sub is a bundle of a subtest, with a thread of its own in the same database: a table of many cases that do not race
// need not make a database for each.
func (b *bundle) sub(t *testing.T) *bundle {
	t.Helper()
	t.Parallel()
	s := *b
	s.t = t
	s.thread = s.open()
	return &s
}

func (b *bundle) ctx() context.Context { return b.t.Context() }

func (b *bundle) open() string {
	b.t.Helper()
	th, err := b.db.OpenThread(b.ctx(), b.owner, "")
	require.NoError(b.t, err)
	return th.ID
}

// A with changes a message before it is sent.
type with func(*store.Incoming)

// aMessage stands for the oldest message of the thread.
const aMessage = "a message"

func key(k string) with                   { return func(in *store.Incoming) { in.Key = k } }
func channel(c string) with               { return func(in *store.Incoming) { in.Channel = c } }
func files(ids ...string) with            { return func(in *store.Incoming) { in.Attachments = ids } }
func mentions(ids ...string) with         { return func(in *store.Incoming) { in.Mentions = ids } }
func reply(in *store.Incoming)            { in.ReplyTo = aMessage }
func mode(m thread.Mode) with             { return func(in *store.Incoming) { in.Mode = m } }
func delivery(d thread.Delivery) with     { return func(in *store.Incoming) { in.Delivery = d } }
func (b *bundle) to(threadID string) with { return func(in *store.Incoming) { in.ThreadID = threadID } }

func (b *bundle) incoming(text string, mods ...with) store.Incoming {
	in := store.Incoming{OwnerID: b.owner, ThreadID: b.thread, Channel: thread.ChannelWeb, Text: text}
	for _, m := range mods {
		m(&in)
	}
	if in.ReplyTo == aMessage {
		b.scan(`SELECT id FROM messages WHERE thread_id = $1 ORDER BY id LIMIT 1`, []any{b.thread}, &in.ReplyTo)
	}
	return in
}

func (b *bundle) accept(text string, mods ...with) store.Accepted {
	b.t.Helper()
	out, err := b.db.Accept(b.ctx(), b.incoming(text, mods...))
	require.NoError(b.t, err)
	return out
}

// A run is a turn that the test drives.
type run struct {
	*bundle
	ref     store.TurnRef
	attempt int
}

// start sends a message to an idle thread and returns its turn.
func (b *bundle) start(text string, mods ...with) run {
	b.t.Helper()
	out := b.accept(text, mods...)
	require.Equal(b.t, thread.DisposedTurn, out.Disposition)
	return b.running()
}

// running claims, and returns the conversation turn that runs.
func (b *bundle) running() run {
	b.t.Helper()
	c, err := b.db.Claim(b.ctx(), b.thread)
	require.NoError(b.t, err)
	require.NotNil(b.t, c.Conversation, "no turn runs")
	return b.run(c.Conversation)
}

func (b *bundle) run(t *thread.Turn) run {
	return run{b, store.TurnRef{ID: t.ID, ThreadID: t.ThreadID, Background: t.Kind == thread.Background}, t.Attempt}
}

func (b *bundle) background(request string) run {
	b.t.Helper()
	turn, err := b.db.AddBackground(b.ctx(), b.thread, thread.SourceEvent, request)
	require.NoError(b.t, err)
	c, err := b.db.Claim(b.ctx(), b.thread)
	require.NoError(b.t, err)
	for i := range c.Background {
		if c.Background[i].ID == turn.ID {
			return b.run(&c.Background[i])
		}
	}
	b.t.Fatal("the background turn was not claimed")
	return run{}
}

func (r run) load() *store.Work {
	r.t.Helper()
	w, err := r.db.Load(r.ctx(), r.ref, r.attempt)
	require.NoError(r.t, err)
	return w
}

func (r run) take() []thread.Entry {
	r.t.Helper()
	entries, err := r.db.Take(r.ctx(), r.ref.ID)
	require.NoError(r.t, err)
	return entries
}

// next is the turn's next round, built from its session as it is now.
func (r run) next(outcome store.RoundOutcome, text string, calls ...store.RoundCall) store.Round {
	r.t.Helper()
	w := r.load()
	return store.Round{
		N: w.Turn.Rounds + 1, Base: w.Session.End, Outcome: outcome, Calls: calls,
		Reply: thread.Reply{Text: text, Model: "scripted", Finish: thread.FinishStop},
	}
}

func (r run) commit(outcome store.RoundOutcome, text string, calls ...store.RoundCall) {
	r.t.Helper()
	_, err := r.db.CommitRound(r.ctx(), r.ref, r.next(outcome, text, calls...))
	require.NoError(r.t, err)
}

func tool(name string) store.RoundCall {
	return store.RoundCall{Asked: thread.Asked{ID: "call_" + name, Name: name, Arguments: "{}"}}
}

func effect(name string) store.RoundCall {
	c := tool(name)
	c.SideEffects = true
	return c
}

// finish writes the result of one call of the turn's last round.
func (r run) finish(index int, result string) error {
	r.t.Helper()
	var n int
	r.scan(`SELECT max(n) FROM rounds WHERE turn_id = $1`, []any{r.ref.ID}, &n)
	return finish(r.ctx(), r.db, r.ref, thread.Call{
		TurnID: r.ref.ID, Round: n, Index: index, Name: "t", State: thread.CallSucceeded, Result: result,
	})
}

// finish writes a result, and lets be whether a message waits.
func finish(ctx context.Context, db *store.DB, ref store.TurnRef, call thread.Call) error {
	_, err := db.FinishCall(ctx, ref, call)
	return err
}

func (r run) end(o store.Outcome) store.Ended {
	r.t.Helper()
	out, err := r.db.End(r.ctx(), r.ref.ID, r.attempt, o)
	require.NoError(r.t, err)
	out.Turn = nil
	return out
}

// answer commits a round that answers, and ends the turn.
func (r run) answer(text string) store.Ended {
	r.t.Helper()
	r.commit(store.RoundAnswer, text)
	return r.end(store.Outcome{})
}

func broken() store.Outcome {
	return store.Outcome{Error: &thread.TurnError{Code: thread.FailModelUnavailable, Detail: "The model cannot be reached."}}
}

func late() store.Outcome {
	return store.Outcome{Error: &thread.TurnError{Code: thread.FailTimeLimit, Detail: "late"}}
}

// shown writes a piece of an answer and waits until it is down.
func (r run) shown(attempt, offset int, text string) {
	r.t.Helper()
	d := r.db.NewDeltas()
	defer d.Close()
	d.Write(r.ref, thread.Delta{TurnID: r.ref.ID, Round: r.load().Turn.Rounds + 1, Attempt: attempt, Offset: offset, Text: text})
	d.Flush(r.ctx(), r.ref.ID)
}

func (r run) turn() *thread.Turn {
	r.t.Helper()
	turn, err := r.db.Turn(r.ctx(), r.owner, r.ref.ID)
	require.NoError(r.t, err)
	return turn
}

func (b *bundle) stop(scope store.Scope) store.Stopped {
	b.t.Helper()
	out, err := b.db.Stop(b.ctx(), b.owner, b.thread, scope)
	require.NoError(b.t, err)
	return out
}

func (b *bundle) exec(sql string, args ...any) {
	b.t.Helper()
	_, err := b.sql.Exec(b.ctx(), sql, args...)
	require.NoError(b.t, err)
}

func (b *bundle) scan(sql string, args []any, dst ...any) {
	b.t.Helper()
	require.NoError(b.t, b.sql.QueryRow(b.ctx(), sql, args...).Scan(dst...))
}

func (b *bundle) list(sql string, args ...any) []string {
	b.t.Helper()
	rows, _ := b.sql.Query(b.ctx(), sql, args...)
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(b.t, err)
	return list
}

// session is the thread's session, a line an entry.
func (b *bundle) session() []string {
	b.t.Helper()
	return b.list(`SELECT kind || ': ' || text FROM entries WHERE session_id = $1 ORDER BY pos`, b.thread)
}

// conversation is what the owner sees, a line a message; what is not delivered says so.
func (b *bundle) conversation() []string {
	b.t.Helper()
	messages, err := b.db.Messages(b.ctx(), b.owner, b.thread, store.Page{Limit: 1000})
	require.NoError(b.t, err)
	list := []string{}
	for _, m := range messages {
		line := fmt.Sprintf("%s: %s", m.Role, m.Text)
		if m.State != thread.MessageDelivered {
			line += fmt.Sprintf(" [%s]", m.State)
		}
		if m.Stopped {
			line += " [stopped]"
		}
		list = append(list, line)
	}
	return list
}

func (b *bundle) state(messageID string) string {
	b.t.Helper()
	var state string
	b.scan(`SELECT state FROM messages WHERE id = $1`, []any{messageID}, &state)
	return state
}

// events are the names of the thread's events, without those that tests seldom look at.
func (b *bundle) events() []string {
	b.t.Helper()
	return b.list(`SELECT name FROM events WHERE thread_id = $1 ORDER BY seq`, b.thread)
}

func (b *bundle) lastEvent() (seq int64) {
	b.t.Helper()
	b.scan(`SELECT last_seq FROM streams WHERE thread_id = $1`, []any{b.thread}, &seq)
	return seq
}

// A gate stops the first transaction that comes to its point, with its locks held.
type gate struct {
	arrived, open chan struct{}
	used          atomic.Bool
}

func (b *bundle) gated(p store.Point, opts ...storetest.Option) (*store.DB, *gate) {
	b.t.Helper()
	g := &gate{arrived: make(chan struct{}), open: make(chan struct{})}
	hook := func(_ context.Context, at store.Point) {
		if at == p && g.used.CompareAndSwap(false, true) {
			close(g.arrived)
			select {
			case <-g.open:
			case <-b.t.Context().Done(): // the test has failed
			}
		}
	}
	return storetest.Open(b.t, b.dsn, append(opts, func(c *store.Config) { c.Point = hook })...), g
}

// race runs first until it holds its locks at p, then second until Postgres says that it waits for them, then lets first
// commit, and returns when both are done.
func (b *bundle) race(p store.Point, first, second func(*store.DB)) {
	b.t.Helper()
	db, g := b.gated(p)
	one := async(func() { first(db) })
	select {
	case <-g.arrived:
	case <-one:
		b.t.Fatalf("the first never came to %s", p)
	}
	two := async(func() { second(b.db) })
	b.waiting(1, two)
	close(g.open)
	<-one
	<-two
}

// second is another process's DB on the same database.
func (b *bundle) second(opts ...storetest.Option) *store.DB {
	b.t.Helper()
	return storetest.Open(b.t, b.dsn, opts...)
}

func async(f func()) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	return done
}

// waiting returns when n backends wait for a lock. It fails if done is closed first.
func (b *bundle) waiting(n int, done <-chan struct{}) {
	b.t.Helper()
	b.until(done, `
		SELECT count(*) >= $1
		FROM pg_stat_activity
		WHERE datname = current_database() AND wait_event_type = 'Lock' AND cardinality(pg_blocking_pids(pid)) > 0`, n)
}

// until returns when a query says true.
func (b *bundle) until(done <-chan struct{}, sql string, args ...any) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx(), patience)
	defer cancel()
	for {
		var ok bool
		require.NoError(b.t, b.sql.QueryRow(ctx, sql, args...).Scan(&ok), "while waiting for %s", sql)
		if ok {
			return
		}
		select {
		case <-done:
			b.t.Fatalf("it did not wait: %s", strings.TrimSpace(sql))
		default:
		}
	}
}

// locked holds the thread's rows of a table, until the returned function is called or the test ends.
func (b *bundle) locked(table string) (release func()) {
	b.t.Helper()
	return b.lockedRows(`SELECT FROM ` + table + ` WHERE thread_id = '` + b.thread + `' FOR UPDATE`)
}

// lockedRows holds what a statement locks in a transaction of the test's own.
func (b *bundle) lockedRows(sql string) (release func()) {
	b.t.Helper()
	conn, err := pgx.Connect(b.ctx(), b.dsn)
	require.NoError(b.t, err)
	release = func() { _ = conn.Close(context.Background()) }
	b.t.Cleanup(release) // what still waits for them would hold up the end of a test that has failed
	_, err = conn.Exec(b.ctx(), `BEGIN; `+sql)
	require.NoError(b.t, err)
	return release
}

// messageOf returns the id of the message that a turn answers.
func (b *bundle) messageOf(turn *thread.Turn) (id string) {
	b.t.Helper()
	require.NotNil(b.t, turn)
	b.scan(`SELECT id FROM messages WHERE turn_id = $1 AND role = 'user'`, []any{turn.ID}, &id)
	return id
}

// behind makes a turn run and another wait behind it, which holds the returned message.
func (b *bundle) behind() (run, store.Accepted) {
	b.t.Helper()
	r := b.start("hello")
	return r, b.accept("one", channel("telegram"))
}

// retrying makes a thread where nothing runs and a failed turn waits for its retry.
func (b *bundle) retrying() run {
	b.t.Helper()
	r := b.start("hello", channel(thread.ChannelSMS))
	require.Equal(b.t, store.Ended{Status: thread.TurnQueued}, r.end(broken()))
	return r
}

// due makes the time of a retry come.
func (b *bundle) due() {
	b.t.Helper()
	b.exec(`UPDATE turns SET retry_at = clock_timestamp() WHERE thread_id = $1 AND retry_at IS NOT NULL`, b.thread)
}

func (b *bundle) cancelTurn(r run) {
	b.t.Helper()
	_, err := b.db.Cancel(b.ctx(), b.owner, r.ref.ID)
	require.NoError(b.t, err)
}
