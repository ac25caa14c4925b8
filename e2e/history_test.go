package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"bobbin/contract"
	"bobbin/e2e/house"
	"bobbin/llm/scripted"
	"bobbin/thread"
)

// temporal/sdk-python#1890
func TestALongTurnLeavesASmallHistoryThatHoldsNothingThatWasSaid(t *testing.T) {
	t.Parallel()
	h := house.Furnish(t, "BOBBIN_LOG_LEVEL=DEBUG", "BOBBIN_MODEL_CONTEXT_TOKENS=1000000")
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
	c := h.Chat(func(r scripted.Request) scripted.Reply {
		if r.Mentions("PLANTEDTASK") {
			return scripted.Say("PLANTEDREPORT")
		}
		return scripted.Rounds(rounds...)(r)
	})
	for i := range 8 { // some 200,000 tokens before the turn that is measured
		text := strings.Repeat(fmt.Sprintf("PLANTEDWORDS %d ", i), 6500)[:95_000]
		if i == 0 {
			text = c.Marker + text
		}
		c.Answered(c.Send(text).TurnID)
	}
	before := len(h.WorkflowRuns(c.WorkflowID())[0].Events)
	long := c.Send("PLANTEDWORDS at last")
	c.Send("PLANTEDLINE")
	c.Answered(long.TurnID)
	c.CheckOrder()
	background, err := h.DB.AddBackground(h.Ctx(), c.ID, thread.SourceEvent, c.Marker+" PLANTEDTASK")
	require.NoError(t, err)
	require.Equal(t, thread.EventTurnSucceeded, c.Ended(background.ID).Name)
	require.Equal(t, 100, c.Turn(long.TurnID).ToolCalls)

	total := 0
	for _, id := range []string{c.WorkflowID(), contract.TurnWorkflowID(background.ID)} {
		described, err := h.Temporal.DescribeWorkflowExecution(h.Ctx(), id, "")
		require.NoError(t, err)
		requireNone(t, planted, "the description of "+id, described)
		for _, run := range h.WorkflowRuns(id) {
			total += run.Size()
			t.Logf("%s: %d events (%d before the long turn), %d bytes", id, len(run.Events), before, run.Size())
			for _, e := range run.Events {
				requireNone(t, planted, id, e)
			}
		}
	}
	require.Less(t, total, 200_000, "bytes of history")
	for _, p := range h.Processes {
		for _, text := range append(planted, house.APIKey) {
			require.NotContains(t, p.LogText(), text, "the log of %s", p.Name)
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
	h := house.Furnish(t, "BOBBIN_HISTORY_ROLL_OVER=60")
	c := h.Chat(scripted.Echo)
	first := c.Start("first")
	c.Answered(first.TurnID) // the thread's workflow is there to be nudged
	var last house.Accepted
	for i := range turns {
		last = c.Send(fmt.Sprintf("turn-%d;", i), house.ReplyTo(first.Message.ID))
		for range (nudges + turns - 1) / turns {
			require.NoError(t, h.Temporal.SignalWorkflow(h.Ctx(), c.WorkflowID(), "", contract.NudgeSignal, contract.Nudge{Kind: contract.NudgeWork}))
		}
	}
	c.Answered(last.TurnID)
	c.Idle()
	screen := c.Screen()[2:]
	require.Len(t, screen, 2*turns)
	for i := range turns {
		require.Equal(t, fmt.Sprintf("user: turn-%d;", i), screen[2*i])
		require.Equal(t, fmt.Sprintf("assistant: You said: turn-%d;", i), screen[2*i+1])
	}
	require.Len(t, c.Requests(), turns+1, "every turn is one model call")
	runs := h.WorkflowRuns(c.WorkflowID())
	require.Greater(t, len(runs), 5)
	largest := 0
	for _, r := range runs {
		largest = max(largest, len(r.Events))
	}
	t.Logf("%d runs, the largest with %d events", len(runs), largest)
	c.Answered(c.Send("alive?").TurnID)
	c.CheckOrder()
}
