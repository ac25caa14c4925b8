package llm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/stretchr/testify/require"

	"bobbin/llm/scripted"
	"bobbin/thread"
)

// forever is longer than any test may take.
const forever = 30 * time.Second

type bundle struct {
	client *Client
	server *scripted.Server
}

// setup starts a scripted provider and a client for it.
func setup(t *testing.T, opt scripted.Options, change ...func(*Config)) bundle {
	t.Helper()
	opt.Key = "secret-key"
	s := scripted.New(opt)
	h := httptest.NewServer(s)
	t.Cleanup(h.Close)
	t.Cleanup(s.Close)
	return bundle{clientOf(t, h.URL+"/v1", change...), s}
}

func clientOf(t *testing.T, base string, change ...func(*Config)) *Client {
	t.Helper()
	cfg := Config{BaseURL: base, APIKey: "secret-key", Model: "m", MaxOutputTokens: 100}
	for _, f := range change {
		f(&cfg)
	}
	c, err := New(cfg)
	require.NoError(t, err)
	return c
}

// raw starts a server that answers every request with a fixed body.
func raw(t *testing.T, status int, header http.Header, body string) *Client {
	t.Helper()
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		for k, v := range header {
			w.Header()[k] = v
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(h.Close)
	return clientOf(t, h.URL)
}

// uncounted leaves out what a reply used.
var uncounted = cmpopts.IgnoreFields(thread.Reply{}, "Model", "Usage", "Estimated")

func prompt(texts ...string) thread.Prompt {
	p := thread.Prompt{System: "be kind"}
	for _, text := range texts {
		p.Entries = append(p.Entries, user(text))
	}
	return p
}

var look = thread.ToolSpec{Name: "look", Description: "looks", Parameters: json.RawMessage(`{"type":"object","properties":{}}`)}

func TestCallReturnsTheWholeReply(t *testing.T) {
	t.Parallel()
	b := setup(t, scripted.Options{Play: scripted.Always(scripted.Reply{
		Text: "Hello, dear wörld.", Reasoning: "Let me think.",
		Calls: []scripted.Call{{ID: "1", Name: "look", Arguments: `{"at":"höm"}`}, {ID: "2", Name: "look", Arguments: `{}`}},
		Usage: &scripted.Usage{Input: 2_000_000, Cached: 1_000_000, Output: 1000, Reasoning: 10},
	})}, func(c *Config) {
		c.Prices = &Prices{own: map[string]Price{"m": {Input: 3, CachedInput: 0.3, Output: 1000, Reasoning: 2000}}}
	})
	p := prompt("hi")
	p.Tools = []thread.ToolSpec{look}

	var pieces []string
	got, err := b.client.Call(t.Context(), p, func(s string) { pieces = append(pieces, s) })
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(thread.Reply{
		Text: "Hello, dear wörld.", Reasoning: "Let me think.",
		Calls:  []thread.Asked{{ID: "1", Name: "look", Arguments: `{"at":"höm"}`}, {ID: "2", Name: "look", Arguments: `{}`}},
		Finish: thread.FinishCalls, Model: "m",
		Usage: thread.Usage{InputTokens: 2_000_000, CachedTokens: 1_000_000, OutputTokens: 1000, ReasoningTokens: 10, Cost: 4_310_000_000},
	}, got))
	require.Equal(t, []string{"Hello, ", "dear ", "wörld."}, pieces)
	require.Len(t, b.server.Requests(), 1)
}

func TestCallTakesAnAnswerThatIsNotStreamed(t *testing.T) {
	t.Parallel()
	c := raw(t, 200, http.Header{"Content-Type": {"application/json"}},
		`{"model":"x","choices":[{"index":0,"message":{"role":"assistant","content":"whole","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":1,"completion_tokens":2}}`)
	got, err := c.Call(t.Context(), prompt("q"), nil)
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(thread.Reply{
		Text: "whole", Calls: []thread.Asked{{ID: "1", Name: "f", Arguments: "{}"}}, Finish: "tool_calls", Model: "x",
		Usage: thread.Usage{InputTokens: 1, OutputTokens: 2},
	}, got))
}

