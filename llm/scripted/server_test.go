package scripted_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"bobbin/llm"
	"bobbin/llm/scripted"
	"bobbin/thread"
)

// forever is longer than any test may take.
const forever = 30 * time.Second

type bundle struct {
	server *scripted.Server
	client *llm.Client
	url    string
}

func setup(t *testing.T, opt scripted.Options) bundle {
	t.Helper()
	s := scripted.New(opt)
	h := httptest.NewServer(s)
	t.Cleanup(h.Close)
	t.Cleanup(s.Close)
	c, err := llm.New(llm.Config{BaseURL: h.URL + "/v1", APIKey: opt.Key, Model: "m"})
	require.NoError(t, err)
	return bundle{s, c, h.URL}
}

func (b bundle) do(t *testing.T, method, path, key, body string) (status int, answer string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, b.url+path, strings.NewReader(body))
	require.NoError(t, err)
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(got)
}

// say asks the model with one message and returns its text.
func (b bundle) say(t *testing.T, text string) string {
	t.Helper()
	r, err := b.client.Call(t.Context(), promptOf(text), nil)
	require.NoError(t, err)
	return r.Text
}

func promptOf(text string) thread.Prompt {
	return thread.Prompt{Entries: []thread.Entry{{Kind: thread.EntryUser, Text: text}}}
}

func limited(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), forever)
	t.Cleanup(cancel)
	return ctx
}

func TestServerAnswersWithoutAStream(t *testing.T) {
	t.Parallel()
	b := setup(t, scripted.Options{Play: scripted.Always(scripted.Reply{
		Text: "a b", Reasoning: "r", Calls: []scripted.Call{{Name: "f", Arguments: "{}"}}, Usage: &scripted.Usage{Input: 1, Output: 2},
	})})
	status, got := b.do(t, "POST", "/v1/chat/completions", "", body(hi))
	require.Equal(t, 200, status)
	require.JSONEq(t, fmt.Sprintf(`{"id":"chatcmpl-1","object":"chat.completion","created":%d,"model":"m","choices":[{"index":0,"finish_reason":"tool_calls",
		"message":{"role":"assistant","content":"a b","reasoning_content":"r","tool_calls":[{"id":"call_1_0","type":"function","function":{"name":"f","arguments":"{}"}}]}}],
		"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3,
			"prompt_tokens_details":{"cached_tokens":0},"completion_tokens_details":{"reasoning_tokens":0}}}`, b.server.Requests()[0].Arrived.Unix()), got)
}

func TestServerStreamsAsTheProviderDoes(t *testing.T) {
	t.Parallel()
	b := setup(t, scripted.Options{Play: scripted.Always(scripted.Reply{
		Text: "a b", Calls: []scripted.Call{{Name: "f", Arguments: "{}"}}, Usage: &scripted.Usage{Input: 1, Output: 2},
	})})
	_, got := b.do(t, "POST", "/v1/chat/completions", "", body(hi, `"stream":true`, `"stream_options":{"include_usage":true}`))
	created := fmt.Sprintf(`"created":%d,"id":"chatcmpl-1","model":"m","object":"chat.completion.chunk"`, b.server.Requests()[0].Arrived.Unix())
	var want strings.Builder
	for _, delta := range []string{
		`{"content":"","role":"assistant"}`, `{"content":"a "}`, `{"content":"b"}`,
		`{"tool_calls":[{"function":{"arguments":"","name":"f"},"id":"call_1_0","index":0,"type":"function"}]}`,
		`{"tool_calls":[{"function":{"arguments":"{"},"index":0}]}`, `{"tool_calls":[{"function":{"arguments":"}"},"index":0}]}`,
	} {
		fmt.Fprintf(&want, "data: {\"choices\":[{\"delta\":%s,\"finish_reason\":null,\"index\":0}],%s}\n\n", delta, created)
	}
	fmt.Fprintf(&want, "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"tool_calls\",\"index\":0}],%s}\n\n", created)
	fmt.Fprintf(&want, "data: {\"choices\":[],%s,\"usage\":%s}\n\ndata: [DONE]\n\n", created, `{"completion_tokens":2,`+
		`"completion_tokens_details":{"reasoning_tokens":0},"prompt_tokens":1,"prompt_tokens_details":{"cached_tokens":0},"total_tokens":3}`)
	require.Empty(t, cmp.Diff(want.String(), got))
}

func TestListPlaysForEachConversation(t *testing.T) {
	t.Parallel()
	b := setup(t, scripted.Options{Play: scripted.List(scripted.Say("one"), scripted.Reply{Status: 429, RetryAfter: 1500 * time.Millisecond}, scripted.Say("two"))})
	require.Equal(t, "one", b.say(t, "a"))
	require.Equal(t, "one", b.say(t, "b"))
	_, err := b.client.Call(t.Context(), promptOf("a"), nil)
	require.Equal(t, 1500*time.Millisecond, thread.AsModelError(err).RetryAfter)
	require.Equal(t, "two", b.say(t, "a"))
	_, err = b.client.Call(t.Context(), promptOf("a"), nil)
	require.Equal(t, "script_exhausted", thread.AsModelError(err).Code)
}

