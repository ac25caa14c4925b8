// Package page writes what was measured into pages that people write: it stands between two lines of its own, and is
// replaced whole.
package page

import (
	"fmt"
	"os"
	"strings"
)

// End is the line behind every section.
const End = "<!-- to here -->"

// Fill puts text between the line begin of a page, which is there once, and the next End. A page without them is left alone.
func Fill(file, begin, text string) error {
	raw, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, found := strings.Cut(string(raw), begin)
	_, after, closed := strings.Cut(rest, End)
	if !found || !closed {
		return fmt.Errorf("%s has no section between %q and %q", file, begin, End)
	}
	return os.WriteFile(file, []byte(before+begin+"\n"+text+End+after), 0o644) //nolint:gosec // a page for everyone
}
