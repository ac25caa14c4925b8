package main

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each has all of the time: one that hangs hides none of the others.
func TestReadyNamesWhatIsMissingALineEachInTheirOrder(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	missing := func(what string) need { return func(context.Context) error { return errors.New(what) } }
	hangs := func(ctx context.Context) error { <-ctx.Done(); return errors.New("first") }
	ends := func(context.Context) error { cancel(); return errors.New("third") }
	err := ready(hangs, func(context.Context) error { return nil }, missing("second"), ends)(ctx)
	require.EqualError(t, err, "first\nsecond\nthird")
	require.NoError(t, ready()(t.Context()))
}
