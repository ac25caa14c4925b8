package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"bobbin/bench/floor"
	"bobbin/internal/page"
)

// A test binary is a floor as well, when it is started as one.
func TestMain(m *testing.M) {
	if floor.Run() {
		return
	}
	os.Exit(m.Run())
}

// It shows that the harness works. What was measured on the way says nothing.
func TestTheShortFormMeasuresEveryRow(t *testing.T) {
	l, err := open(t.Context(), options{short: true})
	require.NoError(t, err)
	defer l.close()
	lines, err := measure(t.Context(), l, rows)
	require.NoError(t, err)
	found := map[string]bool{}
	for _, l := range lines {
		require.NotEmpty(t, l.name)
		require.NotEmpty(t, l.ours, l.name)
		require.False(t, found[l.name], "two lines are called %s", l.name)
		found[l.name], found[l.key] = true, true
	}
	for _, r := range rows {
		require.True(t, found[r.key], "no line of %s", r.key)
	}
}

func TestTheReportReplacesTheMeasuredSectionOfThePage(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "page.md")
	require.NoError(t, os.WriteFile(file, []byte("before\n"+sectionBegin+"\nold\n"+page.End+"\nafter\n"), 0o600))
	d := duel{ours: []samples{{3 * time.Millisecond}, {5 * time.Millisecond}}, floor: []samples{{2 * time.Millisecond}, {2 * time.Millisecond}}}
	for range 2 {
		require.NoError(t, report{lines: []line{d.line("a row", 0.5, 1.5)}, of: "a machine", commit: "abc"}.write(file))
	}
	got, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "before\n"+sectionBegin+`

Measured 0001-01-01 00:00, commit abc, a machine. It took 0s.

| row | ours | floor | ratio | goal | |
| --- | --- | --- | --- | --- | --- |
| a row, p50 | 5.00 ms | 2.00 ms | 2.00 (1.50 to 2.50) | ≤ 1.5 × | missed |

`+page.End+"\nafter\n", string(got))
}

func TestAPageWithoutAMeasuredSectionIsLeftAlone(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "page.md")
	require.NoError(t, os.WriteFile(file, []byte("a page"), 0o600))
	require.ErrorContains(t, report{}.write(file), "no section")
}

func TestAnUnknownRowIsRefusedByItsName(t *testing.T) {
	t.Parallel()
	_, err := choose("accept,speed")
	require.ErrorContains(t, err, `no row "speed"`)
	list, err := choose("stop,accept")
	require.NoError(t, err)
	require.Equal(t, []string{"accept", "stop"}, keys(list), "in the table's order")
}

func TestASpreadIsTheMedianWithTheLeastAndTheGreatest(t *testing.T) {
	t.Parallel()
	require.Equal(t, spread{2, 1, 9}, spreadOf([]float64{9, 1, 2}))
	require.Equal(t, spread{3, 1, 9}, spreadOf([]float64{9, 1, 2, 4}))
	require.Equal(t, spread{}, spreadOf(nil))
	require.Equal(t, time.Duration(3), samples{4, 1, 3, 2}.at(0.5))
	require.Equal(t, time.Duration(4), samples{4, 1, 3, 2}.at(0.99))
}
