package main

import (
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"bobbin/e2e/tally"
	"bobbin/internal/page"
)

const root = ".."

// What the tests that must notice make of it is for the laboratory: here each mutation finds its place, and compiles.
func TestEveryMutationStillAppliesAndCompiles(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	checkers := map[string]*checker{}
	for _, m := range mutations {
		require.False(t, seen[m.name], "two mutations are called %s", m.name)
		seen[m.name] = true
		text, err := m.apply(root)
		require.NoError(t, err)
		dir := path.Dir(m.file)
		if checkers[dir] == nil {
			checkers[dir] = newChecker(t, dir)
		}
		require.NoError(t, checkers[dir].check(path.Base(m.file), text), m.name)
	}
	require.GreaterOrEqual(t, len(mutations), 15)
}

// A checker type-checks a package with one file replaced, from what its imports were compiled to.
type checker struct {
	dir   string
	set   *token.FileSet
	files map[string]*ast.File
	imp   types.Importer
}

func newChecker(t *testing.T, dir string) *checker {
	t.Helper()
	c := &checker{dir: dir, set: token.NewFileSet(), files: map[string]*ast.File{}}
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", "-export", "-f", `{{.ImportPath}}={{.Export}}`, "./"+dir)
	list.Dir, list.Stderr = root, os.Stderr
	out, err := list.Output()
	require.NoError(t, err)
	exports := map[string]string{}
	for line := range strings.Lines(string(out)) {
		name, file, _ := strings.Cut(strings.TrimSpace(line), "=")
		exports[name] = file
	}
	c.imp = importer.ForCompiler(c.set, "gc", func(name string) (io.ReadCloser, error) {
		if exports[name] == "" {
			return nil, fmt.Errorf("%s is not among the imports", name)
		}
		return os.Open(exports[name])
	})
	names, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
	require.NoError(t, err)
	for _, name := range names {
		if !strings.HasSuffix(name, "_test.go") {
			c.files[filepath.Base(name)], err = parser.ParseFile(c.set, name, nil, parser.SkipObjectResolution)
			require.NoError(t, err)
		}
	}
	return c
}

func (c *checker) check(name, text string) error {
	broken, err := parser.ParseFile(c.set, name, text, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	files := []*ast.File{broken}
	for n, f := range c.files {
		if n != name {
			files = append(files, f)
		}
	}
	_, err = (&types.Config{Importer: c.imp}).Check("bobbin/"+c.dir, c.set, files, nil)
	return err
}

// Patterns that match nothing would be found out by the laboratory alone, late.
func TestEveryPartAndEveryMutationNamesTestsThatAreThere(t *testing.T) {
	t.Parallel()
	named := map[string][]string{} // patterns by package
	for _, p := range parts {
		named[p.pkg] = append(named[p.pkg], cmp.Or(p.run, "Test"))
	}
	for _, m := range mutations {
		named[m.pkg] = append(named[m.pkg], strings.Split(m.run, "|")...)
	}
	for pkg, patterns := range named {
		files, err := filepath.Glob(filepath.Join(root, pkg, "*_test.go"))
		require.NoError(t, err)
		var tests strings.Builder
		for _, f := range files {
			raw, err := os.ReadFile(f)
			require.NoError(t, err)
			tests.Write(raw)
		}
		for _, p := range patterns {
			top, sub, _ := strings.Cut(p, "/")
			require.Contains(t, tests.String(), "\nfunc "+top, "%s has no test that begins so", pkg)
			for _, word := range strings.FieldsFunc(sub, func(r rune) bool { return r == '/' || r == ',' }) { // a name may be put together
				require.Contains(t, tests.String(), strings.TrimSpace(word))
			}
		}
	}
}

func TestAMutationWhosePlaceIsGoneOrThereTwiceIsAnError(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a.go"), []byte("lock lock"), 0o600))
	for old, want := range map[string]string{"fence": "there 0 times", "lock": "there 2 times"} {
		_, err := mutation{name: "m", file: "a.go", old: old}.apply(dir)
		require.ErrorContains(t, err, want)
	}
	_, err := mutation{name: "m", file: "a.go", old: "lock lock", new: "lock lock"}.apply(dir)
	require.ErrorContains(t, err, "changes nothing")
}

// A module of its own, with a test that notices one mutation and not the other.
func TestMutationsAreCaughtByTheTestsThatFail(t *testing.T) {
	t.Parallel()
	l := &lab{root: t.TempDir(), dir: t.TempDir()}
	for name, text := range map[string]string{
		"go.mod":      "module small\n\ngo 1.26\n",
		"a.go":        "package small\n\nfunc one() int { return 1 }\n\nfunc two() int { return 2 }\n",
		"a_test.go":   "package small\n\nimport \"testing\"\n\nfunc TestOne(t *testing.T) {\n\tif one() != 1 {\n\t\tt.Fatal()\n\t}\n}\n\nfunc TestTwo(t *testing.T) { two() }\n",
		"bad_test.go": "package small\n\nimport \"testing\"\n\nfunc TestBad(t *testing.T) { t.Log(\"A_SEED=7\"); t.Fatal() }\n",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(l.root, name), []byte(text), 0o600))
	}
	one := mutation{name: "one", file: "a.go", old: "return 1", new: "return 0", pkg: ".", run: "TestOne|TestTwo"}
	two := mutation{name: "two", file: "a.go", old: "return 2", new: "return 0", pkg: ".", run: "TestOne|TestTwo"}
	broken := mutation{name: "broken", file: "a.go", old: "return 2", new: "return x", pkg: ".", run: "TestOne"}
	got := l.mutate(t.Context(), []mutation{one, two, broken})
	require.Len(t, got, 3)
	require.Equal(t, []string{"TestOne"}, got[0].by)
	require.NoError(t, got[1].err)
	require.False(t, got[1].caught())
	require.ErrorContains(t, got[2].err, "not run")

	got = l.mutate(t.Context(), []mutation{one, {name: "bad", file: "a.go", old: "return 2", new: "return 0", pkg: ".", run: "TestBad"}})
	require.ErrorContains(t, got[0].err, "fail on the engine as it is")
	require.ErrorContains(t, got[0].err, "A_SEED=7")
	got = l.mutate(t.Context(), []mutation{{name: "none", file: "a.go", old: "return 2", new: "return 0", pkg: ".", run: "TestNone"}})
	require.ErrorContains(t, got[0].err, "no test of . is called TestNone")
}

