package deploy

import (
	"bufio"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/stretchr/testify/require"
)

const root = "../.."

// compose loads docker-compose.yml as `docker compose` does, with .env.example filled in.
func compose(t *testing.T) *types.Project {
	t.Helper()
	opts, err := cli.NewProjectOptions([]string{filepath.Join(root, "docker-compose.yml")},
		cli.WithWorkingDirectory(root), cli.WithEnv(filledIn(t)), cli.WithResolvedPaths(true))
	require.NoError(t, err)
	p, err := opts.LoadProject(t.Context())
	require.NoError(t, err)
	return p
}

// filledIn is .env.example as somebody fills it in.
func filledIn(t *testing.T) []string {
	t.Helper()
	var env []string
	for _, line := range lines(t, ".env.example") {
		name, value, ok := strings.Cut(line, "=")
		if !ok || strings.HasPrefix(line, "#") {
			continue
		}
		if value == "" {
			value = "filled-in"
		}
		env = append(env, name+"="+value)
	}
	require.NotEmpty(t, env)
	return env
}

func TestEveryVariableOfTheExampleIsUsedAndEveryOneUsedIsThereOrHasADefault(t *testing.T) {
	t.Parallel()
	text := strings.Join(lines(t, "docker-compose.yml"), "\n")
	given := map[string]bool{}
	for _, e := range filledIn(t) {
		name, _, _ := strings.Cut(e, "=")
		given[name] = true
		require.Contains(t, text, "${"+name, ".env.example has it")
	}
	for _, m := range regexp.MustCompile(`\$\{(\w+)(:-)?`).FindAllStringSubmatch(text, -1) {
		require.True(t, given[m[1]] || m[2] != "", "%s is in .env.example, or has a default", m[1])
	}
	require.Contains(t, lines(t, ".gitignore"), "/.env")
}

func TestASecretThatIsNotSetStopsComposeWithAHint(t *testing.T) {
	t.Parallel()
	opts, err := cli.NewProjectOptions([]string{filepath.Join(root, "docker-compose.yml")}, cli.WithWorkingDirectory(root))
	require.NoError(t, err)
	_, err = opts.LoadProject(t.Context())
	require.ErrorContains(t, err, "see .env.example")
}

func TestComposeSetsOnlyVariablesThatThereAre(t *testing.T) {
	t.Parallel()
	known := variables(t)
	for _, name := range []string{"migrate", "api", "worker"} {
		for variable := range service(t, compose(t), name).Environment {
			require.Contains(t, known, variable, "%s sets it", name)
		}
	}
	for _, in := range dockerfile(t) {
		if in.word != "ENV" {
			continue
		}
		for _, m := range regexp.MustCompile(`\b(BOBBIN_\w+)=`).FindAllStringSubmatch(in.args, -1) {
			require.Contains(t, known, m[1])
		}
	}
}

func TestComposeRunsCommandsThatThereAre(t *testing.T) {
	t.Parallel()
	p, known := compose(t), commands(t)
	for _, name := range []string{"migrate", "api", "worker"} {
		s := service(t, p, name)
		require.Equal(t, types.ShellCommand{name}, s.Command)
		require.Contains(t, known, name)
		require.True(t, s.ReadOnly)
		require.Equal(t, []string{"ALL"}, s.CapDrop)
	}
	for _, s := range p.Services {
		if c := s.HealthCheck; c != nil && !c.Disable && c.Test[1] == "bobbin" {
			require.Contains(t, known, c.Test[2])
		}
	}
}

func TestThereAreTwoOfEachProcessThatMayBeMany(t *testing.T) {
	t.Parallel()
	p := compose(t)
	for _, name := range []string{"api", "worker"} {
		s := service(t, p, name)
		require.NotNil(t, s.Deploy.Replicas, name)
		require.Equal(t, 2, *s.Deploy.Replicas, name)
		require.Empty(t, s.Ports, "%s: two cannot have one port of the machine", name)
		require.Equal(t, "unless-stopped", s.Restart)
		for on, condition := range map[string]string{
			"migrate": types.ServiceConditionCompletedSuccessfully, "postgres": types.ServiceConditionHealthy, "temporal": types.ServiceConditionHealthy,
		} {
			require.Equal(t, condition, s.DependsOn[on].Condition, "%s waits for %s", name, on)
		}
	}
	templates := regexp.MustCompile(`(?m)^  server-template api (\d+) api:(\d+)$`).FindAllStringSubmatch(strings.Join(lines(t, "deploy/haproxy.cfg"), "\n"), -1)
	require.Len(t, templates, 2)
	for _, m := range templates {
		require.Equal(t, "2", m[1], "as many as there are")
		require.Equal(t, []string{m[2]}, []string(service(t, p, "api").Expose))
		require.Equal(t, "0.0.0.0:"+m[2], *service(t, p, "api").Environment["BOBBIN_ADDR"])
	}
}

