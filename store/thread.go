package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"bobbin/thread"
)

// Home names an owner's home thread wherever a thread id is asked for.
const Home = "home"

// homeID returns the owner's active home thread, and opens one if there is none.
func (db *DB) homeID(ctx context.Context, ownerID string) (string, error) {
	for {
		var id string
		err := db.pool.QueryRow(ctx, `
			SELECT id FROM threads WHERE owner_id = $1 AND home AND status = 'active'`, ownerID).Scan(&id)
		if err == nil {
			return id, nil
		}
		if err != pgx.ErrNoRows { //nolint:errorlint // pgx returns it unwrapped
			return "", err
		}
		if _, err := db.open(ctx, ownerID, "", true); err != nil && code(err) != codeUnique {
			return "", err
		}
	}
}

// OpenThread opens a thread beside the owner's home thread. The title may be empty.
func (db *DB) OpenThread(ctx context.Context, ownerID, title string) (*thread.Thread, error) {
	id, err := db.open(ctx, ownerID, title, false)
	if err != nil {
		return nil, wrap("open thread", err)
	}
	return db.Thread(ctx, ownerID, id)
}

func (db *DB) open(ctx context.Context, ownerID, title string, home bool) (string, error) {
	id := newID("thr")
	b := &pgx.Batch{} // one implicit transaction
	b.Queue(`INSERT INTO threads (id, owner_id, title, home) VALUES ($1, $2, $3, $4)`, id, ownerID, clean(title), home)
	b.Queue(`INSERT INTO runs (thread_id) VALUES ($1)`, id)
	b.Queue(`INSERT INTO streams (thread_id) VALUES ($1)`, id)
	return id, db.pool.SendBatch(ctx, b).Close()
}

const threadColumns = `
	t.id, t.owner_id, t.title, t.home, t.status, t.created_at, t.archived_at, COALESCE(r.turn_id, ''), r.stopping, s.last_seq`

func scanThread(r pgx.Row) (*thread.Thread, error) {
	var t thread.Thread
	err := r.Scan(&t.ID, &t.OwnerID, &t.Title, &t.Home, &t.Status, &t.CreatedAt, &t.ArchivedAt, &t.RunningTurn, &t.Stopping,
		&t.LastEvent)
	return &t, err
}

// Thread returns a thread with its live state. "home" names the home thread.
func (db *DB) Thread(ctx context.Context, ownerID, threadID string) (*thread.Thread, error) {
	if threadID == Home {
		var err error
		if threadID, err = db.homeID(ctx, ownerID); err != nil {
			return nil, wrap("read thread", err)
		}
	}
	var t *thread.Thread
	var m *thread.Message
	b := &pgx.Batch{}
	b.Queue(`SELECT`+threadColumns+`
		FROM threads t
		JOIN runs r ON r.thread_id = t.id
		JOIN streams s ON s.thread_id = t.id
		WHERE t.id = $1 AND t.owner_id = $2`, threadID, ownerID).Query(first(&t, scanThread))
	b.Queue(`SELECT`+messageColumns+`
		FROM steering s
		JOIN messages m ON m.id = s.message_id
		WHERE s.thread_id = $1 AND s.state = 'queued'`, threadID).Query(first(&m, scanMessage))
	if err := db.pool.SendBatch(ctx, b).Close(); err != nil {
		return nil, wrap("read thread", err)
	}
	if t == nil {
		return nil, wrap("read thread", thread.ErrNotFound)
	}
	t.Steering = m
	return t, nil
}

// Page asks for a part of a list. Before is the id of an entry of the list; the page holds what comes before it. Empty:
// the newest. A list without such an entry is ErrNoEntry.
type Page struct {
	Before string
	Limit  int // at least 1
}

// Threads lists an owner's threads, newest first.
func (db *DB) Threads(ctx context.Context, ownerID string, p Page) ([]*thread.Thread, error) {
	var list []*thread.Thread
	b := &pgx.Batch{}
	entry := p.queueEntry(b, `SELECT FROM threads WHERE id = $1 AND owner_id = $2`, ownerID)
	b.Queue(`SELECT`+threadColumns+`
		FROM threads t
		JOIN runs r ON r.thread_id = t.id
		JOIN streams s ON s.thread_id = t.id
		WHERE t.owner_id = $1 AND ($2 = '' OR t.id < $2)
		ORDER BY t.id DESC
		LIMIT $3`, ownerID, p.Before, p.Limit).Query(collect(&list, scanThread))
	return list, wrap("list threads", entry(db.pool.SendBatch(ctx, b).Close()))
}

// queueEntry looks for the entry that the page names, and has the list after it planned for this very page: a plan for any
// page reads all before it. What it returns makes ErrNoEntry of the batch's success where there is no such entry.
func (p Page) queueEntry(b *pgx.Batch, query, of string) func(error) error {
	there := true
	b.Queue(`SELECT set_config('plan_cache_mode', 'force_custom_plan', true)`)
	if p.Before != "" {
		b.Queue(`SELECT EXISTS (`+query+`)`, p.Before, of).QueryRow(func(r pgx.Row) error { return r.Scan(&there) })
	}
	return func(err error) error {
		if err == nil && !there {
			return thread.ErrNoEntry
		}
		return err
	}
}

// threadOf returns the thread of a row of messages or turns, if it is the owner's.
func (db *DB) threadOf(ctx context.Context, table, ownerID, id string) (threadID string, err error) {
	err = db.pool.QueryRow(ctx, fmt.Sprintf(`
		SELECT x.thread_id
		FROM %s x
		JOIN threads t ON t.id = x.thread_id
		WHERE x.id = $1 AND t.owner_id = $2`, table), id, ownerID).Scan(&threadID)
	return threadID, err
}
