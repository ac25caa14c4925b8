package workflows

import (
	"errors"

	"go.temporal.io/sdk/workflow"

	"bobbin/contract"
)

// Background drives one background turn to its end.
func Background(ctx workflow.Context, in contract.BackgroundInput) error {
	ctx = workflow.WithEventGroups(ctx, turnGroup(in.Turn))
	r := newTurnRun(in.Turn, in.Settings)
	r.changed = func() { workflow.SetCurrentDetails(ctx, r.details(workflow.Now(ctx))) }
	workflow.Go(ctx, func(ctx workflow.Context) {
		nudges := workflow.GetSignalChannel(ctx, contract.NudgeSignal)
		progress := workflow.GetSignalChannel(ctx, contract.ProgressSignal)
		s := workflow.NewSelector(ctx).
			AddReceive(nudges, func(c workflow.ReceiveChannel, _ bool) {
				var n contract.Nudge
				if c.Receive(ctx, &n); n.Kind == contract.NudgeStop {
					r.stop()
				}
			}).
			AddReceive(progress, func(c workflow.ReceiveChannel, _ bool) {
				var p contract.Progress
				c.Receive(ctx, &p)
				r.heard(p)
			})
		for {
			s.Select(ctx)
		}
	})
	r.full = func() bool { return full(ctx, in.Settings) }
	_, err := r.drive(ctx)
	if errors.Is(err, errRollOver) {
		return workflow.NewContinueAsNewError(ctx, contract.BackgroundWorkflow, in)
	}
	return err
}
