package house

import (
	"github.com/stretchr/testify/require"
	"go.temporal.io/api/enums/v1"
	"go.temporal.io/api/history/v1"
	"google.golang.org/protobuf/proto"
)

// A WorkflowRun is one run of a workflow, with its whole history.
type WorkflowRun struct {
	ID     string
	Events []*history.HistoryEvent
}

// Size is that of the history, in bytes.
func (r WorkflowRun) Size() int {
	n := 0
	for _, e := range r.Events {
		n += proto.Size(e)
	}
	return n
}

// WorkflowRuns reads all runs of a workflow, the newest first.
func (h *House) WorkflowRuns(workflowID string) []WorkflowRun {
	h.T.Helper()
	var runs []WorkflowRun
	described, err := h.Temporal.DescribeWorkflowExecution(h.Ctx(), workflowID, "")
	require.NoError(h.T, err)
	for id := described.WorkflowExecutionInfo.Execution.RunId; id != ""; {
		run := WorkflowRun{ID: id}
		for it := h.Temporal.GetWorkflowHistory(h.Ctx(), workflowID, id, false, enums.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT); it.HasNext(); {
			e, err := it.Next()
			require.NoError(h.T, err)
			run.Events = append(run.Events, e)
		}
		runs = append(runs, run)
		id = run.Events[0].GetWorkflowExecutionStartedEventAttributes().GetContinuedExecutionRunId()
	}
	return runs
}