// events renders chunks of one choice from their deltas, then a finish reason.
func events(finish string, deltas ...string) string {
	var b strings.Builder
	for _, d := range deltas {
		fmt.Fprintf(&b, ": keep-alive\n\ndata: {\"choices\":[{\"index\":0,\"delta\":%s,\"finish_reason\":null}]}\n\n", d)
	}
	if finish != "" {
		fmt.Fprintf(&b, "event: x\ndata:{\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":%q}]}\r\n\r\ndata: [DONE]\n\n", finish)
	}
	return b.String()
}

func TestCallShowsWholeCharactersOnly(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, body string
		want       []string
	}{
		{"WhenTheirBytesAreCut", events("stop", "{\"content\":\"a\xc3\"}", "{\"content\":\"\xa4 \xf0\x9f\x98\"}", "{\"content\":\"\x80\"}"), []string{"a", "ä ", "😀"}},
		{"WhenSurrogatesAreCut", events("stop", `{"content":"a\ud83d"}`, `{"content":"\ude00b"}`), []string{"a", "😀b"}},
		{"WhenABackslashStandsBeforeWhatLooksLikeOne", events("stop", `{"content":"\\ud83d"}`, `{"content":"x"}`), []string{`\ud83d`, "x"}},
		{"WhenTheEndIsMissing", events("stop", "{\"content\":\"a\xc3\"}"), []string{"a", "\ufffd"}},
		{"WithoutNUL", events("stop", `{"content":"a\u0000b"}`, `{"content":"\u0000"}`), []string{"ab"}},
		{"WhenContentComesInParts", events("stop", `{"content":[{"type":"thinking","thinking":[]},{"type":"text","text":"a"}]}`), []string{"a"}},
		{"WhenTheModelRefuses", events("stop", `{"content":null,"refusal":"no"}`), []string{"no"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var pieces []string
			got, err := raw(t, 200, nil, tc.body).Call(t.Context(), prompt("q"), func(s string) { pieces = append(pieces, s) })
			require.NoError(t, err)
			require.Equal(t, tc.want, pieces)
			require.Equal(t, strings.Join(tc.want, ""), got.Text)
		})
	}
}

