package floors

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
)

const module = "bobbin"

func TestImportsPointDown(t *testing.T) {
	t.Parallel()
	broken, err := check(filepath.Join("..", ".."))
	require.NoError(t, err)
	require.Empty(t, broken, strings.Join(broken, "\n"))
}

func TestCheckFindsWhatBreaksTheTable(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		file, source string
		want         string // empty: nothing is broken
	}{
		"an import that points up":            {"store/a.go", `import "bobbin/api"`, `store/a.go: store may not import bobbin/api`},
		"a sibling":                           {"llm/a.go", `import "bobbin/store"`, `llm/a.go: llm may not import bobbin/store`},
		"a room below":                        {"store/a.go", `import "bobbin/thread"`, ``},
		"the two sides of Temporal":           {"workflows/a.go", `import "bobbin/activities"`, `workflows/a.go: workflows may not import bobbin/activities`},
		"the other side in a test":            {"workflows/a_test.go", `import "bobbin/activities"`, `workflows/a_test.go: workflows may not import bobbin/activities`},
		"a helper in a test":                  {"api/a_test.go", `import "bobbin/llm/scripted"`, ``},
		"what a helper doubles, in its test":  {"llm/scripted/a_test.go", `import "bobbin/llm"`, ``},
		"what a helper doubles":               {"llm/scripted/a.go", `import "bobbin/llm"`, `llm/scripted/a.go: llm/scripted may not import bobbin/llm`},
		"a helper in the product":             {"api/a.go", `import "bobbin/llm/scripted"`, `api/a.go: api may not import bobbin/llm/scripted`},
		"a helper below everything":           {"embedded/postgres/a_test.go", `import "bobbin/llm/scripted"`, `embedded/postgres/a_test.go: embedded/postgres may not import bobbin/llm/scripted`},
		"an external test of its own package": {"vault/a_test.go", `import "bobbin/vault"`, ``},
		"the command and what it starts":      {"cmd/bobbin/a.go", `import ("bobbin/api"; "bobbin/embedded/postgres"; "bobbin/llm/scripted")`, ``},
		"the command and the benchmark":       {"cmd/bobbin/a.go", `import "bobbin/bench"`, `cmd/bobbin/a.go: cmd/bobbin may not import bobbin/bench`},
		"the command and the tests' house":    {"cmd/bobbin/a.go", `import "bobbin/e2e/house"`, `cmd/bobbin/a.go: cmd/bobbin may not import bobbin/e2e/house`},
		"another's test and that house":       {"api/a_test.go", `import "bobbin/e2e/house"`, `api/a_test.go: api may not import bobbin/e2e/house`},
		"a room beside the tests' house":      {"e2e/races/a_test.go", `import "bobbin/e2e/house"`, ``},
		"the command and another module":      {"cmd/bobbin/a.go", `import "bobbin/devserver"`, `cmd/bobbin/a.go: cmd/bobbin may not import bobbin/devserver`},
		"a room that is not in the table":     {"util/a.go", ``, `util/a.go: util has no row in internal/floors/rooms_test.go: add one, and to the drawing of the house`},
		"a room beneath a room":               {"store/cache/a.go", ``, `store/cache/a.go: store/cache has no row in internal/floors/rooms_test.go: add one, and to the drawing of the house`},
		"the root":                            {"a.go", ``, `a.go: . has no row in internal/floors/rooms_test.go: add one, and to the drawing of the house`},
		"a file that is built nowhere":        {"store/a.go", "//go:build never\n\nIMPORT \"bobbin/api\"", `store/a.go: store may not import bobbin/api`},

		"another's module":                {"api/a.go", `import "github.com/jackc/pgx/v5/pgxpool"`, `api/a.go: api may not import github.com/jackc/pgx/v5/pgxpool: it belongs to store/..., embedded/..., bench/..., e2e/...`},
		"another's module, in a test":     {"api/a_test.go", `import "github.com/jackc/pgx/v5"`, `api/a_test.go: api may not import github.com/jackc/pgx/v5: it belongs to store/..., embedded/..., bench/..., e2e/...`},
		"its own":                         {"store/storetest/a.go", `import _ "github.com/jackc/pgx/v5"`, ``},
		"the double uses the client":      {"llm/scripted/a.go", `import "github.com/sashabaranov/go-openai"`, `llm/scripted/a.go: llm/scripted may not import github.com/sashabaranov/go-openai: it belongs to llm`},
		"a module that begins the same":   {"api/a.go", `import "github.com/jackc/pgxother"`, ``},
		"one part of a module":            {"api/a.go", `import "go.temporal.io/sdk/workflow"`, `api/a.go: api may not import go.temporal.io/sdk/workflow: it belongs to workflows, worker, bench/floor`},
		"another part of it":              {"relay/a.go", `import "go.temporal.io/sdk/client"`, ``},
		"a part for tests":                {"workflows/a_test.go", `import "go.temporal.io/sdk/worker"`, ``},
		"the same outside of tests":       {"workflows/a.go", `import "go.temporal.io/sdk/worker"`, `workflows/a.go: workflows may not import go.temporal.io/sdk/worker: it belongs to worker, bench/floor`},
		"a module that is nobody's":       {"worker/a.go", `import "go.temporal.io/server/temporal"`, `worker/a.go: worker may not import go.temporal.io/server/temporal: it belongs to nobody`},
		"a module at the ground":          {"thread/a.go", `import "github.com/google/uuid"`, `thread/a.go: thread may not import github.com/google/uuid: it has the standard library only`},
		"a module in a test there":        {"thread/a_test.go", `import "github.com/google/go-cmp/cmp"`, ``},
		"the network in a pure room":      {"agent/a.go", `import "net/http"`, `agent/a.go: agent may not import net/http: it is pure`},
		"files in a pure room":            {"research/a.go", `import "os"`, `research/a.go: research may not import os: it is pure`},
		"SQL in a pure room":              {"contract/a.go", `import "database/sql/driver"`, `contract/a.go: contract may not import database/sql/driver: it is pure`},
		"files in a pure room's test":     {"agent/a_test.go", `import "os"`, ``},
		"addresses in a pure room":        {"research/a.go", `import "net/url"`, ``},
		"the clock in a pure room":        {"agent/a.go", `import "time"; var x = time.Now`, `agent/a.go:4: agent may not use time.Now: it is pure`},
		"the clock by another name":       {"agent/a.go", `import clock "time"; func f() { clock.Sleep(1) }`, `agent/a.go:4: agent may not use time.Sleep: it is pure`},
		"the clock by two names":          {"agent/a.go", `import ("time"; clock "time"); var x = clock.Now`, `agent/a.go:4: agent may not use time.Now: it is pure`},
		"the clock by no name":            {"agent/a.go", `import . "time"; var x = Now()`, `agent/a.go: agent may not import time without its name: it is pure`},
		"a time in a pure room":           {"agent/a.go", `import "time"; var x time.Time; const d = time.Second`, ``},
		"a Now that is not the clock's":   {"agent/a.go", `var time struct{ Now int }; var x = time.Now`, ``},
		"the clock in a pure room's test": {"agent/a_test.go", `import "time"; var x = time.Now()`, ``},
		"the clock elsewhere":             {"store/a.go", `import "time"; var x = time.Now()`, ``},

		"what is not ours to hold":        {"store/testdata/a.go", `import "bobbin/api"`, ``},
		"another module":                  {"devserver/a.go", `import "go.temporal.io/server/temporal"`, ``},
		"another module's own packages":   {"devserver/a.go", `import "bobbin/devserver/ui"`, ``},
		"another module, reaching for us": {"devserver/sub/a.go", `import "bobbin/thread"`, `devserver/sub/a.go: devserver may not import bobbin/thread: it is another module`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			write(t, root, "go.mod", "module bobbin\n")
			write(t, root, "devserver/go.mod", "module bobbin/devserver\n")
			write(t, root, c.file, source(c.source))
			got, err := check(root)
			require.NoError(t, err)
			var want []string
			if c.want != "" {
				want = []string{c.want}
			}
			require.Empty(t, cmp.Diff(want, got))
		})
	}
}

