package house

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A Line carries TCP connections to an address until it is cut.
type Line struct {
	Addr, Target string

	mu    sync.Mutex
	down  bool
	delay time.Duration
	conns map[net.Conn]bool
}

// NewLine makes a line to an address, which ends with the test.
func NewLine(t *testing.T, target string) *Line {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	n := &Line{Addr: l.Addr().String(), Target: target, conns: map[net.Conn]bool{}}
	t.Cleanup(func() {
		_ = l.Close()
		n.Cut()
	})
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go n.carry(conn)
		}
	}()
	return n
}

func (n *Line) carry(near net.Conn) {
	defer near.Close()
	if !n.hold(near) {
		return
	}
	far, err := net.Dial("tcp", n.Target)
	if err != nil {
		return
	}
	defer far.Close()
	if !n.hold(far) {
		return
	}
	go func() {
		_, _ = io.Copy(far, slowed{near, n}) // either end's end is both's
		_ = far.Close()
	}()
	_, _ = io.Copy(near, slowed{far, n})
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.conns, near)
	delete(n.conns, far)
}

func (n *Line) hold(c net.Conn) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.down {
		return false
	}
	n.conns[c] = true
	return true
}

// slowed is an end of a line whose pieces wait as the line says.
type slowed struct {
	io.Reader
	line *Line
}

func (s slowed) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	s.line.mu.Lock()
	delay := s.line.delay
	s.line.mu.Unlock()
	time.Sleep(delay) // a slow line
	return n, err
}

// Slow makes each piece of data wait, in both directions; 0: none.
func (n *Line) Slow(delay time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.delay = delay
}

// Halve ends the sending direction of every end of all connections: both sides hear that the other says no more, and may go on
// to speak.
func (n *Line) Halve() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.CloseWrite()
		}
	}
}

// Cut breaks all connections, and every new one, until Mend.
func (n *Line) Cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = true
	for c := range n.conns {
		_ = c.Close()
	}
	clear(n.conns)
}

// Mend lets new connections through again.
func (n *Line) Mend() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = false
}
