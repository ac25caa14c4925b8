package store

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"bobbin/thread"
)

// CreateKey makes an API key of an owner, who is created if need be, and returns it. It cannot be read again.
func (db *DB) CreateKey(ctx context.Context, ownerID, name string) (key string, err error) {
	raw := make([]byte, 32)
	rand.Read(raw) // never fails: https://pkg.go.dev/crypto/rand#Read
	key = "bob_" + base64.RawURLEncoding.EncodeToString(raw)
	return key, db.EnsureKey(ctx, ownerID, name, key)
}

// EnsureOwner makes an owner. It may be called again.
func (db *DB) EnsureOwner(ctx context.Context, ownerID string) error {
	_, err := db.pool.Exec(ctx, `INSERT INTO owners (id) VALUES ($1) ON CONFLICT DO NOTHING`, ownerID)
	return wrap("create owner", err)
}

// EnsureKey makes a given key valid for an owner, who is created if need be. It may be called again. ErrConflict: the key is
// another owner's, or was revoked.
func (db *DB) EnsureKey(ctx context.Context, ownerID, name, key string) error {
	var valid bool
	b := &pgx.Batch{}
	b.Queue(`INSERT INTO owners (id) VALUES ($1) ON CONFLICT DO NOTHING`, ownerID)
	b.Queue(`
		INSERT INTO api_keys (id, owner_id, name, hash)
		VALUES ($1, $2, $3, $4)
		ON CONFLICT (hash) DO NOTHING`, newID("key"), ownerID, clean(name), hashKey(key))
	b.Queue(`
		SELECT owner_id = $1 AND revoked_at IS NULL
		FROM api_keys
		WHERE hash = $2`, ownerID, hashKey(key)).QueryRow(func(r pgx.Row) error { return r.Scan(&valid) })
	err := db.pool.SendBatch(ctx, b).Close()
	if err == nil && !valid {
		err = thread.ErrConflict
	}
	return wrap("create key", err)
}

// OwnerOf returns the owner of a key, and notes to the minute that it was used. ErrUnauthorized: no such key, or it was
// revoked.
func (db *DB) OwnerOf(ctx context.Context, key string) (ownerID string, err error) {
	err = db.pool.QueryRow(ctx, `
		WITH used AS (
			UPDATE api_keys
			SET last_used_at = clock_timestamp()
			WHERE hash = $1 AND revoked_at IS NULL
			  AND (last_used_at IS NULL OR last_used_at < clock_timestamp() - interval '1 minute'))
		SELECT owner_id FROM api_keys WHERE hash = $1 AND revoked_at IS NULL`, hashKey(key)).Scan(&ownerID)
	if errors.Is(err, pgx.ErrNoRows) {
		err = thread.ErrUnauthorized
	}
	return ownerID, wrap("look up key", err)
}

// A Key is what is known of an API key. What it is itself is not.
type Key struct {
	ID, Owner, Label string
	Created          time.Time
	LastUsed         *time.Time // to the minute or so; nil: never
	Revoked          *time.Time // nil: it is valid
}

// Keys lists the keys of an owner, or of all where ownerID is empty, the oldest first.
func (db *DB) Keys(ctx context.Context, ownerID string) ([]Key, error) {
	rows, _ := db.pool.Query(ctx, `
		SELECT id, owner_id, name, created_at, last_used_at, revoked_at
		FROM api_keys
		WHERE $1 = '' OR owner_id = $1
		ORDER BY owner_id, id`, ownerID)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Key])
	return list, wrap("list keys", err)
}

// RevokeKey makes a key worthless, for good. Processes that know it may take it for some seconds more. It may be called
// again. ErrNotFound: there is no such key.
func (db *DB) RevokeKey(ctx context.Context, id string) error {
	done, err := db.pool.Exec(ctx, `
		UPDATE api_keys
		SET revoked_at = COALESCE(revoked_at, clock_timestamp())
		WHERE id = $1`, id)
	if err == nil && done.RowsAffected() == 0 {
		err = thread.ErrNotFound
	}
	return wrap("revoke key", err)
}

func hashKey(key string) []byte {
	sum := sha256.Sum256([]byte(key))
	return sum[:]
}
