package activities_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/testsuite"

	"bobbin/activities"
	"bobbin/agent"
	"bobbin/contract"
	"bobbin/llm"
	"bobbin/llm/scripted"
	"bobbin/store"
	"bobbin/store/storetest"
	"bobbin/thread"
	"bobbin/tools"
)

const owner = "anna"

// patience is how long a test waits for what must come. Nothing is decided by its passing.
const patience = 30 * time.Second

// A bundle is a database with one thread, a model that plays scripts, and workers on them.
type bundle struct {
	t      *testing.T
	dsn    string
	db     *store.DB // of nobody's worker
	model  *scripted.Server
	url    string
	thread string
	tools  []tools.Tool
	limits agent.Limits
	prices string // YAML; the scripted model's name is scripted
}

func setup(t *testing.T, play scripted.Play) *bundle {
	t.Helper()
	t.Parallel()
	b := &bundle{t: t, dsn: storetest.DSN(t), limits: agent.DefaultLimits}
	b.db = storetest.Open(t, b.dsn)
	b.model = scripted.New(scripted.Options{Play: play})
	server := httptest.NewServer(b.model)
	t.Cleanup(server.Close)
	t.Cleanup(b.model.Close)
	b.url = server.URL + "/v1"
	require.NoError(t, b.db.EnsureKey(t.Context(), owner, "test", "bob_test"))
	th, err := b.db.OpenThread(t.Context(), owner, "")
	require.NoError(t, err)
	b.thread = th.ID
	return b
}

func (b *bundle) ctx() context.Context {
	ctx, cancel := context.WithTimeout(b.t.Context(), patience)
	b.t.Cleanup(cancel)
	return ctx
}

// A with changes what a worker's activities are configured with.
type with func(*activities.Config)

// A worker is a process that runs activities: its own connections, and activities of its own.
type worker struct {
	*bundle
	*activities.Activities
	drain chan struct{} // closed when the worker stops
}

func (b *bundle) worker(mods ...with) *worker { b.t.Helper(); return b.workerAt(b.dsn, mods...) }

func (b *bundle) workerAt(dsn string, mods ...with) *worker {
	b.t.Helper()
	db := storetest.Open(b.t, dsn)
	entry, err := db.RegisterWorker(b.t.Context())
	require.NoError(b.t, err)
	b.t.Cleanup(entry.Close)
	deltas := db.NewDeltas()
	b.t.Cleanup(deltas.Close)
	prices, err := llm.ParsePrices(strings.NewReader(b.prices))
	require.NoError(b.t, err)
	model, err := llm.New(llm.Config{BaseURL: b.url, Model: "scripted", Prices: prices})
	require.NoError(b.t, err)
	reg, err := tools.New(b.tools...)
	require.NoError(b.t, err)
	cfg := activities.Config{
		Store: db, Deltas: deltas, Model: model, Tools: reg, WorkerID: entry.ID, Limits: b.limits, ProgressAfter: time.Hour,
		Settings: contract.Settings{Idle: time.Minute, RollOver: 1000, Heartbeat: 10 * time.Second},
	}
	for _, m := range mods {
		m(&cfg)
	}
	return &worker{b, activities.New(cfg), make(chan struct{})}
}

// env returns the SDK's environment of one activity.
func (w *worker) env() *testsuite.TestActivityEnvironment {
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(quiet{})
	env := suite.NewTestActivityEnvironment()
	env.SetTestTimeout(patience)
	env.SetWorkerStopChannel(w.drain)
	env.RegisterActivityWithOptions(w.Stint, activity.RegisterOptions{Name: contract.StintActivity})
	env.RegisterDynamicActivity(w.Tool, activity.DynamicRegisterOptions{})
	return env
}

func (w *worker) stint(turn contract.TurnRef) contract.StintResult {
	w.t.Helper()
	res, err := w.try(turn)
	require.NoError(w.t, err)
	return res
}

