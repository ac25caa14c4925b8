package main

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// What a worker does while it drains still has to be sent.
func TestUponEndsTheBaseWhenTheLastPartHasEnded(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	nudges, failed := make(chan string), errors.New("failed")
	var got []string
	err := upon(ctx,
		func(ctx context.Context) {
			for {
				select {
				case n := <-nudges:
					got = append(got, n)
				case <-ctx.Done():
					got = append(got, "end")
					return
				}
			}
		},
		func(ctx context.Context) error {
			cancel()
			<-ctx.Done()
			nudges <- "while it drains"
			return failed
		},
		func(ctx context.Context) error {
			<-ctx.Done()
			return nil
		})
	require.ErrorIs(t, err, failed)
	require.Equal(t, []string{"while it drains", "end"}, got)
}