func TestCheckReportsAFileThatIsNotGo(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write(t, root, "store/a.go", "not Go")
	_, err := check(root)
	require.ErrorContains(t, err, "a.go:1:1")
}

// source puts the package clause where it belongs.
func source(body string) string {
	if before, after, ok := strings.Cut(body, "IMPORT"); ok {
		return before + "package p\n\nimport" + after + "\n"
	}
	return "package p\n\n\n" + body + "\n"
}

func write(t *testing.T, root, name, text string) {
	t.Helper()
	name = filepath.Join(root, filepath.FromSlash(name))
	require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o700))
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
}

// check returns what breaks the table in the module at root. It reads the files itself: what go list reads is unknown to
// the test cache, which would go on answering after a rule was broken.
func check(root string) ([]string, error) {
	c := &checker{root: root}
	err := filepath.WalkDir(root, c.visit)
	return c.broken, err
}

type checker struct {
	root   string
	nested []string // folders of other modules
	broken []string
}

func (c *checker) visit(name string, d fs.DirEntry, err error) error {
	if err != nil {
		return err
	}
	rel, err := filepath.Rel(c.root, name)
	if err != nil {
		return err
	}
	rel = filepath.ToSlash(rel)
	if d.IsDir() {
		return c.enter(name, rel)
	}
	if path.Ext(rel) != ".go" {
		return nil
	}
	return c.file(name, rel)
}

// enter skips the folders that the go command skips and notes other modules.
func (c *checker) enter(name, rel string) error {
	base := path.Base(rel)
	if rel == "." {
		return nil
	}
	if base == "testdata" || base == "vendor" || base == "node_modules" || base[0] == '.' || base[0] == '_' {
		return filepath.SkipDir
	}
	if _, err := os.Stat(filepath.Join(name, "go.mod")); err == nil {
		c.nested = append(c.nested, rel)
	}
	return nil
}

