package e2e

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	spans "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"bobbin/e2e/house"
	"bobbin/llm/scripted"
	"bobbin/thread"
)

// A traceServer takes traces as a collector does.
type traceServer struct {
	url string

	mu    sync.Mutex
	spans []*spans.Span
	raw   strings.Builder
}

func newTraceServer(t *testing.T) *traceServer {
	s := &traceServer{}
	web := httptest.NewServer(s)
	t.Cleanup(web.Close)
	s.url = web.URL
	return s
}

func (s *traceServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var in collector.ExportTraceServiceRequest
	if err != nil || r.URL.Path != "/v1/traces" || proto.Unmarshal(body, &in) != nil {
		http.Error(w, "no traces", http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.raw.WriteString(protojson.Format(&in))
	for _, of := range in.ResourceSpans {
		for _, in := range of.ScopeSpans {
			s.spans = append(s.spans, in.Spans...)
		}
	}
}

// named returns the spans of a name.
func (s *traceServer) named(name string) (list []*spans.Span) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, span := range s.spans {
		if span.Name == name {
			list = append(list, span)
		}
	}
	return list
}

func valueOf(s *spans.Span, key string) *common.AnyValue {
	for _, a := range s.Attributes {
		if a.Key == key {
			return a.Value
		}
	}
	return nil
}

func TestAMessageIsOneTraceFromItsRequestToItsAnswerAndHoldsNothingThatWasSaid(t *testing.T) {
	t.Parallel()
	traces := newTraceServer(t)
	h := house.Furnish(t, "OTEL_EXPORTER_OTLP_ENDPOINT="+traces.url, "OTEL_BSP_SCHEDULE_DELAY=50", "BOBBIN_STINT_MAX_ROUNDS=1")
	g := h.Tools.Gate("PLANTEDARGUMENT")
	c := h.Chat(scripted.Rounds(house.Ask("look", "PLANTEDARGUMENT"), house.Ask("charge", "PLANTEDCHARGE"), scripted.Say("PLANTEDANSWER")))
	var first house.Accepted
	require.NoError(t, h.Call("POST", "/v1/threads/"+c.ID+"/messages", map[string]any{"text": c.Marker + " PLANTEDWORDS"}, &first,
		"Traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"))
	h.Arrives(g)
	steered := c.Send("PLANTEDLINE")
	g.Release()
	c.Answered(first.TurnID)
	h.Until("the turn's span", func() bool { return len(traces.named("invoke_agent bobbin")) > 0 })

	turn := traces.named("invoke_agent bobbin")[0]
	trace := string(turn.TraceId)
	byID := map[string]*spans.Span{}
	h.Until("all spans of the trace", func() bool {
		traces.mu.Lock()
		defer traces.mu.Unlock()
		names := map[string]int{}
		for _, s := range traces.spans {
			if string(s.TraceId) == trace {
				byID[string(s.SpanId)] = s
				names[s.Name]++
			}
		}
		return names["nudge"] > 0 && names["stint"] == 3 && names["round"] == 3 && names["chat scripted"] == 3 && names["end"] == 1 &&
			names["execute_tool look"] == 1 && names["execute_tool charge"] == 1 && names["take"] >= 3
	})
	// path is a span's name behind those of all that it stands in, the client's own left out.
	path := func(s *spans.Span) string {
		names := []string{s.Name}
		for byID[string(s.ParentSpanId)] != nil {
			s = byID[string(s.ParentSpanId)]
			names = append(names, s.Name)
		}
		slices.Reverse(names)
		return strings.Join(names, " > ")
	}
	var paths []string
	for _, s := range byID {
		paths = append(paths, path(s))
	}
	root := "POST /v1/threads/:thread/messages > accept"
	slices.Sort(paths)
	require.Equal(t, []string{
		"POST /v1/threads/:thread/messages", root,
		root + " > invoke_agent bobbin",
		root + " > invoke_agent bobbin > end",
		root + " > invoke_agent bobbin > execute_tool charge",
		root + " > invoke_agent bobbin > stint",
		root + " > invoke_agent bobbin > stint > round",
		root + " > invoke_agent bobbin > stint > round > chat scripted",
		root + " > invoke_agent bobbin > stint > round > execute_tool look",
		root + " > invoke_agent bobbin > stint > take",
		root + " > nudge",
	}, slices.Compact(paths))

	chat := traces.named("chat scripted")[0]
	require.Equal(t, spans.Span_SPAN_KIND_CLIENT, chat.Kind)
	require.Equal(t, "chat", valueOf(chat, "gen_ai.operation.name").GetStringValue())
	require.Equal(t, "scripted", valueOf(chat, "gen_ai.request.model").GetStringValue())
	require.Equal(t, c.ID, valueOf(chat, "gen_ai.conversation.id").GetStringValue())
	require.Positive(t, valueOf(chat, "gen_ai.usage.input_tokens").GetIntValue())
	require.Positive(t, valueOf(chat, "gen_ai.usage.output_tokens").GetIntValue())
	tool := traces.named("execute_tool look")[0]
	require.Equal(t, "execute_tool", valueOf(tool, "gen_ai.operation.name").GetStringValue())
	require.Equal(t, "look", valueOf(tool, "gen_ai.tool.name").GetStringValue())
	require.Equal(t, "invoke_agent", valueOf(turn, "gen_ai.operation.name").GetStringValue())
	require.Equal(t, string(thread.TurnSucceeded), valueOf(turn, "bobbin.outcome").GetStringValue())

	// The message that was loaded into it has a trace of its own, which leads there.
	h.Until("the steering message's span", func() bool { return len(traces.named("accept")) == 2 })
	linked := slices.IndexFunc(traces.named("accept"), func(s *spans.Span) bool { return string(s.TraceId) != trace })
	require.Equal(t, trace, string(traces.named("accept")[linked].Links[0].TraceId))
	require.Equal(t, thread.DisposedSteering, steered.Disposition)

	traces.mu.Lock()
	defer traces.mu.Unlock()
	require.NotContains(t, traces.raw.String(), "PLANTED")
	require.NotContains(t, traces.raw.String(), house.APIKey)
}
