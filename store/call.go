package store

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"bobbin/thread"
)

// A Start is who starts a call, and when it tried to. It may be tried again where it is not known whether an earlier try
// stands.
type Start struct {
	WorkerID string
	tries    []time.Time // of the database
}

// StartCall records that a call with side effects starts on a worker, and returns it. ok is false if it must not run: it was started
// before, by another Start, or has a result. ErrFenced: its turn may act no more. ErrUnavailable: it may have been recorded;
// who asks again with the same Start learns whether.
func (db *DB) StartCall(ctx context.Context, ref TurnRef, round, index int, by *Start) (call thread.Call, ok bool, err error) {
	var state *thread.CallState
	var worker *string
	var started *time.Time
	reads := func(b *pgx.Batch) {
		b.Queue(`
			SELECT provider_id, name, arguments, state, worker_id, started_at
			FROM calls
			WHERE turn_id = $1 AND round = $2 AND idx = $3
			FOR NO KEY UPDATE`, ref.ID, round, index).QueryRow(func(r pgx.Row) error {
			call = thread.Call{TurnID: ref.ID, Round: round, Index: index}
			state = &call.State
			return r.Scan(&call.ID, &call.Name, &call.Arguments, &call.State, &worker, &started)
		})
	}
	err = db.fenced(ctx, "start call", ref, PointCall, reads, func(t *tx, b *pgx.Batch) error {
		if *state == thread.CallStarted && worker != nil && *worker == by.WorkerID && started != nil &&
			slices.ContainsFunc(by.tries, started.Equal) {
			ok = true
			return nil
		}
		if ok = *state == thread.CallPending; !ok {
			return nil
		}
		by.tries = append(by.tries, t.now)
		b.Queue(`
			UPDATE calls
			SET state = 'started', started_at = @now, worker_id = @worker
			WHERE turn_id = @turn AND round = @round AND idx = @idx AND state = 'pending'`,
			pgx.NamedArgs{"turn": ref.ID, "round": round, "idx": index, "now": t.now, "worker": by.WorkerID})
		return nil
	})
	return call, ok, err
}

// FinishCall records a call's result once, and reports whether a message waits that the round head is to take: one whose
// accept was committed before this is seen. ErrMoved: another holder's result stands, which the session must be read for.
// Where the turn ended meanwhile the outcome of a call that had started still goes to its row, outside the fence, and
// ErrFenced is returned.
func (db *DB) FinishCall(ctx context.Context, ref TurnRef, call thread.Call) (waits bool, err error) {
	call.Name, call.Result = clean(call.Name), clean(call.Result)
	var at *openCall
	reads := func(b *pgx.Batch) { queueCall(b, ref, call, &at) }
	err = db.fenced(ctx, "finish call", ref, PointCall, reads, func(t *tx, b *pgx.Batch) error {
		switch {
		case at == nil:
			return thread.ErrNotFound
		case at.state == thread.CallInterrupted:
			b.Queue(outcome, outcomeArgs(ref, call))
			return nil
		case at.state == call.State && at.result == call.Result:
			return nil
		case !at.state.Open():
			return thread.ErrMoved
		}
		step := &at.step
		step.Status, step.FinishedAt, step.Detail = thread.StepDone, &t.now, withResult(step.Detail, call.Result)
		if call.State == thread.CallFailed {
			step.Status = thread.StepFailed
		}
		writeResult(b, ref, call, step)
		t.emitStep(thread.EventStepUpdated, step)
		return nil
	})
	if errors.Is(err, thread.ErrFenced) {
		return false, errors.Join(err, db.recordOutcome(ctx, ref, call))
	}
	return err == nil && at.waits, err
}

// openCall is a call before its result is written.
type openCall struct {
	state  thread.CallState
	result string
	step   thread.Step
	waits  bool // a message is on the steering row; its accept and the fence exclude each other
}

func queueCall(b *pgx.Batch, ref TurnRef, call thread.Call, at **openCall) {
	b.Queue(`
		SELECT c.state, COALESCE(c.result, ''), s.n, s.kind, s.title, s.started_at, s.detail,
			EXISTS (SELECT FROM steering q WHERE q.thread_id = $4 AND q.state = 'queued')
		FROM calls c
		JOIN steps s ON s.turn_id = c.turn_id AND s.n = c.step
		WHERE c.turn_id = $1 AND c.round = $2 AND c.idx = $3
		FOR NO KEY UPDATE OF c`, ref.ID, call.Round, call.Index, ref.ThreadID).Query(first(at, func(r pgx.Row) (*openCall, error) {
		o := openCall{step: thread.Step{TurnID: ref.ID}}
		s := &o.step
		return &o, r.Scan(&o.state, &o.result, &s.N, &s.Kind, &s.Title, &s.StartedAt, &s.Detail, &o.waits)
	}))
}

// writeResult writes what came of a call, its step, and that the tool failed once more or not.
func writeResult(b *pgx.Batch, ref TurnRef, call thread.Call, step *thread.Step) {
	b.Queue(`
		WITH result AS (
			UPDATE calls
			SET state = @state, result = @result, finished_at = @now
			WHERE turn_id = @turn AND round = @round AND idx = @idx AND state IN ('pending', 'started')
		), step AS (
			UPDATE steps
			SET status = @status, finished_at = @now, detail = @detail
			WHERE turn_id = @turn AND n = @n
		)
		UPDATE turns
		SET driven_at = @now, barren = 0, tool_failures = tool_failures || jsonb_build_object(@tool::text,
			CASE WHEN @state = 'failed' THEN COALESCE((tool_failures ->> @tool)::integer, 0) + 1 ELSE 0 END)
		WHERE id = @turn`, named{
		"turn": ref.ID, "round": call.Round, "idx": call.Index, "state": string(call.State), "result": call.Result,
		"n": step.N, "status": string(step.Status), "now": step.FinishedAt, "detail": step.Detail, "tool": call.Name,
	})
}

// recordOutcome keeps what came of an outside call that had started when its turn ended.
func (db *DB) recordOutcome(ctx context.Context, ref TurnRef, call thread.Call) error {
	_, err := db.pool.Exec(ctx, outcome, outcomeArgs(ref, call))
	return wrap("record outcome", err)
}

const outcome = `
	UPDATE calls
	SET state = @state, result = @result, finished_at = clock_timestamp()
	WHERE turn_id = @turn AND round = @round AND idx = @idx AND started_at IS NOT NULL AND state IN ('started', 'interrupted')`

func outcomeArgs(ref TurnRef, call thread.Call) named {
	return named{
		"turn": ref.ID, "round": call.Round, "idx": call.Index, "state": string(call.State), "result": call.Result,
	}
}

// withResult adds a call's result to its step's detail.
func withResult(detail json.RawMessage, result string) json.RawMessage {
	fields := map[string]json.RawMessage{}
	raw, err := json.Marshal(result)
	if err = errors.Join(err, json.Unmarshal(detail, &fields)); err != nil {
		return detail
	}
	fields["result"] = raw
	out, err := json.Marshal(fields)
	if err != nil {
		return detail
	}
	return out
}
