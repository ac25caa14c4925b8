package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"bobbin/thread"
)

// The content of a file is elsewhere, so a row is there before it and stays until it is gone: whatever breaks between the
// two, a row leads to what is left, and Unsettled finds it.

const fileColumns = ` f.id, f.name, f.type, f.size, f.sha256, f.created_at `

func scanFile(r pgx.Row) (*thread.File, error) {
	var f thread.File
	return &f, r.Scan(&f.ID, &f.Name, &f.Type, &f.Size, &f.SHA256, &f.CreatedAt)
}

// BeginFile makes the row of a file whose content comes now, and returns its id. Nobody sees it before FinishFile.
func (db *DB) BeginFile(ctx context.Context, ownerID, name, mediaType string) (string, error) {
	id := newID("fil")
	_, err := db.pool.Exec(ctx, `
		INSERT INTO files (id, owner_id, name, type, state)
		VALUES ($1, $2, $3, $4, 'uploading')`, id, ownerID, clean(name), clean(mediaType))
	return id, wrap("begin file", err)
}

// FinishFile makes a file whose content is stored whole the owner's to use, under an idempotency key, which may be empty.
// Where the key has a file already that one is returned with repeated set if it is the same, or ErrKeyReused; the new
// one is left as it was, to be dropped. ErrNotFound: the row was dropped meanwhile, as the upload took too long.
func (db *DB) FinishFile(ctx context.Context, ownerID, id string, size int64, sha256, key string) (f *thread.File, repeated bool, err error) {
	f, err = scanFile(db.pool.QueryRow(ctx, `
		UPDATE files f
		SET state = 'stored', size = @size, sha256 = @sha256, key = NULLIF(@key, ''), created_at = clock_timestamp(), changed_at = clock_timestamp()
		WHERE id = @id AND owner_id = @owner AND state = 'uploading'
		RETURNING`+fileColumns, pgx.NamedArgs{"id": id, "owner": ownerID, "size": size, "sha256": sha256, "key": clean(key)}))
	if code(err) != codeUnique {
		return f, false, wrap("finish file", err)
	}
	var same bool
	err = db.pool.QueryRow(ctx, `SELECT`+fileColumns+`, f.state = 'stored' AND f.sha256 = $3 AND f.name = (SELECT name FROM files WHERE id = $4)
		FROM files f
		WHERE f.owner_id = $1 AND f.key = $2`, ownerID, clean(key), sha256, id).Scan(
		&f.ID, &f.Name, &f.Type, &f.Size, &f.SHA256, &f.CreatedAt, &same)
	if err == nil && !same {
		err = thread.ErrKeyReused
	}
	return f, true, wrap("finish file", err)
}

// File returns an owner's stored file.
func (db *DB) File(ctx context.Context, ownerID, id string) (*thread.File, error) {
	f, err := scanFile(db.pool.QueryRow(ctx, `SELECT`+fileColumns+`
		FROM files f
		WHERE f.id = $1 AND f.owner_id = $2 AND f.state = 'stored'`, id, ownerID))
	return f, wrap("read file", err)
}

// Files lists an owner's stored files, newest first.
func (db *DB) Files(ctx context.Context, ownerID string, p Page) ([]*thread.File, error) {
	rows, _ := db.pool.Query(ctx, `SELECT`+fileColumns+`
		FROM files f
		WHERE f.owner_id = $1 AND f.state = 'stored' AND ($2 = '' OR f.id < $2)
		ORDER BY f.id DESC
		LIMIT $3`, ownerID, p.Before, p.Limit)
	list, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (*thread.File, error) { return scanFile(r) })
	return list, wrap("list files", err)
}

