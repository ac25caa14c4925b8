package store

import (
	"context"
	"hash/fnv"

	"github.com/jackc/pgx/v5"

	"bobbin/thread"
)

// A Charge is a model call as it enters the ledger.
type Charge struct {
	ID        string // of its reservation; empty: a new one
	Round     int    // that it was made for, from 1
	Attempt   int    // of the turn's model attempts
	Model     string // as the provider names it
	Usage     thread.Usage
	Estimated bool // Usage was not counted by the provider
	Outcome   ChargeOutcome
}

// ChargeOutcome says what became of a model call.
type ChargeOutcome string

// The outcomes. The ledger has one more: lost, where its worker died.
const (
	ChargeOK      ChargeOutcome = "ok"
	ChargeFailed  ChargeOutcome = "failed"
	ChargeStopped ChargeOutcome = "stopped"
	ChargeUnmade  ChargeOutcome = "" // the call was not made: its reservation is given back
)

// NewChargeID returns a name for a call that is about to be made. Whatever is written under it counts once.
func NewChargeID() string { return newID("chg") }

// A Reservation sets aside what a call may cost, so that no others that run at the same time spend it.
type Reservation struct {
	Charge            // ID must be set; Usage is what the call is estimated to read, and what that costs
	Least  thread.USD // with less than this the call is not worth making
	Most   thread.USD // what it may cost at most
	Hasty  bool       // take what is free now, where others' reservations leave at least Least
}

// Reserve sets aside what a call may cost, in one round trip, and returns how much: Most, or less where less is left of the
// owner's monthly limit. Without a limit it is Most. It may be repeated: under one ID it reserves once. Nothing is reserved
// where it returns
//
//   - a thread.UsageLimitError: the limit leaves less than Least, or is reached;
//   - ErrReserved: it would fit, but for reservations of other calls, which will give back what they do not use;
//   - ErrFenced: the turn does not run. So what is reserved belongs to a turn that has yet to begin a stint or to end, and
//     both settle what a dead worker left.
func (db *DB) Reserve(ctx context.Context, ref TurnRef, r Reservation) (granted thread.USD, err error) {
	err = db.transact(ctx, "reserve", func(ctx context.Context, t *tx) error {
		b := &pgx.Batch{}
		var runs bool
		var got *thread.USD
		var s thread.Spending
		b.Queue(`SELECT 1 FROM turns WHERE id = $1 AND status = 'running' FOR SHARE`, ref.ID).Query(func(rows pgx.Rows) error {
			runs = rows.Next()
			rows.Close()
			return rows.Err()
		})
		queueMonth(b, ref)
		queueSpending(b, db.cfg.MonthlyLimit, `(SELECT owner_id FROM threads WHERE id = $2)`, ref.ThreadID, &s)
		db.queueReserve(b, ref, r)
		b.Queue(`SELECT reserved FROM ledger WHERE id = $1 AND state = 'reserved'`, r.ID).Query(first(&got, func(row pgx.Row) (*thread.USD, error) {
			var n thread.USD
			return &n, row.Scan(&n)
		}))
		if err := t.commit(ctx, b); err != nil {
			return err
		}
		switch {
		case got != nil:
			granted = *got
			return nil
		case !runs:
			return thread.ErrFenced
		case s.Over() || s.Limit != nil && min(r.Most, *s.Limit-s.Spent) < r.Least:
			return &thread.UsageLimitError{Spending: s}
		}
		return thread.ErrReserved
	})
	return granted, err
}

