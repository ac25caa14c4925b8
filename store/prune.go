package store

import (
	"context"
	"time"
)

// PruneKeys deletes what is known of idempotency keys, and of the ids of channels' messages, that are older than the retention, the
// oldest first, at most limit of messages and limit of other requests. It returns how many went. A key that is gone may be
// used anew. The key of an uploaded file stays with the file.
func (db *DB) PruneKeys(ctx context.Context, limit int) (n int64, err error) {
	for _, sql := range []string{`
		DELETE FROM deliveries
		WHERE ctid = ANY (ARRAY(
			SELECT ctid FROM deliveries
			WHERE created_at < clock_timestamp() - @keep::interval
			ORDER BY created_at
			LIMIT @limit
			FOR UPDATE SKIP LOCKED))`, `
		DELETE FROM repeats
		WHERE ctid = ANY (ARRAY(
			SELECT ctid FROM repeats
			WHERE created_at < clock_timestamp() - @keep::interval
			ORDER BY created_at
			LIMIT @limit
			FOR UPDATE SKIP LOCKED))`} {
		tag, err := db.pool.Exec(ctx, sql, named{"keep": db.cfg.KeyRetention.Round(time.Second), "limit": limit})
		if err != nil {
			return n, wrap("prune keys", err)
		}
		n += tag.RowsAffected()
	}
	return n, nil
}

// PruneSteering deletes steering rows that are settled and not their thread's newest, which alone is asked for. It looks at
// limit rows behind the given one, 0 at first, and deletes what stands before each in its thread; so a sweep costs what came since
// the last, however many threads there are. It returns the last row that it looked at, and how many went.
func (db *DB) PruneSteering(ctx context.Context, after int64, limit int) (last, n int64, err error) {
	err = db.pool.QueryRow(ctx, `
		WITH newer AS MATERIALIZED (
			SELECT id, thread_id FROM steering WHERE id > @after ORDER BY id LIMIT @limit
		), old AS (
			SELECT o.id
			FROM (SELECT thread_id, max(id) AS id FROM newer GROUP BY thread_id) newest
			JOIN steering o ON o.thread_id = newest.thread_id AND o.id < newest.id AND o.state <> 'queued'
			FOR UPDATE OF o SKIP LOCKED
		), gone AS (
			DELETE FROM steering s USING old WHERE s.id = old.id RETURNING s.id
		)
		SELECT COALESCE((SELECT max(id) FROM newer), @after), (SELECT count(*) FROM gone)`,
		named{"after": after, "limit": limit}).Scan(&last, &n)
	return last, n, wrap("prune steering", err)
}
