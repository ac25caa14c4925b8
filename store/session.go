package store

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"bobbin/thread"
)

// Work is all that a stint needs to go on with a turn.
type Work struct {
	Turn     thread.Turn
	Ref      TurnRef
	Session  thread.Session
	Counters thread.Counters
	// Answered: the turn's last round is its answer, and only its end is missing.
	Answered bool
	// LastRound is the outcome of the turn's last round; empty if it has none.
	LastRound RoundOutcome
	// Open are the calls of the turn that have no result, in order. One that is Started has an outcome that nobody knows.
	Open []thread.Call
	// ModelAttempt is the number that deltas of the next model call carry. After Load it may be another holder's.
	ModelAttempt int
	Barren       int             // stints in a row that wrote nothing, this one among them
	Waiting      int             // conversation turns that wait behind this one, and the message on the steering row
	Spending     thread.Spending // of the owner, this month
}

// Attempt names an activity that drives a turn, so that it can be failed from outside if its worker dies.
type Attempt struct {
	WorkerID   string
	TurnID     string
	WorkflowID string
	RunID      string
	ActivityID string
	Number     int // of Temporal's attempt
}

// Begin marks that a stint drives the turn, voids what an earlier one had shown of an unfinished answer, settles the model
// calls that it left, and reads the turn's work under the same locks. Errors are those of Load. The caller calls EndAttempt in any case, an error included:
// the attempt may be recorded.
func (db *DB) Begin(ctx context.Context, ref TurnRef, attempt int, a Attempt) (*Work, error) {
	var shown bool
	var l *loading
	var left leftover
	reads := func(b *pgx.Batch) {
		l = &loading{ref: ref, attempt: attempt, limit: db.cfg.MonthlyLimit}
		queueTurn(b, ref.ID, &l.turn)
		b.Queue(`SELECT`+shownColumn+` FROM turns t WHERE t.id = $1`, ref.ID).QueryRow(func(r pgx.Row) error { return r.Scan(&shown) })
		queueOpen(b, ref.ID, &left)
		l.queue(b) // who writes a session or a summary holds the event counter
	}
	err := db.fenced(ctx, "begin stint", ref, PointRound, reads, func(t *tx, b *pgx.Batch) error {
		turn := l.turn
		if turn.Attempt != attempt {
			return thread.ErrFenced
		}
		if !l.work().started() {
			turn.barren++
		}
		turn.modelAttempts++
		turn.Usage = turn.Usage.Add(left.Usage)
		turn.limit.Used = turn.Usage
		b.Queue(`
			UPDATE turns
			SET model_attempts = @attempts, driven_at = @now, barren = @barren
			WHERE id = @turn`, named{"turn": ref.ID, "now": t.now, "attempts": turn.modelAttempts, "barren": turn.barren})
		if left.calls > 0 {
			queueLost(b, ref.ID)
		}
		queueAttempt(b, a)
		t.void(ref, shown && l.last != RoundAnswer, "resumed") // a written answer is only to be told
		return nil
	})
	if err != nil {
		return nil, err
	}
	return db.withRunning(ctx, l.work())
}

// Load reads a turn's work. ErrFenced: the turn runs no more, is stopping, or is another attempt than the one given.
func (db *DB) Load(ctx context.Context, ref TurnRef, attempt int) (*Work, error) {
	l := &loading{ref: ref, attempt: attempt, limit: db.cfg.MonthlyLimit}
	b := &pgx.Batch{}
	b.Queue("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY") // a summary and the entries behind it are of one moment
	queueTurn(b, ref.ID, &l.turn)
	l.queue(b)
	b.Queue("COMMIT")
	if err := db.pool.SendBatch(ctx, b).Close(); err != nil {
		return nil, wrap("load turn", err)
	}
	if l.fenced {
		return nil, wrap("load turn", thread.ErrFenced)
	}
	return db.withRunning(ctx, l.work())
}

// loading reads a turn's work.
type loading struct {
	ref     TurnRef
	attempt int
	limit   *thread.USD // the configured one

	turn    *turnRow
	fenced  bool
	waiting int
	last    RoundOutcome
	session thread.Session

	spending thread.Spending
}

