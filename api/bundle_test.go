package api_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"bobbin/api"
	"bobbin/files"
	"bobbin/store"
	"bobbin/store/storetest"
	"bobbin/thread"
)

// bundle is one server on a database of its own, with two owners.
type bundle struct {
	*testing.T
	db  *store.DB
	dsn string
	url string

	dir   string // the files of the server that was made last
	blobs *files.Folder
}

const (
	annasKey = "bob_anna"
	bertsKey = "bob_bert"
)

func setup(t *testing.T, change ...func(*api.Config)) *bundle {
	t.Helper()
	b := &bundle{T: t, dsn: storetest.DSN(t)}
	b.db = storetest.Open(t, b.dsn)
	require.NoError(t, b.db.EnsureKey(t.Context(), "anna", "test", annasKey))
	require.NoError(t, b.db.EnsureKey(t.Context(), "bert", "test", bertsKey))
	storetest.AddFiles(t, b.dsn, "anna", "file_1", "file_2")
	b.url = b.serve(b.db, change...)
	return b
}

func (b *bundle) serve(db *store.DB, change ...func(*api.Config)) string {
	b.Helper()
	done := make(chan struct{})
	b.dir = b.TempDir()
	folder, err := files.NewFolder(b.dir)
	require.NoError(b, err)
	b.blobs = folder
	cfg := api.Config{Store: db, Files: folder, Done: done, Log: slog.New(slog.DiscardHandler)}
	for _, f := range change {
		f(&cfg)
	}
	s := httptest.NewServer(watched(b.T, api.New(cfg)))
	b.Cleanup(func() {
		close(done)
		s.Close()
	})
	return s.URL
}

// answer is what a request came back with.
type answer struct {
	status int
	header http.Header
	body   map[string]any
	raw    string
}

// do sends a request as Anna. header is pairs of name and value; an empty Authorization is not sent.
func (b *bundle) do(method, path, body string, header ...string) answer {
	b.Helper()
	req, err := http.NewRequestWithContext(b.Context(), method, b.url+path, strings.NewReader(body))
	require.NoError(b, err)
	req.Header.Set("Authorization", "Bearer "+annasKey)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		if req.Header.Set(header[i], header[i+1]); header[i+1] == "" {
			req.Header.Del(header[i])
		}
	}
	resp, err := http.DefaultClient.Do(req)
	require.NoError(b, err)
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	require.NoError(b, err)
	a := answer{status: resp.StatusCode, header: resp.Header, raw: string(raw)}
	if strings.Contains(resp.Header.Get("Content-Type"), "json") && method != http.MethodHead {
		require.NoError(b, json.Unmarshal(raw, &a.body), "%s", raw)
	}
	return a
}

// ok sends a request that must succeed.
func (b *bundle) ok(method, path, body string, header ...string) map[string]any {
	b.Helper()
	a := b.do(method, path, body, header...)
	require.Less(b, a.status, 300, "%s %s: %s", method, path, a.raw)
	return a.body
}

// refused sends a request that must fail with a status and a code.
func (b *bundle) refused(status int, code, method, path, body string, header ...string) answer {
	b.Helper()
	a := b.do(method, path, body, header...)
	require.Equal(b, status, a.status, "%s %s: %s", method, path, a.raw)
	require.Equal(b, "application/problem+json", a.header.Get("Content-Type"))
	require.Equal(b, code, a.body["code"], "%s", a.raw)
	require.EqualValues(b, status, a.body["status"])
	require.Equal(b, "about:blank", a.body["type"])
	require.Equal(b, http.StatusText(status), a.body["title"])
	require.NotEmpty(b, a.body["detail"])
	return a
}

func (b *bundle) open() string { return text(b.ok("POST", "/v1/threads", ""), "id") }

// say sends a message and returns the answer.
func (b *bundle) say(threadID, text string, header ...string) map[string]any {
	b.Helper()
	raw, err := json.Marshal(map[string]string{"text": text})
	require.NoError(b, err)
	return b.ok("POST", "/v1/threads/"+threadID+"/messages", string(raw), header...)
}

func at(m map[string]any, path ...string) any {
	var v any = m
	for _, name := range path {
		v = v.(map[string]any)[name]
	}
	return v
}

func text(m map[string]any, path ...string) string {
	s, _ := at(m, path...).(string)
	return s
}

// worker plays the worker of one claimed turn.
type worker struct {
	*bundle
	ref  store.TurnRef
	turn *thread.Turn
}

func (b *bundle) work(threadID string) *worker {
	b.Helper()
	c, err := b.db.Claim(b.Context(), threadID)
	require.NoError(b, err)
	require.NotNil(b, c.Conversation)
	return &worker{b, store.TurnRef{ID: c.Conversation.ID, ThreadID: threadID}, c.Conversation}
}

func (w *worker) fail() {
	w.Helper()
	_, err := w.db.End(context.Background(), w.turn.ID, w.turn.Attempt, store.Outcome{
		Error: &thread.TurnError{Code: thread.FailInternal, Detail: "No luck."},
	})
	require.NoError(w, err)
}

func (w *worker) take() {
	w.Helper()
	_, err := w.db.Take(context.Background(), w.turn.ID)
	require.NoError(w, err)
}