// DeleteFile takes a stored file away from its owner; its content is to be deleted next, and then the row, by ForgetFile.
// ErrConflict: a message that was not withdrawn names it.
func (db *DB) DeleteFile(ctx context.Context, ownerID, id string) error {
	return db.transact(ctx, "delete file", func(ctx context.Context, t *tx) error {
		var found, attached bool
		b := &pgx.Batch{}
		b.Queue(`
			SELECT
			FROM files
			WHERE id = $1 AND owner_id = $2 AND state = 'stored'
			FOR UPDATE`, id, ownerID).Query(func(rows pgx.Rows) error {
			found = rows.Next()
			rows.Close()
			return rows.Err()
		})
		// A statement of its own: what an accept wrote while this one waited for the lock is seen by the next.
		b.Queue(`
			SELECT EXISTS (
				SELECT
				FROM message_attachments a
				JOIN messages m ON m.id = a.message_id
				WHERE a.file_id = $1 AND m.state <> 'withdrawn')`, id).QueryRow(func(r pgx.Row) error { return r.Scan(&attached) })
		if err := t.flush(ctx, b); err != nil {
			return err
		}
		switch {
		case !found:
			return thread.ErrNotFound
		case attached:
			return thread.ErrConflict
		}
		b = &pgx.Batch{}
		b.Queue(`UPDATE files SET state = 'deleting', key = NULL, changed_at = clock_timestamp() WHERE id = $1`, id)
		return t.commit(ctx, b)
	})
}

// ForgetFile removes the row of a file that is not stored, after its content is gone.
func (db *DB) ForgetFile(ctx context.Context, id string) error {
	_, err := db.pool.Exec(ctx, `DELETE FROM files WHERE id = $1 AND state <> 'stored'`, id)
	return wrap("forget file", err)
}

// Unsettled returns the ids of files that have been coming or going for longer than age: whoever was at it is gone. From now
// on such an upload cannot be finished.
func (db *DB) Unsettled(ctx context.Context, age time.Duration, limit int) ([]string, error) {
	rows, _ := db.pool.Query(ctx, `
		UPDATE files
		SET state = 'deleting', sha256 = CASE sha256 WHEN '' THEN repeat('0', 64) ELSE sha256 END
		WHERE id IN (
			SELECT id
			FROM files
			WHERE state <> 'stored' AND changed_at < clock_timestamp() - $1::interval
			ORDER BY changed_at
			LIMIT $2
			FOR UPDATE SKIP LOCKED)
		RETURNING id`, age, limit)
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return list, wrap("find unsettled files", err)
}

// KeepText keeps what was read of a file, unless something is kept already.
func (db *DB) KeepText(ctx context.Context, fileID, text, note string) error {
	_, err := db.pool.Exec(ctx, `
		INSERT INTO file_texts (file_id, text, note)
		VALUES ($1, $2, $3)
		ON CONFLICT DO NOTHING`, fileID, clean(text), clean(note))
	return wrap("keep text", err)
}

// queueFiles reads the files that the session's messages brought, with what was read of them before.
func queueFiles(b *pgx.Batch, s *thread.Session, args named) {
	b.Queue(`
		WITH `+shownEntries+`
		SELECT e.message_id,`+fileColumns+`, t.file_id IS NOT NULL, COALESCE(t.text, ''), COALESCE(t.note, '')
		FROM shown e
		JOIN message_attachments a ON a.message_id = e.message_id
		JOIN files f ON f.id = a.file_id
		LEFT JOIN file_texts t ON t.file_id = f.id
		WHERE e.kind = 'user'
		ORDER BY e.pos, a.n, f.id`, args).Query(func(rows pgx.Rows) error {
		byMessage := map[string][]thread.Attached{}
		for rows.Next() {
			var message string
			var f thread.Attached
			if err := rows.Scan(&message, &f.ID, &f.Name, &f.Type, &f.Size, &f.SHA256, &f.CreatedAt, &f.Read, &f.Text, &f.Note); err != nil {
				return err
			}
			byMessage[message] = append(byMessage[message], f)
		}
		for i := range s.Entries {
			if e := &s.Entries[i]; e.Kind == thread.EntryUser && e.MessageID != "" {
				e.Files = byMessage[e.MessageID]
			}
		}
		return rows.Err()
	})
}
