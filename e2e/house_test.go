package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"
	"google.golang.org/protobuf/types/known/durationpb"

	"bobbin/contract"
	"bobbin/embedded/temporal"
	"bobbin/llm/scripted"
	"bobbin/store"
	"bobbin/store/storetest"
)

// patience is how long a test waits for what must come. Nothing is ever decided by its passing.
const patience = 90 * time.Second

// pollEvery is how often a wait looks at what cannot tell by itself.
const pollEvery = 20 * time.Millisecond

const owner, apiKey = "anna", "bob_e2e"

func TestMain(m *testing.M) {
	code := m.Run()
	if scratchMade {
		if srv, err := temporalServer(); err == nil {
			_ = srv.Stop(context.Background())
		}
		_ = os.RemoveAll(scratch())
	}
	os.Exit(code)
}

var scratchMade bool

// scratch is the folder of what the whole package shares.
var scratch = sync.OnceValue(func() string {
	dir, err := os.MkdirTemp("", "bobbin-e2e-")
	if err != nil {
		panic(err)
	}
	scratchMade = true
	return dir
})

// binary builds the program once.
var binary = sync.OnceValue(func() string {
	path := filepath.Join(scratch(), "bobbin")
	build := exec.Command("go", "build", "-o", path, "bobbin/cmd/bobbin")
	if out, err := build.CombinedOutput(); err != nil {
		panic(fmt.Sprintf("build: %v\n%s", err, out))
	}
	return path
})

// temporalServer is one server for the package, without a disk.
var temporalServer = sync.OnceValues(func() (*temporal.Server, error) {
	return temporal.Start(context.Background(), temporal.Config{
		Dir: filepath.Join(scratch(), "temporal"), Memory: true, Namespace: "default", Headless: true,
		Program: os.Getenv("BOBBIN_TEST_TEMPORAL_PROGRAM"),
	})
})

// A house is one installation, as one test sees it.
type house struct {
	t *testing.T
	*installation
	via *process // the API that is asked; nil: the one that was started last and lives
}

// through is the house as it is seen through one of its APIs.
func (h *house) through(api *process) *house { return &house{h.t, h.installation, api} }

// in is the house for a subtest.
func (h *house) in(t *testing.T) *house {
	t.Helper()
	return &house{t, h.installation, h.via}
}

// An installation is a database, a Temporal namespace, a model provider, a server of tools, and processes.
type installation struct {
	dir       string
	dsn       string
	namespace string
	env       []string

	db       *store.DB     // as another process would have it
	sql      *pgxpool.Pool // looks at what no function of the store shows, and makes time pass
	temporal client.Client
	line     *line // the way from the processes to Temporal
	model    *scripted.Server
	tools    *toolServer

	mu        sync.Mutex
	processes []*process
	chats     int
}

// open makes a house with nothing running in it. env are variables for all its processes.
func open(t *testing.T, env ...string) *house {
	t.Helper()
	srv, err := temporalServer()
	require.NoError(t, err, "start Temporal")
	return openOn(t, srv, env...)
}

// openOn makes a house on a given Temporal server.
func openOn(t *testing.T, srv *temporal.Server, env ...string) *house {
	t.Helper()
	h := &house{t: t, installation: &installation{dir: t.TempDir(), dsn: storetest.DSN(t)}}
	h.namespace = "e2e-" + filepath.Base(h.dsn[:strings.IndexByte(h.dsn+"?", '?')])
	h.db = storetest.Open(t, h.dsn)
	var err error
	h.sql, err = pgxpool.New(t.Context(), h.dsn)
	require.NoError(t, err)
	t.Cleanup(h.sql.Close)
	require.NoError(t, h.db.EnsureKey(t.Context(), owner, "e2e", apiKey))
	h.stock("fil_1", "fil_7")
	h.line = newLine(t, srv.Address())
	h.openNamespace(srv.Address())
	h.openModel()
	h.tools = newToolServer(t)
	toolsFile := filepath.Join(h.dir, "tools.yaml")
	require.NoError(t, os.WriteFile(toolsFile, []byte(h.tools.file()), 0o600))
	h.env = append([]string{
		"DATABASE_URL=" + h.dsn, "TEMPORAL_ADDRESS=" + h.line.addr, "TEMPORAL_NAMESPACE=" + h.namespace,
		"BOBBIN_MODEL=scripted", "BOBBIN_TOOLS_FILE=" + toolsFile,
	}, append(h.env, env...)...)
	t.Cleanup(h.close)
	return h
}

// stock puts small texts where uploads of the owner would stand, for tests that are not about files.
func (h *house) stock(ids ...string) {
	h.t.Helper()
	storetest.AddFiles(h.t, h.dsn, owner, ids...)
	dir := filepath.Join(h.dir, ".bobbin", "files")
	require.NoError(h.t, os.MkdirAll(dir, 0o700))
	for _, id := range ids {
		require.NoError(h.t, os.WriteFile(filepath.Join(dir, id), []byte("words"), 0o600))
	}
}

// openModel serves the scripted provider. It is closed first, so that no worker waits for it.
func (h *house) openModel() {
	h.model = scripted.New(scripted.Options{})
	web := httptest.NewServer(h.model)
	h.t.Cleanup(func() {
		h.model.Close()
		web.CloseClientConnections()
		web.Close()
	})
	h.env = append(h.env, "OPENAI_API_KEY=e2e", "OPENAI_BASE_URL="+web.URL+"/v1")
}