// queue queues all reads but that of the turn's row.
func (l *loading) queue(b *pgx.Batch) {
	b.Queue(`
		SELECT t.status <> 'running' OR t.stopping OR t.attempt <> $2 OR t.kind = 'conversation' AND (r.turn_id IS DISTINCT FROM t.id OR r.stopping),
			(SELECT count(*) FROM turns o WHERE o.thread_id = t.thread_id AND o.kind = 'conversation' AND o.status = 'queued') +
			(SELECT count(*) FROM steering s WHERE s.thread_id = t.thread_id AND s.state = 'queued')
		FROM turns t
		JOIN runs r ON r.thread_id = t.thread_id
		WHERE t.id = $1`, l.ref.ID, l.attempt).QueryRow(func(r pgx.Row) error { return r.Scan(&l.fenced, &l.waiting) })
	b.Queue(`SELECT outcome FROM rounds WHERE turn_id = $1 ORDER BY n DESC LIMIT 1`, l.ref.ID).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			if err := rows.Scan(&l.last); err != nil {
				return err
			}
		}
		return rows.Err()
	})
	queueSession(b, l.ref, &l.session)
	queueSpending(b, l.limit, `(SELECT owner_id FROM threads WHERE id = $2)`, l.ref.ThreadID, &l.spending)
}

func (l *loading) work() *Work {
	w := &Work{
		Turn: l.turn.Turn, Ref: l.ref, Session: l.session, Counters: l.turn.limit, Answered: l.last == RoundAnswer, LastRound: l.last,
		ModelAttempt: l.turn.modelAttempts, Barren: l.turn.barren, Waiting: l.waiting,
		Spending: l.spending,
	}
	w.Session.End = sessionEnd(w)
	for _, e := range w.Session.Entries {
		for _, c := range e.Calls {
			if c.TurnID == l.ref.ID && c.State.Open() {
				w.Open = append(w.Open, c)
			}
		}
	}
	return w
}

// started reports whether a call of the turn has started and has no result.
func (w *Work) started() bool {
	return slices.ContainsFunc(w.Open, func(c thread.Call) bool { return c.State == thread.CallStarted })
}

// withRunning looks which of the started calls are still running.
func (db *DB) withRunning(ctx context.Context, w *Work) (*Work, error) {
	if w.started() {
		if err := db.running(ctx, w.Ref.ID, w.Open); err != nil {
			return nil, wrap("load turn", err)
		}
	}
	return w, nil
}

// newestSummary finds the summary that a turn's session begins with: the newest of its own. A background turn without one
// begins with the newest of the conversation that stands for nothing behind its history's end.
const newestSummary = `
	SELECT s.session_id, s.n, s.text, s.base,
		CASE WHEN s.session_id = @session THEN s.upto ELSE -1 END AS upto,
		CASE WHEN @session = @thread THEN -1 WHEN s.session_id = @session THEN s.history_upto ELSE s.upto END AS history_upto
	FROM (
		(SELECT o.session_id, o.n, o.text, o.base, o.upto, o.history_upto
		FROM summaries o
		WHERE o.session_id = @session
		ORDER BY o.n DESC
		LIMIT 1)
		UNION ALL
		(SELECT s.session_id, s.n, s.text, s.base, s.upto, s.history_upto
		FROM summaries s
		WHERE @session <> @thread AND s.session_id = @thread AND s.upto <= (SELECT history_end FROM turns WHERE id = @session)
		ORDER BY s.upto DESC
		LIMIT 1)
	) s
	ORDER BY s.session_id = @session DESC
	LIMIT 1`

const entryColumns = ` e.pos, e.kind, e.turn_id, e.round, e.message_id, e.text, e.reasoning`

// shownEntries are those of a turn's session that its summary does not stand for, and what was asked in the turn itself. A
// background turn is shown the conversation up to its history's end, then its own entries.
const shownEntries = `
	summary AS MATERIALIZED (` + newestSummary + `),
	shown AS (
		SELECT` + entryColumns + `, false AS history, false AS pinned
		FROM entries e
		WHERE e.session_id = @session AND e.pos > COALESCE((SELECT upto FROM summary), -1)
		UNION ALL
		SELECT` + entryColumns + `, true, false
		FROM entries e
		WHERE @session <> @thread AND e.session_id = @thread AND e.pos > COALESCE((SELECT history_upto FROM summary), -1)
			AND e.pos <= (SELECT history_end FROM turns WHERE id = @session)
		UNION ALL
		SELECT` + entryColumns + `, false, true
		FROM entries e
		WHERE e.turn_id = @turn AND e.round = 0 AND e.kind IN ('user', 'note') AND e.pos <= (SELECT upto FROM summary)
	)`

