package postgres

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSharedAnswersAtEachCall(t *testing.T) {
	t.Parallel()
	for range 2 {
		dsn, err := Shared(t.Context())
		require.NoError(t, err)
		require.NoError(t, ping(t.Context(), dsn))
	}
}