func TestAPatternChoosesMutationsByTheirNames(t *testing.T) {
	t.Parallel()
	list, err := chooseMutations("")
	require.NoError(t, err)
	require.Len(t, list, len(mutations))
	list, err = chooseMutations("^" + mutations[1].name + "$")
	require.NoError(t, err)
	require.Equal(t, mutations[1:2], list)
	_, err = chooseMutations("none that is so called")
	require.ErrorContains(t, err, "no mutation is called")
	_, err = chooseMutations("(")
	require.Error(t, err)
}

func TestATestThatHangsAndAPanicAreFailures(t *testing.T) {
	t.Parallel()
	for log, want := range map[string][]string{
		"ok  \tbobbin/store\t1.2s\n": nil,
		"--- FAIL: TestA (0.00s)\n    --- FAIL: TestA/b (0.00s)\n--- FAIL: TestC (0.00s)\nFAIL\n":                                     {"TestA", "TestC"},
		"panic: test timed out after 20s\n\trunning tests:\n\t\tTestA/b (20s)\n\t\tTestC (19s)\n\ngoroutine 1 [running]:\npanic: x\n": {"TestA, which hung"},
		"panic: no such row\n\ngoroutine 7 [running]:\nFAIL\tbobbin/store\t0.1s\n":                                                    {"a panic"},
	} {
		require.Equal(t, want, failures([]byte(log)), log)
	}
	require.Equal(t, mutationPatience+30*time.Second, hangsAfter(10*time.Second))
}

