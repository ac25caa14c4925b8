package storetest_test

import (
	"fmt"
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

func TestReferencesFailsWhereARowNamesOneThatIsNotThere(t *testing.T) {
	t.Parallel()
	dsn := storetest.DSN(t)
	storetest.References(t, dsn)
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	_, err = conn.Exec(t.Context(), `INSERT INTO outbox (thread_id, kind) VALUES ('thr_none', 'work')`)
	require.NoError(t, err)
	r := &recorder{TB: t}
	storetest.References(r, dsn)
	require.Contains(t, r.said, "outbox_thread_id_fkey")
}

// A recorder keeps what a test would fail with.
type recorder struct {
	testing.TB
	said string
}

func (r *recorder) Errorf(format string, args ...any) { r.said += fmt.Sprintf(format, args...) }
