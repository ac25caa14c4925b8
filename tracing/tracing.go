// Package tracing makes OpenTelemetry spans, and joins those of a turn over the processes that work on it.
//
// A turn has one trace, that of the request that made it. The store keeps its place in that trace beside the turn
// (a W3C traceparent: two random ids and a flag), and every stint, on whichever worker, goes on from there. The span of the
// turn itself is written when the turn has ended, under an id that all can work out before:
//
//	POST /v1/threads/:thread/messages
//	└ accept
//	  ├ nudge                     relay, to Temporal
//	  └ invoke_agent bobbin       the turn
//	    ├ stint
//	    │ ├ take
//	    │ └ round
//	    │   ├ chat MODEL
//	    │   └ execute_tool NAME
//	    ├ execute_tool NAME       one with side effects
//	    └ end
//
// Names and attributes of model and tool calls are those of the GenAI semantic conventions, which are in development:
// https://github.com/open-telemetry/semantic-conventions-genai/blob/002c8a6ea1c8a42b14a4527db83b3cabcded610a/docs/gen-ai/gen-ai-spans.md
// None of the attributes that hold what was said are set.
//
// Where no provider was set up, every function here costs next to nothing.
package tracing

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"math/rand/v2"
	"net/http"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Attributes of the conventions that are set.
const (
	Operation    = attribute.Key("gen_ai.operation.name")
	Provider     = attribute.Key("gen_ai.provider.name")
	Agent        = attribute.Key("gen_ai.agent.name")
	Conversation = attribute.Key("gen_ai.conversation.id")
	Model        = attribute.Key("gen_ai.request.model")
	Stream       = attribute.Key("gen_ai.request.stream")
	Answered     = attribute.Key("gen_ai.response.model")
	Finish       = attribute.Key("gen_ai.response.finish_reasons")
	FirstChunk   = attribute.Key("gen_ai.response.time_to_first_chunk")
	InputTokens  = attribute.Key("gen_ai.usage.input_tokens")
	OutputTokens = attribute.Key("gen_ai.usage.output_tokens")
	Tool         = attribute.Key("gen_ai.tool.name")
	ToolType     = attribute.Key("gen_ai.tool.type")
	ToolCall     = attribute.Key("gen_ai.tool.call.id")

	// https://opentelemetry.io/docs/specs/semconv/http/http-spans/, stable
	Method = attribute.Key("http.request.method")
	Route  = attribute.Key("http.route")
	Status = attribute.Key("http.response.status_code")

	errorType = attribute.Key("error.type")
)

// Attributes of our own. Ids, counters and enums only.
const (
	ThreadID  = attribute.Key("bobbin.thread.id")
	TurnID    = attribute.Key("bobbin.turn.id")
	MessageID = attribute.Key("bobbin.message.id")
	Round     = attribute.Key("bobbin.round")
	Loaded    = attribute.Key("bobbin.loaded") // a message was
	Outcome   = attribute.Key("bobbin.outcome")
)

func tracer() trace.Tracer { return otel.Tracer("bobbin") }

// Start starts a span within ctx's. It must be ended, by End.
func Start(ctx context.Context, name string, attrs ...attribute.KeyValue) (context.Context, Span) {
	return start(ctx, name, trace.SpanKindInternal, attrs)
}

// Serve starts the span of a request, within the client's where header has a traceparent.
func Serve(ctx context.Context, name string, header http.Header, attrs ...attribute.KeyValue) (context.Context, Span) {
	return start(propagation.TraceContext{}.Extract(ctx, propagation.HeaderCarrier(header)), name, trace.SpanKindServer, attrs)
}

// Call starts the span of a call to another system.
func Call(ctx context.Context, name string, attrs ...attribute.KeyValue) (context.Context, Span) {
	return start(ctx, name, trace.SpanKindClient, attrs)
}

