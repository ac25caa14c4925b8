// Package storetest gives tests a database of their own on a real Postgres.
//
// The server is the one that BOBBIN_TEST_DATABASE_URL names, which must be allowed to create databases, or else the
// private one that embedded/postgres shares among test processes. A server that cannot be had fails the test: what the
// store promises is a promise of Postgres's locks, and no stand-in has them.
package storetest

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"bobbin/embedded/postgres"
	"bobbin/migrations"
	"bobbin/store"
)

// DatabaseURL is the environment variable that names a server to use instead of the embedded one.
const DatabaseURL = "BOBBIN_TEST_DATABASE_URL"

// An Option changes the Config that a DB is opened with.
type Option func(*store.Config)

// New opens a DB on a fresh, migrated database, which is dropped when the test ends.
func New(t testing.TB, opts ...Option) *store.DB {
	t.Helper()
	return Open(t, DSN(t), opts...)
}

// Open opens a DB on a database that DSN made, as another process would. It is closed when the test ends.
func Open(t testing.TB, dsn string, opts ...Option) *store.DB {
	t.Helper()
	cfg := store.Config{DSN: dsn}
	for _, o := range opts {
		o(&cfg)
	}
	db, err := store.Open(t.Context(), cfg)
	if err != nil {
		t.Fatalf("open store: %v", err)
	}
	t.Cleanup(db.Close)
	return db
}

// DSN makes a fresh database from the migrated template and returns its address.
func DSN(t testing.TB) string {
	t.Helper()
	name, err := template()
	if err != nil {
		t.Fatalf("make the template database: %v", err)
	}
	return create(t, name)
}

// AddFiles makes rows of stored files of an owner, without content.
func AddFiles(t testing.TB, dsn, ownerID string, ids ...string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatalf("add files: %v", err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	if _, err := conn.Exec(t.Context(), `
		INSERT INTO files (id, owner_id, name, type, size, sha256, state)
		SELECT id, $1, id || '.txt', 'text/plain', 5, repeat('0', 64), 'stored' FROM unnest($2::text[]) id
		ON CONFLICT DO NOTHING`, ownerID, ids); err != nil {
		t.Fatalf("add files: %v", err)
	}
}

// Files lists the ids of all files that have a row, whatever their state.
func Files(t testing.TB, dsn string) []string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatalf("list files: %v", err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	rows, _ := conn.Query(t.Context(), `SELECT id FROM files ORDER BY id`)
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("list files: %v", err)
	}
	return list
}

// Empty makes a fresh database without a schema and returns its address.
func Empty(t testing.TB) string {
	t.Helper()
	return create(t, "template0")
}

// create copies a template file by file. Postgres 15's own choice, through the WAL, costs twice as much.
func create(t testing.TB, from string) string {
	t.Helper()
	name := "bobbin_test_" + random()
	if err := admin("CREATE DATABASE " + name + " TEMPLATE " + from + " STRATEGY file_copy"); err != nil {
		t.Fatalf("create database: %v", err)
	}
	t.Cleanup(func() {
		if err := admin("DROP DATABASE " + name + " WITH (FORCE)"); err != nil {
			t.Errorf("drop database: %v", err)
		}
	})
	server, err := server()
	if err != nil {
		t.Fatal(err)
	}
	dsn, err := withDatabase(server, name)
	if err != nil {
		t.Fatal(err)
	}
	return dsn
}

func random() string { return hex.EncodeToString([]byte(rand.Text()))[:20] }

var server = sync.OnceValues(func() (string, error) {
	if dsn := os.Getenv(DatabaseURL); dsn != "" {
		return dsn, nil
	}
	return postgres.Shared(context.Background())
})

// admin runs statements on the server's own database, each in a transaction of its own.
func admin(statements ...string) error {
	dsn, err := server()
	if err != nil {
		return err
	}
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	for _, s := range statements {
		if _, err := conn.Exec(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

// template returns the name of a database with the schema of this very set of migrations, which it makes if no other
// test process has.
var template = sync.OnceValues(func() (string, error) {
	dsn, err := server()
	if err != nil {
		return "", err
	}
	sum, err := sumOfMigrations()
	if err != nil {
		return "", err
	}
	name := "bobbin_template_" + sum
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close(ctx) }() // and with it the lock
	if _, err := conn.Exec(ctx, `SELECT pg_advisory_lock(hashtext($1))`, name); err != nil {
		return "", err
	}
	var done bool
	if err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`, name).Scan(&done); err != nil || done {
		return name, err
	}
	return name, build(ctx, dsn, name)
})

// build gives the template its name last, so that one which a killed process left half made is never taken.
func build(ctx context.Context, dsn, name string) error {
	half := name + "_new"
	if err := admin("DROP DATABASE IF EXISTS "+half+" WITH (FORCE)", "CREATE DATABASE "+half+" TEMPLATE template0"); err != nil {
		return err
	}
	target, err := withDatabase(dsn, half)
	if err != nil {
		return err
	}
	if err := store.Migrate(ctx, target); err != nil {
		return err
	}
	return admin("ALTER DATABASE "+half+" ALLOW_CONNECTIONS false", "ALTER DATABASE "+half+" RENAME TO "+name)
}

func sumOfMigrations() (string, error) {
	h := sha256.New()
	err := fs.WalkDir(migrations.FS, ".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := fs.ReadFile(migrations.FS, path)
		fmt.Fprintf(h, "%q%q", path, b)
		return err
	})
	return hex.EncodeToString(h.Sum(nil))[:16], err
}
