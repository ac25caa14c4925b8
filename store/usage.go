package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"bobbin/thread"
)

// Usage is what an owner's model calls of one calendar month (UTC) used.
type Usage struct {
	Month    time.Time // its first day
	Spending thread.Spending
	Models   []ModelUsage // the dearest first; never nil
}

// ModelUsage is what the calls of one model used.
type ModelUsage struct {
	Model string `json:"model"`
	Calls int64  `json:"calls"` // that were made: failed, stopped and lost ones too
	thread.Usage
}

// Usage reads what an owner used in the month that holds at; zero: this month. The limit is today's, whichever month it is.
func (db *DB) Usage(ctx context.Context, ownerID string, at time.Time) (Usage, error) {
	out := Usage{Models: []ModelUsage{}}
	b := &pgx.Batch{}
	b.Queue(`
		SELECT m.month, `+limitColumn+`, s.spent, s.reserved, m.month + interval '1 month'
		FROM (SELECT date_trunc('month', COALESCE(@at::timestamptz, now()))::date AS month) m
		JOIN owners o ON o.id = @owner
		CROSS JOIN LATERAL (`+monthSums+`) s`, usageArgs(db, ownerID, at)).QueryRow(func(r pgx.Row) error {
		return r.Scan(&out.Month, &out.Spending.Limit, &out.Spending.Spent, &out.Spending.Reserved, &out.Spending.Resets)
	})
	b.Queue(`
		SELECT model, count(*), sum(input_tokens)::bigint, sum(cached_tokens)::bigint, sum(output_tokens)::bigint,
			sum(reasoning_tokens)::bigint, sum(cost)::bigint
		FROM ledger
		WHERE owner_id = @owner AND month = date_trunc('month', COALESCE(@at::timestamptz, now()))::date AND state = 'settled'
		GROUP BY model
		ORDER BY sum(cost) DESC, model`, usageArgs(db, ownerID, at)).Query(func(rows pgx.Rows) error {
		list, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (m ModelUsage, err error) {
			err = r.Scan(&m.Model, &m.Calls, &m.InputTokens, &m.CachedTokens, &m.OutputTokens, &m.ReasoningTokens, &m.Cost)
			return m, err
		})
		out.Models = append(out.Models, list...)
		return err
	})
	return out, wrap("read usage", db.pool.SendBatch(ctx, b).Close())
}

func usageArgs(db *DB, ownerID string, at time.Time) named {
	args := named{"owner": ownerID, "limit": db.cfg.MonthlyLimit, "at": nil}
	if !at.IsZero() {
		args["at"] = at.UTC()
	}
	return args
}

// Owner is an owner and how they stand this month.
type Owner struct {
	ID       string
	OwnLimit bool // the limit is theirs, not the configured one
	Spending thread.Spending
}

// Owners lists all owners, by id.
func (db *DB) Owners(ctx context.Context) ([]Owner, error) {
	rows, _ := db.pool.Query(ctx, `
		SELECT o.id, o.limit_own, `+limitColumn+`, s.spent, s.reserved, m.month + interval '1 month'
		FROM owners o
		CROSS JOIN (SELECT date_trunc('month', now())::date AS month) m
		CROSS JOIN LATERAL (`+monthSums+`) s
		ORDER BY o.id`, named{"limit": db.cfg.MonthlyLimit})
	list, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (o Owner, err error) {
		err = r.Scan(&o.ID, &o.OwnLimit, &o.Spending.Limit, &o.Spending.Spent, &o.Spending.Reserved, &o.Spending.Resets)
		return o, err
	})
	return list, wrap("list owners", err)
}

// SetLimit gives an owner a monthly limit of their own, nil for none at all. It holds from the next model call on; a turn of an
// owner who had none meets it at its next stint. ErrNotFound: there is no such owner.
func (db *DB) SetLimit(ctx context.Context, ownerID string, limit *thread.USD) error {
	return db.writeLimit(ctx, ownerID, true, limit)
}

// ClearLimit makes the configured limit hold for an owner again. ErrNotFound: there is no such owner.
func (db *DB) ClearLimit(ctx context.Context, ownerID string) error {
	return db.writeLimit(ctx, ownerID, false, nil)
}

func (db *DB) writeLimit(ctx context.Context, ownerID string, own bool, limit *thread.USD) error {
	tag, err := db.pool.Exec(ctx, `UPDATE owners SET limit_own = $2, monthly_limit = $3 WHERE id = $1`, ownerID, own, limit)
	if err == nil && tag.RowsAffected() == 0 {
		err = thread.ErrNotFound
	}
	return wrap("set limit", err)
}
