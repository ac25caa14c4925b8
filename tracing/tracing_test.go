package tracing

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
)

func TestATurnsSpanIsTheParentOfWhatWasDoneBeforeItWasWritten(t *testing.T) {
	t.Parallel()
	kept := tracetest.NewInMemoryExporter()
	p := sdk.NewTracerProvider(sdk.WithSyncer(kept), sdk.WithIDGenerator(IDs{}))
	ctx, request := p.Tracer("t").Start(t.Context(), "request")
	turn := Turn{ID: "trn_1", ThreadID: "thr_1", Parent: Parent(ctx)}
	elsewhere := turn.Within(context.Background())
	_, stint := p.Tracer("t").Start(elsewhere, "stint")
	stint.End()
	_, written := p.Tracer("t").Start(context.WithValue(Within(context.Background(), turn.Parent), spanIDKey{}, turn.spanID()), "turn")
	written.End()
	request.End()
	spans := kept.GetSpans()
	require.Equal(t, spans[1].SpanContext.SpanID(), spans[0].Parent.SpanID(), "the stint stands in the turn")
	require.Equal(t, spans[2].SpanContext.SpanID(), spans[1].Parent.SpanID(), "the turn in the request")
	require.Equal(t, spans[2].SpanContext.TraceID(), spans[0].SpanContext.TraceID())
	require.NotEqual(t, turn.spanID(), Turn{ID: "trn_2"}.spanID())
}

func TestWhatIsNoTraceparentIsNoParent(t *testing.T) {
	t.Parallel()
	for _, parent := range []string{"", "x", "00-00000000000000000000000000000000-0000000000000000-01", "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"} {
		require.False(t, trace.SpanContextFromContext(Turn{ID: "trn_1", Parent: parent}.Within(t.Context())).IsValid(), parent)
	}
	require.Empty(t, Parent(t.Context()))
	Turn{ID: "trn_1"}.Ended(t.Context(), time.Now(), time.Now(), "")
}

// Nothing is traced: what a round does for its spans.
func BenchmarkOff(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		ctx, round := Start(b.Context(), "round", Round.Int(1))
		_, call := Call(ctx, "chat", Operation.String("chat"), Model.String("m"))
		call.Set(InputTokens.Int64(1), OutputTokens.Int64(1))
		call.End("")
		round.End("")
		_ = Parent(ctx)
	}
}
