package storetest_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"bobbin/store/storetest"
)

func TestNewGivesEachTestAMigratedDatabaseOfItsOwn(t *testing.T) {
	t.Parallel()
	a, b := storetest.New(t), storetest.New(t)
	require.NoError(t, a.EnsureKey(t.Context(), "anna", "test", "bob_x"))
	_, err := b.OwnerOf(t.Context(), "bob_x")
	require.Error(t, err)
}

func TestOpenReachesTheSameDatabaseAgain(t *testing.T) {
	t.Parallel()
	dsn := storetest.DSN(t)
	a, b := storetest.Open(t, dsn), storetest.Open(t, dsn)
	require.NoError(t, a.EnsureKey(t.Context(), "anna", "test", "bob_x"))
	owner, err := b.OwnerOf(t.Context(), "bob_x")
	require.NoError(t, err)
	require.Equal(t, "anna", owner)
}

func TestEmptyHasNoTables(t *testing.T) {
	t.Parallel()
	conn, err := pgx.Connect(t.Context(), storetest.Empty(t))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	var n int
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_tables WHERE schemaname = 'public'`).Scan(&n))
	require.Zero(t, n)
}
