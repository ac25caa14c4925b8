package store

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
)

func TestConfigDefaults(t *testing.T) {
	t.Parallel()
	want := Config{MaxConns: 20, TakeTimeout: 2 * time.Second, MaxAttachments: 10, MaxText: 200_000, EventRetention: 30 * 24 * time.Hour, KeyRetention: 30 * 24 * time.Hour}
	require.Empty(t, cmp.Diff(want, Config{}.withDefaults()))
	require.Empty(t, cmp.Diff(want, want.withDefaults()))
}
