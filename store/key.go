package store

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"

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

// EnsureKey makes a given key valid for an owner. It may be called again.
func (db *DB) EnsureKey(ctx context.Context, ownerID, name, key string) error {
	b := &pgx.Batch{}
	b.Queue(`INSERT INTO owners (id) VALUES ($1) ON CONFLICT DO NOTHING`, ownerID)
	b.Queue(`
		INSERT INTO api_keys (id, owner_id, name, hash)
		VALUES ($1, $2, $3, $4)
		ON CONFLICT (hash) DO NOTHING`, newID("key"), ownerID, name, hashKey(key))
	return wrap("create key", db.pool.SendBatch(ctx, b).Close())
}

// OwnerOf returns the owner of a key. ErrUnauthorized: no such key, or it was revoked.
func (db *DB) OwnerOf(ctx context.Context, key string) (ownerID string, err error) {
	err = db.pool.QueryRow(ctx, `SELECT owner_id FROM api_keys WHERE hash = $1 AND revoked_at IS NULL`, hashKey(key)).Scan(&ownerID)
	if errors.Is(err, pgx.ErrNoRows) {
		err = thread.ErrUnauthorized
	}
	return ownerID, wrap("look up key", err)
}

func hashKey(key string) []byte {
	sum := sha256.Sum256([]byte(key))
	return sum[:]
}
