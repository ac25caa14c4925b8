package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/operatorservice/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
)

// Run them with -trimpath: the program is built so, and the two then share the
// compiler's cache, which holds minutes of work. The tests on Postgres need a
// server, as a URL in DEVSERVER_TEST_POSTGRES; those of embedded/temporal bring one.

// runVar makes the test binary the program itself.
const runVar = "DEVSERVER_TEST_RUN"

func TestMain(m *testing.M) {
	if os.Getenv(runVar) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// devserver is the program running as a process of its own.
type devserver struct {
	cmd       *exec.Cmd
	port, ui  int
	out       bytes.Buffer
	hasEnded  chan struct{}
	exitError error
}

func launch(t *testing.T, args ...string) *devserver {
	t.Helper()
	ports, err := freePorts("127.0.0.1", 2)
	require.NoError(t, err)
	d := &devserver{port: ports[0], ui: ports[1], hasEnded: make(chan struct{})}
	d.cmd = exec.Command(os.Args[0], append([]string{
		"server", "start-dev", "--port", strconv.Itoa(d.port), "--ui-port", strconv.Itoa(d.ui), "--namespace", "bobbin",
	}, args...)...)
	d.cmd.Env = append(os.Environ(), runVar+"=1")
	d.cmd.Stdout, d.cmd.Stderr = &d.out, &d.out
	require.NoError(t, d.cmd.Start())
	go func() {
		d.exitError = d.cmd.Wait()
		close(d.hasEnded)
	}()
	t.Cleanup(func() { d.end(syscall.SIGKILL) })
	return d
}

func (d *devserver) end(sig syscall.Signal) error {
	if err := d.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-d.hasEnded
	return d.exitError
}

// dial waits until the frontend answers.
func (d *devserver) dial(t *testing.T) client.Client {
	t.Helper()
	var c client.Client
	require.Eventually(t, func() bool {
		select {
		case <-d.hasEnded:
			require.FailNow(t, "devserver ended", "%v\n%s", d.exitError, d.out.String())
		default:
		}
		var err error
		c, err = client.Dial(client.Options{
			HostPort:  net.JoinHostPort("127.0.0.1", strconv.Itoa(d.port)),
			Namespace: "bobbin",
			Logger:    log.NewStructuredLogger(slog.New(slog.DiscardHandler)),
		})
		return err == nil
	}, 2*time.Minute, 50*time.Millisecond)
	t.Cleanup(c.Close)
	return c
}

func greet(ctx workflow.Context) (string, error) {
	return workflow.GetInfo(ctx).WorkflowExecution.ID, workflow.Sleep(ctx, time.Millisecond)
}

func runWorkflow(t *testing.T, c client.Client, id string, priority int) {
	t.Helper()
	w := worker.New(c, "q", worker.Options{})
	w.RegisterWorkflow(greet)
	require.NoError(t, w.Start())
	defer w.Stop()
	_, err := c.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{
		ID: id, TaskQueue: "q", Priority: temporal.Priority{PriorityKey: priority, FairnessKey: "owner"},
		TypedSearchAttributes: temporal.NewSearchAttributes(temporal.NewSearchAttributeKeyKeyword("ThreadId").ValueSet(id)),
	}, greet)
	require.NoError(t, err)
	requireResult(t, c, id)
}

func requireResult(t *testing.T, c client.Client, id string) {
	t.Helper()
	var got string
	require.NoError(t, c.GetWorkflow(t.Context(), id, "").Get(t.Context(), &got))
	require.Equal(t, id, got)
}

// stores are the flags for each kind of store, fresh for the test.
func stores(t *testing.T) map[string][]string {
	t.Helper()
	all := map[string][]string{"SQLiteFile": {"--db-filename", filepath.Join(t.TempDir(), "t.db")}}
	if dsn := os.Getenv("DEVSERVER_TEST_POSTGRES"); dsn != "" {
		all["Postgres"] = []string{"--postgres", database(t, dsn)}
	}
	return all
}

// database makes one for the test; the variable names the server, as a URL.
func database(t *testing.T, dsn string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	defer conn.Close(context.Background())
	name := fmt.Sprintf("devserver_%d_%d", os.Getpid(), time.Now().UnixNano())
	_, err = conn.Exec(t.Context(), "CREATE DATABASE "+name)
	require.NoError(t, err)
	head, query, _ := strings.Cut(dsn, "?")
	return head[:strings.LastIndex(head, "/")+1] + name + "?" + query
}

