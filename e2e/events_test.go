package e2e

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"bobbin/llm/scripted"
	"bobbin/thread"
)

// Each watch checks by itself that no event is missing and none comes twice.
func TestAnEventStreamGoesOnThroughAnotherAPIWithoutGapOrRepeat(t *testing.T) {
	t.Parallel()
	h := open(t)
	h.migrate()
	spare := h.api()
	one := h.api()
	h.worker()
	g := make(chan struct{})
	pieces := strings.SplitAfter(strings.Repeat("piece ", 60), " ")
	c := h.chat(scripted.Rounds(scripted.Reply{Pieces: pieces, Gate: g}))
	first := c.start("Count.")
	step(g, 20)
	c.await("some of it", func(e event) bool { return e.Name == thread.EventAnswerDelta })
	one.kill() // the stream goes on at spare
	step(g, 20)
	two := h.api()
	spare.kill() // and then at two
	step(g, len(pieces)-40+2)
	c.answered(first.TurnID)
	require.Equal(t, strings.Join(pieces, ""), c.streamed(first.TurnID))
	require.GreaterOrEqual(t, c.watch.opened, 2)
	late := h.follow(c.id, 0)
	defer late.close()
	_, err := late.await(func(e event) bool { return e.Name == thread.EventTurnSucceeded })
	require.NoError(t, err)
	require.Equal(t, len(c.watch.all()), len(late.all()), "all of it once more, from the beginning")
	require.False(t, two.ended())
	c.checkOrder()
}

func TestAReaderThatReadsNothingHoldsNobodyBack(t *testing.T) {
	t.Parallel()
	h := furnish(t, "BOBBIN_MODEL_CONTEXT_TOKENS=1000000")
	pieces := strings.SplitAfter(strings.Repeat(strings.Repeat("long ", 280)+"\n", 1000), "\n")
	c := h.chat(scripted.Rounds(scripted.Reply{Pieces: pieces}, scripted.Say("And on.")))
	for range 20 {
		deafReader(h, c.id)
	}
	first := c.start("Say a lot.")
	c.answered(first.TurnID)
	require.Len(t, c.streamed(first.TurnID), 1_401_000)
	c.answered(c.send("Go on.").TurnID)
	c.checkOrder()
}

// deafReader opens an event stream and never reads from it, with a small window.
func deafReader(h *house, threadID string) {
	h.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(h.url(), "http://"))
	require.NoError(h.t, err)
	h.t.Cleanup(func() { _ = conn.Close() })
	require.NoError(h.t, conn.(*net.TCPConn).SetReadBuffer(4096))
	_, err = fmt.Fprintf(conn, "GET /v1/threads/%s/events?after=0 HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer %s\r\n\r\n", threadID, apiKey)
	require.NoError(h.t, err)
	status, err := bufio.NewReaderSize(conn, 16).ReadString('\n')
	require.NoError(h.t, err)
	require.Contains(h.t, status, "200")
}
