package tools

import (
	"compress/gzip"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"
)

// here is where the tests' pages live; its neighbour 127.0.0.2 stands for a private address.
var here = FetchOptions{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}}

func serve(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv.URL
}

// servePrivate serves on an address that is not allowed and counts the connections.
func servePrivate(t *testing.T) (address string, connections *atomic.Int32) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Skipf("this machine has one loopback address only: %v", err)
	}
	connections = new(atomic.Int32)
	srv := &httptest.Server{Listener: l, Config: &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "private") }),
		ConnState: func(_ net.Conn, s http.ConnState) {
			if s == http.StateNew {
				connections.Add(1)
			}
		},
	}}
	srv.Start()
	t.Cleanup(srv.Close)
	return l.Addr().String(), connections
}

func page(contentType, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		io.WriteString(w, body)
	}
}

func fetch(t *testing.T, o FetchOptions, address string) Result {
	t.Helper()
	arguments, err := json.Marshal(map[string]string{"url": address})
	require.NoError(t, err)
	got, err := registry(t, FetchURL(o)).Run(t.Context(), "fetch_url", call(string(arguments)))
	require.NoError(t, err)
	return got
}

func TestOnlyPublicAddressesArePublic(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]bool{
		"8.8.8.8": true, "1.1.1.1": true, "93.184.216.34": true, "172.15.255.255": true, "172.32.0.1": true,
		"100.63.255.255": true, "100.128.0.1": true, "192.0.1.1": true, "198.17.255.255": true, "223.255.255.255": true,
		"168.63.129.17": true, "2606:4700:4700::1111": true, "2a00:1450:4001::1": true, "2001:4860:4860::8888": true,

		"0.0.0.0": false, "0.1.2.3": false, "127.0.0.1": false, "127.255.255.254": false, "10.0.0.1": false,
		"172.16.0.1": false, "172.31.255.255": false, "192.168.1.1": false, "169.254.169.254": false, "169.254.170.2": false,
		"100.64.0.1": false, "100.100.100.200": false, "100.127.255.255": false, "192.0.0.192": false, "192.0.2.1": false,
		"192.88.99.1": false, "198.18.0.1": false, "198.19.255.255": false, "198.51.100.1": false, "203.0.113.1": false,
		"224.0.0.1": false, "239.255.255.250": false, "240.0.0.1": false, "255.255.255.255": false, "168.63.129.16": false,

		"::": false, "::1": false, "::7f00:1": false, "::ffff:127.0.0.1": false, "::ffff:10.0.0.1": false, "::ffff:8.8.8.8": false,
		"::ffff:169.254.169.254": false, "64:ff9b::7f00:1": false, "64:ff9b::808:808": false, "64:ff9b:1::a00:1": false,
		"100::1": false, "2001::1": false, "2001:0:4136:e378:8000:63bf:3fff:fdd2": false, "2001:10::1": false, "2001:20::1": false,
		"2001:db8::1": false, "2002:7f00:1::": false, "2002:a00:1::1": false, "3fff::1": false, "5f00::1": false,
		"fc00::1": false, "fd00:ec2::254": false, "fd20:ce::254": false, "fe80::1": false, "fe80::1%eth0": false, "fec0::1": false,
		"ff02::1": false, "ff0e::1": false, "2606:4700:4700::1111%eth0": false,
	} {
		t.Run(address, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, want, public(netip.MustParseAddr(address)))
		})
	}
}

func TestFetchURLRefusesAddressesThatAreNotPublic(t *testing.T) {
	t.Parallel()
	private, connections := servePrivate(t)
	_, port, err := net.SplitHostPort(private)
	require.NoError(t, err)
	for _, host := range []string{
		"127.0.0.2", "127.0.0.3", "localhost", "0.0.0.0", "10.0.0.1", "169.254.169.254", "100.100.100.200", "192.168.0.1",
		"[::ffff:127.0.0.2]", "[::ffff:7f00:2]",
	} {
		t.Run(host, func(t *testing.T) {
			t.Parallel()
			got := fetch(t, FetchOptions{}, "http://"+host+":"+port+"/")
			require.Empty(t, cmp.Diff(Result{
				Text:   "fetch_url failed: the page was not fetched: it leads to an address that is not on the public Internet. Only public pages can be fetched",
				Failed: true,
			}, got))
			require.Zero(t, connections.Load())
		})
	}
}

