package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"bobbin/store"
	"bobbin/store/storetest"
	"bobbin/thread"
)

func TestOwnersLimitsAreSetAndListed(t *testing.T) {
	db := storetest.New(t, func(c *store.Config) {
		limit := 20 * thread.Dollar
		c.MonthlyLimit = &limit
	})
	for _, owner := range []string{"alice", "bob", "carol"} {
		require.NoError(t, db.EnsureOwner(t.Context(), owner))
	}
	require.NoError(t, setLimit(t.Context(), db, "bob", "none"))
	require.NoError(t, setLimit(t.Context(), db, "alice", "none"))
	require.NoError(t, setLimit(t.Context(), db, "alice", "default"))
	require.NoError(t, setLimit(t.Context(), db, "carol", "2.505"))
	require.ErrorIs(t, setLimit(t.Context(), db, "nobody", "5"), thread.ErrNotFound)
	for _, limit := range []string{"-1", "NaN", "much", ""} {
		require.ErrorContains(t, setLimit(t.Context(), db, "carol", limit), "or none, or default", limit)
	}
	owners, err := db.Owners(t.Context())
	require.NoError(t, err)
	var out bytes.Buffer
	require.NoError(t, writeOwners(&out, owners))
	require.Equal(t, `
  owner   limit           spent  reserved    left
  alice  $20.00  default  $0.00     $0.00  $20.00
    bob    none      own  $0.00     $0.00        
  carol  $2.505      own  $0.00     $0.00  $2.505
`, "\n"+out.String())
}

func TestTheOwnerCommandSaysWhatItWants(t *testing.T) {
	for _, args := range [][]string{nil, {"limit"}, {"limit", "bob"}, {"list", "bob"}, {"delete", "bob", "5"}} {
		require.ErrorIs(t, runOwner(t.Context(), config{}, args), errOwner, "%q", args)
	}
}
