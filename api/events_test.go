package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"bobbin/api"
	"bobbin/store/storetest"
)

type event struct {
	id, name string
	data     map[string]any
}

// reader reads a stream as a strict client does.
type reader struct {
	*testing.T
	r      *bufio.Reader
	close  func()
	status int
	header http.Header
}

// stream opens a stream on the bundle's server. It reads nothing of it yet.
func (b *bundle) stream(threadID, query string, header ...string) *reader {
	b.Helper()
	return b.streamFrom(b.url, threadID, query, header...)
}

func (b *bundle) streamFrom(url, threadID, query string, header ...string) *reader {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	b.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, "GET", url+"/v1/threads/"+threadID+"/events"+query, nil)
	require.NoError(b, err)
	req.Header.Set("Authorization", "Bearer "+annasKey)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	require.NoError(b, err)
	b.Cleanup(func() { _ = resp.Body.Close() })
	require.Equal(b, 200, resp.StatusCode)
	require.Equal(b, "text/event-stream", resp.Header.Get("Content-Type"))
	r := &reader{T: b.T, r: bufio.NewReader(resp.Body), close: cancel}
	require.Equal(b, "retry: 1000", r.line())
	require.Empty(b, r.line())
	return r
}

func (r *reader) line() string {
	r.Helper()
	s, err := r.r.ReadString('\n')
	require.NoError(r, err)
	return strings.TrimSuffix(s, "\n")
}

// next returns the next event, past comments.
func (r *reader) next() event {
	r.Helper()
	var e event
	for {
		name, value, _ := strings.Cut(r.line(), ": ")
		switch name {
		case "id":
			e.id = value
		case "event":
			e.name = value
		case "data":
			require.NoError(r, json.Unmarshal([]byte(value), &e.data))
		case "":
			if e.name != "" {
				return e
			}
		}
	}
}

func (r *reader) take(n int) []event {
	r.Helper()
	var list []event
	for range n {
		list = append(list, r.next())
	}
	return list
}

func names(list []event) []string {
	var out []string
	for _, e := range list {
		out = append(out, e.name)
	}
	return out
}

func TestAStreamStartsWithWhatHappensNext(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.open()
	turn := text(b.say(id, "before"), "turn_id")
	s := b.stream(id, "")
	b.say(id, "after <b>\nit")
	e := s.next()
	require.Equal(t, "message.created", e.name)
	require.Equal(t, "after <b>\nit", text(e.data, "message", "text"))
	require.Equal(t, id, e.data["thread_id"])
	require.Equal(t, turn, e.data["turn_id"])
	require.Equal(t, e.id, strconv.FormatFloat(e.data["seq"].(float64), 'f', -1, 64))
	require.Equal(t, "UTC", zone(t, e.data, "created_at"))
}

func TestAStreamShowsATurnFromItsBeginning(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.open()
	b.say(id, "work")
	waiting := text(b.say(id, "more"), "message", "id")
	b.ok("DELETE", "/v1/messages/"+waiting, "")
	s := b.stream(id, "?after=0")
	require.Equal(t, []string{"message.created", "turn.started", "message.delivered", "message.created", "message.withdrawn"}, names(s.take(5)))
}

// Every client sees the same events in the same order, whichever server it asks and however often it comes back.
func TestStreamsOfTwoServersResumeWithoutGapOrRepeat(t *testing.T) {
	t.Parallel()
	const messages, readers = 60, 6
	b := setup(t)
	urls := []string{b.url, b.serve(storetest.Open(t, b.dsn))}
	id := b.open()
	var seen [readers][]event
	var wg sync.WaitGroup
	for i := range readers {
		wg.Go(func() {
			last := "0"
			for hop := i; len(seen[i]) < messages+2; hop++ {
				s := b.streamFrom(urls[hop%2], id, "?after=5", "Last-Event-ID", last) // the header wins
				list := s.take(min(1+i*5, messages+2-len(seen[i])))
				s.close()
				seen[i], last = append(seen[i], list...), list[len(list)-1].id
			}
		})
	}
	for i := range messages {
		b.say(id, strconv.Itoa(i))
	}
	wg.Wait()
	for i, list := range seen {
		for n, e := range list {
			require.Equal(t, strconv.Itoa(n+1), e.id, "reader %d", i)
		}
		require.Empty(t, cmp.Diff(seen[0], list, cmp.AllowUnexported(event{})))
	}
}

func TestANumberAheadOfAllEventsIsAGap(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.open()
	b.say(id, "work")
	s := b.stream(id, "", "Last-Event-ID", "9000")
	e := s.next()
	require.Equal(t, "gap", e.name)
	require.Equal(t, "3", e.id)
	b.say(id, "more")
	require.Equal(t, "4", s.next().id)
}

