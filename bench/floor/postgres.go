package floor

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"bobbin/thread"
	"bobbin/tools"
)

// The bare loop on Postgres. A job is claimed with SKIP LOCKED; then, round after round: take what came meanwhile, call the
// model, write what it said, run its tools at once, write each result. Each of these is one statement and one commit. It has
// no stop, no fence, no events, no limits, no recovery of a job whose worker died.

const (
	poolSize   = 20
	loops      = 100 // jobs at once, as many as a worker of ours has stints
	wakeUp     = "floor_jobs"
	lookEvery  = 250 * time.Millisecond
	showEvery  = 30 * time.Millisecond
	shownLimit = 7000 // bytes of a notification
)

// Prepare makes the tables of the floor.
func Prepare(ctx context.Context, pool *pgxpool.Pool) error {
	_, err := pool.Exec(ctx, `
		CREATE SCHEMA floor;
		CREATE TABLE floor.jobs (
			id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
			thread text NOT NULL,
			status text NOT NULL DEFAULT 'queued',
			answer text
		);
		CREATE INDEX ON floor.jobs (id) WHERE status = 'queued';
		CREATE TABLE floor.inbox (
			id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
			thread text NOT NULL,
			text   text NOT NULL,
			taken  boolean NOT NULL DEFAULT false
		);
		CREATE INDEX ON floor.inbox (thread) WHERE NOT taken;
		CREATE TABLE floor.log (
			thread text NOT NULL,
			pos    int NOT NULL,
			entry  json NOT NULL,
			PRIMARY KEY (thread, pos)
		);
		CREATE TABLE floor.bare (id int PRIMARY KEY, n bigint NOT NULL);
		INSERT INTO floor.bare VALUES (1, 0)`)
	return err
}

// Submit gives the loop a message to answer, as its API would.
func Submit(ctx context.Context, pool *pgxpool.Pool, threadID, text string) (job int64, err error) {
	b := &pgx.Batch{}
	b.Queue(`INSERT INTO floor.inbox (thread, text) VALUES ($1, $2)`, threadID, text)
	b.Queue(`INSERT INTO floor.jobs (thread) VALUES ($1) RETURNING id`, threadID).QueryRow(func(r pgx.Row) error { return r.Scan(&job) })
	b.Queue(`SELECT pg_notify($1, '')`, wakeUp)
	return job, pool.SendBatch(ctx, b).Close()
}

// Steer gives the loop a message for a job that runs.
func Steer(ctx context.Context, pool *pgxpool.Pool, threadID, text string) error {
	_, err := pool.Exec(ctx, `INSERT INTO floor.inbox (thread, text) VALUES ($1, $2)`, threadID, text)
	return err
}

// loop works on jobs.
type loop struct {
	hands
	pool *pgxpool.Pool
	wake chan struct{}

	mu    sync.Mutex
	shown strings.Builder // text that nobody has been told of
}

func runPostgres(ctx context.Context) error {
	h, err := newHands()
	if err != nil {
		return err
	}
	cfg, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	cfg.MaxConns = poolSize
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer pool.Close()
	l := &loop{hands: h, pool: pool, wake: make(chan struct{}, loops)}
	failed := make(chan error, loops+2)
	go func() { failed <- l.listen(ctx) }()
	go func() { failed <- l.show(ctx) }()
	for range loops {
		go func() { failed <- l.work(ctx) }()
	}
	fmt.Println(Ready)
	return <-failed
}

// listen wakes the loops when there is a job.
func (l *loop) listen(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if _, err := conn.Exec(ctx, "LISTEN "+wakeUp); err != nil {
		return err
	}
	for {
		if _, err := conn.WaitForNotification(ctx); err != nil {
			return err
		}
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
}

// show tells who listens what was written, in one notification every so often.
func (l *loop) show(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(showEvery):
		}
		l.mu.Lock()
		text := l.shown.String()
		l.shown.Reset()
		l.mu.Unlock()
		if text == "" {
			continue
		}
		if _, err := l.pool.Exec(ctx, `SELECT pg_notify('floor_text', $1)`, text[:min(len(text), shownLimit)]); err != nil {
			return err
		}
	}
}

