package temporal

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"bobbin/embedded/postgres"
)

// ownerVar makes the test binary a program that starts a server and waits.
const ownerVar = "TEMPORAL_TEST_OWNER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(ownerVar); dir != "" {
		own(dir)
	}
	os.Exit(m.Run())
}

func own(dir string) {
	s, err := Start(context.Background(), Config{
		Dir: dir, Namespace: "bobbin", Headless: true, NoDownload: true, PostgresDSN: os.Getenv("DSN"),
	})
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	fmt.Println(s.Address(), s.PID())
	select {} // until killed
}

// config is one for a folder of the test's own. Tests run devserver, built once
// for all; that the chain's other programs are asked first has tests of its own.
func config(t *testing.T) Config {
	t.Helper()
	return Config{
		Dir: filepath.Join(t.TempDir(), "temporal"), Namespace: "bobbin", Headless: true, NoDownload: true,
		SearchAttributes: map[string]string{"ThreadId": "Keyword"}, Log: t.Logf,
	}
}

func start(t *testing.T, c Config) *Server {
	t.Helper()
	s, err := Start(t.Context(), c)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Stop(context.Background()) })
	return s
}

func database(t *testing.T) string {
	t.Helper()
	dsn, err := postgres.Shared(t.Context())
	require.NoError(t, err)
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	defer conn.Close(context.Background())
	name := fmt.Sprintf("temporal_%d_%s", os.Getpid(), strings.ToLower(filepath.Base(t.TempDir())+t.Name()))
	_, err = conn.Exec(t.Context(), "CREATE DATABASE "+pgx.Identifier{name[:min(len(name), 60)]}.Sanitize())
	require.NoError(t, err)
	return strings.Replace(dsn, "/"+postgres.Database+"?", "/"+name[:min(len(name), 60)]+"?", 1)
}

func dial(t *testing.T, address string) client.Client {
	t.Helper()
	c, err := client.Dial(client.Options{HostPort: address, Namespace: "bobbin", Logger: quiet()})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

var threadID = temporal.NewSearchAttributeKeyKeyword("ThreadId")

func greet(_ context.Context, name string) (string, error) { return "hello " + name, nil }

func greetWorkflow(ctx workflow.Context, name string) (string, error) {
	var out string
	err := workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		StartToCloseTimeout: workflow.GetInfo(ctx).WorkflowTaskTimeout,
	}), greet, name).Get(ctx, &out)
	return out, err
}

func runWorkflow(t *testing.T, c client.Client, id string) {
	t.Helper()
	w := worker.New(c, "greetings", worker.Options{})
	w.RegisterWorkflow(greetWorkflow)
	w.RegisterActivity(greet)
	require.NoError(t, w.Start())
	defer w.Stop()
	run, err := c.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{
		ID: id, TaskQueue: "greetings", TypedSearchAttributes: temporal.NewSearchAttributes(threadID.ValueSet("t1")),
	}, greetWorkflow, "you")
	require.NoError(t, err)
	var out string
	require.NoError(t, run.Get(t.Context(), &out))
	require.Equal(t, "hello you", out)
}

func requireResult(t *testing.T, c client.Client, id string) {
	t.Helper()
	var out string
	require.NoError(t, c.GetWorkflow(t.Context(), id, "").Get(t.Context(), &out))
	require.Equal(t, "hello you", out)
}

func TestStartInMemoryRunsWorkflow(t *testing.T) {
	t.Parallel()
	c := config(t)
	c.Memory, c.Headless = true, false
	s := start(t, c)
	require.False(t, s.InPostgres())
	resp, err := http.Get(s.UIURL())
	require.NoError(t, err)
	resp.Body.Close()
	require.Equal(t, http.StatusOK, resp.StatusCode)
	runWorkflow(t, dial(t, s.Address()), "w1")
}

func TestStartKeepsWorkflowsAcrossRestarts(t *testing.T) {
	t.Parallel()
	for name, dsn := range map[string]func(*testing.T) string{
		"Postgres": database,
		"SQLite":   func(*testing.T) string { return "" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := config(t)
			c.PostgresDSN = dsn(t)
			s := start(t, c)
			require.Equal(t, c.PostgresDSN != "", s.InPostgres())
			runWorkflow(t, dial(t, s.Address()), "w1")
			require.NoError(t, s.Stop(t.Context()))

			c.SearchAttributes["TurnNo"] = "Int" // one more than before
			s = start(t, c)
			requireResult(t, dial(t, s.Address()), "w1")
			runWorkflow(t, dial(t, s.Address()), "w2")
		})
	}
}