// A module of its own, with one test for each way that a part may go.
func TestAPartFailsWithItsTestsWithoutARowAndWithAnythingWrong(t *testing.T) {
	t.Parallel()
	l := &lab{root: t.TempDir(), dir: t.TempDir()}
	code := `package small

import (
	"os"
	"testing"
)

func leave(row string) {
	if os.Getenv("` + tally.LongVar + `") != "" {
		_ = os.WriteFile(os.Getenv("` + tally.FolderVar + `")+"/p-1.json", []byte(row), 0o600)
	}
}

func TestPasses(*testing.T)  { leave(` + "`" + `{"Runs": 2, "Operations": 7}` + "`" + `) }
func TestLoses(*testing.T)   { leave(` + "`" + `{"Operations": 7, "Lost": 1}` + "`" + `) }
func TestSilent(*testing.T)  {}
func TestFails(t *testing.T) { leave(` + "`" + `{"Operations": 7}` + "`" + `); t.Fatal("A_SEED=7") }
`
	require.NoError(t, os.WriteFile(filepath.Join(l.root, "go.mod"), []byte("module small\n\ngo 1.26\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(l.root, "a_test.go"), []byte(code), 0o600))
	for name, want := range map[string]string{"TestPasses": "", "TestLoses": "1 wrong", "TestSilent": "left no row", "TestFails": "exit status 1"} {
		r := l.run(t.Context(), part{name: name, pkg: ".", run: name, timeout: time.Minute})
		if want == "" {
			require.NoError(t, r.err)
		} else {
			require.ErrorContains(t, r.err, want)
		}
		if name != "TestSilent" {
			require.Equal(t, 7, r.row.Operations, name)
		}
	}
}

func example() report {
	return report{
		commit: "abc", of: "a machine", took: 90 * time.Second,
		results: []result{
			{part: part{name: "races"}, took: time.Minute, row: tally.Row{
				Runs: 2, Operations: 123456, Lost: 0, Cells: map[string]int{"take, then stop": 7, "stop, then take": 3},
				Steer: []time.Duration{3 * time.Millisecond, time.Millisecond, 2 * time.Second},
			}},
			{part: part{name: "soak"}, took: 30 * time.Second, err: errors.New("1 wrong"), row: tally.Row{
				Runs: 1, ToolTwice: 1, Figures: map[string]string{"goroutines": "12 to 12"},
			}},
		},
		mutations: []verdict{
			{mutation: mutation{name: "no fence"}, by: []string{"TestFence"}},
			{mutation: mutation{name: "no lock"}},
			{mutation: mutation{name: "no code"}, err: errors.New("its tests were not run")},
		},
	}
}

func TestTheReportShowsWhatWasDoneAndWhatIsWrong(t *testing.T) {
	t.Parallel()
	r := example()
	require.Equal(t, `part   runs  operations  kills  lost  doubled  reordered  loaded after withdrawal  tool twice  reply twice  took   
races  2     123,456     0      0     0        0          0                        0           0            1m0s   passed
soak   1     0           0      0     0        0          0                        1           0            30s    FAILED
all    3     123,456     0      0     0        0          0                        1           0            1m30s  

steer, from its accept to the model request that shows it: p50 3ms, p99 2s, of 3
race cells: 2, visited from 3 times (stop, then take) to 7 times (take, then stop)
soak: goroutines: 12 to 12
mutations: 2 applied, 1 caught; NOT caught: no lock

0001-01-01 00:00, commit abc, a machine. It took 1m30s.
`, r.text(false))
	require.Contains(t, r.text(true), "\nstop, then take  3\ntake, then stop  7\nno fence         TestFence                          0s\nno lock          NOT caught                         0s\n")
	require.EqualError(t, r.err(), "soak: 1 wrong\nno lock: NOT caught\nno code: not tried: its tests were not run")
	require.NoError(t, report{results: r.results[:1], mutations: r.mutations[:1]}.err())
}

func TestTheReportGoesIntoBothPages(t *testing.T) {
	t.Parallel()
	docs, readme := filepath.Join(t.TempDir(), "docs.md"), filepath.Join(t.TempDir(), "readme.md")
	require.NoError(t, os.WriteFile(docs, []byte("a\n"+sectionBegin+"\n"+page.End+"\nb\n"), 0o600))
	require.NoError(t, os.WriteFile(readme, []byte("a\n"+summaryBegin+"\n"+page.End+"\nb\n"), 0o600))
	require.NoError(t, example().write(docs, readme))
	got, err := os.ReadFile(docs)
	require.NoError(t, err)
	require.Contains(t, string(got), "| races | 2 | 123,456 | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 1m0s | passed |\n")
	require.Contains(t, string(got), "| no fence | TestFence |\n| no lock | NOT caught |\n")
	got, err = os.ReadFile(readme)
	require.NoError(t, err)
	require.Equal(t, "a\n"+summaryBegin+"\nThe laboratory FAILED (commit abc, 0001-01-01): 3 runs with 123,456 operations and 0 kills; lost 0, doubled 0, "+
		"reordered 0, loaded after withdrawal 0, side effects run twice 1, replies sent twice 0. Of 2 ways to break the engine its tests catch 1.\n"+
		page.End+"\nb\n", string(got))
	require.Error(t, example().write(readme, ""))
}

func TestAnUnknownPartIsRefusedByItsName(t *testing.T) {
	t.Parallel()
	_, err := choose("mutations,luck")
	require.ErrorContains(t, err, `no part "luck"`)
	list, err := choose(mutationsPart)
	require.NoError(t, err)
	require.Equal(t, []string{mutationsPart}, list)
}
