package store

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/jackc/pgx/v5"

	"bobbin/thread"
)

// StartCall records that a call with side effects starts on a worker, and returns it. ok is false if it must not run: it was started
// before, or has a result. ErrFenced: its turn may act no more.
func (db *DB) StartCall(ctx context.Context, ref TurnRef, round, index int, workerID string) (call thread.Call, ok bool, err error) {
	var state *thread.CallState
	reads := func(b *pgx.Batch) {
		b.Queue(`
			SELECT provider_id, name, arguments, state
			FROM calls
			WHERE turn_id = $1 AND round = $2 AND idx = $3
			FOR NO KEY UPDATE`, ref.ID, round, index).QueryRow(func(r pgx.Row) error {
			call = thread.Call{TurnID: ref.ID, Round: round, Index: index}
			state = &call.State
			return r.Scan(&call.ID, &call.Name, &call.Arguments, &call.State)
		})
	}
	err = db.fenced(ctx, "start call", ref, PointCall, reads, func(t *tx, b *pgx.Batch, _ *turnRow) error {
		if ok = *state == thread.CallPending; !ok {
			return nil
		}
		b.Queue(`
			UPDATE calls
			SET state = 'started', started_at = @now, worker_id = @worker
			WHERE turn_id = @turn AND round = @round AND idx = @idx AND state = 'pending'`,
			pgx.NamedArgs{"turn": ref.ID, "round": round, "idx": index, "now": t.now, "worker": workerID})
		return nil
	})
	return call, ok, err
}

// FinishCall records a call's result once. ErrMoved: another holder's result stands, which the session must be read for.
// Where the turn ended meanwhile the outcome of a call that had started still goes to its row, outside the fence, and
// ErrFenced is returned.
func (db *DB) FinishCall(ctx context.Context, ref TurnRef, call thread.Call) error {
	call.Name, call.Result = clean(call.Name), clean(call.Result)
	var step *thread.Step
	var stands *thread.Call
	reads := func(b *pgx.Batch) {
		b.Queue(`
			SELECT state, COALESCE(result, '')
			FROM calls
			WHERE turn_id = $1 AND round = $2 AND idx = $3
			FOR NO KEY UPDATE`, ref.ID, call.Round, call.Index).Query(first(&stands, scanOutcome))
		b.Queue(`
			SELECT `+stepColumns+`
			FROM calls c
			JOIN steps s ON s.turn_id = c.turn_id AND s.n = c.step
			WHERE c.turn_id = $1 AND c.round = $2 AND c.idx = $3 AND c.state IN ('pending', 'started')`,
			ref.ID, call.Round, call.Index).Query(first(&step, scanStep))
	}
	err := db.fenced(ctx, "finish call", ref, PointCall, reads, func(t *tx, b *pgx.Batch, _ *turnRow) error {
		switch {
		case stands == nil:
			return thread.ErrNotFound
		case stands.State == thread.CallInterrupted:
			b.Queue(outcome, outcomeArgs(ref, call))
			return nil
		case stands.State == call.State && stands.Result == call.Result:
			return nil
		case !stands.State.Open():
			return thread.ErrMoved
		}
		writeResult(b, ref.ID, call)
		step.Status, step.FinishedAt = thread.StepDone, &t.now
		failures := `jsonb_build_object(@tool::text, 0)`
		if call.State == thread.CallFailed {
			step.Status = thread.StepFailed
			failures = `jsonb_build_object(@tool::text, COALESCE((tool_failures ->> @tool)::integer, 0) + 1)`
		}
		step.Detail = withResult(step.Detail, call.Result)
		b.Queue(`
			UPDATE steps
			SET status = @status, finished_at = @now, detail = @detail
			WHERE turn_id = @turn AND n = @n`, pgx.NamedArgs{
			"turn": ref.ID, "n": step.N, "status": string(step.Status), "now": t.now, "detail": step.Detail,
		})
		b.Queue(`UPDATE turns SET driven_at = @now, barren = 0, tool_failures = tool_failures || `+failures+` WHERE id = @turn`,
			pgx.NamedArgs{"turn": ref.ID, "now": t.now, "tool": call.Name})
		t.emitStep(thread.EventStepUpdated, step)
		return nil
	})
	if errors.Is(err, thread.ErrFenced) {
		return errors.Join(err, db.recordOutcome(ctx, ref, call))
	}
	return err
}

func scanOutcome(r pgx.Row) (*thread.Call, error) {
	var c thread.Call
	return &c, r.Scan(&c.State, &c.Result)
}

func writeResult(b *pgx.Batch, turnID string, call thread.Call) {
	b.Queue(`
		UPDATE calls
		SET state = @state, result = @result, finished_at = clock_timestamp()
		WHERE turn_id = @turn AND round = @round AND idx = @idx AND state IN ('pending', 'started')`, pgx.NamedArgs{
		"turn": turnID, "round": call.Round, "idx": call.Index, "state": string(call.State), "result": call.Result,
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

func outcomeArgs(ref TurnRef, call thread.Call) pgx.NamedArgs {
	return pgx.NamedArgs{
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
