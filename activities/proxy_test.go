package activities_test

import (
	"bytes"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// A proxy stands between a worker and Postgres, and cuts the line.
type proxy struct {
	server net.Addr
	deaf   bool // connections that LISTEN are cut

	mu      sync.Mutex
	down    bool
	conns   map[net.Conn]bool
	refused chan struct{} // receives when a connection is refused; never full
	cut     chan struct{} // likewise when one is cut for listening
}

// through returns a proxy and the address of a database through it.
func through(t *testing.T, dsn string, deaf bool) (*proxy, string) {
	t.Helper()
	server, by := serverOf(t, dsn)
	dir, err := os.MkdirTemp("", "px") // a socket's path must be short
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	l, err := net.Listen("unix", filepath.Join(dir, ".s.PGSQL.5432"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	p := &proxy{server: server, deaf: deaf, conns: map[net.Conn]bool{}, refused: make(chan struct{}, 1000), cut: make(chan struct{}, 1000)}
	go p.accept(l)
	return p, by(dir)
}

// serverOf returns the address of the server in a DSN, and a function that puts another folder in its place.
func serverOf(t *testing.T, dsn string) (net.Addr, func(dir string) string) {
	t.Helper()
	u, err := url.Parse(dsn)
	require.NoError(t, err)
	q := u.Query()
	host, port := q.Get("host"), q.Get("port")
	if host == "" {
		host, port = u.Hostname(), u.Port()
	}
	if port == "" {
		port = "5432"
	}
	var server net.Addr
	if strings.HasPrefix(host, "/") {
		server = &net.UnixAddr{Name: filepath.Join(host, ".s.PGSQL."+port), Net: "unix"}
	} else {
		server, err = net.ResolveTCPAddr("tcp", net.JoinHostPort(host, port))
		require.NoError(t, err)
	}
	return server, func(dir string) string {
		u.Host = ""
		q.Set("host", dir)
		q.Set("port", "5432")
		u.RawQuery = q.Encode()
		return u.String()
	}
}

func (p *proxy) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go p.carry(c)
	}
}

func (p *proxy) carry(c net.Conn) {
	defer c.Close()
	if !p.enter(c) {
		p.refused <- struct{}{}
		return
	}
	defer p.leave(c)
	s, err := net.Dial(p.server.Network(), p.server.String())
	if err != nil {
		return
	}
	defer s.Close()
	go func() {
		_, _ = io.Copy(c, s)
		_ = c.Close()
	}()
	_, _ = io.Copy(s, &ear{c, p})
}

func (p *proxy) enter(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.down {
		p.conns[c] = true
	}
	return !p.down
}

func (p *proxy) leave(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

// lose cuts all connections and refuses new ones until back is called.
func (p *proxy) lose() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = true
	for c := range p.conns {
		_ = c.Close()
	}
}

func (p *proxy) back() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = false
}

// An ear reads what a worker sends, and ends the connection that listens.
type ear struct {
	io.Reader
	p *proxy
}

func (e *ear) Read(b []byte) (int, error) {
	n, err := e.Reader.Read(b)
	if e.p.deaf && bytes.Contains(b[:n], []byte("LISTEN ")) {
		e.p.cut <- struct{}{}
		return 0, io.EOF
	}
	return n, err
}
