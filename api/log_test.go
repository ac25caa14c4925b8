package api_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"bobbin/api"
)

// log keeps what is logged.
type log struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func TestTheAccessLogSaysWhatWasAskedAndNotWhatItHeld(t *testing.T) {
	t.Parallel()
	l := &log{}
	b := setup(t, func(c *api.Config) { c.Log = slog.New(slog.NewJSONHandler(l, nil)) })
	id := b.open()
	a := b.do("POST", "/v1/threads/"+id+"/messages", `{"text": "whisper"}`, "X-Request-Id", "req-1", "Idempotency-Key", "my-key")
	require.Equal(t, "req-1", a.header.Get("X-Request-Id"))
	b.refused(400, "unknown_field", "POST", "/v1/threads/"+id+"/messages?x=whisper", `{"text": "a", "whisper": "whisper"}`)
	b.refused(404, "not_found", "GET", "/v1/turns/whisper", "", "X-Request-Id", "whisper, whisper")

	l.mu.Lock()
	defer l.mu.Unlock()
	require.NotContains(t, l.buf.String(), "whisper")
	require.NotContains(t, l.buf.String(), "my-key")
	require.NotContains(t, l.buf.String(), annasKey)
	var line map[string]any
	for dec := json.NewDecoder(&l.buf); dec.More() && line["request_id"] != "req-1"; {
		require.NoError(t, dec.Decode(&line))
	}
	delete(line, "time")
	require.Positive(t, line["took"])
	delete(line, "took")
	require.Equal(t, map[string]any{
		"level": "INFO", "msg": "request", "method": "POST", "route": "/v1/threads/:thread/messages", "status": 202.0, "owner": "anna",
		"request_id": "req-1",
	}, line)
}