// queueReserve writes the reservation if it fits. The month is locked: no other reservation comes between the sum and what is
// written. What others settle meanwhile only leaves more room.
func (db *DB) queueReserve(b *pgx.Batch, ref TurnRef, r Reservation) {
	b.Queue(`
		WITH room AS (
			SELECT o.id AS owner_id, m.month, `+limitColumn+` - s.spent AS alone, `+limitColumn+` - s.spent - s.reserved AS free
			FROM threads t
			JOIN owners o ON o.id = t.owner_id
			CROSS JOIN (SELECT date_trunc('month', now())::date AS month) m
			CROSS JOIN LATERAL (`+monthSums+`) s
			WHERE t.id = @thread AND EXISTS (SELECT FROM turns WHERE id = @turn AND status = 'running')
		), line AS (
			INSERT INTO ledger (id, owner_id, thread_id, turn_id, round, attempt, month, model, state, estimated, reserved,
				input_tokens, cost, created_at)
			SELECT @id, owner_id, @thread, @turn, @round, @attempt, month, @model, 'reserved', true, granted, @input, @cost, clock_timestamp()
			FROM room, LATERAL (SELECT CASE
				WHEN alone IS NULL THEN @most
				WHEN alone <= 0 OR LEAST(@most, alone) < @least THEN NULL
				WHEN LEAST(@most, alone) <= GREATEST(free, 0) THEN LEAST(@most, alone)
				WHEN @hasty AND free > 0 AND free >= @least THEN free
			END AS granted) g
			WHERE granted IS NOT NULL
			ON CONFLICT (id) DO NOTHING
			RETURNING owner_id, month, reserved
		)
		INSERT INTO spending_slots AS s (owner_id, month, slot, reserved)
		SELECT owner_id, month, @slot, reserved
		FROM line
		ON CONFLICT (owner_id, month, slot) DO UPDATE SET reserved = s.reserved + EXCLUDED.reserved`, named{
		"slot": slotOf(ref.ID), "limit": db.cfg.MonthlyLimit, "thread": ref.ThreadID, "turn": ref.ID, "id": r.ID, "round": r.Round, "attempt": r.Attempt,
		"model": modelName(r.Model), "input": r.Usage.InputTokens, "cost": r.Usage.Cost, "most": r.Most, "least": r.Least, "hasty": r.Hasty,
	})
}

// limitColumn is the limit that holds for owner o; the argument limit is the configured one.
const limitColumn = `CASE WHEN o.limit_own THEN o.monthly_limit ELSE @limit::bigint END`

// Settle enters a call that did not come to a round into the ledger, gives back what it had reserved and counts it in its
// turn's usage, in one round trip. It may be repeated, and the turn may have ended: under one ID a call counts once, but that
// what a dead worker's call was guessed to cost is replaced.
func (db *DB) Settle(ctx context.Context, ref TurnRef, c Charge) error {
	return db.transact(ctx, "settle", func(ctx context.Context, t *tx) error {
		b := &pgx.Batch{}
		b.Queue(`SELECT FROM turns WHERE id = $1 FOR NO KEY UPDATE`, ref.ID)
		queueCharge(b, ref, c)
		return t.commit(ctx, b)
	})
}

// queueCharge settles a call. The caller has locked the turn's row in an earlier statement.
func queueCharge(b *pgx.Batch, ref TurnRef, c Charge) {
	b.Queue(`
		WITH `+chargeLine+`
		UPDATE turns t
		SET `+chargeCounts+`
		FROM line
		LEFT JOIN was ON true
		WHERE t.id = @turn`, c.args(ref))
}