// openNamespace registers the namespace and waits until the server knows it everywhere.
func (h *house) openNamespace(address string) {
	var err error
	h.temporal, err = client.Dial(client.Options{HostPort: address, Namespace: h.namespace, Logger: silent{}})
	require.NoError(h.t, err)
	h.t.Cleanup(h.temporal.Close)
	_, err = h.temporal.WorkflowService().RegisterNamespace(h.t.Context(), &workflowservice.RegisterNamespaceRequest{
		Namespace: h.namespace, WorkflowExecutionRetentionPeriod: durationpb.New(24 * time.Hour),
	})
	require.NoError(h.t, err)
	h.until("the namespace", func() bool {
		_, err := h.temporal.DescribeWorkflowExecution(h.t.Context(), "none", "")
		notFound, ok := errors.AsType[*serviceerror.NotFound](err)
		return ok && !strings.Contains(notFound.Error(), "amespace")
	})
}

// migrate runs the command that an operator runs.
func (h *house) migrate() {
	h.t.Helper()
	p := h.start("migrate")
	require.Zero(h.t, p.waitEnd(), "migrate: %s", p.logText())
}

// furnish opens a house with one API and one worker.
func furnish(t *testing.T, env ...string) *house {
	t.Helper()
	h := open(t, env...)
	h.migrate()
	h.api()
	h.worker()
	return h
}

func (h *house) close() {
	if h.t.Failed() {
		h.t.Log(h.state())
	}
	for _, p := range h.processes {
		p.kill()
	}
	if kept := h.model.Refusals(); len(kept) > 0 && !h.t.Failed() {
		h.t.Errorf("the provider refused requests: %+v", *kept[0])
	}
}

// until waits for what must come. It looks again and again, so done may be cheap only.
func (h *house) until(what string, done func() bool) {
	h.t.Helper()
	deadline := time.Now().Add(patience)
	for !done() {
		if time.Now().After(deadline) {
			h.fail("waited in vain for %s", what)
		}
		time.Sleep(pollEvery)
	}
}

func (h *house) fail(format string, args ...any) {
	h.t.Helper()
	h.t.Fatalf(format, args...)
}

// ctx bounds one wait.
func (h *house) ctx() context.Context {
	ctx, cancel := context.WithTimeout(h.t.Context(), patience)
	h.t.Cleanup(cancel)
	return ctx
}

// request waits for the nth request of a chat at the provider.
func (h *house) request(marker string, n int) scripted.Request {
	h.t.Helper()
	r, err := h.model.WaitOf(h.ctx(), marker, n)
	if err != nil {
		h.fail("waited in vain for request %d of %s: %v", n, marker, err)
	}
	return r
}

// url is the address of the API process that is asked.
func (h *house) url() string {
	if h.via != nil {
		return "http://" + h.via.addr
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range slices.Backward(h.processes) {
		if p.addr != "" && !p.ended() {
			return "http://" + p.addr
		}
	}
	return "http://127.0.0.1:1"
}

// count returns what a query that counts finds.
func (h *house) count(query string, args ...any) int {
	h.t.Helper()
	var n int
	require.NoError(h.t, h.sql.QueryRow(h.t.Context(), query, args...).Scan(&n))
	return n
}

// state is all that helps to see why a test failed.
func (h *house) state() string {
	var b strings.Builder
	for _, q := range []string{
		`SELECT format('turn %s %s %s %s rounds=%s calls=%s attempt=%s error=%s driven=%s', id, thread_id, kind, status, rounds, tool_calls, attempt, COALESCE(error_code, '-'), driven_at) FROM turns ORDER BY created_at DESC LIMIT 25`,
		`SELECT format('run %s turn=%s stopping=%s', thread_id, turn_id, stopping) FROM runs WHERE turn_id IS NOT NULL LIMIT 25`,
		`SELECT format('steering %s %s %s', thread_id, message_id, state) FROM steering WHERE state = 'queued'`,
		`SELECT format('outbox %s %s %s due=%s', thread_id, kind, turn_id, due_at) FROM outbox LIMIT 25`,
		`SELECT format('attempt %s of %s, activity %s of %s', worker_id, turn_id, activity_id, workflow_id) FROM attempts`,
		`SELECT format('event %s %s %s', thread_id, seq, name) FROM events ORDER BY created_at DESC, seq DESC LIMIT 25`,
	} {
		h.list(&b, q)
	}
	requests := h.model.Requests()
	for _, r := range requests[max(0, len(requests)-15):] {
		last := r.Messages[len(r.Messages)-1]
		fmt.Fprintf(&b, "request %d: %d messages, last %s %.60q, finished=%v gone=%v\n", r.N, len(r.Messages), last.Role, last.Text,
			!r.Finished.IsZero(), !r.Gone.IsZero())
	}
	for _, p := range h.processes {
		lines := strings.Split(strings.TrimSpace(p.logText()), "\n")
		lines = slices.DeleteFunc(lines, func(l string) bool { return strings.Contains(l, "msg=request ") })
		fmt.Fprintf(&b, "--- %s (ended=%v)\n%s\n", p.name, p.ended(), strings.Join(lines[max(0, len(lines)-12):], "\n"))
	}
	return b.String()
}

func (h *house) list(b *strings.Builder, query string) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	rows, err := h.sql.Query(ctx, query)
	if err != nil {
		fmt.Fprintln(b, err)
		return
	}
	defer rows.Close()
	for rows.Next() {
		var s string
		if rows.Scan(&s) == nil {
			fmt.Fprintln(b, s)
		}
	}
}

// workflowID is that of a chat's thread.
func (c *chat) workflowID() string { return contract.ThreadWorkflowID(c.id) }

type silent struct{}

func (silent) Debug(string, ...any) {}
func (silent) Info(string, ...any)  {}
func (silent) Warn(string, ...any)  {}
func (silent) Error(string, ...any) {}

var _ sdklog.Logger = silent{}