func TestFetchURLRefusesAddressesOfTheWrongForm(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"":                                      "only addresses that begin with https:// or http://",
		"example.com":                           "only addresses that begin with https:// or http://",
		"file:///etc/passwd":                    "only addresses that begin with https:// or http://",
		"gopher://example.com/":                 "only addresses that begin with https:// or http://",
		"http://":                               "names no host",
		"http:///path":                          "names no host",
		"http://:80/":                           "names no host",
		"http://user@example.com/":              "user name or password",
		"http://user:pass@example.com/":         "user name or password",
		"http://example.com:22/":                "port 22 is not fetched",
		"http://example.com:0/":                 "port 0 is not fetched",
		"http://example.com:99999/":             "port 99999 is not fetched",
		"http://example.com:x/":                 "not a valid address",
		"http://[::1/":                          "not a valid address",
		"http://a\nb/":                          "not a valid address",
		"http://" + strings.Repeat("a", maxURL): "longer than 8000 bytes",
	} {
		got := fetch(t, here, address)
		require.True(t, got.Failed, address)
		require.Contains(t, got.Text, want, address)
	}
}

func TestFetchURLFollowsRedirectsWithinItsRules(t *testing.T) {
	t.Parallel()
	private, connections := servePrivate(t)
	for name, c := range map[string]struct {
		to   string
		want Result
	}{
		"to a private address": {"http://" + private, Result{Failed: true, Text: "fetch_url failed: the page was not fetched: it leads to an address that is not on the public Internet. Only public pages can be fetched"}},
		"to a file":            {"file:///etc/passwd", Result{Failed: true, Text: "fetch_url failed: the page was not fetched: it redirects to another address, and only addresses that begin with https:// or http:// can be fetched"}},
		"to a password":        {"http://a:b@example.com", Result{Failed: true, Text: "fetch_url failed: the page was not fetched: it redirects to another address, and an address with a user name or password is not fetched. Leave them out"}},
		"to another port":      {"http://127.0.0.1:25/", Result{Failed: true, Text: "fetch_url failed: the page was not fetched: it redirects to another address, and port 25 is not fetched: of the ports below 1024 only 80 and 443 are"}},
		"in a circle":          {"/", Result{Failed: true, Text: "fetch_url failed: the page was not fetched: it redirects more than 5 times"}},
		"to a page":            {"/4", Result{Text: "here, from nowhere"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := serve(t, func(w http.ResponseWriter, r *http.Request) {
				switch r.URL.Path {
				case "/":
					http.Redirect(w, r, c.to, http.StatusFound)
				case "/0":
					page("text/plain", "here, from nowhere"+r.Referer())(w, r)
				default:
					http.Redirect(w, r, fmt.Sprintf("/%d", r.URL.Path[1]-'1'), http.StatusMovedPermanently)
				}
			})
			require.Empty(t, cmp.Diff(c.want, fetch(t, here, address+"/")))
			require.Zero(t, connections.Load())
		})
	}
}

// A resolver whose answers change plays DNS rebinding: what was looked up is what is checked and dialled.
func TestFetchURLDialsTheAddressThatItChecked(t *testing.T) {
	t.Parallel()
	private, connections := servePrivate(t)
	_, port, err := net.SplitHostPort(private)
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:"+port) // the same port on the allowed address
	if err != nil {
		t.Skipf("the port is in use there: %v", err)
	}
	srv := &httptest.Server{Listener: l, Config: &http.Server{Handler: page("text/plain", "public")}}
	srv.Start()
	t.Cleanup(srv.Close)

	var lookups atomic.Int32
	o := here
	o.Resolver = resolver(func() [4]byte { return [4]byte{127, 0, 0, byte(lookups.Add(1))} })
	require.Empty(t, cmp.Diff(Result{Text: "public"}, fetch(t, o, "http://rebind.test.:"+port)))
	require.EqualValues(t, 1, lookups.Load())

	got := fetch(t, o, "http://rebind.test.:"+port)
	require.True(t, got.Failed)
	require.Contains(t, got.Text, "not on the public Internet")
	require.NotContains(t, got.Text, "127.")
	require.EqualValues(t, 2, lookups.Load())
	require.Zero(t, connections.Load())
}

