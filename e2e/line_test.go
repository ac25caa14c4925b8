package e2e

import (
	"io"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// A line carries TCP connections to an address until it is cut.
type line struct {
	addr, target string

	mu    sync.Mutex
	down  bool
	conns map[net.Conn]bool
}

func newLine(t *testing.T, target string) *line {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	n := &line{addr: l.Addr().String(), target: target, conns: map[net.Conn]bool{}}
	t.Cleanup(func() {
		_ = l.Close()
		n.cut()
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

func (n *line) carry(near net.Conn) {
	defer near.Close()
	if !n.hold(near) {
		return
	}
	far, err := net.Dial("tcp", n.target)
	if err != nil {
		return
	}
	defer far.Close()
	if !n.hold(far) {
		return
	}
	go func() {
		_, _ = io.Copy(far, near) // either end's end is both's
		_ = far.Close()
	}()
	_, _ = io.Copy(near, far)
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.conns, near)
	delete(n.conns, far)
}

func (n *line) hold(c net.Conn) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.down {
		return false
	}
	n.conns[c] = true
	return true
}

// cut breaks all connections, and every new one, until mend.
func (n *line) cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = true
	for c := range n.conns {
		_ = c.Close()
	}
	clear(n.conns)
}

func (n *line) mend() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = false
}