func TestMemoryServesWorkflowsAndUI(t *testing.T) {
	t.Parallel()
	d := launch(t, "--search-attribute", "ThreadId=Keyword")
	c := d.dial(t)
	runWorkflow(t, c, "w1", 1)
	ns, err := c.WorkflowService().DescribeNamespace(t.Context(), &workflowservice.DescribeNamespaceRequest{Namespace: "bobbin"})
	require.NoError(t, err)
	require.Equal(t, 72*time.Hour, ns.GetConfig().GetWorkflowExecutionRetentionTtl().AsDuration())
	_, err = c.WorkflowService().DescribeNamespace(t.Context(), &workflowservice.DescribeNamespaceRequest{Namespace: "default"})
	require.NoError(t, err)

	resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/", d.ui))
	require.NoError(t, err)
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.StatusCode, string(page))
	require.NoError(t, d.end(syscall.SIGTERM), d.out.String())
}

func TestStoreKeepsStateAcrossStopAndKill(t *testing.T) {
	t.Parallel()
	for name, flags := range stores(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			flags := append(flags, "--search-attribute", "ThreadId=Keyword")
			d := launch(t, flags...)
			runWorkflow(t, d.dial(t), "w1", 1)
			require.NoError(t, d.end(syscall.SIGINT), d.out.String())

			d = launch(t, append(flags, "--search-attribute", "TurnNo=Int")...)
			c := d.dial(t)
			requireResult(t, c, "w1")
			attributes, err := c.OperatorService().ListSearchAttributes(t.Context(),
				&operatorservice.ListSearchAttributesRequest{Namespace: "bobbin"})
			require.NoError(t, err)
			require.Equal(t, enumspb.INDEXED_VALUE_TYPE_INT, attributes.GetCustomAttributes()["TurnNo"])
			runWorkflow(t, c, "w2", 5)
			require.Error(t, d.end(syscall.SIGKILL))

			c = launch(t, flags...).dial(t)
			requireResult(t, c, "w2")
			runWorkflow(t, c, "w3", 3)
		})
	}
}

func TestStartRefusesToChangeTheTypeOfASearchAttribute(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "t.db")
	d := launch(t, "--db-filename", file, "--search-attribute", "ThreadId=Keyword")
	d.dial(t)
	require.NoError(t, d.end(syscall.SIGINT), d.out.String())
	d = launch(t, "--db-filename", file, "--search-attribute", "ThreadId=Int")
	<-d.hasEnded
	require.Error(t, d.exitError)
	require.Contains(t, d.out.String(), "ThreadId is of type Keyword already")
}

func TestStartNamesThePortThatIsTaken(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	d := launch(t, "--http-port", strconv.Itoa(port))
	<-d.hasEnded
	require.Error(t, d.exitError)
	require.Contains(t, d.out.String(), fmt.Sprintf("port %d of 127.0.0.1 is in use", port))
	require.Contains(t, d.out.String(), "-http-port")
}

func TestParseFillsInDefaultsAndTakesValuesOfEachKind(t *testing.T) {
	t.Parallel()
	o, err := parse([]string{
		"server", "start-dev", "--port", "100", "--namespace", "a", "--namespace", "b", "--namespace", "a",
		"--search-attribute", "A=Keyword", "--search-attribute", "B=KeywordList",
		"--dynamic-config-value", "x=5", "--dynamic-config-value", `y="s=t"`, "--dynamic-config-value", "z=0.5",
	}, io.Discard)
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:100", o.address())
	require.Equal(t, "127.0.0.1:1100", o.uiAddress())
	require.Equal(t, []string{"default", "a", "b"}, o.namespaces)
	require.Equal(t, enumspb.INDEXED_VALUE_TYPE_KEYWORD_LIST, o.searchAttributes["B"])
	require.Equal(t, map[string]any{"x": 5, "y": "s=t", "z": 0.5}, o.dynamicConfig)
}

func TestParseReturnsErrorForWhatItCannotMean(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"want name=Type":      {"--search-attribute", "A"},
		"is no type":          {"--search-attribute", "A=Word"},
		"want key=json":       {"--dynamic-config-value", "a"},
		"value of a":          {"--dynamic-config-value", "a=b"},
		"exclude each other":  {"--postgres", "x", "--db-filename", "y"},
		"unexpected argument": {"start"},
		"not defined":         {"--no-such-flag"},
	} {
		_, err := parse(args, io.Discard)
		require.ErrorContains(t, err, want)
	}
}

func TestWithSearchPathTakesBothFormsOfDSN(t *testing.T) {
	t.Parallel()
	for _, dsn := range []string{
		"postgres://u:p%40ss@/db?host=/run/x&port=5432", "postgresql://u@localhost/db", "host=/run/x user=u dbname=db",
	} {
		with, err := withSearchPath(dsn, "temporal,public")
		require.NoError(t, err)
		before, err := pgx.ParseConfig(dsn)
		require.NoError(t, err)
		after, err := pgx.ParseConfig(with)
		require.NoError(t, err)
		require.Equal(t, "temporal,public", after.RuntimeParams["search_path"])
		require.Equal(t, []string{before.Host, before.User, before.Password, before.Database},
			[]string{after.Host, after.User, after.Password, after.Database})
	}
}
