package tally_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"bobbin/e2e/tally"
)

func TestABookWritesTheSumOfItsPiecesWhenItsTestEnds(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(tally.FolderVar, dir)
	t.Run("APart", func(t *testing.T) {
		book := tally.Keep(t, "races")
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				book.Add(tally.Row{Runs: 1, Operations: 7, Lost: 1, Cells: map[string]int{"take/withdraw": 2}, Steer: []time.Duration{time.Second}})
			})
		}
		all.Wait()
		book.Add(tally.Row{ReplyTwice: 3, Cells: map[string]int{"end/stop": 1}, Figures: map[string]string{"goroutines": "12 to 12"}})
		written, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Empty(t, written)
	})
	written, err := filepath.Glob(filepath.Join(dir, "races-*.json"))
	require.NoError(t, err)
	require.Len(t, written, 1)
	raw, err := os.ReadFile(written[0])
	require.NoError(t, err)
	var got tally.Row
	require.NoError(t, json.Unmarshal(raw, &got))
	require.Len(t, got.Steer, 10)
	got.Steer = nil
	require.Empty(t, cmp.Diff(tally.Row{
		Part: "races", Runs: 10, Operations: 70, Lost: 10, ReplyTwice: 3, Cells: map[string]int{"take/withdraw": 20, "end/stop": 1},
		Figures: map[string]string{"goroutines": "12 to 12"},
	}, got))
	require.Equal(t, 13, got.Wrong())
}

func TestWithoutAFolderNothingIsWritten(t *testing.T) {
	t.Setenv(tally.FolderVar, "")
	t.Chdir(t.TempDir())
	t.Run("APart", func(t *testing.T) { tally.Keep(t, "races").Add(tally.Row{Runs: 1}) })
	written, err := os.ReadDir(".")
	require.NoError(t, err)
	require.Empty(t, written)
}

func TestTheLongFormIsTheLaboratorys(t *testing.T) {
	t.Setenv(tally.LongVar, "")
	require.Equal(t, 3, tally.Pick(3, 300))
	t.Setenv(tally.LongVar, "1")
	require.True(t, tally.Long())
	require.Equal(t, 300, tally.Pick(3, 300))
}
