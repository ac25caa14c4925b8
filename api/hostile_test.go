package api_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"bobbin/api"
)

// dial opens a connection and writes to it what no HTTP client would.
func (b *bundle) dial(raw string) net.Conn {
	b.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(b.url, "http://"))
	require.NoError(b, err)
	b.Cleanup(func() { _ = conn.Close() })
	_, err = io.WriteString(conn, strings.ReplaceAll(raw, "KEY", annasKey))
	require.NoError(b, err)
	return conn
}

func (b *bundle) statusOf(conn net.Conn) int {
	b.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(b, err)
	_ = resp.Body.Close()
	return resp.StatusCode
}

func TestMethodsThatAnAddressDoesNotHaveAreNamed(t *testing.T) {
	t.Parallel()
	w := setup(t).world()
	before := w.state()
	operations(spec(t), func(_, path string, _ *openapi3.Operation) {
		p := w.path(path)
		has := spec(t).Paths.Value(path).Operations()
		for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD", "TRACE", "BREW"} {
			if has[method] != nil {
				continue
			}
			a := w.do(method, p, "")
			require.Equal(t, 405, a.status, "%s %s", method, path)
			for allowed := range has {
				require.Contains(t, a.header.Get("Allow"), allowed)
			}
		}
	})
	require.Equal(t, before, w.state())
}

func TestWhatIsNoHTTPIsRefusedAndChangesNothing(t *testing.T) {
	t.Parallel()
	w := setup(t).world()
	before := w.state()
	path := w.path("/v1/threads/{thread}/messages")
	head := "POST " + path + " HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer KEY\r\nContent-Type: application/json\r\n"
	for name, raw := range map[string]string{
		"a NUL in the path":         "POST " + path + "\x00 HTTP/1.1\r\nHost: x\r\n\r\n",
		"a NUL in a header":         head + "Idempotency-Key: a\x00b\r\nContent-Length: 13\r\n\r\n{\"text\": \"a\"}",
		"a line break in a header":  head + "Idempotency-Key: a\rb\r\nContent-Length: 13\r\n\r\n{\"text\": \"a\"}",
		"headers without end":       head + "X: " + strings.Repeat("x", 2<<20) + "\r\n\r\n",
		"two lengths":               head + "Content-Length: 13\r\nContent-Length: 14\r\n\r\n{\"text\": \"a\"}",
		"a broken chunk":            head + "Transfer-Encoding: chunked\r\n\r\nZZ\r\n{\"text\": \"a\"}\r\n0\r\n\r\n",
		"an encoding nobody speaks": head + "Transfer-Encoding: gzip\r\n\r\n{\"text\": \"a\"}",
	} {
		t.Run(name, func(t *testing.T) {
			status := w.statusOf(w.dial(raw))
			require.GreaterOrEqual(t, status, 400)
			require.NotEqual(t, 500, status)
		})
	}
	require.Equal(t, before, w.state())
}

func TestAClientThatHangsUpInTheMiddleOfItsBodyChangesNothing(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	b := setup(t, func(c *api.Config) { c.Metrics = reg })
	w := b.world()
	before := w.state()
	path := w.path("/v1/threads/{thread}/messages")
	for _, raw := range []string{"Content-Length: 100\r\n\r\n{\"text\": \"a\"}", "Transfer-Encoding: chunked\r\n\r\nd\r\n{\"text\": \"a\"}\r\n"} {
		conn := w.dial("POST " + path + " HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer KEY\r\nContent-Type: application/json\r\n" + raw)
		require.NoError(t, conn.(*net.TCPConn).CloseWrite())
		require.Equal(t, 400, w.statusOf(conn))
	}
	require.Equal(t, before, w.state())
}

func TestABodyThatNeverEndsIsGivenUp(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.world()
	before := w.state()
	free := b.url
	b.url = b.serve(b.db, func(c *api.Config) { c.Timeout = 300 * time.Millisecond })
	for _, raw := range []string{"Content-Length: 100\r\n\r\n{", "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"} {
		for key, want := range map[string]int{"KEY": 400, "guess": 401} { // 401 is said without a look at the body
			conn := b.dial("POST " + w.path("/v1/threads/{thread}/messages") +
				" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + key + "\r\nContent-Type: application/json\r\n" + raw)
			require.NoError(t, conn.SetReadDeadline(time.Now().Add(20*time.Second)))
			r := bufio.NewReader(conn)
			resp, err := http.ReadResponse(r, nil)
			require.NoError(t, err)
			require.Equal(t, want, resp.StatusCode)
			_, err = io.Copy(io.Discard, resp.Body)
			require.NoError(t, err)
			_, err = r.ReadByte()
			require.ErrorIs(t, err, io.EOF, "the connection is not kept")
		}
	}
	b.url = free
	require.Equal(t, before, w.state())
}

func TestHeadersThatNeverEndAreGivenUp(t *testing.T) {
	t.Parallel()
	s := api.Server("", http.NotFoundHandler())
	require.Positive(t, s.ReadHeaderTimeout)
	require.Positive(t, s.IdleTimeout)
	require.LessOrEqual(t, s.MaxHeaderBytes, 64<<10)
	s.ReadHeaderTimeout = 50 * time.Millisecond
	srv := httptest.NewUnstartedServer(nil)
	srv.Config = s
	srv.Start()
	defer srv.Close()
	conn := (&bundle{T: t, url: srv.URL}).dial("GET / HTTP/1.1\r\nHost: ")
	_, err := io.ReadAll(conn) // ends as the server closes
	require.NoError(t, err)
}

// Whatever a text is made of, it comes back as it was sent, or is refused by name.
func TestOddCharactersComeBackAsTheyWereSent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, s := range []string{
		"🎈👩‍👩‍👧‍👦🏴󠁧󠁢󠁳󠁣󠁴󠁿", "\u202eright to left\u202c \u05e9\u05dc\u05d5\u05dd", "e\u0301 \u1100\u1161 Z\u0351\u036b\u0343", "a\u200bb\ufeffc\u2060", "\ufffe\uffff\U0010ffff", "a\u2028b\u2029c\u0085d", "\x01\x1b[31m\x7f", "%s %00 '; DROP TABLE messages; --", "data: x\n\nevent: y\n\n",
	} {
		id := b.open()
		require.Equal(t, s, text(b.say(id, s), "message", "text"))
		require.Equal(t, []string{s}, texts(b.ok("GET", "/v1/threads/"+id+"/messages", "")))
		st := b.stream(id, "?after=0")
		require.Equal(t, s, text(st.next().data, "message", "text"))
		b.say(id, s)
		require.Equal(t, s, b.ok("DELETE", "/v1/threads/"+id+"/steering", "")["text"])
		require.Equal(t, s, b.ok("POST", "/v1/threads", encode(t, map[string]any{"title": s}))["title"])
	}
	for _, bad := range []string{`"\ud83d"`, `"\udf88 a"`, `"a\u0000"`, "\"\xff\""} {
		a := b.refused(400, "invalid_field", "POST", "/v1/threads/home/messages", `{"text": `+bad+`}`)
		require.Equal(t, "text", a.body["field"])
	}
}
