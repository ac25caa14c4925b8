package migrations_test

import (
	"context"
	"database/sql"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/stretchr/testify/require"

	"bobbin/migrations"
	"bobbin/store"
	"bobbin/store/storetest"
)

// schema is every table, column, constraint and index that a migration made.
func schema(t *testing.T, dsn string) []string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	rows, _ := conn.Query(t.Context(), `
		SELECT format('%s.%s %s %s %s', table_name, column_name, data_type, is_nullable, column_default)
		FROM information_schema.columns WHERE table_schema = 'public' AND table_name <> 'goose_db_version'
		UNION ALL
		SELECT format('%s %s %s', conrelid::regclass, conname, pg_get_constraintdef(oid))
		FROM pg_constraint WHERE connamespace = 'public'::regnamespace AND conrelid::regclass::text <> 'goose_db_version'
		UNION ALL
		SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' AND tablename <> 'goose_db_version'
		ORDER BY 1`)
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return list
}

func TestMigrationsGoUpDownAndUp(t *testing.T) {
	t.Parallel()
	dsn := storetest.Empty(t)
	db, err := sql.Open("pgx", dsn)
	require.NoError(t, err)
	defer func() { _ = db.Close() }()
	p, err := goose.NewProvider(goose.DialectPostgres, db, migrations.FS)
	require.NoError(t, err)
	_, err = p.Up(t.Context())
	require.NoError(t, err)
	up := schema(t, dsn)
	require.NotEmpty(t, up)
	_, err = p.DownTo(t.Context(), 0)
	require.NoError(t, err)
	require.Empty(t, schema(t, dsn), "down leaves nothing")
	_, err = p.Up(t.Context())
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(up, schema(t, dsn)))
}

func TestSpendingSurvivesItsSlots(t *testing.T) {
	t.Parallel()
	dsn := storetest.Empty(t)
	db, err := sql.Open("pgx", dsn)
	require.NoError(t, err)
	defer func() { _ = db.Close() }()
	p, err := goose.NewProvider(goose.DialectPostgres, db, migrations.FS)
	require.NoError(t, err)
	exec := func(sql string) {
		t.Helper()
		_, err := db.ExecContext(t.Context(), sql)
		require.NoError(t, err)
	}
	_, err = p.UpTo(t.Context(), 7)
	require.NoError(t, err)
	exec(`INSERT INTO owners (id) VALUES ('anna'), ('bert')`)
	exec(`INSERT INTO spending (owner_id, month, spent, reserved) VALUES ('anna', '2026-11-01', 100, 20)`)
	_, err = p.UpTo(t.Context(), 8)
	require.NoError(t, err)
	exec(`INSERT INTO spending_slots (owner_id, month, slot, spent, reserved)
		VALUES ('anna', '2026-11-01', 1, 5, -20), ('anna', '2026-11-01', 2, 3, 9), ('bert', '2026-11-01', 2, 7, 0)`)
	_, err = p.DownTo(t.Context(), 7)
	require.NoError(t, err)
	var got string
	require.NoError(t, db.QueryRowContext(t.Context(), `SELECT json_agg(json_build_array(owner_id, spent, reserved) ORDER BY owner_id) FROM spending`).Scan(&got))
	require.JSONEq(t, `[["anna", 108, 9], ["bert", 7, 0]]`, got)
	_, err = p.UpTo(t.Context(), 8)
	require.NoError(t, err)
}

func TestMigrateByFourProcessesAtOnceRunsOnce(t *testing.T) {
	t.Parallel()
	dsn := storetest.Empty(t)
	var wg sync.WaitGroup
	var errs [4]error
	for i := range errs {
		wg.Go(func() { errs[i] = store.Migrate(t.Context(), dsn) })
	}
	wg.Wait()
	require.Equal(t, [4]error{}, errs)
	require.NoError(t, store.Migrate(t.Context(), dsn), "again changes nothing")
	require.Equal(t, schema(t, storetest.DSN(t)), schema(t, dsn))
}

func TestMigrateDoesNotQuoteThePassword(t *testing.T) {
	t.Parallel()
	err := store.Migrate(t.Context(), "postgres://bobbin:s3cret@[::1/bobbin")
	require.Error(t, err)
	require.NotContains(t, err.Error(), "s3cret")
}
