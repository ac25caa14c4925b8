package store_test

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"bobbin/store"
	"bobbin/store/storetest"
	"bobbin/thread"
)

// A reply's pieces are written again when their commit's answer was lost. A page that follows would show them twice, and so
// would the answer that a stop keeps.
func TestDeltasWhoseCommitStandsUnknownAreNotWrittenTwice(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	var lose atomic.Bool
	db := storetest.Open(t, losing(t, b.dsn, &lose))
	d := db.NewDeltas()
	defer d.Close()
	write := func(offset int, text string) {
		d.Write(r.ref, thread.Delta{TurnID: r.ref.ID, Round: 1, Offset: offset, Text: text})
		d.Flush(b.ctx(), r.ref.ID)
	}
	write(0, "Ja")
	lose.Store(true)
	write(2, ", größer ")
	require.False(t, lose.Load(), "an answer was lost")
	write(13, "wird es nicht.")
	whole := ""
	for _, p := range r.pieces() {
		require.Equal(t, len(whole), p.Offset)
		whole += p.Text
	}
	require.Equal(t, "Ja, größer wird es nicht.", whole)
	_, err := db.Stop(b.ctx(), owner, b.thread, store.ScopeConversation)
	require.NoError(t, err)
	_, err = db.End(b.ctx(), r.ref.ID, r.attempt, store.Outcome{})
	require.NoError(t, err)
	require.Equal(t, []string{whole}, r.list(`SELECT text FROM messages WHERE turn_id = $1 AND role = 'assistant'`, r.ref.ID))
}

// Whoever lost the answer that a call starts asks again, and alone may run it.
func TestStartCallWhoseCommitStandsUnknownIsKnownToWhoAsksAgain(t *testing.T) {
	b := setup(t)
	r := b.start("hello")
	r.commit(store.RoundCalls, "", effect("charge"))
	var lose atomic.Bool
	db := storetest.Open(t, losing(t, b.dsn, &lose))
	mine := &store.Start{WorkerID: "w"}
	lose.Store(true)
	_, _, err := db.StartCall(b.ctx(), r.ref, 1, 0, mine)
	require.ErrorIs(t, err, thread.ErrUnavailable)
	_, ok, err := db.StartCall(b.ctx(), r.ref, 1, 0, &store.Start{WorkerID: "w"})
	require.NoError(t, err)
	require.False(t, ok, "another start, though of the same worker")
	call, ok, err := db.StartCall(b.ctx(), r.ref, 1, 0, mine)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, "charge", call.Name)
}

// losing is the address of a proxy that breaks the connection in front of the next answer to a COMMIT, once lose is set.
func losing(t *testing.T, dsn string, lose *atomic.Bool) string {
	t.Helper()
	cfg, err := pgconn.ParseConfig(dsn)
	require.NoError(t, err)
	network, address := pgconn.NetworkAddress(cfg.Host, cfg.Port)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial(network, address)
			if err != nil {
				_ = near.Close()
				return
			}
			go func() {
				_, _ = io.Copy(far, near)
				_ = far.Close()
			}()
			go func() {
				passAnswers(near, far, lose)
				_ = near.Close()
				_ = far.Close()
			}()
		}
	}()
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(cfg.User, cfg.Password), Host: l.Addr().String(), Path: cfg.Database,
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// passAnswers carries messages, each with its header: a letter, and a length that counts itself.
func passAnswers(near io.Writer, far io.Reader, lose *atomic.Bool) {
	for r := bufio.NewReader(far); ; {
		head, err := r.Peek(5)
		if err != nil {
			return
		}
		raw := make([]byte, 1+binary.BigEndian.Uint32(head[1:]))
		if _, err := io.ReadFull(r, raw); err != nil {
			return
		}
		if raw[0] == 'C' && strings.HasPrefix(string(raw[5:]), "COMMIT") && lose.CompareAndSwap(true, false) {
			return
		}
		if _, err := near.Write(raw); err != nil {
			return
		}
	}
}