func TestCallAssemblesToolCallsOfEveryProvider(t *testing.T) {
	t.Parallel()
	two := []thread.Asked{{ID: "a", Name: "f", Arguments: `{"x":1}`}, {ID: "b", Name: "g", Arguments: `{"y":2}`}}
	calls := func(deltas ...string) string { return `{"tool_calls":[` + strings.Join(deltas, ",") + `]}` }
	for _, tc := range []struct {
		name string
		body string
		want []thread.Asked
	}{
		{"ByIndex", events("tool_calls",
			calls(`{"index":0,"id":"a","function":{"name":"f","arguments":""}}`), calls(`{"index":0,"function":{"arguments":"{\"x\""}}`),
			calls(`{"index":1,"id":"b","function":{"name":"g","arguments":"{\"y\":2}"}}`), calls(`{"index":0,"function":{"arguments":":1}"}}`)), two},
		{"WithoutIndexInOneChunk", events("stop",
			calls(`{"id":"a","function":{"name":"f","arguments":"{\"x\":1}"}}`, `{"id":"b","function":{"name":"g","arguments":"{\"y\":2}"}}`)), two},
		{"WithoutIndexInPieces", events("tool_calls",
			calls(`{"id":"a","function":{"name":"f","arguments":"{\"x\""}}`), calls(`{"function":{"arguments":":1}"}}`),
			calls(`{"id":"b","function":{"name":"g"}}`), calls(`{"id":"b","function":{"arguments":"{\"y\":2}"}}`)), two},
		{"WithIndexZeroForAll", events("tool_calls",
			calls(`{"index":0,"id":"a","function":{"name":"f","arguments":"{\"x\":1}"}}`), calls(`{"index":0,"id":"b","function":{"name":"g","arguments":"{\"y\":2}"}}`)), two},
		{"WithALateId", events("tool_calls",
			calls(`{"index":0,"function":{"name":"f","arguments":"{\"x\":"}}`), calls(`{"index":0,"id":"a","function":{"arguments":"1}"}}`),
			calls(`{"index":1,"function":{"name":"g"}}`), calls(`{"index":1,"id":"b","function":{"arguments":"{\"y\":2}"}}`)), two},
		{"WithTheNameInEveryDelta", events("tool_calls",
			calls(`{"index":0,"id":"a","function":{"name":"f","arguments":"{\"x\""}}`), calls(`{"index":0,"id":"a","function":{"name":"f","arguments":":1}"}}`),
			calls(`{"id":"b","function":{"name":"g","arguments":"{\"y\""}}`), calls(`{"id":"b","function":{"name":"g","arguments":":2}"}}`)), two},
		{"WithANewIdInEveryDelta", events("tool_calls",
			calls(`{"index":0,"id":"a","function":{"name":"f"}}`), calls(`{"index":0,"id":"q","function":{"arguments":"{\"x\":1}"}}`),
			calls(`{"index":1,"id":"b","function":{"name":"g"}}`), calls(`{"index":1,"id":"r","function":{"arguments":"{\"y\":2}"}}`)), two},
		{
			"WithANameInPieces", events("tool_calls",
				calls(`{"index":0,"id":"a","function":{"name":"look_"}}`), calls(`{"index":0,"function":{"name":"up","arguments":"{}"}}`)),
			[]thread.Asked{{ID: "a", Name: "look_up", Arguments: "{}"}},
		},
		{
			"WithoutIds", events("tool_calls",
				calls(`{"function":{"name":"f","arguments":"{}"}}`, `{"function":{"name":"f","arguments":"{}"}}`), calls(`{"function":{"name":"f","arguments":"{}"}}`)),
			[]thread.Asked{{ID: "call_0", Name: "f", Arguments: "{}"}, {ID: "call_1", Name: "f", Arguments: "{}"}, {ID: "call_2", Name: "f", Arguments: "{}"}},
		},
		{
			"WithTheSameIdTwice", events("tool_calls",
				calls(`{"index":0,"id":"a","function":{"name":"f","arguments":"{}"}}`, `{"index":1,"id":"a","function":{"name":"f","arguments":"{}"}}`)),
			[]thread.Asked{{ID: "a", Name: "f", Arguments: "{}"}, {ID: "a_2", Name: "f", Arguments: "{}"}},
		},
		{
			"WithArgumentsAsAnObject", events("tool_calls", calls(`{"index":0,"id":"a","function":{"name":"f","arguments":{"x":1}}}`)),
			[]thread.Asked{{ID: "a", Name: "f", Arguments: `{"x":1}`}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, err := raw(t, 200, nil, tc.body).Call(t.Context(), prompt("q"), nil)
			require.NoError(t, err)
			require.Empty(t, cmp.Diff(tc.want, got.Calls))
			require.Equal(t, thread.FinishCalls, got.Finish)
		})
	}
}

