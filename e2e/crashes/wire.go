package crashes

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"
)

// A Wire carries one process's connections to Postgres, and does at a Plan's point what it says.
type Wire struct {
	DSN  string // for the process
	Role string

	plan   *Plan
	strike func(Point) // kills the process; it returns when that is gone

	network, target string

	mu    sync.Mutex
	slow  time.Duration
	full  bool // new connections are refused, as by a server that has no more
	conns map[net.Conn]bool
}

// NewWire makes a wire to the database at dsn, which ends with the test. strike is called at a point to kill at.
func NewWire(t *testing.T, dsn, role string, plan *Plan, strike func(Point)) *Wire {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	cfg, err := pgconn.ParseConfig(dsn)
	require.NoError(t, err)
	require.Nil(t, cfg.TLSConfig, "a wire reads what passes, so it passes no TLS")
	w := &Wire{Role: role, plan: plan, strike: strike, conns: map[net.Conn]bool{}}
	w.network, w.target = pgconn.NetworkAddress(cfg.Host, cfg.Port)
	own := url.URL{
		Scheme: "postgres", User: url.UserPassword(cfg.User, cfg.Password), Host: l.Addr().String(), Path: "/" + cfg.Database,
		RawQuery: "sslmode=disable",
	}
	w.DSN = own.String()
	t.Cleanup(func() {
		_ = l.Close()
		w.Cut()
	})
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			go w.carry(near)
		}
	}()
	return w
}

// Cut breaks all connections. New ones go through.
func (w *Wire) Cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.conns {
		_ = c.Close()
	}
	clear(w.conns)
}

// Fill makes the server have no more connections, or have some again.
func (w *Wire) Fill(full bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.full = full
}

// Slow makes each group of statements wait; 0: none.
func (w *Wire) Slow(delay time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.slow = delay
}

func (w *Wire) delay() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.slow
}

func (w *Wire) hold(c net.Conn) (drop func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns[c] = true
	return func() {
		_ = c.Close()
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.conns, c)
	}
}

func (w *Wire) carry(near net.Conn) {
	defer w.hold(near)()
	r := bufio.NewReader(near)
	hello, err := w.hello(near, r)
	if err != nil {
		return
	}
	w.mu.Lock()
	full := w.full
	w.mu.Unlock()
	if full {
		_, _ = near.Write(refusal("FATAL", "53300", 0))
		return
	}
	far, err := net.Dial(w.network, w.target)
	if err != nil {
		return
	}
	defer w.hold(far)()
	if _, err := far.Write(hello); err != nil {
		return
	}
	s := &session{wire: w, near: near, far: far, statements: map[string]string{}}
	go func() {
		_ = s.up(r) // either end's end is both's
		_ = far.Close()
	}()
	_ = s.down()
}

// hello reads what a connection begins with. That there is no TLS is said here.
func (w *Wire) hello(near net.Conn, r *bufio.Reader) ([]byte, error) {
	for {
		head, err := r.Peek(8)
		if err != nil {
			return nil, err
		}
		hello := make([]byte, binary.BigEndian.Uint32(head))
		if _, err := io.ReadFull(r, hello); err != nil {
			return nil, err
		}
		if code := binary.BigEndian.Uint32(hello[4:]); code != sslRequest && code != gssRequest {
			return hello, nil
		}
		if _, err := near.Write([]byte{'N'}); err != nil {
			return nil, err
		}
	}
}

// https://www.postgresql.org/docs/current/protocol-message-formats.html
const (
	sslRequest = 80877103
	gssRequest = 80877104
)

// A session is one connection.
type session struct {
	wire       *Wire
	near, far  net.Conn
	statements map[string]string // prepared, by name
	within     bool              // a transaction
	written    []string          // the statements of the transaction that write

	mu     sync.Mutex
	answer *answer // which is held
}

// An answer is held until it is whole.
type answer struct {
	at        Point
	fault     Fault
	raw       []byte
	committed bool
	failed    bool
}

// frame reads one message with its header.
func frame(r *bufio.Reader) ([]byte, error) {
	head, err := r.Peek(5)
	if err != nil {
		return nil, err
	}
	raw := make([]byte, 1+binary.BigEndian.Uint32(head[1:]))
	_, err = io.ReadFull(r, raw)
	return raw, err
}