// chargeLine settles a call: line is its row in the ledger, none if it was settled before; was is what it had been before. An
// ID that two settle at once is written by one of them; so the line comes first, then the turn, then its slot of the month.
const chargeLine = `
	was AS (
		SELECT settled.*, CASE WHEN l.state = 'reserved' THEN l.reserved ELSE 0 END AS held
		FROM ledger l
		LEFT JOIN ledger settled ON settled.id = l.id AND settled.state = 'settled'
		WHERE l.id = @id
	), line AS (
		INSERT INTO ledger AS l (id, owner_id, thread_id, turn_id, round, attempt, month, model, state, outcome, estimated,
			input_tokens, cached_tokens, output_tokens, reasoning_tokens, cost, created_at, settled_at)
		SELECT @id, owner_id, id, @turn, @round, @attempt, date_trunc('month', now())::date, @model, @state, NULLIF(@outcome, ''), @estimated,
			@input, @cached, @output, @reasoning, @cost, clock_timestamp(), clock_timestamp()
		FROM threads
		WHERE id = @thread
		ON CONFLICT (id) DO UPDATE
		SET model = EXCLUDED.model, state = EXCLUDED.state, outcome = EXCLUDED.outcome, estimated = EXCLUDED.estimated,
			input_tokens = EXCLUDED.input_tokens, cached_tokens = EXCLUDED.cached_tokens, output_tokens = EXCLUDED.output_tokens,
			reasoning_tokens = EXCLUDED.reasoning_tokens, cost = EXCLUDED.cost, settled_at = EXCLUDED.settled_at
		WHERE l.state = 'reserved' OR l.outcome = 'lost'
		RETURNING l.*
	), month AS (
		INSERT INTO spending_slots AS s (owner_id, month, slot, spent, reserved)
		SELECT line.owner_id, line.month, @slot, line.cost - COALESCE(was.cost, 0), -COALESCE(was.held, 0)
		FROM line
		LEFT JOIN was ON true
		ON CONFLICT (owner_id, month, slot) DO UPDATE SET spent = s.spent + EXCLUDED.spent, reserved = s.reserved + EXCLUDED.reserved
	)`

// chargeCounts counts a line in its turn t.
const chargeCounts = `
	input_tokens = t.input_tokens + COALESCE(line.input_tokens - COALESCE(was.input_tokens, 0), 0),
	cached_tokens = t.cached_tokens + COALESCE(line.cached_tokens - COALESCE(was.cached_tokens, 0), 0),
	output_tokens = t.output_tokens + COALESCE(line.output_tokens - COALESCE(was.output_tokens, 0), 0),
	reasoning_tokens = t.reasoning_tokens + COALESCE(line.reasoning_tokens - COALESCE(was.reasoning_tokens, 0), 0),
	cost = t.cost + COALESCE(line.cost - COALESCE(was.cost, 0), 0)`

// args are the arguments of chargeLine. Without an ID the call gets one.
func (c Charge) args(ref TurnRef) named {
	if c.ID == "" {
		c.ID = NewChargeID()
	}
	state := "settled"
	if c.Outcome == ChargeUnmade {
		state, c.Usage, c.Estimated = "released", thread.Usage{}, false
	}
	return named{
		"id": c.ID, "thread": ref.ThreadID, "turn": ref.ID, "slot": slotOf(ref.ID), "round": c.Round, "attempt": c.Attempt,
		"model": modelName(c.Model), "state": state, "outcome": string(c.Outcome), "estimated": c.Estimated,
		"input": c.Usage.InputTokens, "cached": c.Usage.CachedTokens, "output": c.Usage.OutputTokens,
		"reasoning": c.Usage.ReasoningTokens, "cost": c.Usage.Cost,
	}
}

// queueMonth locks the owner's row of this month, which it makes if it must: reservations come one after the other.
func queueMonth(b *pgx.Batch, ref TurnRef) {
	b.Queue(`
		INSERT INTO spending (owner_id, month)
		SELECT t.owner_id, date_trunc('month', now())::date
		FROM threads t
		WHERE t.id = $1 AND NOT EXISTS (
			SELECT FROM spending s WHERE s.owner_id = t.owner_id AND s.month = date_trunc('month', now())::date)
		ON CONFLICT DO NOTHING`, ref.ThreadID)
	b.Queue(`
		SELECT FROM spending s
		JOIN threads t ON t.owner_id = s.owner_id
		WHERE t.id = $1 AND s.month = date_trunc('month', now())::date
		FOR NO KEY UPDATE OF s`, ref.ThreadID)
}

// slots is in how many rows an owner's month is written. Turns that meet in one wait for each other's commit; a process has
// some twenty transactions at once, and who reads the month reads them all.
const slots = 64

