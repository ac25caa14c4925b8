package workflows_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
	"google.golang.org/protobuf/encoding/protojson"

	embedded "bobbin/embedded/temporal"

	"bobbin/contract"
	"bobbin/workflows"
)

var record = flag.Bool("record", false, "record the histories of this version anew, with a real server")

// Histories of testdata are in a folder for each version: next is this one's, which may be recorded anew; the others were
// released, are never touched again, and must replay for as long as a workflow that began with them may run.
const next = "next"

// What the histories of this version hold, by name: events, in all and of one turn. A change of these numbers is a change of what
// every turn costs Temporal. Signals join the task that is under way or make one of their own, so those of histories with
// signals are bounds.
var histories = map[string]struct{ atLeast, atMost int }{
	"plain turn":        {19, 19}, // nine of them for the workflow's start and rest
	"three turns":       {33, 33}, // seven for each further turn
	"many stints":       {51, 51}, // six for each further stint
	"stint tried again": {19, 19}, // tries leave no events
	"tool":              {33, 33},
	"tools at once":     {36, 45},
	"provider wait":     {32, 32},
	"steered":           {39, 75},
	"stop":              {24, 28},
	"background":        {18, 26},
	"background turn":   {12, 12},
	"rolled over":       {12, 16},
	"rolled over after": {14, 20},
}

// The histories are those of real executions. Workflow code that would not do again what it did then breaks the threads that
// run when it is deployed.
func TestHistoriesReplay(t *testing.T) {
	t.Parallel()
	if *record {
		recordAll(t)
	}
	for name, want := range histories {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := worker.NewWorkflowReplayer()
			registerWorkflows(r)
			require.NoError(t, r.ReplayWorkflowHistoryFromJSONFile(quiet{}, historyPath(name)))
			n := len(readHistory(t, name).Events)
			require.LessOrEqual(t, want.atLeast, n)
			require.LessOrEqual(t, n, want.atMost)
		})
	}
	files, err := filepath.Glob(historyPath("*"))
	require.NoError(t, err)
	require.Len(t, files, len(histories))
}

func TestHistoriesOfReleasedVersionsReplay(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join("testdata", "histories", "*", "*.json"))
	require.NoError(t, err)
	for _, file := range files {
		if filepath.Base(filepath.Dir(file)) == next {
			continue // a test of its own
		}
		t.Run(strings.TrimSuffix(file, ".json"), func(t *testing.T) {
			t.Parallel()
			r := worker.NewWorkflowReplayer()
			registerWorkflows(r)
			require.NoError(t, r.ReplayWorkflowHistoryFromJSONFile(quiet{}, file))
		})
	}
}

// Each of these changes looks harmless, and would break the threads that run when it is deployed.
func TestReplayingCatchesAChangeThatRunningWorkflowsDoNotSurvive(t *testing.T) {
	t.Parallel()
	for name, broken := range map[string]func(workflow.Context, contract.ThreadInput) error{
		"a wait before it starts": func(ctx workflow.Context, in contract.ThreadInput) error {
			if err := workflow.Sleep(ctx, time.Second); err != nil {
				return err
			}
			return workflows.Thread(ctx, in)
		},
		"one more activity": func(ctx workflow.Context, in contract.ThreadInput) error {
			ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: time.Minute})
			if err := workflow.ExecuteActivity(ctx, "notify").Get(ctx, nil); err != nil {
				return err
			}
			return workflows.Thread(ctx, in)
		},
		"a step left out": func(workflow.Context, contract.ThreadInput) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := worker.NewWorkflowReplayer()
			r.RegisterWorkflowWithOptions(broken, workflow.RegisterOptions{Name: contract.ThreadWorkflow})
			for _, history := range []string{"plain turn", "tool", "steered"} {
				require.ErrorContains(t, r.ReplayWorkflowHistoryFromJSONFile(quiet{}, historyPath(history)), "TMPRL1100", history) // nondeterminism
			}
		})
	}
}

// A stint and a turn cost so many events, and no more.
func TestATurnAndAStintCostAsManyEventsAsEver(t *testing.T) {
	t.Parallel()
	plain := len(readHistory(t, "plain turn").Events)
	stints := len(readHistory(t, "many stints").Events)
	turns := len(readHistory(t, "three turns").Events)
	require.Equal(t, 6, (stints-plain)/5, "a further stint")
	require.Equal(t, 7, (turns-plain)/2, "a further turn")
}

// A write of search attributes is the dearest thing that a turn could ask of Temporal.
func TestOnlyTurnsThatAreLongOrDoNotSucceedWriteSearchAttributes(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]int{"plain turn": 0, "three turns": 0, "many stints": 2, "stop": 1} {
		got := 0
		for _, e := range readHistory(t, name).Events {
			if e.EventType == enums.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES {
				got++
			}
		}
		require.Equal(t, want, got, name)
	}
}

