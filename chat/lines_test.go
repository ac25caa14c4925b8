package chat

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"bobbin/thread"
)

// talking is a server that plays script when the first line has come: NAME DATA, a line each, with KEY1 … for the keys of
// the lines in their order.
func talking(t *testing.T, script string, wait int) string {
	keys := make(chan string, 10)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/threads/home", status(200, `{"id":"thr","last_event":7}`))
	mux.HandleFunc("POST /v1/threads/thr/messages", func(w http.ResponseWriter, r *http.Request) {
		var d Draft
		if err := json.NewDecoder(r.Body).Decode(&d); err != nil || r.Header.Get("Authorization") != "Bearer k" {
			t.Error("bad request")
		}
		keys <- r.Header.Get("Idempotency-Key")
		_, _ = io.WriteString(w, `{"message":{"id":"m","state":"delivered","parts":1}}`)
	})
	mux.HandleFunc("GET /v1/threads/thr/events", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Last-Event-ID") != "7" {
			t.Error("it must start where the thread was")
		}
		w.(http.Flusher).Flush()
		for n := range wait {
			select {
			case key := <-keys:
				script = strings.ReplaceAll(script, fmt.Sprintf("KEY%d", n+1), key)
			case <-r.Context().Done():
				return
			}
		}
		seq := 7
		for line := range strings.Lines(script) {
			seq++
			name, data, _ := strings.Cut(strings.TrimSpace(line), " ")
			fmt.Fprintf(w, "id: %d\nevent: %s\ndata: %s\n\n", seq, name, data)
		}
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.CloseClientConnections)
	return s.URL
}

const heard = `message.created {"turn_id":"t1","message":{"id":"m1","role":"user","state":"queued","turn_id":"t1","parts":[{"client_id":"KEY1"}]}}
turn.started {"turn_id":"t1","turn":{"id":"t1","kind":"conversation","status":"running"}}
message.delivered {"turn_id":"t1","message":{"id":"m1","role":"user","state":"delivered","turn_id":"t1","parts":[{"client_id":"KEY1"}]}}
`

func TestWithoutATerminalLinesGoInAndAnswersComeOut(t *testing.T) {
	t.Parallel()
	answered := `answer.completed {"turn_id":"t1","message":{"id":"a1","role":"assistant","text":"It rains.","turn_id":"t1"}}
turn.succeeded {"turn_id":"t1","turn":{"id":"t1","kind":"conversation","status":"succeeded"}}
`
	tests := []struct {
		name, in, script string
		lines            int
		want, err        string
	}{
		{"nothing to say", " \n\n", "", 0, "", ""},
		{"a streamed answer", "weather?\n", heard + `answer.delta {"turn_id":"t1","round":1,"attempt":1,"offset":0,"text":"It "}
answer.delta {"turn_id":"t1","round":1,"attempt":1,"offset":3,"text":"rains"}
` + answered, 1, "It rains.\n", ""},
		{"an answer that was not streamed, and a last line without an end", "weather?", heard + answered, 1, "It rains.\n", ""},
		{"a voided answer", "weather?\n", heard + `answer.delta {"turn_id":"t1","round":1,"attempt":1,"offset":0,"text":"Let me see"}
answer.restarted {"turn_id":"t1","reason":"calls"}
` + answered, 1, "Let me see\nIt rains.\n", ""},
		{"turns of others are not shown", "weather?\n", `answer.delta {"turn_id":"t0","text":"other"}
turn.failed {"turn_id":"t0","turn":{"id":"t0","status":"failed","error":{"code":"internal","detail":"x"}}}
` + heard + answered, 1, "It rains.\n", ""},
		{"a second line that becomes a turn of its own", "weather?\nand tomorrow?\n", heard + `message.created {"turn_id":"t1","message":{"id":"m2","role":"user","state":"queued","turn_id":"t1","parts":[{"client_id":"KEY2"}]}}
` + answered + `message.updated {"turn_id":"t2","message":{"id":"m2","role":"user","state":"queued","turn_id":"t2","parts":[{"client_id":"KEY2"}]}}
message.delivered {"turn_id":"t2","message":{"id":"m2","role":"user","state":"delivered","turn_id":"t2","parts":[{"client_id":"KEY2"}]}}
` + strings.NewReplacer("t1", "t2", "rains", "snows").Replace(answered), 2, "It rains.\nIt snows.\n", ""},
		{"a failure", "weather?\n", heard + `message.created {"turn_id":"t1","message":{"id":"n1","role":"notice","text":"Something went wrong.","turn_id":"t1"}}
turn.failed {"turn_id":"t1","turn":{"id":"t1","status":"failed","error":{"code":"internal","detail":"No luck."}}}
`, 1, "Something went wrong.\n", "the turn failed: No luck."},
		{"a stop from elsewhere", "weather?\n", heard + `turn.cancelled {"turn_id":"t1","turn":{"id":"t1","status":"cancelled"}}
`, 1, "", "the turn was stopped"},
		{"a withdrawal from elsewhere", "weather?\n", `message.withdrawn {"turn_id":"t1","message":{"id":"m1","role":"user","state":"withdrawn","turn_id":"t1","parts":[{"client_id":"KEY1"}]}}
`, 1, "", ""},
		{"a reset", "weather?\n", heard + "thread.reset {}\n", 1, "", "the thread was reset"},
		{"a gap", "weather?\n", "gap {}\n", 1, "", "events were lost; the thread goes on without being shown"},
		{"commands for the terminal", "weather?\n", heard + `answer.completed {"turn_id":"t1","message":{"id":"a1","role":"assistant","text":"a\u001b[2Jb","turn_id":"t1"}}
turn.succeeded {"turn_id":"t1","turn":{"id":"t1","status":"succeeded"}}
`, 1, "a[2Jb\n", ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			err := Run(t.Context(), Config{
				BaseURL: talking(t, test.script, test.lines), Key: "k", In: strings.NewReader(test.in), Out: &out,
			})
			if test.err == "" {
				require.NoError(t, err)
			} else {
				require.EqualError(t, err, test.err)
			}
			require.Equal(t, test.want, out.String())
		})
	}
}

func TestWithoutATerminalARefusalIsReturned(t *testing.T) {
	t.Parallel()
	c := serve(t, status(401, `{"code":"unauthorized","detail":"Send a valid key."}`))
	err := Run(t.Context(), Config{BaseURL: c.BaseURL, In: strings.NewReader("x\n"), Out: io.Discard})
	require.ErrorIs(t, err, thread.ErrUnauthorized)
}

func TestRunEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	defer w.Close()
	url := talking(t, "", 0)
	go func() { _, _ = io.WriteString(w, "hello\n"); cancel() }()
	require.ErrorIs(t, Run(ctx, Config{BaseURL: url, Key: "k", In: r, Out: io.Discard}), context.Canceled)
}