func TestFetchURLTellsThatANameIsUnknown(t *testing.T) {
	t.Parallel()
	o := FetchOptions{Resolver: resolver(func() [4]byte { return [4]byte{} })}
	got := fetch(t, o, "http://other.test./")
	require.Empty(t, cmp.Diff(Result{
		Text:   `fetch_url failed: the host name "other.test." could not be looked up. Check the address`,
		Failed: true,
	}, got))
}

// resolver answers for rebind.test. with the address of the moment, and knows no other name.
func resolver(answer func() [4]byte) *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		go func() {
			defer server.Close()
			_ = serveDNS(server, answer)
		}()
		return client, nil
	}}
}

// serveDNS answers one question over a stream: https://www.rfc-editor.org/rfc/rfc1035#section-4.2.2
func serveDNS(conn net.Conn, answer func() [4]byte) error {
	var size [2]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		return err
	}
	raw := make([]byte, binary.BigEndian.Uint16(size[:]))
	if _, err := io.ReadFull(conn, raw); err != nil {
		return err
	}
	var m dnsmessage.Message
	if err := m.Unpack(raw); err != nil {
		return err
	}
	m.Response, m.Additionals = true, nil
	switch q := m.Questions[0]; {
	case q.Name.String() != "rebind.test.":
		m.RCode = dnsmessage.RCodeNameError
	case q.Type == dnsmessage.TypeA:
		m.Answers = []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class},
			Body:   &dnsmessage.AResource{A: answer()},
		}}
	}
	raw, err := m.Pack()
	if err != nil {
		return err
	}
	_, err = conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(raw))), raw...))
	return err
}

func TestFetchURLUsesNoProxy(t *testing.T) {
	t.Parallel()
	transport := newFetchClient(FetchOptions{}).Transport.(*http.Transport)
	require.Nil(t, transport.Proxy)
}