func (c *checker) file(name, rel string) error {
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, name, nil, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	f := &file{rel: rel, test: strings.HasSuffix(rel, "_test.go"), parsed: parsed, files: files}
	if other := c.moduleOf(rel); other != "" {
		f.checkOther(other)
	} else {
		f.check(path.Dir(rel))
	}
	c.broken = append(c.broken, f.broken...)
	return nil
}

func (c *checker) moduleOf(rel string) string {
	for _, n := range c.nested {
		if strings.HasPrefix(rel, n+"/") {
			return n
		}
	}
	return ""
}

type file struct {
	rel    string
	test   bool
	parsed *ast.File
	files  *token.FileSet
	broken []string
}

func (f *file) breaks(format string, args ...any) {
	f.broken = append(f.broken, f.rel+fmt.Sprintf(format, args...))
}

func (f *file) imports() (paths []string) {
	for _, i := range f.parsed.Imports {
		p, _ := strconv.Unquote(i.Path.Value) // the parser has read it
		paths = append(paths, p)
	}
	return paths
}

// checkOther holds that another module imports nothing of ours.
func (f *file) checkOther(other string) {
	for _, p := range f.imports() {
		ours, ok := strings.CutPrefix(p, module+"/")
		if ok && !fits(other+"/...", ours) {
			f.breaks(": %s may not import %s: it is another module", other, p)
		}
	}
}

func (f *file) check(pkg string) {
	r, ok := roomOf(pkg)
	if !ok {
		f.breaks(": %s has no row in internal/floors/rooms_test.go: add one, and to the drawing of the house", pkg)
		return
	}
	for _, p := range f.imports() {
		f.checkImport(r, pkg, p)
	}
	if r.pure && !f.test {
		f.checkClock(pkg)
	}
}

func (f *file) checkImport(r room, pkg, p string) {
	if ours, ok := strings.CutPrefix(p, module+"/"); ok {
		if !f.mayImport(r, pkg, ours) {
			f.breaks(": %s may not import %s", pkg, p)
		}
		return
	}
	if o, ok := ownerOf(p); ok && !oneOf(o.rooms, pkg) && !(f.test && oneOf(o.tests, pkg)) {
		f.breaks(": %s may not import %s: it belongs to %s", pkg, p, o)
	}
	if f.test {
		return
	}
	if r.pure && oneOf(impure, p) && !oneOf(pureEnough, p) {
		f.breaks(": %s may not import %s: it is pure", pkg, p)
	}
	if r.std && strings.Contains(p, ".") {
		f.breaks(": %s may not import %s: it has the standard library only", pkg, p)
	}
}

func (f *file) mayImport(r room, pkg, ours string) bool {
	if ours == pkg || f.test && (oneOf(r.tests, ours) || !r.alone && oneOf(helpers, ours)) {
		return true
	}
	_, known := roomOf(ours) // another module, for one, is not
	return known && oneOf(r.ours, ours) && !oneOf(r.never, ours)
}

// checkClock finds the functions of package time that a pure room does not use.
func (f *file) checkClock(pkg string) {
	names := f.namesOfTime()
	if slices.Contains(names, ".") {
		f.breaks(": %s may not import time without its name: it is pure", pkg)
	}
	ast.Inspect(f.parsed, func(n ast.Node) bool {
		s, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if x, ok := s.X.(*ast.Ident); ok && slices.Contains(names, x.Name) && slices.Contains(clock, s.Sel.Name) {
			f.breaks(":%d: %s may not use time.%s: it is pure", f.files.Position(s.Pos()).Line, pkg, s.Sel.Name)
		}
		return true
	})
}

// namesOfTime returns the names under which the file imports time: seldom more than one.
func (f *file) namesOfTime() (names []string) {
	for _, i := range f.parsed.Imports {
		switch {
		case i.Path.Value != `"time"`:
		case i.Name != nil:
			names = append(names, i.Name.Name)
		default:
			names = append(names, "time")
		}
	}
	return names
}

func roomOf(pkg string) (best room, ok bool) {
	for _, r := range house {
		if fits(r.at, pkg) && len(r.at) > len(best.at) {
			best, ok = r, true
		}
	}
	return best, ok
}

func ownerOf(p string) (best owner, ok bool) {
	for _, o := range owners {
		if fits(o.module+"/...", p) && len(o.module) > len(best.module) {
			best, ok = o, true
		}
	}
	return best, ok
}

func (o owner) String() string {
	if len(o.rooms) == 0 {
		return "nobody"
	}
	return strings.Join(o.rooms, ", ")
}

func oneOf(patterns []string, p string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool { return fits(pattern, p) })
}

// fits reports whether a pattern names a package: a/b itself, a/... with all beneath it, or ... for every package.
func fits(pattern, p string) bool {
	above, all := strings.CutSuffix(pattern, "...")
	if !all {
		return pattern == p
	}
	return strings.HasPrefix(p+"/", above)
}
