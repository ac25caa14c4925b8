package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"bobbin/store/storetest"
	"bobbin/thread"
)

func TestReadKeySaysWhatItWants(t *testing.T) {
	t.Parallel()
	for _, args := range []string{
		"", "make", "create", "create anna", "create --owner", "create --owner anna more", "list anna", "list --name x", "revoke", "revoke a b",
		"create --owner a/b", "create --owner anna --name " + strings.Repeat("x", 201),
	} {
		_, err := readKey(strings.Fields(args))
		require.ErrorContains(t, err, "want", "%q", args)
	}
	k, err := readKey([]string{"create", "--owner", "anna@example.org", "--name", "her laptop"})
	require.NoError(t, err)
	require.Equal(t, keyCommand{does: "create", owner: "anna@example.org", label: "her laptop"}, k)
}

func TestKeysAreMadeListedAndRevoked(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, storetest.DSN(t))
	run := func(args ...string) string {
		k, err := readKey(args)
		require.NoError(t, err)
		var out bytes.Buffer
		require.NoError(t, k.run(t.Context(), db, &out))
		return out.String()
	}
	key := strings.TrimSpace(run("create", "--owner", "anna", "--name", "her laptop"))
	run("create", "--owner", "bert")
	owner, err := db.OwnerOf(t.Context(), key)
	require.NoError(t, err)
	require.Equal(t, "anna", owner)

	list := run("list")
	require.Equal(t, 3, strings.Count(list, "\n"))
	require.NotContains(t, list, key)
	list = run("list", "--owner", "anna")
	require.Contains(t, list, `"her laptop"`)
	require.NotContains(t, list, "bert")
	row := strings.Fields(strings.Split(list, "\n")[1])
	require.NotEqual(t, "-", row[len(row)-2], "it was used")
	require.Equal(t, "-", row[len(row)-1], "it is valid")

	run("revoke", row[0])
	_, err = db.OwnerOf(t.Context(), key)
	require.ErrorIs(t, err, thread.ErrUnauthorized)
	first := run("list", "--owner", "anna")
	require.NotContains(t, strings.Split(first, "\n")[1], " -")
	run("revoke", row[0])
	require.Equal(t, first, run("list", "--owner", "anna"), "revoked once")
	require.ErrorIs(t, db.EnsureKey(t.Context(), "anna", "again", key), thread.ErrConflict, "for good")

	k, err := readKey([]string{"revoke", "key_nope"})
	require.NoError(t, err)
	require.ErrorContains(t, k.run(t.Context(), db, &bytes.Buffer{}), "there is no key with that id")
}