// up carries what the process sends, in the groups that Postgres answers.
func (s *session) up(r *bufio.Reader) error {
	for {
		var group []byte
		var run []string // the statements that are executed
		for whole := false; !whole; {
			raw, err := frame(r)
			if err != nil {
				return err
			}
			group = append(group, raw...)
			sql, executed := s.read(raw)
			if executed {
				run = append(run, sql)
			}
			whole = raw[0] != 'P' && raw[0] != 'B' && raw[0] != 'D' && raw[0] != 'E' && raw[0] != 'C'
		}
		began := s.within
		if err := s.pass(group, s.operation(run), began); err != nil {
			return err
		}
	}
}

// read keeps what is prepared, and returns the text of what is executed.
func (s *session) read(raw []byte) (sql string, executed bool) {
	switch body := raw[5:]; raw[0] {
	case 'P':
		var m pgproto3.Parse
		if m.Decode(body) == nil {
			s.statements[m.Name] = m.Query
		}
	case 'B': // who binds executes
		var m pgproto3.Bind
		if m.Decode(body) == nil {
			return s.statements[m.PreparedStatement], true
		}
	case 'Q':
		var m pgproto3.Query
		if m.Decode(body) == nil {
			return m.String, true
		}
	}
	return "", false
}

// operation names what a group of statements makes last; "": nothing.
func (s *session) operation(run []string) string {
	var op string
	var alone []string // what writes outside a transaction, so that the group's end commits it
	for _, sql := range run {
		word, _, _ := strings.Cut(strings.ToUpper(strings.TrimSpace(sql)), " ")
		switch {
		case word == "BEGIN":
			s.within, s.written = true, nil
		case word == "ROLLBACK":
			s.within, s.written = false, nil
		case word == "COMMIT":
			op = nameOf(s.written)
			s.within, s.written = false, nil
		case len(writes(sql)) == 0:
		case s.within:
			s.written = append(s.written, sql)
		default:
			alone = append(alone, sql)
		}
	}
	if len(alone) > 0 {
		op = nameOf(alone)
	}
	return op
}

// pass sends a group on, if nothing is to happen to it. began: it stands in a transaction that Postgres knows of.
func (s *session) pass(group []byte, op string, began bool) error {
	time.Sleep(s.wire.delay()) // a slow line
	at, fault := s.wire.plan.pass(s.wire.Role, op)
	switch {
	case fault.Kind == NoFault:
	case fault.Kind == Refuse:
		s.within, s.written = began, nil
		status := byte('I')
		if began {
			status = 'E'
		}
		_, err := s.near.Write(refusal("ERROR", fault.Code, status))
		return err
	case at.Side == Before:
		return s.happen(at, fault, nil)
	default:
		s.mu.Lock()
		s.answer = &answer{at: at, fault: fault}
		s.mu.Unlock()
	}
	_, err := s.far.Write(group)
	return err
}

// refusal is an error as Postgres sends it. status is that of the transaction, 0 where the connection ends.
func refusal(severity, code string, status byte) []byte {
	raw, err := (&pgproto3.ErrorResponse{Severity: severity, SeverityUnlocalized: severity, Code: code, Message: "refused by a test"}).Encode(nil)
	if err == nil && status != 0 {
		raw, err = (&pgproto3.ReadyForQuery{TxStatus: status}).Encode(raw)
	}
	if err != nil {
		panic(err) // our own messages
	}
	return raw
}

// down carries what Postgres answers.
func (s *session) down() error {
	r, w := bufio.NewReader(s.far), bufio.NewWriter(s.near)
	for {
		raw, err := frame(r)
		if err != nil {
			return err
		}
		if raw, err = s.keep(raw); err != nil {
			return err
		}
		if _, err := w.Write(raw); err != nil {
			return err
		}
		if r.Buffered() == 0 {
			if err := w.Flush(); err != nil {
				return err
			}
		}
	}
}

// keep holds a message back while an answer is held, and returns what is to be sent.
func (s *session) keep(raw []byte) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.answer
	if a == nil {
		return raw, nil
	}
	a.raw = append(a.raw, raw...)
	a.failed = a.failed || raw[0] == 'E'
	if raw[0] != 'Z' {
		return nil, nil
	}
	s.answer = nil
	if a.failed {
		return a.raw, nil // it did not come to be
	}
	return nil, s.happen(a.at, a.fault, a.raw)
}

// happen does what is to happen at a point, and ends the connection. half of an answer is still sent before a reset.
func (s *session) happen(at Point, fault Fault, answer []byte) error {
	if fault.Kind == Kill {
		s.wire.strike(at)
		s.wire.Cut()
		return errStruck
	}
	_, _ = s.near.Write(answer[:len(answer)/2])
	if tcp, ok := s.near.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = s.near.Close()
	return errStruck
}

var errStruck = fmt.Errorf("a fault was made here")