// slotOf is the slot that a turn's calls count in.
func slotOf(turnID string) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(turnID)) // it has no error to return
	return int(h.Sum32() % slots)
}

// monthSums adds up what owner o has spent and reserved in the month m. The row in spending is from before there were slots.
const monthSums = `
	SELECT COALESCE(sum(r.spent), 0)::bigint AS spent, COALESCE(sum(r.reserved), 0)::bigint AS reserved
	FROM (
		SELECT spent, reserved FROM spending WHERE owner_id = o.id AND month = m.month
		UNION ALL
		SELECT spent, reserved FROM spending_slots WHERE owner_id = o.id AND month = m.month
	) r`

// leftover is what a dead worker left of a turn's reservations.
type leftover struct {
	calls int
	thread.Usage
}

// queueOpen reads what queueLost would count.
func queueOpen(b *pgx.Batch, turnID string, l *leftover) {
	b.Queue(`
		SELECT count(*), COALESCE(sum(input_tokens), 0)::bigint, COALESCE(sum(cost), 0)::bigint
		FROM ledger
		WHERE turn_id = $1 AND state = 'reserved'`, turnID).QueryRow(func(r pgx.Row) error {
		return r.Scan(&l.calls, &l.InputTokens, &l.Cost)
	})
}

// queueLost settles what a dead worker left of a turn's reservations, at what the calls are estimated to have read: whether
// they were made, and what they wrote, nobody knows. As queueCharge, it comes after a lock of the turn's row.
func queueLost(b *pgx.Batch, turnID string) {
	b.Queue(`
		WITH line AS (
			UPDATE ledger
			SET state = 'settled', outcome = 'lost', settled_at = clock_timestamp()
			WHERE turn_id = $1 AND state = 'reserved'
			RETURNING owner_id, month, reserved, input_tokens, cost
		), total AS (
			SELECT owner_id, month, sum(reserved)::bigint AS reserved, sum(input_tokens)::bigint AS input_tokens, sum(cost)::bigint AS cost
			FROM line
			GROUP BY owner_id, month
		), month AS (
			INSERT INTO spending_slots AS s (owner_id, month, slot, spent, reserved)
			SELECT owner_id, month, $2, cost, -reserved
			FROM total
			ON CONFLICT (owner_id, month, slot) DO UPDATE SET spent = s.spent + EXCLUDED.spent, reserved = s.reserved + EXCLUDED.reserved
		)
		UPDATE turns t
		SET input_tokens = t.input_tokens + sums.input_tokens, cost = t.cost + sums.cost
		FROM (SELECT sum(input_tokens)::bigint AS input_tokens, sum(cost)::bigint AS cost FROM total HAVING count(*) > 0) sums
		WHERE t.id = $1`, turnID, slotOf(turnID))
}

// queueSpending reads how an owner stands; without a limit only that there is none. owner is an expression over $2, arg.
func queueSpending(b *pgx.Batch, limit *thread.USD, owner, arg string, s *thread.Spending) {
	b.Queue(`
		SELECT l.most, COALESCE(s.spent, 0), COALESCE(s.reserved, 0), m.month + interval '1 month'
		FROM owners o
		CROSS JOIN (SELECT date_trunc('month', now())::date AS month) m
		CROSS JOIN LATERAL (SELECT CASE WHEN o.limit_own THEN o.monthly_limit ELSE $1::bigint END AS most) l
		LEFT JOIN LATERAL (`+monthSums+` WHERE l.most IS NOT NULL) s ON true
		WHERE o.id = `+owner, limit, arg).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			if err := rows.Scan(&s.Limit, &s.Spent, &s.Reserved, &s.Resets); err != nil {
				return err
			}
		}
		return rows.Err()
	})
}

// maxModelName is in bytes. Providers name models; no name that they use is nearly as long.
const maxModelName = 200

func modelName(s string) string {
	s = clean(s)
	return clean(s[:min(len(s), maxModelName)])
}
