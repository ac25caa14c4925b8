package agent_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"bobbin/thread"
)

var update = flag.Bool("update", false, "rewrite the golden turns")

var context0 = context.Background()

func TestTurnsGoAsTheirGoldenFilesSay(t *testing.T) {
	t.Parallel()
	for _, path := range goldens(t) {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			t.Parallel()
			g := readGolden(t, path)
			g.out, g.session = play(t, g.script)
			if *update {
				require.NoError(t, os.WriteFile(path, g.bytes(), 0o600))
			}
			want := readGolden(t, path)
			require.Empty(t, cmp.Diff(want.out, g.out))
			require.Empty(t, cmp.Diff(want.session, g.session))
		})
	}
}

// play drives a script's turn to its end and tells what happened, and what the session came to.
func play(t *testing.T, text string) (out, final string) {
	_, h := parse(t, text)
	var b strings.Builder
	h.trace = func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	tell(h)
	_, err := h.drive(t.Context())
	require.NoError(t, err)
	return b.String(), session(h.log.entries)
}

// tell traces each model call: its tools and limit, and what it is shown for the first time.
func tell(h *house) {
	model, summary := h.model, h.summary
	h.summary = func(p thread.Prompt, limit time.Duration) (thread.Reply, time.Duration, error) {
		h.trace("summarise within %v\n    %s", limit, flat(p.Entries[0].Text))
		r, took, err := summary(p, limit)
		if e := (*thread.ModelError)(nil); errors.As(err, &e) {
			h.trace("%v", e)
		}
		return r, took, err
	}
	var before thread.Prompt
	h.model = func(round int, p thread.Prompt, limit time.Duration) (thread.Reply, time.Duration, error) {
		h.trace("model %d [%s] within %v%s", round, names(p.Tools), limit, shown(before, p))
		before = p
		r, took, err := model(round, p, limit)
		if e := (*thread.ModelError)(nil); errors.As(err, &e) {
			h.trace("%v", e)
		}
		return r, took, err
	}
}

// A golden is a file in testdata/turns, a txtar archive: why it is there, the script, what happens, and the session.
type golden struct{ comment, script, out, session string }

func goldens(t testing.TB) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join("testdata", "turns", "*.txtar"))
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	return paths
}

func readGolden(t testing.TB, path string) golden {
	t.Helper()
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	comment, files := split(string(raw))
	require.NotEmpty(t, strings.TrimSpace(comment), "%s does not say what it guards", path)
	return golden{comment, files["script"], files["out"], files["session"]}
}

// split reads a txtar archive.
func split(text string) (comment string, files map[string]string) {
	files = map[string]string{}
	name := ""
	for line := range strings.Lines(text) {
		if n, ok := strings.CutPrefix(line, "-- "); ok && strings.HasSuffix(line, " --\n") {
			name = strings.TrimSuffix(n, " --\n")
			continue
		}
		if name == "" {
			comment += line
			continue
		}
		files[name] += line
	}
	return comment, files
}

func (g golden) bytes() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s-- script --\n%s-- out --\n%s-- session --\n%s", g.comment, g.script, g.out, g.session)
	return b.Bytes()
}