func TestFetchURLReadsPages(t *testing.T) {
	t.Parallel()
	latin := "<meta charset=iso-8859-1><title>Caf\xe9</title><p>\xfcber"
	for name, c := range map[string]struct{ contentType, body, want string }{
		"HTML as Markdown": {
			"text/html; charset=utf-8",
			`<!doctype html><title> The
			page </title><style>p{}</style><script>alert(1)</script><h1>Head_line</h1><p>Some <b>bold</b> text,
			<a href="/a?b=c">a link</a> and <a href="d">another</a>.<img src="data:image/png;base64,AAAA"><svg><text>no</text></svg>
			<ul><li>one<li>two</ul><table><tr><th>k<th>v<tr><td>1<td>2</table><pre><code>x &lt; y</code></pre>`,
			"Title: The page\nAddress: HERE/dir/page\n\n# Head_line\n\nSome **bold** text, [a link](HERE/a?b=c) and [another](HERE/dir/d).\n\n" +
				"- one\n- two\n\n| k | v |\n|---|---|\n| 1 | 2 |\n\n```\nx < y\n```\n",
		},
		"HTML without text":         {"text/html", "<div id=app></div>", "Title: \nAddress: HERE/dir/page\n\n[The page holds no text. It may need a browser to show it.]\n"},
		"HTML in its own charset":   {"text/html", latin, "Title: Café\nAddress: HERE/dir/page\n\nüber\n"},
		"the header's charset":      {"text/plain; charset=iso-8859-2", "\xb1", "ą"},
		"a charset that is wrong":   {"text/plain; charset=iso-8859-1", "ü", "ü"},
		"no charset, late UTF-8":    {"text/plain", strings.Repeat("a", 2000) + "ü", strings.Repeat("a", 2000) + "ü"},
		"no charset, not UTF-8":     {"text/plain", "\xfcber", "über"},
		"UTF-16 by its mark":        {"text/plain", "\xff\xfea\x00b\x00", "ab"},
		"a charset unheard of":      {"text/plain; charset=klingon", "ü", "ü"},
		"JSON as it is":             {"application/json", "{ \"a\":\t\"<b>ü\" }", "{ \"a\":\t\"<b>ü\" }"},
		"JSON of a kind":            {"application/problem+json", "{}", "{}"},
		"a feed":                    {"application/rss+xml", "<rss/>", "<rss/>"},
		"Markdown":                  {"text/markdown", "# a *b*", "# a *b*"},
		"a strange header":          {"text/plain; charset", "a", "a"},
		"no type, but HTML":         {"", "<html><title>T</title><p>x", "Title: T\nAddress: HERE/dir/page\n\nx\n"},
		"no type, but text":         {"", "just text", "just text"},
		"text with NUL":             {"text/plain; charset=utf-8", "a\x00b", "a\uFFFDb"},
		"HTML nested without bound": {"text/html", strings.Repeat("<b>", 5000) + "<script>no</script>deep <i>down", "deep\ndown\n"},
		"an empty page":             {"text/plain", "", "(fetch_url succeeded and returned nothing)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header()["Content-Type"] = nil
				if c.contentType != "" {
					w.Header().Set("Content-Type", c.contentType)
				}
				io.WriteString(w, c.body)
			})
			got := fetch(t, here, address+"/dir/page#part")
			got.Text = strings.ReplaceAll(strings.ReplaceAll(got.Text, "#part", ""), address, "HERE")
			require.Empty(t, cmp.Diff(Result{Text: c.want}, got))
		})
	}
}

func TestFetchURLRefusesWhatIsNoText(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"a picture": {page("image/png", "\x89PNG"), "the page is of type image/png, which cannot be read here: only HTML, text, JSON and XML can"},
		"no type, binary": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = nil
			io.WriteString(w, "%PDF-1.7")
		}, "the page is neither HTML nor text and cannot be read here"},
		"an error": {http.NotFound, "the page answered HTTP 404 Not Found. Check the address or use another page"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Empty(t, cmp.Diff(Result{Text: "fetch_url failed: " + c.want, Failed: true}, fetch(t, here, serve(t, c.answer))))
		})
	}
}

func TestFetchURLReadsTheBeginningOfALongPage(t *testing.T) {
	t.Parallel()
	o := here
	o.Size = 9
	address := serve(t, page("text/plain; charset=utf-8", strings.Repeat("ü", 100)))
	require.Empty(t, cmp.Diff(Result{Text: "üüüü\uFFFD\n\n[The page goes on; only its first 9 bytes were read.]"}, fetch(t, o, address)))
}

func TestFetchURLUnpacksNoMoreThanItReads(t *testing.T) {
	t.Parallel()
	gone := make(chan struct{})
	address := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		defer close(gone)
		w.Header().Set("Content-Type", "text/plain")
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		zeros := make([]byte, 1<<20)
		for { // endless: only a reader that leaves ends it
			if _, err := z.Write(zeros); err != nil {
				return
			}
		}
	})
	got := fetch(t, here, address)
	require.False(t, got.Failed)
	require.Less(t, len(got.Text), DefaultResultLimit+200)
	<-gone
}

func TestFetchURLKeepsWhatCameBeforeABreak(t *testing.T) {
	t.Parallel()
	address := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		w.Header().Set("Content-Length", "100")
		io.WriteString(w, "half")
	})
	require.Empty(t, cmp.Diff(Result{Text: "half\n\n[The page goes on; only its first 4 bytes were read.]"}, fetch(t, here, address)))
}