func (w *worker) try(turn contract.TurnRef) (res contract.StintResult, err error) {
	v, err := w.env().ExecuteActivity(contract.StintActivity, contract.StintInput{Turn: turn})
	if err != nil {
		return res, err
	}
	return res, v.Get(&res)
}

func (w *worker) tool(ref contract.ToolRef) {
	w.t.Helper()
	_, err := w.env().ExecuteActivity(ref.Name, ref)
	require.NoError(w.t, err)
}

// end ends a turn as a stint that came back with res, and returns how.
func (w *worker) end(turn contract.TurnRef, res contract.StintResult) contract.Ended {
	w.t.Helper()
	out, err := w.End(w.ctx(), contract.EndInput{Turn: turn, Fail: res.Fail})
	require.NoError(w.t, err)
	return out
}

func (b *bundle) accept(text string) store.Accepted {
	b.t.Helper()
	out, err := b.db.Accept(b.ctx(), store.Incoming{OwnerID: owner, ThreadID: b.thread, Channel: thread.ChannelWeb, Text: text})
	require.NoError(b.t, err)
	return out
}

// start sends a message to the idle thread and returns the turn that it starts.
func (b *bundle) start(text string) contract.TurnRef {
	b.t.Helper()
	require.Equal(b.t, thread.DisposedTurn, b.accept(text).Disposition)
	claimed, err := activities.New(activities.Config{Store: b.db}).Claim(b.ctx(), b.thread)
	require.NoError(b.t, err)
	require.NotNil(b.t, claimed.Conversation)
	return *claimed.Conversation
}

func (b *bundle) stop() {
	b.t.Helper()
	out, err := b.db.Stop(b.ctx(), owner, b.thread, store.ScopeConversation)
	require.NoError(b.t, err)
	require.Len(b.t, out.Turns, 1)
}

// session is what the model would be shown next: another turn is started for it.
func (b *bundle) session() []thread.Entry {
	b.t.Helper()
	turn := b.start("And now?")
	w, err := b.db.Load(b.ctx(), store.TurnRef{ID: turn.ID, ThreadID: turn.ThreadID}, turn.Attempt)
	require.NoError(b.t, err)
	return w.Session.Entries
}

func (b *bundle) messages() []string {
	b.t.Helper()
	list, err := b.db.Messages(b.ctx(), owner, b.thread, store.Page{Limit: 100})
	require.NoError(b.t, err)
	var texts []string
	for _, m := range list {
		text := fmt.Sprintf("%s: %s", m.Role, m.Text)
		if m.Stopped {
			text += " (stopped)"
		}
		texts = append(texts, text)
	}
	return texts
}

func (b *bundle) events() []thread.Event {
	b.t.Helper()
	list, _, err := b.db.Events(b.ctx(), b.thread, 0, 1000)
	require.NoError(b.t, err)
	return list
}

func (b *bundle) request(n int) scripted.Request {
	b.t.Helper()
	r, err := b.model.Wait(b.ctx(), n)
	require.NoError(b.t, err)
	return r
}

// calls returns the calls that a session shows, with their results.
func calls(entries []thread.Entry) []string {
	var list []string
	for _, e := range entries {
		for _, c := range e.Calls {
			list = append(list, fmt.Sprintf("%s %s: %s", c.Name, c.State, c.Result))
		}
	}
	return list
}

// later runs f beside the test and returns where its result comes.
func later[T any](f func() T) <-chan T {
	c := make(chan T, 1)
	go func() { c <- f() }()
	return c
}

func come[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		require.FailNow(t, "it did not come")
		panic("unreachable")
	}
}

func reader(name string, run func(context.Context, tools.Call) (string, error)) tools.Tool {
	return tools.Tool{Name: name, Description: "Reads.", ReadOnly: true, Run: run}
}

func sender(name string, run func(context.Context, tools.Call) (string, error)) tools.Tool {
	return tools.Tool{Name: name, Description: "Sends.", Run: run}
}

type quiet struct{}

func (quiet) Debug(string, ...any) {}
func (quiet) Info(string, ...any)  {}
func (quiet) Warn(string, ...any)  {}
func (quiet) Error(string, ...any) {}