// Nothing that grows with what is said goes through Temporal.
func TestHistoriesAreSmall(t *testing.T) {
	t.Parallel()
	for name := range histories {
		raw, err := os.ReadFile(historyPath(name))
		require.NoError(t, err)
		require.Less(t, len(raw), 64<<10, name)
	}
}

func historyPath(name string) string {
	return filepath.Join("testdata", "histories", next, strings.ReplaceAll(name, " ", "_")+".json")
}

func readHistory(t *testing.T, name string) *historypb.History {
	t.Helper()
	f, err := os.Open(historyPath(name))
	require.NoError(t, err)
	defer f.Close()
	h, err := client.HistoryFromJSON(f, client.HistoryJSONOptions{})
	require.NoError(t, err)
	return h
}

// A site is a desk whose workflows run on a real server.
type site struct {
	*desk
	t      *testing.T
	client client.Client
	thread string
}

// serve starts a server for the test.
func serve(t *testing.T) client.Client {
	t.Helper()
	attributes := map[string]string{}
	for _, name := range contract.SearchAttributes {
		attributes[name] = "Keyword"
	}
	s, err := embedded.Start(t.Context(), embedded.Config{
		Dir: filepath.Join(t.TempDir(), "temporal"), Memory: true, Namespace: "bobbin", SearchAttributes: attributes,
		Headless: true, NoDownload: true, Log: t.Logf,
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Stop(context.Background()) })
	c, err := client.Dial(client.Options{HostPort: s.Address(), Namespace: "bobbin", Logger: quiet{}})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// work runs a worker on a desk until the returned function is called.
func work(t *testing.T, c client.Client, threadID string) (*site, func()) {
	t.Helper()
	s := &site{newDesk(), t, c, threadID}
	s.settings.Idle = 500 * time.Millisecond
	w := worker.New(c, contract.TaskQueue, worker.Options{MaxHeartbeatThrottleInterval: 100 * time.Millisecond, WorkerStopTimeout: time.Second})
	s.register(w)
	require.NoError(t, w.Start())
	tools := worker.New(c, contract.ToolQueue, worker.Options{DisableWorkflowWorker: true, WorkerStopTimeout: time.Second})
	tools.RegisterDynamicActivity(s.Tool, activity.DynamicRegisterOptions{})
	require.NoError(t, tools.Start())
	return s, func() {
		tools.Stop()
		w.Stop()
	}
}

func (s *site) nudge(kind contract.NudgeKind, turnID string) {
	s.t.Helper()
	id := contract.ThreadWorkflowID(s.thread)
	_, err := s.client.SignalWithStartWorkflow(context.Background(), id, contract.NudgeSignal, contract.Nudge{Kind: kind, TurnID: turnID},
		client.StartWorkflowOptions{ID: id, TaskQueue: contract.TaskQueue}, contract.ThreadWorkflow, contract.ThreadInput{ThreadID: s.thread})
	require.NoError(s.t, err)
}

// rest waits until the thread's workflow has ended.
func (s *site) rest() {
	s.t.Helper()
	ctx := within(s.t, time.Minute)
	require.NoError(s.t, s.client.GetWorkflow(ctx, contract.ThreadWorkflowID(s.thread), "").Get(ctx, nil))
}

func (s *site) save(name, workflowID, runID string) {
	s.t.Helper()
	h := &historypb.History{}
	for it := s.client.GetWorkflowHistory(s.t.Context(), workflowID, runID, false, enums.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT); it.HasNext(); {
		e, err := it.Next()
		require.NoError(s.t, err)
		h.Events = append(h.Events, e)
	}
	raw, err := protojson.MarshalOptions{Multiline: true, Indent: " "}.Marshal(h)
	require.NoError(s.t, err)
	require.NoError(s.t, os.WriteFile(historyPath(name), append(raw, '\n'), 0o600))
	s.t.Logf("%s: %d events", name, len(h.Events))
}

func recordAll(t *testing.T) {
	t.Helper()
	c := serve(t)
	for name, play := range map[string]func(*site){
		"plain turn":  func(s *site) { s.waiting = conversation("a") },
		"three turns": func(s *site) { s.waiting = conversation("a", "b", "c") },
		"many stints": func(s *site) {
			s.waiting = conversation("a")
			s.outcomes(budget, budget, budget, budget, budget, answered)
		},
		"stint tried again": playTriedAgain,
		"tool":              func(s *site) { s.playTools("send") },
		"tools at once":     func(s *site) { s.playTools("send", "book", "pay") },
		"provider wait":     func(s *site) { s.waiting = conversation("a"); s.outcomes(providerWait, answered) },
		"steered":           playSteered,
		"stop":              playStop,
		"background":        func(s *site) { s.background = []contract.TurnRef{background("bg")} },
		"rolled over":       playRollOver,
	} {
		recordOne(t, c, name, play)
	}
}

var (
	budget       = contract.StintResult{Outcome: contract.StintBudget, Rounds: []contract.RoundLine{{Round: 1, Tools: []string{"search"}}}}
	providerWait = contract.StintResult{Outcome: contract.StintWait, Wait: 10 * time.Millisecond}
)

func recordOne(t *testing.T, c client.Client, name string, play func(*site)) {
	t.Helper()
	s, stop := work(t, c, "thr_"+strings.ReplaceAll(name, " ", "_"))
	defer stop()
	play(s)
	s.nudge(contract.NudgeWork, "a")
	first := s.run()
	s.rest()
	id := contract.ThreadWorkflowID(s.thread)
	s.save(name, id, first)
	switch name {
	case "background":
		child := contract.TurnWorkflowID("bg")
		require.NoError(t, s.client.GetWorkflow(t.Context(), child, "").Get(t.Context(), nil))
		s.save("background turn", child, "")
	case "rolled over":
		events := readHistory(t, name).Events
		s.save("rolled over after", id, events[len(events)-1].GetWorkflowExecutionContinuedAsNewEventAttributes().NewExecutionRunId)
	}
}

// run returns the id of the thread's present run.
func (s *site) run() string {
	s.t.Helper()
	d, err := s.client.DescribeWorkflowExecution(s.t.Context(), contract.ThreadWorkflowID(s.thread), "")
	require.NoError(s.t, err)
	return d.WorkflowExecutionInfo.FirstRunId
}

func (s *site) outcomes(list ...contract.StintResult) {
	s.stint = func(_ context.Context, _ contract.TurnRef, n int) (contract.StintResult, error) {
		return list[n-1], nil
	}
}

func playTriedAgain(s *site) {
	s.waiting = conversation("a")
	s.stint = func(_ context.Context, _ contract.TurnRef, n int) (contract.StintResult, error) {
		if n < 3 {
			return contract.StintResult{}, fmt.Errorf("postgres is away")
		}
		return answered, nil
	}
}

func (s *site) playTools(names ...string) {
	s.waiting = conversation("a")
	res := contract.StintResult{Outcome: contract.StintTools}
	for i, name := range names {
		res.Tools = append(res.Tools, contract.ToolRef{Turn: s.waiting[0], Round: 1, Index: i, Name: name, Limit: time.Minute})
	}
	s.outcomes(res, answered)
}

func playSteered(s *site) {
	s.waiting = conversation("a")
	s.stint = func(ctx context.Context, turn contract.TurnRef, n int) (contract.StintResult, error) {
		if n < 4 {
			s.nudge(contract.NudgeWork, fmt.Sprint("b", n))
			p := contract.Progress{TurnID: turn.ID, Round: n, Tools: []string{"search"}}
			err := s.client.SignalWorkflow(ctx, contract.ThreadWorkflowID(s.thread), "", contract.ProgressSignal, p)
			return budget, err
		}
		return answered, nil
	}
}

func playStop(s *site) {
	s.waiting = conversation("a")
	s.stint = func(ctx context.Context, turn contract.TurnRef, _ int) (contract.StintResult, error) {
		s.add(func() { s.stopping[turn.ID] = true })
		s.nudge(contract.NudgeStop, turn.ID)
		return untilCancelled(ctx)
	}
}

func playRollOver(s *site) {
	s.settings.RollOver = 10
	s.waiting = conversation("a")
	s.stint = func(_ context.Context, turn contract.TurnRef, n int) (contract.StintResult, error) {
		if n == 1 {
			return budget, nil
		}
		s.add(func() { s.settings.RollOver = 2000 })
		return answered, nil
	}
}

// Signals that come while a thread continues as new again and again lose nothing: each turn is run, once, in order.
// (https://github.com/temporalio/sdk-go/issues/533: signals that are not drained are lost.)
func TestNoTurnIsLostWhileAThreadContinuesAsNew(t *testing.T) {
	t.Parallel()
	s, stop := work(t, serve(t), "thr_flood")
	defer stop()
	s.settings.RollOver = 30
	s.settings.Idle = 5 * time.Second
	const turns = 60
	var want []string
	for i := range turns {
		id := fmt.Sprintf("t%03d", i)
		s.add(func() { s.waiting = append(s.waiting, conversation(id)...) })
		s.nudge(contract.NudgeWork, id)
		want = append(want, "end "+id+" succeeded ")
	}
	require.NoError(t, s.has(within(t, 2*time.Minute), want[turns-1], 1))
	require.Empty(t, cmp.Diff(want, only(s.noted(), "end")))
	d, err := s.client.DescribeWorkflowExecution(t.Context(), contract.ThreadWorkflowID(s.thread), "")
	require.NoError(t, err)
	require.NotEqual(t, d.WorkflowExecutionInfo.FirstRunId, d.WorkflowExecutionInfo.Execution.RunId, "it did continue as new")
}

// The real server cancels a stint that heartbeats, and the turn's end runs although the stint was cancelled.
func TestAStopReachesARunningStint(t *testing.T) {
	t.Parallel()
	s, stop := work(t, serve(t), "thr_stop")
	defer stop()
	playStop(s)
	s.nudge(contract.NudgeWork, "a")
	require.NoError(t, s.has(within(t, time.Minute), "end a cancelled internal", 1))
}