func TestFetchURLEndsAtItsTimeLimit(t *testing.T) {
	t.Parallel()
	o := here
	o.Timeout = 20 * time.Millisecond
	got := fetch(t, o, serve(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	require.Empty(t, cmp.Diff(Result{
		Text:   "fetch_url was ended after its time limit of 20ms. Ask for less at once, or go on without it.",
		Failed: true,
	}, got))
}

func TestFetchURLHangsUpWhenTheTurnIsStopped(t *testing.T) {
	t.Parallel()
	errStopped := errors.New("stopped")
	ctx, cancel := context.WithCancelCause(t.Context())
	hungUp := make(chan struct{})
	address := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		io.WriteString(w, "half")
		w.(http.Flusher).Flush()
		cancel(errStopped)
		<-r.Context().Done()
		close(hungUp)
	})
	_, err := registry(t, FetchURL(here)).Run(ctx, "fetch_url", call(fmt.Sprintf(`{"url":%q}`, address)))
	require.ErrorIs(t, err, errStopped)
	<-hungUp
}

func TestMarkdownKeepsTheShapeOfTables(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ page, want string }{
		"rows of data": {
			"<table><caption>Prices</caption><thead><tr><th>what<th>how <i>much</i></thead><tbody><tr><td>tea<td><p>1</p><p>2</p><tr><td>x</tbody></table>after",
			"Prices\n\n| what | how *much* |\n|---|---|\n| tea | 1 2 |\n\nx\n\nafter",
		},
		"a page laid out as one": {
			"<table><tr><td><h2>Menu</h2><td><table><tr><td>a<td>b<tr><td>c<td>d</table></table>",
			"## Menu\n\n| a | b |\n|---|---|\n| c | d |",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, got, _ := strings.Cut(markdown(c.page, &url.URL{}), "\n\n")
			require.Empty(t, cmp.Diff(c.want+"\n", got))
		})
	}
}

// Each of these made gigabytes of a small page, or ran for minutes, with the library's own means.
func TestMarkdownStaysInProportionToThePage(t *testing.T) {
	t.Parallel()
	for name, page := range map[string]string{
		"a cell that spans millions":   "<table><tr><th>x<th>y<tr><td colspan=9999999 rowspan=9999999>a<td>b</table>",
		"a wide row and many narrow":   "<table><tr>" + strings.Repeat("<td>a", 10_000) + strings.Repeat("<tr><td>b<td>c", 10_000),
		"a long cell and many short":   "<table><tr><td>" + strings.Repeat("x", 50_000) + "<td>y" + strings.Repeat("<tr><td>b<td>c", 10_000),
		"quotes in quotes":             strings.Repeat("<blockquote>", 400) + strings.Repeat("<p>x", 10_000),
		"lists in lists":               strings.Repeat("<ul><li>", 200) + strings.Repeat("<p>x", 10_000),
		"tables in tables":             strings.Repeat("<table><tr><td>a<td>", 100) + strings.Repeat("<p>x", 10_000),
		"elements that are not closed": strings.Repeat("<b><i>", 10_000),
		"a list that counts from far":  "<ol start=999999999999999999>" + strings.Repeat("<li>a", 10_000),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Less(t, len(markdown(page, &url.URL{})), inProportion(page))
		})
	}
}

// inProportion allows a prefix of two bytes for each nested quote before every character, and more.
func inProportion[T string | []byte](page T) int { return 3*maxNesting*len(page) + 1000 }

func FuzzPageTextNeverBreaks(f *testing.F) {
	f.Add([]byte("<p>a"), "text/html")
	f.Add([]byte("<table><tr><td colspan=9999999>a"), "text/html; charset=utf-16")
	f.Add([]byte("<base href=http://x><a href='%zz'>\x00"), "text/html")
	at := &url.URL{Scheme: "https", Host: "example.com", Path: "/a"}
	f.Fuzz(func(t *testing.T, body []byte, header string) {
		text, _ := pageText(body, mediaType(header), header, at)
		require.Less(t, len(text), inProportion(body))
	})
}