func TestCallSortsErrors(t *testing.T) {
	t.Parallel()
	// planted stands for what was said; no error may repeat it.
	const planted = "PLANTED"
	openAI := func(code, kind, message string) string {
		return fmt.Sprintf(`{"error":{"message":%q,"type":%q,"param":null,"code":%q}}`, message+" "+planted, kind, code)
	}
	mk := func(kind thread.ModelErrorKind, status int, code string) thread.ModelError {
		return thread.ModelError{Kind: kind, Status: status, Code: code}
	}
	after := func(e thread.ModelError, d time.Duration) thread.ModelError { e.RetryAfter = d; return e }
	for _, tc := range []struct {
		name   string
		status int
		header http.Header
		body   string
		want   thread.ModelError
	}{
		{"RateLimit", 429, http.Header{"Retry-After": {"7"}}, openAI("rate_limit_exceeded", "requests", "slow down"), after(mk("temporary", 429, "rate_limit_exceeded"), 7*time.Second)},
		{"RateLimitInMilliseconds", 429, http.Header{"Retry-After": {"7"}, "Retry-After-Ms": {"1500"}}, "", after(mk("temporary", 429, ""), 1500*time.Millisecond)},
		{"RateLimitUntilADate", 429, http.Header{"Date": {"Mon, 02 Jan 2006 15:04:05 GMT"}, "Retry-After": {"Mon, 02 Jan 2006 15:05:05 GMT"}}, "", after(mk("temporary", 429, ""), time.Minute)},
		{"RateLimitWithNonsense", 429, http.Header{"Retry-After": {"soon"}}, "{", mk("temporary", 429, "")},
		{"RateLimitForEver", 429, http.Header{"Retry-After": {"1e300"}}, "{", after(mk("temporary", 429, ""), maxRetryAfter)},
		{"RateLimitInThePast", 429, http.Header{"Retry-After": {"-3"}}, "{", mk("temporary", 429, "")},
		{"RateLimitThatBedrockCallsTooManyTokens", 429, nil, `{"message":"Too many tokens, please wait before trying again."}`, mk("temporary", 429, "")},
		{"RateLimitThatGeminiCallsQuota", 429, nil, `[{"error":{"code":429,"message":"You exceeded your current quota","status":"RESOURCE_EXHAUSTED"}}]`, mk("temporary", 429, "RESOURCE_EXHAUSTED")},
		{"RequestTimeout", 408, nil, "", mk("temporary", 408, "")},
		{"Conflict", 409, nil, "", mk("temporary", 409, "")},
		{"TooEarly", 425, nil, "", mk("temporary", 425, "")},
		{"ServerError", 500, nil, openAI("", "server_error", "oops"), mk("temporary", 500, "server_error")},
		{"BadGatewayAsHTML", 502, nil, "<html>" + planted, mk("temporary", 502, "")},
		{"Overloaded", 529, nil, `{"type":"error","error":{"type":"overloaded_error","message":"PLANTED"}}`, mk("temporary", 529, "overloaded_error")},
		{"TooLongAtOpenAI", 400, nil, openAI("context_length_exceeded", "invalid_request_error", "This model's maximum context length is 8192 tokens."), mk("context_too_long", 400, "context_length_exceeded")},
		{"TooLongAtVLLM", 400, nil, `{"object":"error","message":"This model's maximum context length is 10 tokens. However, you requested PLANTED","type":"BadRequestError","param":null,"code":400}`, mk("context_too_long", 400, "BadRequestError")},
		{"TooLongAtLlamaCpp", 400, nil, `{"error":{"code":400,"message":"the request exceeds the available context size, try increasing it","type":"exceed_context_size_error","n_ctx":1}}`, mk("context_too_long", 400, "exceed_context_size_error")},
		{"TooLongAtLlamaCppAs500", 500, nil, `{"error":{"code":500,"message":"Context size has been exceeded.","type":"server_error"}}`, mk("context_too_long", 500, "server_error")},
		{"TooLongAtAnthropic", 400, nil, openAI("invalid_request_error", "invalid_request_error", "prompt is too long: 200001 tokens > 200000 maximum"), mk("context_too_long", 400, "invalid_request_error")},
		{"TooLongAtGemini", 400, nil, `[{"error":{"code":400,"message":"The input token count (5) exceeds the maximum number of tokens allowed (4).","status":"INVALID_ARGUMENT"}}]`, mk("context_too_long", 400, "INVALID_ARGUMENT")},
		{"TooLongAtAProxy", 400, nil, `{"error":{"message":"Provider returned error","code":400,"metadata":{"raw":"{\"error\":{\"message\":\"too many tokens PLANTED\"}}"}}}`, mk("context_too_long", 400, "")},
		{"TooLongForTheRateLimit", 429, nil, openAI("rate_limit_exceeded", "tokens", "Request too large for m on tokens per min"), mk("context_too_long", 429, "rate_limit_exceeded")},
		{"TooLongForHTTP", 413, nil, "", mk("context_too_long", 413, "")},
		{"QuotaAtOpenAI", 429, nil, openAI("insufficient_quota", "insufficient_quota", "You exceeded your current quota"), mk("quota", 429, "insufficient_quota")},
		{"QuotaByStatus", 402, nil, `{"error":"PLANTED"}`, mk("quota", 402, "")},
		{"QuotaAtAnthropic", 400, nil, openAI("", "invalid_request_error", "Your credit balance is too low"), mk("quota", 400, "invalid_request_error")},
		{"FilterAtAzure", 400, nil, `{"error":{"message":"The response was filtered PLANTED","type":null,"param":"prompt","code":"content_filter","status":400,"innererror":{"code":"ResponsibleAIPolicyViolation"}}}`, mk("filtered", 400, "content_filter")},
		{"FilterAtOpenAI", 400, nil, openAI("content_policy_violation", "", "no"), mk("filtered", 400, "content_policy_violation")},
		{"WrongKey", 401, nil, openAI("invalid_api_key", "invalid_request_error", "Incorrect API key provided: secret-key"), mk("invalid", 401, "invalid_api_key")},
		{"NoSuchModel", 404, nil, openAI("model_not_found", "invalid_request_error", "no"), mk("invalid", 404, "model_not_found")},
		{"BadRequest", 400, nil, openAI("", "invalid_request_error", "bad"), mk("invalid", 400, "invalid_request_error")},
		{"BadRequestThatEchoes", 422, nil, `{"detail":[{"msg":"bad","input":"maximum context length PLANTED"}]}`, mk("invalid", 422, "")},
		{"ACodeThatIsASentence", 400, nil, openAI("the word PLANTED is not allowed", "", ""), mk("invalid", 400, "")},
		{"ARedirect", 307, http.Header{"Location": {"https://example.com"}}, "", mk("invalid", 307, "")},
		{"InTheStream", 200, nil, ": comment\n\n" + events("", `{"content":"a"}`) + "data: " + openAI("server_error", "server_error", "x") + "\n\n", mk("temporary", 200, "server_error")},
		{"InTheStreamWithAnHTTPCode", 200, nil, `data: {"id":"1","error":{"code":503,"message":"PLANTED"},"choices":[{"index":0,"delta":{},"finish_reason":"error"}]}` + "\n\n", mk("temporary", 503, "")},
		{"InTheStreamTooLong", 200, nil, ": comment\n\ndata: " + openAI("context_length_exceeded", "", "x") + "\n\n", mk("context_too_long", 200, "context_length_exceeded")},
		{"InTheStreamInvalid", 200, nil, "data: " + openAI("", "invalid_request_error", "x") + "\n\n", mk("invalid", 200, "invalid_request_error")},
		{"InTheStreamAtVLLM", 200, nil, `data: {"object":"error","message":"PLANTED","type":"InternalServerError","code":500}` + "\n\n", mk("temporary", 500, "InternalServerError")},
		{"InTheStreamAsAWord", 200, nil, `data: {"error":"PLANTED"}` + "\n\n", mk("temporary", 200, "")},
		{"Filtered", 200, nil, events("content_filter"), mk("filtered", 200, "content_filter")},
		{"NoFinish", 200, nil, events("", `{"content":"PLANTED"}`), thread.ModelError{Kind: "temporary", Err: errNoFinish}},
		{"FinishError", 200, nil, events("error", `{"content":"PLANTED"}`), thread.ModelError{Kind: "temporary", Err: errNoFinish}},
		{"Garbage", 200, nil, "data: PLANTED\n\n", thread.ModelError{Kind: "temporary", Err: errGarbage}},
		{"NoStreamAtAll", 200, nil, "<html>PLANTED", thread.ModelError{Kind: "temporary", Err: errNoFinish}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			reply, err := raw(t, tc.status, tc.header, tc.body).Call(t.Context(), prompt(planted), nil)
			got := thread.AsModelError(err)
			require.NotNil(t, got, "%v", err)
			require.Empty(t, cmp.Diff(tc.want, *got, cmpopts.EquateErrors()))
			require.Empty(t, cmp.Diff(thread.Reply{}, reply, uncounted), "nothing of it but what it used")
			for e := err; e != nil; e = errors.Unwrap(e) {
				require.NotContains(t, e.Error(), planted)
				require.NotContains(t, e.Error(), "secret-key")
			}
		})
	}
}

