// Package house is what the end-to-end tests stand in: the real binary, real Postgres, real Temporal, and a scripted model
// provider that is as strict as a real one, with people who chat and tools whose calls are counted.
//
// A House is one installation with a database and a Temporal namespace of its own. A test opens one, starts as many API and
// worker processes in it as its story needs, and may kill, freeze or cut them off; what must hold is read from what the
// provider was sent, from the event stream, and from the conversation as the API shows it. Nothing sleeps for luck: every
// wait is for an event, a request at the provider or a row, and ends after Patience with the state of everything. All
// processes die with the test that started them.
//
// A package that opens houses hands its TestMain to Main.
package house

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

	"bobbin/embedded/temporal"
	"bobbin/llm/scripted"
	"bobbin/store"
	"bobbin/store/storetest"
)

// Patience is how long a test waits for what must come. Nothing is ever decided by its passing.
const Patience = 90 * time.Second

// PollEvery is how often a wait looks at what cannot tell by itself.
const PollEvery = 20 * time.Millisecond

// Owner is who all chats belong to, and APIKey the key of that owner.
const Owner, APIKey = "anna", "bob_e2e"

// Main runs a package's tests, and puts away what they shared. It does not return.
func Main(m *testing.M) {
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

// A House is one installation, as one test sees it.
type House struct {
	T *testing.T // whom a failure fails
	*Installation
	via *Process // the API that is asked; nil: the one that was started last and lives
}

// Through is the house as it is seen through one of its APIs.
func (h *House) Through(api *Process) *House { return &House{h.T, h.Installation, api} }

// In is the house for a subtest.
func (h *House) In(t *testing.T) *House {
	t.Helper()
	return &House{t, h.Installation, h.via}
}

// An Installation is a database, a Temporal namespace, a model provider, a server of tools, and processes.
type Installation struct {
	Dir       string // the processes' folder
	DSN       string
	Namespace string
	env       []string

	DB       *store.DB     // as another process would have it
	SQL      *pgxpool.Pool // looks at what no function of the store shows, and makes time pass
	Temporal client.Client
	Line     *Line // the way from the processes to Temporal
	ModelURL string
	Model    *scripted.Server
	Tools    *Tools

	mu        sync.Mutex
	Processes []*Process // all that were started, those that have ended included
	chats     int
}

// Open makes a house with nothing running in it. env are variables for all its processes.
func Open(t *testing.T, env ...string) *House {
	t.Helper()
	srv, err := temporalServer()
	require.NoError(t, err, "start Temporal")
	return OpenOn(t, srv, env...)
}

// OpenOn makes a house on a given Temporal server.
func OpenOn(t *testing.T, srv *temporal.Server, env ...string) *House {
	t.Helper()
	return OpenAt(t, srv.Address(), storetest.DSN(t), env...)
}

// OpenAt makes a house with a migrated database, on the Temporal server at an address.
func OpenAt(t *testing.T, address, dsn string, env ...string) *House {
	t.Helper()
	h := &House{T: t, Installation: &Installation{Dir: t.TempDir(), DSN: dsn}}
	h.Namespace = "e2e-" + filepath.Base(h.DSN[:strings.IndexByte(h.DSN+"?", '?')])
	h.DB = storetest.Open(t, h.DSN)
	var err error
	h.SQL, err = pgxpool.New(t.Context(), h.DSN)
	require.NoError(t, err)
	t.Cleanup(h.SQL.Close)
	require.NoError(t, h.DB.EnsureKey(t.Context(), Owner, "e2e", APIKey))
	h.Stock("fil_1", "fil_7")
	h.Line = NewLine(t, address)
	h.openNamespace(address)
	h.openModel()
	h.Tools = newTools(t)
	toolsFile := filepath.Join(h.Dir, "tools.yaml")
	require.NoError(t, os.WriteFile(toolsFile, []byte(h.Tools.file()), 0o600))
	h.env = append([]string{
		"DATABASE_URL=" + h.DSN, "TEMPORAL_ADDRESS=" + h.Line.Addr, "TEMPORAL_NAMESPACE=" + h.Namespace,
		"BOBBIN_MODEL=scripted", "BOBBIN_TOOLS_FILE=" + toolsFile,
	}, append(h.env, env...)...)
	t.Cleanup(h.close)
	return h
}

// Stock puts small texts where uploads of the owner would stand, for tests that are not about files.
func (h *House) Stock(ids ...string) {
	h.T.Helper()
	storetest.AddFiles(h.T, h.DSN, Owner, ids...)
	dir := filepath.Join(h.Dir, ".bobbin", "files")
	require.NoError(h.T, os.MkdirAll(dir, 0o700))
	for _, id := range ids {
		require.NoError(h.T, os.WriteFile(filepath.Join(dir, id), []byte("words"), 0o600))
	}
}

// openModel serves the scripted provider. It is closed first, so that no worker waits for it.
func (h *House) openModel() {
	h.Model = scripted.New(scripted.Options{})
	web := httptest.NewServer(h.Model)
	h.T.Cleanup(func() {
		h.Model.Close()
		web.CloseClientConnections()
		web.Close()
	})
	h.ModelURL = web.URL
	h.env = append(h.env, "OPENAI_API_KEY=e2e", "OPENAI_BASE_URL="+web.URL+"/v1")
}

// openNamespace registers the namespace and waits until the server knows it everywhere.
func (h *House) openNamespace(address string) {
	var err error
	h.Temporal, err = client.Dial(client.Options{HostPort: address, Namespace: h.Namespace, Logger: silent{}})
	require.NoError(h.T, err)
	h.T.Cleanup(h.Temporal.Close)
	_, err = h.Temporal.WorkflowService().RegisterNamespace(h.T.Context(), &workflowservice.RegisterNamespaceRequest{
		Namespace: h.Namespace, WorkflowExecutionRetentionPeriod: durationpb.New(24 * time.Hour),
	})
	require.NoError(h.T, err)
	h.Until("the namespace", func() bool {
		_, err := h.Temporal.DescribeWorkflowExecution(h.T.Context(), "none", "")
		notFound, ok := errors.AsType[*serviceerror.NotFound](err)
		return ok && !strings.Contains(notFound.Error(), "amespace")
	})
}

// Migrate runs the command that an operator runs.
func (h *House) Migrate() {
	h.T.Helper()
	p := h.Start("migrate")
	require.Zero(h.T, p.WaitEnd(), "migrate: %s", p.LogText())
}

// Furnish opens a house with one API and one worker.
func Furnish(t *testing.T, env ...string) *House {
	t.Helper()
	h := Open(t, env...)
	h.Migrate()
	h.API()
	h.Worker()
	return h
}

func (h *House) close() {
	if h.T.Failed() {
		h.T.Log(h.State())
	}
	for _, p := range h.Processes {
		p.Kill()
	}
	if kept := h.Model.Refusals(); len(kept) > 0 && !h.T.Failed() {
		h.T.Errorf("the provider refused requests: %+v", *kept[0])
	}
}

// Until waits for what must come. It looks again and again, so done may be cheap only.
func (h *House) Until(what string, done func() bool) {
	h.T.Helper()
	deadline := time.Now().Add(Patience)
	for !done() {
		if time.Now().After(deadline) {
			h.Fail("waited in vain for %s", what)
		}
		time.Sleep(PollEvery) // between two looks
	}
}

// Fail fails the test and ends it.
func (h *House) Fail(format string, args ...any) {
	h.T.Helper()
	h.T.Fatalf(format, args...)
}

// Ctx bounds one wait.
func (h *House) Ctx() context.Context {
	ctx, cancel := context.WithTimeout(h.T.Context(), Patience)
	h.T.Cleanup(cancel)
	return ctx
}

// Request waits for the nth request of a chat at the provider.
func (h *House) Request(marker string, n int) scripted.Request {
	h.T.Helper()
	r, err := h.Model.WaitOf(h.Ctx(), marker, n)
	if err != nil {
		h.Fail("waited in vain for request %d of %s: %v", n, marker, err)
	}
	return r
}

// URL is the address of the API process that is asked.
func (h *House) URL() string {
	if h.via != nil {
		return "http://" + h.via.Addr
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range slices.Backward(h.Processes) {
		if p.Addr != "" && !p.Ended() {
			return "http://" + p.Addr
		}
	}
	return "http://127.0.0.1:1"
}

// Count returns what a query that counts finds.
func (h *House) Count(query string, args ...any) int {
	h.T.Helper()
	var n int
	require.NoError(h.T, h.SQL.QueryRow(h.T.Context(), query, args...).Scan(&n))
	return n
}

// State is all that helps to see why a test failed.
func (h *House) State() string {
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
	requests := h.Model.Requests()
	for _, r := range requests[max(0, len(requests)-15):] {
		last := r.Messages[len(r.Messages)-1]
		fmt.Fprintf(&b, "request %d: %d messages, last %s %.60q, finished=%v gone=%v\n", r.N, len(r.Messages), last.Role, last.Text,
			!r.Finished.IsZero(), !r.Gone.IsZero())
	}
	for _, p := range h.Processes {
		lines := strings.Split(strings.TrimSpace(p.LogText()), "\n")
		lines = slices.DeleteFunc(lines, func(l string) bool { return strings.Contains(l, "msg=request ") })
		fmt.Fprintf(&b, "--- %s (ended=%v)\n%s\n", p.Name, p.Ended(), strings.Join(lines[max(0, len(lines)-12):], "\n"))
	}
	return b.String()
}

func (h *House) list(b *strings.Builder, query string) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	rows, err := h.SQL.Query(ctx, query)
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

type silent struct{}

func (silent) Debug(string, ...any) {}

func (silent) Info(string, ...any) {}

func (silent) Warn(string, ...any) {}

func (silent) Error(string, ...any) {}

var _ sdklog.Logger = silent{}
