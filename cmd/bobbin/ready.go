package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"go.temporal.io/api/operatorservice/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"

	"bobbin/contract"
)

// A need is one thing that a process must have to do its work. Its error is one line that says what is missing; anyone
// may read it.
type need func(context.Context) error

// ready asks for all of them at once, so that each has the whole of ctx's time. The error has a line for each that is
// missing, in their order.
func ready(needs ...need) func(context.Context) error {
	return func(ctx context.Context) error {
		errs := make([]error, len(needs))
		var asked sync.WaitGroup
		for i, n := range needs {
			asked.Go(func() { errs[i] = n(ctx) })
		}
		asked.Wait()
		return errors.Join(errs...)
	}
}

// needs is what API and worker need beside Postgres.
func (p plant) needs() []need { return []need{p.hasNamespace, p.hasAttributes(), p.keepsFiles} }

func (p plant) hasNamespace(ctx context.Context) error {
	_, err := p.temporal.WorkflowService().DescribeNamespace(ctx, &workflowservice.DescribeNamespaceRequest{Namespace: p.namespace})
	switch {
	case isMissing(err):
		return errors.New("Temporal has no namespace of the name in TEMPORAL_NAMESPACE")
	case err != nil:
		return errors.New("Temporal does not answer")
	}
	return nil
}

// hasAttributes asks until they are there: nobody takes them away. What the answer cannot be had for, hasNamespace says.
func (p plant) hasAttributes() need {
	found := &atomic.Bool{}
	return func(ctx context.Context) error {
		if found.Load() {
			return nil
		}
		have, err := p.temporal.OperatorService().ListSearchAttributes(ctx, &operatorservice.ListSearchAttributesRequest{Namespace: p.namespace})
		if err != nil {
			return nil
		}
		var missing []string
		for _, name := range contract.SearchAttributes {
			if _, ok := have.CustomAttributes[name]; !ok {
				missing = append(missing, name)
			}
		}
		if len(missing) > 0 {
			return fmt.Errorf("Temporal's namespace lacks search attributes (%s): run bobbin migrate", strings.Join(missing, ", "))
		}
		found.Store(true)
		return nil
	}
}

func isMissing(err error) bool {
	notFound := (*serviceerror.NamespaceNotFound)(nil)
	return errors.As(err, &notFound)
}
