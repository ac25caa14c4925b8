package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What dev prints is copied, and kept in the scrollback of terminals.
func TestDevNamesItsOwnDatabaseAndNobodyElses(t *testing.T) {
	t.Parallel()
	d := &dev{cfg: config{DatabaseURL: "postgres://bobbin:s3cret@db/bobbin"}}
	require.Equal(t, "bin/bobbin key list", d.command("key list"))
	d.own = "postgres://bobbin@/bobbin?host=/data/run"
	require.Equal(t, "DATABASE_URL='postgres://bobbin@/bobbin?host=/data/run' bin/bobbin key list", d.command("key list"))
}
