package floor

import (
	"context"
	"fmt"
	"os"
	"time"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"bobbin/thread"
)

// The bare Temporal workflow: a signal starts it, and one activity calls the model.

const messages = "messages"

// SignalWithStart gives a new workflow a message to answer.
func SignalWithStart(ctx context.Context, c client.Client, queue, id, text string) (client.WorkflowRun, error) {
	return c.SignalWithStartWorkflow(ctx, id, messages, text, client.StartWorkflowOptions{ID: id, TaskQueue: queue}, answer)
}

func runTemporal(ctx context.Context) error {
	h, err := newHands()
	if err != nil {
		return err
	}
	c, err := client.Dial(client.Options{
		HostPort: os.Getenv("TEMPORAL_ADDRESS"), Namespace: os.Getenv("TEMPORAL_NAMESPACE"), Logger: Silent{},
	})
	if err != nil {
		return err
	}
	defer c.Close()
	w := worker.New(c, os.Getenv(QueueVar), worker.Options{MaxConcurrentActivityExecutionSize: loops})
	w.RegisterWorkflow(answer)
	w.RegisterActivity(&hands{h.model, h.tools, h.system})
	if err := w.Start(); err != nil {
		return err
	}
	defer w.Stop()
	fmt.Println(Ready)
	<-ctx.Done()
	return nil
}

func answer(ctx workflow.Context) (string, error) {
	var text, said string
	workflow.GetSignalChannel(ctx, messages).Receive(ctx, &text)
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: 10 * time.Minute})
	var h *hands
	err := workflow.ExecuteActivity(ctx, h.CallModel, text).Get(ctx, &said)
	return said, err
}

// CallModel is the one activity.
func (h *hands) CallModel(ctx context.Context, text string) (string, error) {
	reply, err := h.model.Call(ctx, h.prompt([]thread.Entry{{Kind: thread.EntryUser, Text: text}}), func(string) {})
	return reply.Text, err
}
