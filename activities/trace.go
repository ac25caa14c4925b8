package activities

import (
	"context"
	"errors"

	"bobbin/thread"
	"bobbin/tracing"
)

// round returns ctx within the span of a round, which begins with the first that asks for it and ends with the next.
func (s *stint) round(ctx context.Context, n int) context.Context {
	if s.inSpan != n {
		s.endRound()
		_, s.span = tracing.Start(ctx, "round", tracing.Round.Int(n))
		s.inSpan = n
	}
	return s.span.In(ctx)
}

func (s *stint) endRound() {
	if s.inSpan != 0 {
		s.span.End("")
		s.inSpan = 0
	}
}

// chat starts the span of a model call.
func (s *stint) chat(ctx context.Context) (context.Context, tracing.Span) {
	model := s.Model.Model()
	return tracing.Call(ctx, "chat "+model, tracing.Operation.String("chat"), tracing.Provider.String("openai"), tracing.Model.String(model),
		tracing.Conversation.String(s.turn.ThreadID), tracing.Stream.Bool(true))
}

func (s *stint) chatted(ctx context.Context, span tracing.Span, r thread.Reply, err error) {
	if err == nil {
		span.Set(tracing.Answered.String(r.Model), tracing.Finish.StringSlice([]string{string(r.Finish)}),
			tracing.InputTokens.Int64(r.Usage.InputTokens), tracing.OutputTokens.Int64(r.Usage.OutputTokens))
	}
	span.End(s.kindOf(ctx, err))
}

// kindOf names an error for a trace, without its text.
func (s *stint) kindOf(ctx context.Context, err error) string {
	failed := thread.AsModelError(err)
	switch {
	case err == nil:
		return ""
	case errors.Is(err, thread.ErrFenced), errors.Is(context.Cause(ctx), thread.ErrFenced):
		return "stopped"
	case failed != nil:
		return string(failed.Kind)
	case errors.Is(err, thread.ErrUnavailable):
		return "postgres"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return "cut_off"
	}
	return "internal"
}

// execute starts the span of a tool call.
func (a *Activities) execute(ctx context.Context, c *thread.Call) (context.Context, tracing.Span) {
	name := a.known(c.Name)
	return tracing.Start(ctx, "execute_tool "+name, tracing.Operation.String("execute_tool"), tracing.Tool.String(name),
		tracing.ToolType.String("function"), tracing.ToolCall.String(c.Key()), tracing.TurnID.String(c.TurnID), tracing.Round.Int(c.Round))
}

// known is a tool's name if there is such a tool: the model can name anything.
func (a *Activities) known(tool string) string {
	if _, ok := a.Tools.Lookup(tool); !ok {
		return "unknown"
	}
	return tool
}

func executed(c *thread.Call) string {
	switch {
	case c.State.Open():
		return "cut_off"
	case c.State == thread.CallFailed:
		return "failed"
	}
	return ""
}