// Else a stranger's failures would be counted as the balancer's, and lock everybody out.
func TestTheAPIBelievesTheBalancerWhoAsks(t *testing.T) {
	t.Parallel()
	p := compose(t)
	require.Equal(t, p.Networks["default"].Ipam.Config[0].Subnet, *service(t, p, "api").Environment["BOBBIN_TRUSTED_PROXIES"])
	require.Contains(t, strings.Join(lines(t, "deploy/haproxy.cfg"), "\n"), "\n  http-request set-header X-Forwarded-For %[src] unless")
}

func TestProcessesHaveTheTimeThatTheyNeedToEnd(t *testing.T) {
	t.Parallel()
	p := compose(t)
	worker := service(t, p, "worker")
	drain, err := time.ParseDuration(*worker.Environment["BOBBIN_DRAIN_TIMEOUT"])
	require.NoError(t, err)
	require.Greater(t, time.Duration(*worker.StopGracePeriod), 2*drain, "rounds, and then tools")
	require.Greater(t, time.Duration(*service(t, p, "api").StopGracePeriod), 10*time.Second, "requests")
}

func TestImagesArePinnedAndSaidHealthy(t *testing.T) {
	t.Parallel()
	p := compose(t)
	pinned := regexp.MustCompile(`^[a-z]+(/[a-z-]+)?:\d+\.\d+(\.\d+)?(-[a-z]+)?$`)
	for name, s := range p.Services {
		if s.Build == nil {
			require.Regexp(t, pinned, s.Image, name)
		}
		for on, d := range s.DependsOn {
			if d.Condition == types.ServiceConditionHealthy {
				c := service(t, p, on).HealthCheck
				require.True(t, c != nil && !c.Disable, "%s waits until %s is healthy", name, on)
			}
		}
		for _, v := range s.Volumes {
			if v.Type == types.VolumeTypeBind {
				require.FileExists(t, firstFile(t, v.Source), name)
			}
		}
		for _, port := range s.Ports {
			require.Equal(t, "127.0.0.1", port.HostIP, "%s is for this machine until somebody decides otherwise", name)
		}
	}
	for _, in := range dockerfile(t) {
		if image, _, _ := strings.Cut(in.args, " "); in.word == "FROM" && image != "scratch" {
			require.Regexp(t, pinned, image)
		}
	}
}

func TestTemporalsSettingsAreThoseOfTheDocument(t *testing.T) {
	t.Parallel()
	page, file := strings.Join(lines(t, "docs/operations.md"), "\n"), strings.Join(lines(t, "deploy/temporal.yaml"), "\n")
	documented := regexp.MustCompile(`(?m)^([a-z]+\.\w+): +\[\{value: (\w+)\}\]$`).FindAllStringSubmatch(page, -1)
	require.NotEmpty(t, documented)
	var want []string
	for _, m := range documented {
		want = append(want, m[1]+" "+m[2])
	}
	var got []string
	for _, m := range regexp.MustCompile(`(?m)^([a-z]+\.\w+):\n  - value: (\w+)$`).FindAllStringSubmatch(file, -1) {
		got = append(got, m[1]+" "+m[2])
	}
	require.ElementsMatch(t, want, got)
}

func service(t *testing.T, p *types.Project, name string) types.ServiceConfig {
	t.Helper()
	s, err := p.GetService(name)
	require.NoError(t, err)
	return s
}

// firstFile is path, or a file in it.
func firstFile(t *testing.T, path string) string {
	t.Helper()
	inside, err := filepath.Glob(filepath.Join(path, "*"))
	require.NoError(t, err)
	if len(inside) > 0 {
		return inside[0]
	}
	return path
}

func lines(t *testing.T, name string) (list []string) {
	t.Helper()
	f, err := os.Open(filepath.Join(root, name))
	require.NoError(t, err)
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		list = append(list, s.Text())
	}
	require.NotEmpty(t, list)
	return list
}

// variables are the names that the binary reads.
func variables(t *testing.T) (names []string) {
	t.Helper()
	inspect(t, "cmd/bobbin/config.go", func(n ast.Node) {
		if f, ok := n.(*ast.Field); ok && f.Tag != nil {
			raw, err := strconv.Unquote(f.Tag.Value)
			require.NoError(t, err)
			if name := reflect.StructTag(raw).Get("env"); name != "" {
				names = append(names, name)
			}
		}
	})
	return names
}

// commands are the names of the list in main.go.
func commands(t *testing.T) (names []string) {
	t.Helper()
	inspect(t, "cmd/bobbin/main.go", func(n ast.Node) {
		c, ok := n.(*ast.CompositeLit)
		if !ok || len(c.Elts) != 4 {
			return
		}
		if name, ok := c.Elts[0].(*ast.BasicLit); ok && name.Kind == token.STRING {
			word, err := strconv.Unquote(name.Value)
			require.NoError(t, err)
			names = append(names, word)
		}
	})
	return names
}

func inspect(t *testing.T, file string, visit func(ast.Node)) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, parser.SkipObjectResolution)
	require.NoError(t, err)
	ast.Inspect(f, func(n ast.Node) bool {
		visit(n)
		return true
	})
}
