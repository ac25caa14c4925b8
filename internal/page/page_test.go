package page_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"bobbin/internal/page"
)

const begin = "<!-- measured from here -->"

func TestFillReplacesItsSectionAndNothingElse(t *testing.T) {
	t.Parallel()
	file := write(t, "before\n"+begin+"\nold\n"+page.End+"\nbetween\n<!-- other -->\nother\n"+page.End+"\nafter\n")
	for range 2 {
		require.NoError(t, page.Fill(file, begin, "new\n"))
	}
	require.Equal(t, "before\n"+begin+"\nnew\n"+page.End+"\nbetween\n<!-- other -->\nother\n"+page.End+"\nafter\n", read(t, file))
}

func TestAPageWithoutTheSectionIsLeftAlone(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"a page", "a page\n" + begin + "\n", page.End + "\n" + begin + "\n"} {
		file := write(t, text)
		require.ErrorContains(t, page.Fill(file, begin, "new"), "no section")
		require.Equal(t, text, read(t, file))
	}
	require.Error(t, page.Fill(filepath.Join(t.TempDir(), "none"), begin, "new"))
}

func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "page.md")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

func read(t *testing.T, file string) string {
	t.Helper()
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(raw)
}