func TestRoundsAnswerARepeatedRequestTheSame(t *testing.T) {
	t.Parallel()
	b := setup(t, scripted.Options{Play: scripted.Rounds(scripted.Ask("f", `{"a":1}`), scripted.Say("done"))})
	p := promptOf("q")
	for range 2 {
		r, err := b.client.Call(t.Context(), p, nil)
		require.NoError(t, err)
		require.Equal(t, []thread.Asked{{ID: fmt.Sprintf("call_%d_0", len(b.server.Requests())), Name: "f", Arguments: `{"a":1}`}}, r.Calls)
	}
	p.Entries = append(p.Entries, thread.Entry{Kind: thread.EntryAssistant, Calls: []thread.Call{{ID: "x", Name: "f", Arguments: "{}", State: thread.CallSucceeded, Result: "ok"}}})
	r, err := b.client.Call(t.Context(), p, nil)
	require.NoError(t, err)
	require.Equal(t, "done", r.Text)
	last := b.server.Requests()[2]
	require.Equal(t, []scripted.Message{{Role: "tool", Text: "ok", CallID: "x"}}, last.Results())
}

func TestManyConversationsShareAServerByTheirMarkers(t *testing.T) {
	t.Parallel()
	b := setup(t, scripted.Options{Play: scripted.Always(scripted.Say("nobody's"))})
	var all sync.WaitGroup
	for i := range 20 {
		marker := fmt.Sprintf("[test-%02d]", i)
		b.server.On(marker, scripted.List(scripted.Say(marker), scripted.Say(marker+" again")))
		all.Go(func() {
			for range 2 {
				_, err := b.client.Call(t.Context(), promptOf("hello "+marker), nil)
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	req, err := b.server.WaitOf(limited(t), "[test-07]", 2)
	require.NoError(t, err)
	require.Equal(t, "hello [test-07]", req.Conversation())
	all.Wait()
	require.Len(t, b.server.RequestsOf("[test-07]"), 2)
	require.Len(t, b.server.Requests(), 40)
	remove := b.server.On("[once]", scripted.Always(scripted.Say("mine")))
	require.Equal(t, "mine", b.say(t, "[once]"))
	remove()
	require.Equal(t, "nobody's", b.say(t, "[once]"))
}

func TestGateHoldsTheReplyAtItsPoints(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		at     scripted.Point
		points int
		before []int // pieces that the client may have seen when the server has come to each point
	}{
		{"AtEveryPoint", scripted.EveryPoint, 4, []int{0, 0, 1, 2}},
		{"AtTheStart", scripted.AtStart, 1, []int{0}},
		{"AtTheFinish", scripted.AtFinish, 1, []int{2}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			gate, pieces := make(chan struct{}), make(chan string, 9)
			b := setup(t, scripted.Options{Play: scripted.Always(scripted.Reply{Text: "a b", Gate: gate, GateAt: tc.at})})
			done := make(chan error, 1)
			go func() {
				_, err := b.client.Call(t.Context(), promptOf("q"), func(s string) { pieces <- s })
				done <- err
			}()
			seen := 0
			for i := range tc.points {
				for ; seen < tc.before[i]; seen++ {
					<-pieces
				}
				require.Empty(t, pieces)
				gate <- struct{}{}
			}
			require.NoError(t, <-done)
		})
	}
}

func TestRequestsSayWhenTheyEnded(t *testing.T) {
	t.Parallel()
	b := setup(t, scripted.Options{Play: func(r scripted.Request) scripted.Reply {
		if r.Mentions("hang") {
			return scripted.Reply{Fault: scripted.Hang}
		}
		return scripted.Echo(r)
	}})
	b.say(t, "hello")
	req, err := b.server.WaitEnd(limited(t), 1)
	require.NoError(t, err)
	require.True(t, req.Gone.IsZero())
	require.False(t, req.Finished.Before(req.Arrived))

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := b.client.Call(ctx, promptOf("hang"), nil)
		done <- err
	}()
	_, err = b.server.Wait(limited(t), 2)
	require.NoError(t, err)
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	req, err = b.server.WaitEnd(limited(t), 2)
	require.NoError(t, err)
	require.True(t, req.Finished.IsZero())
	require.False(t, req.Gone.IsZero())
}

func TestCloseEndsWhatHangs(t *testing.T) {
	t.Parallel()
	b := setup(t, scripted.Options{Play: scripted.Always(scripted.Reply{Fault: scripted.Hang})})
	done := make(chan error, 1)
	go func() {
		_, err := b.client.Call(t.Context(), promptOf("q"), nil)
		done <- err
	}()
	_, err := b.server.Wait(limited(t), 1)
	require.NoError(t, err)
	b.server.Close()
	require.Equal(t, thread.ModelTemporary, thread.AsModelError(<-done).Kind)
}

func TestServerForgetsBeyondWhatItKeeps(t *testing.T) {
	t.Parallel()
	heard := make(chan int, 9)
	b := setup(t, scripted.Options{Keep: 2, OnRequest: func(r scripted.Request) { heard <- r.N }})
	for range 5 {
		b.say(t, "hello")
	}
	require.Len(t, b.server.Requests(), 2)
	require.Equal(t, 4, b.server.Requests()[0].N)
	require.Len(t, heard, 5)
	require.NoError(t, b.server.Await(limited(t), func(all []scripted.Request) bool { return all[1].N == 5 && !all[1].Finished.IsZero() }))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := b.server.Wait(ctx, 3)
	require.ErrorIs(t, err, context.Canceled)
}