func start(ctx context.Context, name string, kind trace.SpanKind, attrs []attribute.KeyValue) (context.Context, Span) {
	ctx, s := tracer().Start(ctx, name, trace.WithSpanKind(kind), trace.WithAttributes(attrs...))
	return ctx, Span{s}
}

// A Span is what Start began.
type Span struct{ span trace.Span }

// Set adds attributes.
func (s Span) Set(attrs ...attribute.KeyValue) { s.span.SetAttributes(attrs...) }

// Link says that the span has to do with what a traceparent names, in another trace.
func (s Span) Link(parent string) {
	if c := trace.SpanContextFromContext(Within(context.Background(), parent)); c.IsValid() {
		s.span.AddLink(trace.Link{SpanContext: c})
	}
}

// In returns ctx within the span.
func (s Span) In(ctx context.Context) context.Context { return trace.ContextWithSpan(ctx, s.span) }

// End ends the span. kind names the class of what went wrong; empty: nothing did. It must hold nothing that was said.
func (s Span) End(kind string) {
	if kind != "" {
		s.span.SetAttributes(errorType.String(kind))
		s.span.SetStatus(codes.Error, "")
	}
	s.span.End()
}

// Parent returns ctx's place in its trace as a W3C traceparent, or "" where nothing is traced.
func Parent(ctx context.Context) string {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return ""
	}
	c := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, c)
	return c["traceparent"]
}

// Within returns ctx as part of the trace that a traceparent names.
func Within(ctx context.Context, parent string) context.Context {
	if parent == "" {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": parent})
}

// A Turn is a turn in its trace.
type Turn struct {
	ID, ThreadID string
	Parent       string // as the store keeps it; empty: nothing was traced when it was made
}

// Within returns ctx within the turn's span, which need not have been written yet.
func (t Turn) Within(ctx context.Context) context.Context {
	ctx = Within(ctx, t.Parent)
	parent := trace.SpanContextFromContext(ctx)
	if !parent.IsValid() {
		return ctx
	}
	return trace.ContextWithRemoteSpanContext(ctx, parent.WithSpanID(t.spanID()))
}

// Ended writes the turn's span.
func (t Turn) Ended(ctx context.Context, began, ended time.Time, kind string, attrs ...attribute.KeyValue) {
	if t.Parent == "" {
		return
	}
	ctx = context.WithValue(Within(ctx, t.Parent), spanIDKey{}, t.spanID())
	attrs = append(attrs, Operation.String("invoke_agent"), Agent.String("bobbin"), Conversation.String(t.ThreadID), TurnID.String(t.ID))
	_, s := tracer().Start(ctx, "invoke_agent bobbin", trace.WithTimestamp(began), trace.WithAttributes(attrs...))
	if kind != "" {
		s.SetAttributes(errorType.String(kind))
		s.SetStatus(codes.Error, "")
	}
	s.End(trace.WithTimestamp(ended))
}

func (t Turn) spanID() (id trace.SpanID) {
	sum := sha256.Sum256([]byte(t.ID))
	copy(id[:], sum[:])
	return id
}

type spanIDKey struct{}

// IDs makes random ids, but for the span of a turn. A provider must be given it.
type IDs struct{}

// NewIDs implements IDGenerator of the SDK.
func (g IDs) NewIDs(ctx context.Context) (t trace.TraceID, s trace.SpanID) {
	binary.LittleEndian.PutUint64(t[:8], rand.Uint64()|1) // zero is no id
	binary.LittleEndian.PutUint64(t[8:], rand.Uint64())
	return t, g.NewSpanID(ctx, t)
}

// NewSpanID implements IDGenerator of the SDK.
func (IDs) NewSpanID(ctx context.Context, _ trace.TraceID) (s trace.SpanID) {
	if id, ok := ctx.Value(spanIDKey{}).(trace.SpanID); ok {
		return id
	}
	binary.LittleEndian.PutUint64(s[:], rand.Uint64()|1)
	return s
}