func TestAStreamOfHomeEndsWithAResetAndGoesOnInTheFreshThread(t *testing.T) {
	t.Parallel()
	b := setup(t)
	old := text(b.ok("GET", "/v1/threads/home", ""), "id")
	for range 3 {
		b.say("home", "x")
	}
	s := b.stream("home", "?after=0")
	b.ok("POST", "/v1/threads/home/reset", "")
	var last event
	for last.name != "thread.reset" {
		last = s.next()
	}
	require.True(t, strings.HasPrefix(last.id, old+":"))
	_, err := s.r.ReadByte()
	require.ErrorIs(t, err, io.EOF)

	b.say("home", "fresh") // a thread whose numbers start over
	s = b.stream("home", "", "Last-Event-ID", last.id)
	require.Equal(t, "gap", s.next().name)
	e := s.next()
	require.Equal(t, "message.created", e.name)
	require.Equal(t, "fresh", text(e.data, "message", "text"))
	again := b.stream("home", "", "Last-Event-ID", e.id)
	require.Equal(t, "turn.started", again.next().name)
}

func TestAStreamRefusesWhatIsNoEventId(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.open()
	for _, bad := range []string{"x", "-1", "1.5", "99999999999999999999", ":3", "a b:3", "thr_1:", "\xff"} {
		a := b.refused(400, "invalid_field", "GET", "/v1/threads/"+id+"/events", "", "Last-Event-ID", bad)
		require.Equal(t, "Last-Event-ID", a.body["field"])
	}
	b.refused(400, "invalid_field", "GET", "/v1/threads/"+id+"/events?after=x", "")
	b.refused(400, "unknown_field", "GET", "/v1/threads/"+id+"/events?since=1", "")
}

func TestASilentStreamIsKeptAlive(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *api.Config) { c.KeepAlive = 10 * time.Millisecond })
	s := b.stream(b.open(), "")
	require.Equal(t, ": still here", s.line())
	require.Empty(t, s.line())
	require.Equal(t, ": still here", s.line())
}

func TestAProcessThatWasToldToEndIsAliveAndNotReadyAndItsStreamsSayWhenToComeBack(t *testing.T) {
	t.Parallel()
	done := make(chan struct{})
	b := setup(t, func(c *api.Config) { c.Done = done })
	s := b.stream(b.open(), "")
	close(done)
	last, err := io.ReadAll(s.r)
	require.NoError(t, err)
	require.Regexp(t, `^retry: \d+\n: this server ends, come back with the last id\n\n$`, string(last))
	a := b.refused(503, "unavailable", "GET", "/readyz", "")
	require.Equal(t, []any{"the process has been told to end"}, a.body["missing"])
	b.ok("GET", "/healthz", "")
}

func TestAStreamIsGivenUpWhenItsClientIsGone(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	b := setup(t, func(c *api.Config) { c.Metrics, c.KeepAlive = reg, 5*time.Millisecond })
	s := b.stream(b.open(), "")
	require.Equal(t, 1.0, subscribers(t, reg))
	s.close()
	require.Eventually(t, func() bool { return subscribers(t, reg) == 0 }, 10*time.Second, time.Millisecond)
}

func subscribers(t *testing.T, reg *prometheus.Registry) float64 {
	t.Helper()
	list, err := reg.Gather()
	require.NoError(t, err)
	for _, f := range list {
		if f.GetName() == "bobbin_event_subscribers" {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	return -1
}

// A client that reads nothing holds back neither writers nor other readers, and is dropped.
func TestASlowReaderHoldsBackOnlyItself(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	b := setup(t, func(c *api.Config) { c.Metrics, c.WriteTimeout = reg, 5*time.Second })
	id := b.open()
	conn, err := net.Dial("tcp", strings.TrimPrefix(b.url, "http://"))
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.(*net.TCPConn).SetReadBuffer(4096))
	_, err = io.WriteString(conn, "GET /v1/threads/"+id+"/events?after=0 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+annasKey+"\r\n\r\n")
	require.NoError(t, err)
	fast := b.stream(id, "?after=0")
	require.Eventually(t, func() bool { return subscribers(t, reg) == 2 }, 10*time.Second, time.Millisecond)

	big := strings.Repeat("much ", 18_000)
	const messages = 80 // 7 MB: more than the kernel holds for both ends
	read := make(chan struct{})
	go func() {
		defer close(read)
		for n := 0; n < messages; {
			if fast.next().name == "message.created" {
				n++
			}
		}
	}()
	for i := range messages {
		b.ok("POST", "/v1/threads/"+id+"/messages", `{"text": "`+big+strconv.Itoa(i)+`", "attachments": ["file_1"], "delivery": "turn"}`)
	}
	<-read
	require.Eventually(t, func() bool { return subscribers(t, reg) == 1 }, 20*time.Second, 5*time.Millisecond)
}