func TestCallKeepsAFilteredAnswerThatHasText(t *testing.T) {
	t.Parallel()
	got, err := raw(t, 200, nil, events("content_filter", `{"content":"half"}`)).Call(t.Context(), prompt("q"), nil)
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(thread.Reply{Text: "half", Finish: thread.FinishFiltered}, got, uncounted))
}

func TestCallTakesAnEmptyAnswerForAReply(t *testing.T) {
	t.Parallel()
	b := setup(t, scripted.Options{Play: scripted.Always(scripted.Reply{Finish: "tool_calls", Usage: &scripted.Usage{}})})
	got, err := b.client.Call(t.Context(), prompt("q"), nil)
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(thread.Reply{Finish: thread.FinishStop}, got, uncounted))
}

func TestCallIsOneAttempt(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		reply scripted.Reply
		err   error
	}{
		{"ThatTheServerRefuses", scripted.Reply{Status: 500}, nil},
		{"ThatBreaksBeforeItBegins", scripted.Reply{Text: "a b c", Fault: scripted.Break}, nil},
		{"ThatBreaks", scripted.Reply{Text: "a b c", Fault: scripted.Break, After: 2}, io.ErrUnexpectedEOF},
		{"ThatHoldsGarbage", scripted.Reply{Text: "a b c", Fault: scripted.Garbage, After: 1}, errGarbage},
		{"ThatEndsWithoutAReason", scripted.Reply{Text: "a b c", Fault: scripted.NoFinish, After: 9}, errNoFinish},
		{"ThatEndsWithAnError", scripted.Reply{Text: "a b c", Fault: scripted.StreamError, After: 1}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, scripted.Options{Play: scripted.Always(tc.reply)})
			_, err := b.client.Call(t.Context(), prompt("q"), nil)
			e := thread.AsModelError(err)
			require.NotNil(t, e, "%v", err)
			require.Equal(t, thread.ModelTemporary, e.Kind)
			if tc.err != nil {
				require.ErrorIs(t, err, tc.err)
			}
			require.Len(t, b.server.Requests(), 1)
		})
	}
}

