package activities

import (
	"context"
	"log/slog"

	"bobbin/contract"
	"bobbin/store"
	"bobbin/thread"
	"bobbin/tracing"
)

// End settles a turn and claims the next. It is a local activity; a repeated one returns what the first decided.
func (a *Activities) End(ctx context.Context, in contract.EndInput) (contract.Ended, error) {
	var o store.Outcome
	if in.Fail != "" {
		o.Error = &thread.TurnError{Code: in.Fail, Detail: details[in.Fail]}
	}
	ctx, span := tracing.Start(traced(in.Turn).Within(ctx), "end", tracing.TurnID.String(in.Turn.ID))
	ended, err := a.Store.End(ctx, in.Turn.ID, in.Turn.Attempt, o)
	if err != nil {
		span.End("store")
		return contract.Ended{}, failure(err)
	}
	span.Set(tracing.Outcome.String(string(ended.Status)))
	span.End("")
	trace(ctx, in.Turn, ended)
	usage := ended.Turn.Usage
	a.metrics.ended(ended.Turn, ended.Status)
	if in.Fail != "" && ended.Status != thread.TurnCancelled { // what fails because it was told to stop has not failed
		slog.Warn("turn failed", "turn", in.Turn.ID, "thread", in.Turn.ThreadID, "code", string(in.Fail), "status", string(ended.Status))
	}
	return contract.Ended{
		Status: ended.Status, Next: turnRef(ended.Next), Rounds: ended.Turn.Rounds, Tokens: usage.Tokens(),
		CostUSD: usage.Cost.Dollars(),
	}, nil
}

// trace writes the span of a turn that has ended for good.
func trace(ctx context.Context, ref contract.TurnRef, e store.Ended) {
	t, kind := e.Turn, ""
	if t.StartedAt == nil || t.FinishedAt == nil || e.Status == thread.TurnQueued {
		return
	}
	if e.Status == thread.TurnFailed && t.Error != nil {
		kind = string(t.Error.Code)
	}
	traced(ref).Ended(ctx, *t.StartedAt, *t.FinishedAt, kind, tracing.Outcome.String(string(e.Status)),
		tracing.InputTokens.Int64(t.Usage.InputTokens), tracing.OutputTokens.Int64(t.Usage.OutputTokens))
}

// details says what a fail code means, and what can be done.
var details = map[thread.FailCode]string{
	thread.FailModelUnavailable: "The model's provider could not be reached, is overloaded or limits the rate, also after retries. Try again later.",
	thread.FailModelInvalid:     "The model's provider refused the request. Check the API key, the model's name and the provider's address.",
	thread.FailModelFiltered:    "The model provider's content filter refused to answer. Ask differently.",
	thread.FailModelQuota:       "The account at the model's provider has no credit left.",
	thread.FailContextTooLong:   "The conversation is longer than the model can read. Start a fresh thread.",
	thread.FailEmptyResponse:    "The model answered nothing, twice.",
	thread.FailMalformedAnswer:  "The model's answer had no usable form, twice.",
	thread.FailTimeLimit:        "The turn reached its time limit before it could answer.",
	thread.FailUsageLimit:       "The owner's monthly spending limit leaves no room for a model call.",
	thread.FailToolUnknown:      "A tool was interrupted, and nobody knows whether it took effect. Check before doing it again.",
	thread.FailInternal:         "Something went wrong inside the server.",
}