func TestStartAfterOwnerIsKilled(t *testing.T) {
	t.Parallel()
	c := config(t)
	c.PostgresDSN = database(t)
	for range 2 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), ownerVar+"="+c.Dir, "DSN="+c.PostgresDSN)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		line, err := bufio.NewReader(out).ReadString('\n')
		require.NoError(t, err, line)
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait()
	}
	s := start(t, c)
	runWorkflow(t, dial(t, s.Address()), "w1")
}

func TestStartAfterServerIsKilled(t *testing.T) {
	t.Parallel()
	c := config(t)
	c.PostgresDSN = database(t)
	s := start(t, c)
	runWorkflow(t, dial(t, s.Address()), "w1")
	require.NoError(t, syscall.Kill(s.PID(), syscall.SIGKILL))
	<-s.Done()
	require.ErrorContains(t, s.Err(), "killed")
	require.Error(t, s.Stop(t.Context()))

	s = start(t, c)
	requireResult(t, dial(t, s.Address()), "w1")
}

func TestStartTakesAnotherPortIfWantedOneIsTaken(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	c := config(t)
	c.Memory = true
	c.Port = l.Addr().(*net.TCPAddr).Port
	s := start(t, c)
	require.NotEqual(t, l.Addr().String(), s.Address())
	dial(t, s.Address())
}

func TestStartReturnsErrInUseWhileAnotherProcessOwnsTheFolder(t *testing.T) {
	t.Parallel()
	c := config(t)
	c, err := c.complete()
	require.NoError(t, err)
	owner, err := lockOwner(t.Context(), c)
	require.NoError(t, err)
	defer owner.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond) // it would wait for ownerWait
	defer cancel()
	_, err = Start(ctx, c)
	require.ErrorIs(t, err, ErrInUse)
}

func TestStartQuotesAServerThatEndsAtStart(t *testing.T) {
	t.Parallel()
	c := config(t)
	c.Program = script(t, "temporal", "echo no such luck >&2; exit 7")
	_, err := Start(t.Context(), c)
	require.ErrorContains(t, err, "no such luck")
	require.ErrorContains(t, err, "exit status 7")
}

func TestStartTriesOtherPortsIfOneIsTakenMeanwhile(t *testing.T) {
	t.Parallel()
	c := config(t)
	c.Program = script(t, "temporal", `echo x >>tries; echo "port 1 is in use" >&2; exit 1`)
	_, err := Start(t.Context(), c)
	require.ErrorIs(t, err, errPortTaken)
	tries, err := os.ReadFile(filepath.Join(c.Dir, "tries"))
	require.NoError(t, err)
	require.Equal(t, strings.Repeat("x\n", attempts), string(tries))
}

// script is a program of that name that runs the lines.
func script(t *testing.T, name, lines string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+lines+"\n"), 0o755))
	return path
}

func TestFolderStaysWithItsStore(t *testing.T) {
	t.Parallel()
	stock, ours := program{path: "temporal"}, program{path: "devserver", devserver: true}
	c := config(t)
	c.PostgresDSN = "postgres://x/y"
	c, err := c.complete()
	require.NoError(t, err)

	in, err := chooseStore(c, stock)
	require.NoError(t, err)
	require.False(t, in, "a stock server can't use Postgres")
	in, err = chooseStore(c, ours)
	require.NoError(t, err)
	require.True(t, in)
	require.FileExists(t, markPath(c))

	require.NoError(t, os.WriteFile(filepath.Join(c.Dir, "temporal.db"), nil, 0o600))
	in, err = chooseStore(c, ours)
	require.NoError(t, err)
	require.False(t, in, "what is there already wins")
}

func TestBuiltPathChangesWithTheSources(t *testing.T) {
	t.Parallel()
	c := Config{SourceDir: t.TempDir(), CacheDir: t.TempDir()}
	write := func(name, content string) string {
		require.NoError(t, os.WriteFile(filepath.Join(c.SourceDir, name), []byte(content), 0o600))
		path, err := builtPath(c)
		require.NoError(t, err)
		return path
	}
	first := write("main.go", "package main")
	require.Equal(t, first, write("main_test.go", "package main"), "tests are no part of the program")
	require.NotEqual(t, first, write("go.sum", "x"))
}

func TestEnvironmentHoldsNoSecrets(t *testing.T) {
	t.Setenv("OPENAI_API_KEY", "secret")
	t.Setenv("PGSERVICE", "other")
	env := strings.Join(environment(Config{PostgresDSN: "postgres://x"}, true), "\n")
	require.NotContains(t, env, "secret")
	require.NotContains(t, env, "PGSERVICE")
	require.Contains(t, env, "DEVSERVER_POSTGRES=postgres://x")
	require.NotContains(t, strings.Join(environment(Config{PostgresDSN: "postgres://x"}, false), "\n"), "postgres://")
}
