package activities

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"

	"bobbin/thread"
)

func TestFailureSaysWhetherTryingAgainCanHelp(t *testing.T) {
	t.Parallel()
	require.NoError(t, failure(nil))
	for _, c := range []struct {
		err   error
		kind  string
		final bool
	}{
		{fmt.Errorf("load turn: %w", thread.ErrNotFound), "NotFound", true},
		{fmt.Errorf("commit round: %w: %w", thread.ErrUnavailable, errors.New("refused")), "Unavailable", false},
		{errors.New("else"), "Internal", false},
	} {
		var got *temporal.ApplicationError
		require.ErrorAs(t, failure(c.err), &got)
		require.Equal(t, c.kind, got.Type())
		require.Equal(t, c.final, got.NonRetryable())
	}
	require.ErrorIs(t, failure(fmt.Errorf("take: %w", context.Canceled)), context.Canceled)
	require.True(t, temporal.IsCanceledError(failure(temporal.NewCanceledError())))
}

func TestEveryFailCodeTellsThePersonWhatItMeans(t *testing.T) {
	t.Parallel()
	for _, code := range []thread.FailCode{
		thread.FailModelUnavailable, thread.FailModelInvalid, thread.FailModelFiltered, thread.FailModelQuota, thread.FailContextTooLong,
		thread.FailEmptyResponse, thread.FailMalformedAnswer, thread.FailTimeLimit, thread.FailToolUnknown, thread.FailInternal,
	} {
		require.NotEmpty(t, details[code], code)
	}
}

func TestInsistRepeatsOnlyWhatPasses(t *testing.T) {
	t.Parallel()
	tries := 0
	require.NoError(t, insist(t.Context(), func(context.Context) error {
		if tries++; tries < 3 {
			return fmt.Errorf("write: %w", thread.ErrUnavailable)
		}
		return nil
	}))
	require.Equal(t, 3, tries)
	require.ErrorIs(t, insist(t.Context(), func(context.Context) error { tries++; return thread.ErrFenced }), thread.ErrFenced)
	require.Equal(t, 4, tries)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	require.ErrorIs(t, insist(ctx, func(context.Context) error { return thread.ErrUnavailable }), thread.ErrUnavailable)
}