func TestCallTimesOut(t *testing.T) {
	t.Parallel()
	const soon = 20 * time.Millisecond
	for _, tc := range []struct {
		name   string
		reply  scripted.Reply
		change func(*Config)
		want   error
	}{
		{"WhenNothingBegins", scripted.Reply{Fault: scripted.Hang}, func(c *Config) { c.FirstByteTimeout = soon }, errFirstByte},
		{"WhenTheStreamStalls", scripted.Reply{Text: "a b", Fault: scripted.Hang, After: 1}, func(c *Config) { c.IdleTimeout = soon }, errIdle},
		{"WhenTheWholeTakesTooLong", scripted.Reply{Text: "a b", Fault: scripted.Hang, After: 1}, func(c *Config) { c.CallTimeout = soon }, errCallTimeout},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, scripted.Options{Play: scripted.Always(tc.reply)}, tc.change)
			_, err := b.client.Call(t.Context(), prompt("q"), nil)
			require.ErrorIs(t, err, tc.want)
			require.Equal(t, thread.ModelTemporary, thread.AsModelError(err).Kind)
			ctx, cancel := context.WithTimeout(t.Context(), forever)
			defer cancel()
			// On a busy machine the time may be over before the request has arrived: then there is nothing to close.
			require.NoError(t, b.server.Await(ctx, func(all []scripted.Request) bool {
				return len(all) == 0 || !all[0].Gone.IsZero()
			}), "the connection was closed")
		})
	}
}

func TestWatchdogDoesNotTakeASlowReaderForASlowProvider(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, w := newWatchdog(t.Context(), time.Minute, time.Minute)
		defer w.stop()
		w.body = iotest.OneByteReader(strings.NewReader("abc"))
		for range 3 {
			n, err := w.Read(make([]byte, 8))
			require.NoError(t, err)
			require.Equal(t, 1, n)
			time.Sleep(time.Hour) // of the bubble's clock
		}
		require.NoError(t, ctx.Err())
	})
}

func TestCallReturnsACompleteReplyWhoseStreamDoesNotEnd(t *testing.T) {
	t.Parallel()
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, strings.ReplaceAll(events("stop", `{"content":"a"}`), "data: [DONE]", ""))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	t.Cleanup(h.Close)
	got, err := clientOf(t, h.URL, func(c *Config) { c.IdleTimeout = 20 * time.Millisecond }).Call(t.Context(), prompt("q"), nil)
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(thread.Reply{Text: "a", Finish: thread.FinishStop}, got, uncounted))
}

func TestCancellingClosesTheConnection(t *testing.T) {
	t.Parallel()
	for _, after := range []int{0, 1} {
		t.Run(fmt.Sprintf("After%dPieces", after), func(t *testing.T) {
			t.Parallel()
			b := setup(t, scripted.Options{Play: scripted.Always(scripted.Reply{Text: "a b", Fault: scripted.Hang, After: after})})
			ctx, cancel := context.WithCancelCause(t.Context())
			why := errors.New("stopped by the owner")
			wait, stop := context.WithTimeout(t.Context(), forever)
			defer stop()
			seen := make(chan struct{})
			go func() {
				if after > 0 {
					<-seen
				}
				_, _ = b.server.Wait(wait, 1)
				cancel(why)
			}()
			_, err := b.client.Call(ctx, prompt("q"), func(string) { close(seen) })
			require.ErrorIs(t, err, context.Canceled)
			require.ErrorIs(t, err, why)
			require.Nil(t, thread.AsModelError(err))
			req, err := b.server.WaitEnd(wait, 1)
			require.NoError(t, err)
			require.False(t, req.Gone.IsZero())
		})
	}
}