// queueSession reads what the model is shown of a turn's session, each call beside the entry of its round: as much as the
// model's window holds, however long the conversation is. Rounds and calls are looked up entry by entry: the planner cannot
// know how few entries lie behind the cut, and would read both tables whole.
func queueSession(b *pgx.Batch, ref TurnRef, s *thread.Session) {
	args := named{"session": ref.session(), "thread": ref.ThreadID, "turn": ref.ID}
	b.Queue(newestSummary, args).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var session string
			if err := rows.Scan(&session, &s.Summary.N, &s.Summary.Text, nil, nil, nil); err != nil {
				return err
			}
			if session != ref.session() {
				s.Summary.N = 0
			}
		}
		return rows.Err()
	})
	b.Queue(`
		WITH `+shownEntries+`
		SELECT e.pos, e.kind, e.turn_id, e.round, COALESCE(e.message_id, ''), e.text, e.reasoning, e.pinned,
			CASE WHEN e.history OR e.pos <= COALESCE((SELECT base FROM summary WHERE session_id = @session), -1) THEN 0
				ELSE COALESCE((SELECT r.input_tokens FROM rounds r WHERE r.turn_id = e.turn_id AND r.n = e.round), 0) END
		FROM shown e
		ORDER BY e.history DESC, e.pos`, args).Query(func(rows pgx.Rows) (err error) {
		s.Entries, err = pgx.CollectRows(rows, func(r pgx.CollectableRow) (e thread.Entry, err error) {
			var pinned bool
			err = r.Scan(&e.Pos, &e.Kind, &e.TurnID, &e.Round, &e.MessageID, &e.Text, &e.Reasoning, &pinned, &e.Input)
			if pinned {
				s.Pinned++
			}
			return e, err
		})
		return err
	})
	queueFiles(b, s, args)
	b.Queue(`
		WITH `+shownEntries+`
		SELECT c.turn_id, c.round, c.idx, c.provider_id, c.name, c.arguments, c.state, COALESCE(c.result, '')
		FROM shown e
		CROSS JOIN LATERAL (
			SELECT turn_id, round, idx, provider_id, name, arguments, state, result
			FROM calls c
			WHERE c.turn_id = e.turn_id AND c.round = e.round
			OFFSET 0) c
		WHERE e.kind = 'assistant'
		ORDER BY c.turn_id, c.round, c.idx`, args).Query(func(rows pgx.Rows) error {
		calls, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (c thread.Call, err error) {
			err = r.Scan(&c.TurnID, &c.Round, &c.Index, &c.ID, &c.Name, &c.Arguments, &c.State, &c.Result)
			return c, err
		})
		attach(s.Entries, calls)
		return err
	})
}

func attach(entries []thread.Entry, calls []thread.Call) {
	type key struct {
		turn  string
		round int
	}
	byRound := map[key][]thread.Call{}
	for _, c := range calls {
		k := key{c.TurnID, c.Round}
		byRound[k] = append(byRound[k], c)
	}
	for i := range entries {
		if e := &entries[i]; e.Kind == thread.EntryAssistant && e.Round > 0 {
			e.Calls = byRound[key{e.TurnID, e.Round}]
		}
	}
}

// sessionEnd is the last position of the session that the turn writes.
func sessionEnd(w *Work) int64 {
	end := int64(-1)
	for _, e := range w.Session.Entries {
		if !w.Ref.Background || e.TurnID == w.Ref.ID {
			end = e.Pos
		}
	}
	return end
}

// Waiting counts what waits in a thread: conversation turns, and the message on the steering row.
func (db *DB) Waiting(ctx context.Context, threadID string) (n int, err error) {
	err = db.pool.QueryRow(ctx, countWaiting, threadID).Scan(&n)
	return n, wrap("count waiting", err)
}

const countWaiting = `
	SELECT (SELECT count(*) FROM turns WHERE thread_id = $1 AND kind = 'conversation' AND status = 'queued') +
		(SELECT count(*) FROM steering WHERE thread_id = $1 AND state = 'queued')`
