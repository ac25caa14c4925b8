package storetest

import (
	"context"
	"io/fs"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"bobbin/migrations"
)

// References fails a test where a row names one that is not there. Of the hot tables Postgres checks none as they are
// written, so here it checks all rows at once, as it would if the migration that dropped the references were taken back.
func References(t testing.TB, dsn string) {
	t.Helper()
	text, err := fs.ReadFile(migrations.FS, "0009_hot_references.sql")
	if err != nil {
		t.Fatalf("check references: %v", err)
	}
	_, restore, _ := strings.Cut(string(text), "-- +goose Down\n")
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatalf("check references: %v", err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	if _, err := conn.Exec(t.Context(), "BEGIN;"+restore+"ROLLBACK"); err != nil {
		t.Errorf("a row names one that is not there: %v", err)
	}
}
