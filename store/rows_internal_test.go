package store

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNamedArgumentsFollowTheirNames(t *testing.T) {
	t.Parallel()
	const sql = `SELECT @b, '@a', @a, @b`
	for _, a := range []int{1, 2} { // the second finds the statement taken apart
		text, args, err := named{"a": a, "b": nil, "more": 0}.RewriteQuery(t.Context(), nil, sql, nil)
		require.NoError(t, err)
		require.Equal(t, `SELECT $1, '@a', $2, $1`, text)
		require.Equal(t, []any{nil, a}, args)
	}
	_, _, err := named{"a": 1}.RewriteQuery(t.Context(), nil, `SELECT @a, @missing`, nil)
	require.Error(t, err)
}
