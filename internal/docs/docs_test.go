package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"bobbin/thread"
)

const root = "../.."

var function = regexp.MustCompile("`([a-z0-9_/]+\\.go):([A-Za-z0-9_]+)`")

func TestFunctionsThatThePagesNameExist(t *testing.T) {
	t.Parallel()
	for _, page := range pages(t) {
		for _, m := range function.FindAllStringSubmatch(read(t, page), -1) {
			require.Contains(t, functionsOf(t, m[1]), m[2], "%s names %s:%s", page, m[1], m[2])
		}
	}
}

func TestTheTableOfTurnsHasEveryTransition(t *testing.T) {
	t.Parallel()
	var want []string
	statuses := slices.Collect(maps.Values(constantsOf(t, "thread/turn.go", "TurnStatus")))
	for _, from := range statuses {
		for _, to := range statuses {
			if thread.TurnStatus(from).CanBecome(thread.TurnStatus(to)) {
				want = append(want, from+" → "+to)
			}
		}
	}
	var got []string
	for _, row := range rows(t, "docs/state-machine.md", "Turn") {
		move := strings.ReplaceAll(row[0], "`", "")
		if from, to, ok := strings.Cut(move, " → "); ok && from != "" {
			got = append(got, from+" → "+to)
		}
	}
	same(t, want, got)
}

func TestTheTableOfVariablesIsTheConfiguration(t *testing.T) {
	t.Parallel()
	want := map[string]string{}
	ast.Inspect(parse(t, "cmd/bobbin/config.go"), func(n ast.Node) bool {
		if f, ok := n.(*ast.Field); ok && f.Tag != nil {
			raw, err := strconv.Unquote(f.Tag.Value)
			require.NoError(t, err)
			tag := reflect.StructTag(raw)
			if name := tag.Get("env"); name != "" {
				want[name] = tag.Get("envDefault")
			}
		}
		return true
	})
	require.NotEmpty(t, want)
	got := map[string]string{}
	for _, row := range rows(t, "docs/operations.md", "Configuration") {
		if name := code(row[0]); name != "" {
			got[name] = code(row[1])
		}
	}
	require.Empty(t, cmp.Diff(want, got), "- config.go, + docs/operations.md")
}

func TestTheTablesOfTheAPIAreWhole(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ file, kind, section string }{
		"problems":   {"api/problem.go", "Code", "Problems"},
		"events":     {"thread/event.go", "EventName", "Events"},
		"fail codes": {"thread/turn.go", "FailCode", "What things look like"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, row := range rows(t, "docs/api.md", c.section) {
				if word := code(row[0]); word != "" {
					got = append(got, word)
				}
			}
			same(t, slices.Collect(maps.Values(constantsOf(t, c.file, c.kind))), got)
		})
	}
}

func TestTheTableOfRoutesIsTheRouter(t *testing.T) {
	t.Parallel()
	var want []string
	ast.Inspect(parse(t, "api/api.go"), func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) == 0 {
			return true
		}
		s, ok := call.Fun.(*ast.SelectorExpr)
		switch x, _ := receiver(s, ok); {
		case x == "v1":
			want = append(want, s.Sel.Name+" /v1"+parameter.ReplaceAllString(text(t, call.Args[0]), "{$1}"))
		case x == "e" && s.Sel.Name == "GET":
			want = append(want, s.Sel.Name+" "+text(t, call.Args[0]))
		}
		return true
	})
	require.NotEmpty(t, want)
	var got []string
	for _, row := range rows(t, "docs/api.md", "Routes") {
		for _, m := range route.FindAllStringSubmatch(row[0], -1) {
			if !strings.HasSuffix(m[1], "z") { // the probes answer HEAD too
				got = append(got, m[1])
			}
		}
	}
	same(t, want, got)
}

var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

func TestLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	for _, page := range pages(t) {
		for _, m := range link.FindAllStringSubmatch(read(t, page), -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			path := page
			if target != "" {
				path = filepath.Join(filepath.Dir(page), target)
			}
			_, err := os.Stat(filepath.Join(root, path))
			require.NoError(t, err, "%s links to %s", page, m[1])
			if anchor != "" {
				require.Contains(t, anchorsOf(read(t, path)), anchor, "%s links to %s", page, m[1])
			}
		}
	}
}

// anchorsOf returns what GitHub makes of a page's headings.
func anchorsOf(page string) (list []string) {
	for line := range strings.Lines(page) {
		if title, ok := strings.CutPrefix(line, "#"); ok {
			title = strings.ToLower(strings.TrimSpace(strings.TrimLeft(title, "#")))
			title = strings.ReplaceAll(title, " ", "-")
			list = append(list, regexp.MustCompile(`[^\p{L}\p{N}_-]`).ReplaceAllString(title, ""))
		}
	}
	return list
}

func pages(t *testing.T) []string {
	t.Helper()
	list := []string{"README.md", "CHANGELOG.md"}
	found, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	require.NoError(t, err)
	require.NotEmpty(t, found)
	for _, name := range found {
		list = append(list, filepath.Join("docs", filepath.Base(name)))
	}
	return list
}

// rows returns the cells of all table rows of a section, without the tables' heads.
func rows(t *testing.T, page, section string) (list [][]string) {
	t.Helper()
	_, body, ok := strings.Cut(read(t, page), "\n## "+section+"\n")
	require.True(t, ok, "%s has no section %s", page, section)
	body, _, _ = strings.Cut(body, "\n## ")
	for line := range strings.Lines(body) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "| ") {
			continue
		}
		if strings.HasPrefix(line, "| ---") {
			list = list[:len(list)-1] // what came before it is the head
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		list = append(list, cells)
	}
	require.NotEmpty(t, list, "%s, section %s, has no table", page, section)
	return list
}

var quoted = regexp.MustCompile("^`([^`]+)`")

// code returns what a cell begins with in code font, or "".
func code(cell string) string {
	if m := quoted.FindStringSubmatch(cell); m != nil {
		return m[1]
	}
	return ""
}

func same(t *testing.T, want, got []string) {
	t.Helper()
	require.NotEmpty(t, want)
	require.Empty(t, cmp.Diff(slices.Sorted(slices.Values(want)), slices.Sorted(slices.Values(got))), "- code, + page")
}

func read(t *testing.T, name string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
	require.NoError(t, err)
	return string(raw)
}

func parse(t *testing.T, name string) *ast.File {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, filepath.FromSlash(name)), nil, parser.SkipObjectResolution)
	require.NoError(t, err)
	return f
}

// functionsOf returns the names of a file's functions and methods.
func functionsOf(t *testing.T, name string) (list []string) {
	t.Helper()
	for _, d := range parse(t, name).Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			list = append(list, f.Name.Name)
		}
	}
	return list
}

// constantsOf returns the values of a file's string constants of one type, by name.
func constantsOf(t *testing.T, file, kind string) map[string]string {
	t.Helper()
	found := map[string]string{}
	ast.Inspect(parse(t, file), func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if typ, ok := v.Type.(*ast.Ident); ok && typ.Name == kind {
			for i, name := range v.Names {
				found[name.Name] = text(t, v.Values[i])
			}
		}
		return true
	})
	require.NotEmpty(t, found, "%s has no constants of type %s", file, kind)
	return found
}

var (
	parameter = regexp.MustCompile(`:(\w+)`)
	route     = regexp.MustCompile("`([A-Z]+ /[^`]*)`")
)

func receiver(s *ast.SelectorExpr, ok bool) (name string, isName bool) {
	if !ok {
		return "", false
	}
	x, isName := s.X.(*ast.Ident)
	if !isName {
		return "", false
	}
	return x.Name, true
}

func text(t *testing.T, e ast.Expr) string {
	t.Helper()
	lit, ok := e.(*ast.BasicLit)
	require.True(t, ok, "want a literal")
	s, err := strconv.Unquote(lit.Value)
	require.NoError(t, err)
	return s
}
