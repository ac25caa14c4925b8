package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/enums/v1"
	"go.temporal.io/api/history/v1"
	"google.golang.org/protobuf/proto"

	"bobbin/contract"
	"bobbin/llm/scripted"
	"bobbin/thread"
)

// A workflowRun is one run of a workflow, with its whole history.
type workflowRun struct {
	id     string
	events []*history.HistoryEvent
}

func (r workflowRun) size() int {
	n := 0
	for _, e := range r.events {
		n += proto.Size(e)
	}
	return n
}

// workflowRuns reads all runs of a workflow, the newest first.
func (h *house) workflowRuns(workflowID string) []workflowRun {
	h.t.Helper()
	var runs []workflowRun
	described, err := h.temporal.DescribeWorkflowExecution(h.ctx(), workflowID, "")
	require.NoError(h.t, err)
	for id := described.WorkflowExecutionInfo.Execution.RunId; id != ""; {
		run := workflowRun{id: id}
		for it := h.temporal.GetWorkflowHistory(h.ctx(), workflowID, id, false, enums.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT); it.HasNext(); {
			e, err := it.Next()
			require.NoError(h.t, err)
			run.events = append(run.events, e)
		}
		runs = append(runs, run)
		id = run.events[0].GetWorkflowExecutionStartedEventAttributes().GetContinuedExecutionRunId()
	}
	return runs
}

// temporal/sdk-python#1890
func TestALongTurnLeavesASmallHistoryThatHoldsNothingThatWasSaid(t *testing.T) {
	t.Parallel()
	h := furnish(t, "BOBBIN_LOG_LEVEL=DEBUG", "BOBBIN_MODEL_CONTEXT_TOKENS=1000000")
	planted := []string{"PLANTEDWORDS", "PLANTEDARGUMENT", "PLANTEDANSWER", "PLANTEDLINE", "PLANTEDTASK", "PLANTEDREPORT"}
	var rounds []scripted.Reply
	for range 8 {
		rounds = append(rounds, scripted.Say("Kept."))
	}
	for i := range 20 {
		var r scripted.Reply
		for j := range 5 {
			args, err := json.Marshal(map[string]any{"key": fmt.Sprintf("PLANTEDARGUMENT-%d-%d", i, j), "size": 5000})
			require.NoError(t, err)
			r.Calls = append(r.Calls, scripted.Call{Name: []string{"look", "charge"}[j/4], Arguments: string(args)})
		}
		rounds = append(rounds, r)
	}
	rounds = append(rounds, scripted.Say("PLANTEDANSWER"))
	c := h.chat(func(r scripted.Request) scripted.Reply {
		if r.Mentions("PLANTEDTASK") {
			return scripted.Say("PLANTEDREPORT")
		}
		return scripted.Rounds(rounds...)(r)
	})
	for i := range 8 { // some 200,000 tokens before the turn that is measured
		text := strings.Repeat(fmt.Sprintf("PLANTEDWORDS %d ", i), 6500)[:95_000]
		if i == 0 {
			text = c.marker + text
		}
		c.answered(c.send(text).TurnID)
	}
	before := len(h.workflowRuns(c.workflowID())[0].events)
	long := c.send("PLANTEDWORDS at last")
	c.send("PLANTEDLINE")
	c.answered(long.TurnID)
	c.checkOrder()
	background, err := h.db.AddBackground(h.ctx(), c.id, thread.SourceEvent, c.marker+" PLANTEDTASK")
	require.NoError(t, err)
	require.Equal(t, thread.EventTurnSucceeded, c.ended(background.ID).Name)
	require.Equal(t, 100, c.turn(long.TurnID).ToolCalls)

	total := 0
	for _, id := range []string{c.workflowID(), contract.TurnWorkflowID(background.ID)} {
		described, err := h.temporal.DescribeWorkflowExecution(h.ctx(), id, "")
		require.NoError(t, err)
		requireNone(t, planted, "the description of "+id, described)
		for _, run := range h.workflowRuns(id) {
			total += run.size()
			t.Logf("%s: %d events (%d before the long turn), %d bytes", id, len(run.events), before, run.size())
			for _, e := range run.events {
				requireNone(t, planted, id, e)
			}
		}
	}
	require.Less(t, total, 200_000, "bytes of history")
	for _, p := range h.processes {
		for _, text := range append(planted, apiKey) {
			require.NotContains(t, p.logText(), text, "the log of %s", p.name)
		}
	}
}

func requireNone(t *testing.T, planted []string, where string, m proto.Message) {
	t.Helper()
	raw, err := proto.Marshal(m)
	require.NoError(t, err)
	for _, text := range planted {
		require.NotContains(t, string(raw), text, where)
	}
}

// temporalio/temporal#1069, temporalio/sdk-go#533
func TestAThreadThatRollsOverAgainAndAgainLosesDoublesAndMovesNothing(t *testing.T) {
	t.Parallel()
	const turns, nudges = 300, 1000
	h := furnish(t, "BOBBIN_HISTORY_ROLL_OVER=60")
	c := h.chat(scripted.Echo)
	first := c.start("first")
	c.answered(first.TurnID) // the thread's workflow is there to be nudged
	var last accepted
	for i := range turns {
		last = c.send(fmt.Sprintf("turn-%d;", i), replyTo(first.Message.ID))
		for range (nudges + turns - 1) / turns {
			require.NoError(t, h.temporal.SignalWorkflow(h.ctx(), c.workflowID(), "", contract.NudgeSignal, contract.Nudge{Kind: contract.NudgeWork}))
		}
	}
	c.answered(last.TurnID)
	c.idle()
	screen := c.screen()[2:]
	require.Len(t, screen, 2*turns)
	for i := range turns {
		require.Equal(t, fmt.Sprintf("user: turn-%d;", i), screen[2*i])
		require.Equal(t, fmt.Sprintf("assistant: You said: turn-%d;", i), screen[2*i+1])
	}
	require.Len(t, c.requests(), turns+1, "every turn is one model call")
	runs := h.workflowRuns(c.workflowID())
	require.Greater(t, len(runs), 5)
	largest := 0
	for _, r := range runs {
		largest = max(largest, len(r.events))
	}
	t.Logf("%d runs, the largest with %d events", len(runs), largest)
	c.answered(c.send("alive?").TurnID)
	c.checkOrder()
}
