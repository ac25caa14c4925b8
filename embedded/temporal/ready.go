package temporal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"strconv"
	"strings"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/operatorservice/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"
	"google.golang.org/protobuf/types/known/durationpb"
)

const (
	readyPoll = 50 * time.Millisecond
	// retention is how long a closed workflow can be looked at.
	retention = 72 * time.Hour
)

// waitReady returns when clients find all they need, or when the server has ended.
func (s *Server) waitReady(ctx context.Context, c Config) error {
	for {
		err := s.prepare(ctx, c)
		if err == nil {
			return nil
		}
		select {
		case <-s.Done():
			return s.startError()
		case <-ctx.Done():
			return fmt.Errorf("temporal isn't ready: %w (%w)", ctx.Err(), err)
		case <-time.After(readyPoll):
		}
	}
}

func (s *Server) startError() error {
	tail := s.process.LogTail()
	err := fmt.Errorf("temporal (%s) ended at start (%v):\n%s", s.program.path, s.process.Err(), tail)
	if strings.Contains(tail, "in use") {
		return fmt.Errorf("%w: %w", errPortTaken, err)
	}
	return err
}

// prepare succeeds once the frontend answers and has what it should have. It may
// be called again after it failed half-way.
func (s *Server) prepare(ctx context.Context, c Config) error {
	cl, err := client.DialContext(ctx, client.Options{
		HostPort:  s.Address(),
		Namespace: c.Namespace,
		Logger:    quiet(),
	})
	if err != nil {
		return fmt.Errorf("dial: %w", err)
	}
	defer cl.Close()
	if err := ensureNamespace(ctx, cl, c.Namespace); err != nil {
		return err
	}
	if err := ensureSearchAttributes(ctx, cl, c); err != nil {
		return err
	}
	return s.dialUI()
}

// dialUI looks whether the UI listens, which it does last of all.
func (s *Server) dialUI() error {
	if s.uiPort == 0 {
		return nil
	}
	conn, err := net.Dial("tcp", net.JoinHostPort(ip, strconv.Itoa(s.uiPort)))
	if err != nil {
		return fmt.Errorf("dial UI: %w", err)
	}
	return conn.Close()
}

func ensureNamespace(ctx context.Context, cl client.Client, name string) error {
	_, err := cl.WorkflowService().DescribeNamespace(ctx, &workflowservice.DescribeNamespaceRequest{Namespace: name})
	var missing *serviceerror.NamespaceNotFound
	if !errors.As(err, &missing) {
		return err
	}
	_, err = cl.WorkflowService().RegisterNamespace(ctx, &workflowservice.RegisterNamespaceRequest{
		Namespace:                        name,
		WorkflowExecutionRetentionPeriod: durationpb.New(retention),
	})
	var exists *serviceerror.NamespaceAlreadyExists
	if err != nil && !errors.As(err, &exists) {
		return fmt.Errorf("make namespace %s: %w", name, err)
	}
	return nil
}

func ensureSearchAttributes(ctx context.Context, cl client.Client, c Config) error {
	have, err := cl.OperatorService().ListSearchAttributes(ctx, &operatorservice.ListSearchAttributesRequest{Namespace: c.Namespace})
	if err != nil {
		return fmt.Errorf("list search attributes: %w", err)
	}
	missing := map[string]enumspb.IndexedValueType{}
	for name, kind := range c.SearchAttributes {
		if missing[name], err = enumspb.IndexedValueTypeFromString(kind); err != nil {
			return fmt.Errorf("search attribute %s: %w", name, err)
		}
	}
	maps.DeleteFunc(missing, func(name string, _ enumspb.IndexedValueType) bool {
		_, ok := have.GetCustomAttributes()[name]
		return ok
	})
	if len(missing) == 0 {
		return nil
	}
	_, err = cl.OperatorService().AddSearchAttributes(ctx, &operatorservice.AddSearchAttributesRequest{
		Namespace: c.Namespace, SearchAttributes: missing,
	})
	if err != nil {
		return fmt.Errorf("add search attributes: %w", err)
	}
	return errors.New("search attributes were just added") // look again until they are listed
}

// quiet keeps the SDK from writing to our standard error.
func quiet() log.Logger { return log.NewStructuredLogger(slog.New(slog.DiscardHandler)) }