// work does one job after the other.
func (l *loop) work(ctx context.Context) error {
	for {
		var id int64
		var threadID string
		err := l.pool.QueryRow(ctx, `
			UPDATE floor.jobs
			SET status = 'running'
			WHERE id = (SELECT id FROM floor.jobs WHERE status = 'queued' ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)
			RETURNING id, thread`).Scan(&id, &threadID)
		if err == nil {
			err = l.job(ctx, id, threadID)
		} else if err == pgx.ErrNoRows { //nolint:errorlint // pgx returns it as it is
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-l.wake:
			case <-time.After(lookEvery):
			}
			err = nil
		}
		if err != nil {
			return err
		}
	}
}

func (l *loop) job(ctx context.Context, id int64, threadID string) error {
	rows, _ := l.pool.Query(ctx, `SELECT entry FROM floor.log WHERE thread = $1 ORDER BY pos`, threadID)
	entries, err := pgx.CollectRows(rows, pgx.RowTo[thread.Entry])
	if err != nil {
		return err
	}
	for {
		if entries, err = l.take(ctx, threadID, entries); err != nil {
			return err
		}
		reply, err := l.model.Call(ctx, l.prompt(entries), l.tell)
		if err != nil {
			return err
		}
		said := thread.Entry{Kind: thread.EntryAssistant, Text: reply.Text}
		for i, c := range reply.Calls {
			said.Calls = append(said.Calls, thread.Call{Index: i, ID: c.ID, Name: c.Name, Arguments: c.Arguments, State: thread.CallPending})
		}
		if len(said.Calls) == 0 {
			return l.finish(ctx, id, threadID, len(entries), said)
		}
		pos := len(entries)
		if err := l.write(ctx, threadID, pos, said); err != nil {
			return err
		}
		if err := l.run(ctx, threadID, &said); err != nil {
			return err
		}
		if err := l.write(ctx, threadID, pos, said); err != nil {
			return err
		}
		entries = append(entries, said)
	}
}

// take loads what was sent meanwhile.
func (l *loop) take(ctx context.Context, threadID string, entries []thread.Entry) ([]thread.Entry, error) {
	rows, _ := l.pool.Query(ctx, `
		WITH new AS (
			UPDATE floor.inbox SET taken = true WHERE thread = $1 AND NOT taken RETURNING id, text
		)
		INSERT INTO floor.log (thread, pos, entry)
		SELECT $1, $2 + row_number() OVER (ORDER BY id) - 1, json_build_object('Kind', 'user', 'Text', text) FROM new
		RETURNING entry`, threadID, len(entries))
	taken, err := pgx.CollectRows(rows, pgx.RowTo[thread.Entry])
	return append(entries, taken...), err
}

func (l *loop) write(ctx context.Context, threadID string, pos int, e thread.Entry) error {
	raw, err := json.Marshal(e)
	if err != nil {
		return err
	}
	_, err = l.pool.Exec(ctx, `
		INSERT INTO floor.log (thread, pos, entry) VALUES ($1, $2, $3)
		ON CONFLICT (thread, pos) DO UPDATE SET entry = EXCLUDED.entry`, threadID, pos, raw)
	return err
}

func (l *loop) run(ctx context.Context, threadID string, said *thread.Entry) error {
	for i := range said.Calls {
		c := &said.Calls[i]
		res, err := l.tools.Run(ctx, c.Name, tools.Call{Key: c.ID, ThreadID: threadID, Arguments: json.RawMessage(c.Arguments)})
		if err != nil {
			return err
		}
		c.State, c.Result = thread.CallSucceeded, res.Text
	}
	return nil
}

func (l *loop) finish(ctx context.Context, id int64, threadID string, pos int, said thread.Entry) error {
	raw, err := json.Marshal(said)
	if err != nil {
		return err
	}
	b := &pgx.Batch{}
	b.Queue(`INSERT INTO floor.log (thread, pos, entry) VALUES ($1, $2, $3)`, threadID, pos, raw)
	b.Queue(`UPDATE floor.jobs SET status = 'done', answer = $2 WHERE id = $1`, id, said.Text)
	return l.pool.SendBatch(ctx, b).Close()
}

func (l *loop) tell(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shown.WriteString(text)
}
