package store

import (
	"encoding/json"

	"github.com/jackc/pgx/v5"

	"bobbin/thread"
)

// A Repeat makes an operation that gives something back repeatable: a client that lost the answer asks again under the
// same key, gets what it would have got, and nothing happens twice. Errors are not kept: an operation that failed is tried
// again. It is for one operation at a time.
type Repeat struct {
	Key   string // unique within an owner's stops, resets and withdrawals; empty: not repeatable
	Known bool   // set where the answer is that of an earlier request

	owner, asked      string
	priorAsked, prior *string
}

// repeatOf returns the Repeat that an operation was given, for a request that op and address describe.
func repeatOf(given []*Repeat, ownerID string, asked ...string) *Repeat {
	r := &Repeat{}
	if len(given) > 0 && given[0] != nil {
		r = given[0]
	}
	r.Key, r.owner, r.asked = clean(r.Key), ownerID, ""
	for _, s := range asked {
		r.asked += s + " "
	}
	return r
}

// queueRead reads what the key was used for. It must run under the locks of the operation.
func (r *Repeat) queueRead(b *pgx.Batch) {
	r.priorAsked, r.prior = nil, nil
	if r.Key == "" {
		return
	}
	b.Queue(`SELECT asked, answer::text FROM repeats WHERE owner_id = $1 AND key = $2`, r.owner, r.Key).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			if err := rows.Scan(&r.priorAsked, &r.prior); err != nil {
				return err
			}
		}
		return rows.Err()
	})
}

// answered fills out with the earlier answer, and reports whether there is one. ErrKeyReused: to something else.
func (r *Repeat) answered(out any) (bool, error) {
	if r.prior == nil {
		return false, nil
	}
	if *r.priorAsked != r.asked {
		return true, thread.ErrKeyReused
	}
	r.Known = true
	return true, json.Unmarshal([]byte(*r.prior), out)
}

// remember keeps the answer. Of two at once under one key, in two threads, one fails on the primary key and tries again.
func (r *Repeat) remember(b *pgx.Batch, out any) error {
	if r.Key == "" {
		return nil
	}
	raw, err := json.Marshal(out)
	if err != nil {
		return err
	}
	b.Queue(`INSERT INTO repeats (owner_id, key, asked, answer) VALUES ($1, $2, $3, $4)`, r.owner, r.Key, r.asked, string(raw))
	return nil
}
