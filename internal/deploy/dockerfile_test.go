package deploy

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
	"github.com/stretchr/testify/require"
)

// An instruction of the Dockerfile, its lines joined.
type instruction struct{ word, args string }

func dockerfile(t *testing.T) (list []instruction) {
	t.Helper()
	var whole string
	for _, line := range lines(t, "Dockerfile") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		more := false
		if line, more = strings.CutSuffix(line, `\`); more {
			whole += strings.TrimSpace(line) + " "
			continue
		}
		word, args, _ := strings.Cut(whole+line, " ")
		list, whole = append(list, instruction{word, args}), ""
	}
	require.Empty(t, whole, "the last line goes on")
	return list
}

// last is the last instruction of a kind: that of the image.
func last(t *testing.T, word string) string {
	t.Helper()
	var args string
	for _, in := range dockerfile(t) {
		if in.word == word {
			args = in.args
		}
	}
	require.NotEmpty(t, args, word)
	return args
}

func TestTheImageIsTheBinaryAloneAndRunsAsNobodySpecial(t *testing.T) {
	t.Parallel()
	known := regexp.MustCompile(`^(FROM|WORKDIR|ENV|COPY|RUN|ARG|LABEL|USER|EXPOSE|HEALTHCHECK|ENTRYPOINT)$`)
	stages := 0
	for _, in := range dockerfile(t) {
		require.Regexp(t, known, in.word)
		if in.word == "FROM" {
			stages++
		}
	}
	require.Equal(t, 2, stages)
	require.Equal(t, "scratch", last(t, "FROM"))
	require.Regexp(t, `^[1-9]\d*:[1-9]\d*$`, last(t, "USER"), "a number, as there is no passwd file")

	var entrypoint, health []string
	require.NoError(t, json.Unmarshal([]byte(last(t, "ENTRYPOINT")), &entrypoint), "no shell")
	require.Equal(t, []string{"bobbin"}, entrypoint)
	_, form, _ := strings.Cut(last(t, "HEALTHCHECK"), "CMD ")
	require.NoError(t, json.Unmarshal([]byte(form), &health), "no shell")
	require.Equal(t, "bobbin", health[0])
	require.Contains(t, commands(t), health[1])
}

// What is built where git is not, and from less than the whole folder, must be the binary still.
func TestTheContextHoldsAllThatTheBinaryIsMadeOf(t *testing.T) {
	t.Parallel()
	patterns, err := ignorefile.ReadAll(strings.NewReader(strings.Join(lines(t, ".dockerignore"), "\n")))
	require.NoError(t, err)
	ignore, err := patternmatcher.New(patterns)
	require.NoError(t, err)
	list := exec.Command("go", "list", "-deps", "-tags", "timetzdata", "-f",
		`{{if and .Module .Module.Main}}{{$d := .Dir}}{{range .GoFiles}}{{$d}}/{{.}}{{"\n"}}{{end}}{{range .EmbedFiles}}{{$d}}/{{.}}{{"\n"}}{{end}}{{end}}`,
		"./cmd/bobbin")
	list.Dir = root
	out, err := list.Output()
	require.NoError(t, err)
	base, err := filepath.Abs(root)
	require.NoError(t, err)
	files := strings.Fields(string(out))
	require.Greater(t, len(files), 50)
	for _, f := range append(files, filepath.Join(base, "go.mod"), filepath.Join(base, "go.sum")) {
		name, err := filepath.Rel(base, f)
		require.NoError(t, err)
		out, err := ignore.MatchesOrParentMatches(name)
		require.NoError(t, err)
		require.False(t, out, "%s is left out", name)
	}
	for _, secret := range []string{".env", ".env.local", ".git/config", ".bobbin/postgres/data"} {
		out, err := ignore.MatchesOrParentMatches(secret)
		require.NoError(t, err)
		require.True(t, out, "%s would be in the image's build", secret)
	}
}

func TestTheImageIsBuiltWithTheGoOfTheModule(t *testing.T) {
	t.Parallel()
	var version string
	for _, line := range lines(t, "go.mod") {
		if v, ok := strings.CutPrefix(line, "go "); ok {
			version = v
		}
	}
	minor := regexp.MustCompile(`^\d+\.\d+`).FindString(version)
	require.Contains(t, dockerfile(t)[0].args, "golang:"+minor+".")
}
