package crashes

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"bobbin/store/storetest"
)

func TestWritesTellsWhatAStatementWrites(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string][]string{
		"SELECT 1": nil,
		"SELECT id FROM turns WHERE id = $1 FOR NO KEY UPDATE OF t":                                             nil,
		"SELECT id\nFROM outbox\nFOR UPDATE SKIP LOCKED":                                                        nil,
		"INSERT INTO workers (id) VALUES ($1)\nON CONFLICT (id) DO UPDATE SET id = EXCLUDED.id":                 {"INSERT INTO workers"},
		"WITH gone AS (DELETE FROM attempts WHERE id = $1) UPDATE turns SET driven_at = now() WHERE id = $2":    {"DELETE FROM attempts", "UPDATE turns"},
		"WITH c AS (update streams SET last_seq = 1) insert into events (thread_id) SELECT 'x' FROM unnest($1)": {"UPDATE streams", "INSERT INTO events"},
	} {
		require.Equal(t, want, writes(sql), sql)
	}
}

func TestWhatNoRuleKnowsIsNamedByWhatItWrites(t *testing.T) {
	t.Parallel()
	require.Equal(t, "DELETE FROM b, INSERT INTO a", nameOf([]string{"INSERT INTO a", "DELETE FROM b", "INSERT INTO a"}))
	require.Empty(t, nameOf(nil))
	require.Equal(t, "claim", nameOf([]string{"UPDATE turns SET status = 'running'", "UPDATE runs SET turn_id = $1"}))
}

// A wire's faults, on a table of two columns: what stands afterwards is what the side of the point says.
func TestAWireFaultsAtItsPoint(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		side  Side
		fault Fault
		code  string // of the error; empty: the connection ends
		rows  int
	}{
		{"KillsBefore", Before, Fault{Kind: Kill}, "", 1},
		{"KillsAfter", After, Fault{Kind: Kill}, "", 2},
		{"Refuses", Before, Fault{Kind: Refuse, Code: "53100"}, "53100", 1},
		{"Resets", After, Fault{Kind: Reset}, "", 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dsn := storetest.Empty(t)
			plain, err := pgx.Connect(t.Context(), dsn)
			require.NoError(t, err)
			defer func() { _ = plain.Close(context.Background()) }()
			_, err = plain.Exec(t.Context(), `CREATE TABLE rounds (n integer PRIMARY KEY)`)
			require.NoError(t, err)
			plan, struck := &Plan{}, 0
			w := NewWire(t, dsn, "worker", plan, func(Point) { struck++ })
			conn, err := pgx.Connect(t.Context(), w.DSN)
			require.NoError(t, err)
			defer func() { _ = conn.Close(context.Background()) }()
			write := func(n int) error {
				b := &pgx.Batch{}
				b.Queue("BEGIN")
				b.Queue("INSERT INTO rounds (n) VALUES ($1)", n)
				b.Queue("COMMIT")
				return conn.SendBatch(t.Context(), b).Close()
			}
			plan.Arm(&Point{Role: "worker", Op: "commit round", N: 2, Side: c.side}, c.fault, 1)
			require.NoError(t, write(1), "the first is not the point")
			err = write(2)
			require.Error(t, err)
			var pe *pgconn.PgError
			if c.code != "" {
				require.ErrorAs(t, err, &pe)
				require.Equal(t, c.code, pe.Code)
				_, err = conn.Exec(t.Context(), "ROLLBACK")
				require.NoError(t, err)
			} else {
				require.NotErrorAs(t, err, &pe)
			}
			require.Equal(t, c.fault.Kind == Kill, struck == 1)
			var rows int
			require.NoError(t, plain.QueryRow(t.Context(), `SELECT count(*) FROM rounds`).Scan(&rows))
			require.Equal(t, c.rows, rows)
			require.Equal(t, map[Point]int{{Role: "worker", Op: "commit round"}: 2}, plan.Disarm())
		})
	}
}

func TestAFullWireTakesNoConnection(t *testing.T) {
	t.Parallel()
	w := NewWire(t, storetest.Empty(t), "worker", &Plan{}, func(Point) {})
	w.Fill(true)
	_, err := pgx.Connect(t.Context(), w.DSN)
	var pe *pgconn.PgError
	require.ErrorAs(t, err, &pe)
	require.Equal(t, "53300", pe.Code)
	w.Fill(false)
	conn, err := pgx.Connect(t.Context(), w.DSN)
	require.NoError(t, err)
	require.NoError(t, conn.Close(t.Context()))
}