func TestCallersDeadlineIsATemporaryError(t *testing.T) {
	t.Parallel()
	b := setup(t, scripted.Options{Play: scripted.Always(scripted.Reply{Fault: scripted.Hang})})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := b.client.Call(ctx, prompt("q"), nil)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, thread.ModelTemporary, thread.AsModelError(err).Kind)
}

func TestCallWithNobodyThereIsATemporaryError(t *testing.T) {
	t.Parallel()
	h := httptest.NewServer(http.NotFoundHandler())
	h.Close()
	_, err := clientOf(t, h.URL).Call(t.Context(), prompt("q"), nil)
	require.Equal(t, thread.ModelTemporary, thread.AsModelError(err).Kind)
	require.ErrorContains(t, thread.AsModelError(err).Err, "refused")
}

func TestOptionalFieldsThatAreRefusedAreNotSentAgain(t *testing.T) {
	t.Parallel()
	b := setup(t, scripted.Options{Refuse: []string{"stream_options", "max_completion_tokens"}})
	for range 2 {
		got, err := b.client.Call(t.Context(), prompt("q"), nil)
		require.NoError(t, err)
		require.Equal(t, "You said: q", got.Text)
		require.True(t, got.Estimated, "it sends no count")
	}
	require.Len(t, b.server.Refusals(), 2)
	last := b.server.Requests()[1]
	require.Contains(t, string(last.Body), `"max_tokens":100`)
	require.False(t, last.Usage)
}

func TestCallsUseOneConnectionAfterAnother(t *testing.T) {
	t.Parallel()
	var opened atomic.Int32
	h := httptest.NewUnstartedServer(scripted.New(scripted.Options{Play: func(r scripted.Request) scripted.Reply {
		if r.Mentions("fail") {
			return scripted.Reply{Status: 429}
		}
		return scripted.Echo(r)
	}}))
	h.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			opened.Add(1)
		}
	}
	h.Start()
	t.Cleanup(h.Close)
	c := clientOf(t, h.URL+"/v1")
	for _, text := range []string{"a", "fail", "b", "c"} {
		_, _ = c.Call(t.Context(), prompt(text), nil)
	}
	require.EqualValues(t, 1, opened.Load())
}

func TestNewListsWhatIsWrong(t *testing.T) {
	t.Parallel()
	_, err := New(Config{BaseURL: "localhost:1", MaxOutputTokens: -1})
	require.ErrorContains(t, err, "base URL")
	require.ErrorContains(t, err, "model")
	require.ErrorContains(t, err, "output tokens")
}

func TestToolsGoOutAtTheOnlyEffortThatTakesThem(t *testing.T) {
	t.Parallel()
	b := setup(t, scripted.Options{}, func(c *Config) { c.Model = "gpt-6-sol" })
	p := prompt("q")
	p.Tools = []thread.ToolSpec{look}
	_, err := b.client.Call(t.Context(), p, nil)
	require.NoError(t, err)
	require.Contains(t, string(b.server.Requests()[0].Body), `"reasoning_effort":"none"`)
}

func TestTagsOfClientAndScriptAgree(t *testing.T) {
	t.Parallel()
	require.Equal(t, scripted.NoteTag, strings.TrimSpace(NoteTag))
}

func FuzzAnswerNeverShowsHalfACharacter(f *testing.F) {
	f.Add([]byte(events("stop", `{"content":"a\ud83d"}`, "{\"content\":\"\xc3\"}")))
	f.Add([]byte(events("tool_calls", `{"tool_calls":[{"function":{"name":"f","arguments":"{"}},{"index":3}]}`)))
	f.Fuzz(func(t *testing.T, body []byte) {
		var shown strings.Builder
		a := newAssembly(func(s string) {
			require.True(t, s != "" && utf8.ValidString(s) && !strings.Contains(s, "\x00"))
			shown.WriteString(s)
		})
		_, w := newWatchdog(t.Context(), forever, forever)
		defer w.stop()
		w.body = strings.NewReader(string(body))
		_ = a.read(w, "")
		r := Mend(a.reply())
		require.Equal(t, shown.String(), r.Text)
	})
}
