package store

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"bobbin/thread"
)

// Messages lists a conversation in the order the model received it, oldest first: what was delivered, then what waits, in
// the order it will be loaded. A page holds the newest Limit messages, or those before the message named by Before. Withdrawn messages are left out.
func (db *DB) Messages(ctx context.Context, ownerID, threadID string, p Page) ([]*thread.Message, error) {
	t, err := db.Thread(ctx, ownerID, threadID)
	if err != nil {
		return nil, err
	}
	var list []*thread.Message
	b := &pgx.Batch{}
	entry := p.queueEntry(b, `SELECT FROM messages WHERE id = $1 AND thread_id = $2`, t.ID)
	b.Queue(`SELECT`+messageColumns+`
		FROM messages m
		LEFT JOIN turns t ON t.id = m.turn_id AND m.state = 'queued' AND t.status = 'queued'
		WHERE m.thread_id = $1 AND m.state <> 'withdrawn'
		  AND ($2 = '' OR EXISTS (
			SELECT
			FROM messages b
			LEFT JOIN turns bt ON bt.id = b.turn_id AND b.state = 'queued' AND bt.status = 'queued'
			WHERE b.id = $2 AND b.thread_id = $1 AND CASE
				WHEN b.seq IS NOT NULL THEN m.seq < b.seq
				ELSE m.seq IS NOT NULL OR (t.rank IS NULL AND bt.rank IS NOT NULL) OR t.rank < bt.rank
			END))
		ORDER BY m.seq DESC NULLS FIRST, t.rank DESC NULLS LAST, m.created_at DESC
		LIMIT $3`, t.ID, p.Before, p.Limit).Query(collect(&list, scanMessage))
	err = entry(db.pool.SendBatch(ctx, b).Close())
	slices.Reverse(list)
	return list, wrap("list messages", err)
}
