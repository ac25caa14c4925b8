package e2e

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"bobbin/e2e/house"
	"bobbin/llm/scripted"
	"bobbin/thread"
)

// Each watch checks by itself that no event is missing and none comes twice.
func TestAnEventStreamGoesOnThroughAnotherAPIWithoutGapOrRepeat(t *testing.T) {
	t.Parallel()
	h := house.Open(t)
	h.Migrate()
	spare := h.API()
	one := h.API()
	h.Worker()
	g := make(chan struct{})
	pieces := strings.SplitAfter(strings.Repeat("piece ", 60), " ")
	c := h.Chat(scripted.Rounds(scripted.Reply{Pieces: pieces, Gate: g}))
	first := c.Start("Count.")
	house.Step(g, 20)
	c.Await("some of it", func(e house.Event) bool { return e.Name == thread.EventAnswerDelta })
	one.Kill() // the stream goes on at spare
	house.Step(g, 20)
	two := h.API()
	spare.Kill() // and then at two
	house.Step(g, len(pieces)-40+2)
	c.Answered(first.TurnID)
	require.Equal(t, strings.Join(pieces, ""), c.Streamed(first.TurnID))
	require.GreaterOrEqual(t, c.Watch.Opened(), 2)
	late := h.Follow(c.ID, 0)
	defer late.Close()
	_, err := late.Await(func(e house.Event) bool { return e.Name == thread.EventTurnSucceeded })
	require.NoError(t, err)
	require.Equal(t, len(c.Watch.All()), len(late.All()), "all of it once more, from the beginning")
	require.False(t, two.Ended())
	c.CheckOrder()
}

func TestAReaderThatReadsNothingHoldsNobodyBack(t *testing.T) {
	t.Parallel()
	h := house.Furnish(t, "BOBBIN_MODEL_CONTEXT_TOKENS=1000000")
	pieces := strings.SplitAfter(strings.Repeat(strings.Repeat("long ", 280)+"\n", 1000), "\n")
	c := h.Chat(scripted.Rounds(scripted.Reply{Pieces: pieces}, scripted.Say("And on.")))
	for range 20 {
		deafReader(h, c.ID)
	}
	first := c.Start("Say a lot.")
	c.Answered(first.TurnID)
	require.Len(t, c.Streamed(first.TurnID), 1_401_000)
	c.Answered(c.Send("Go on.").TurnID)
	c.CheckOrder()
}

// deafReader opens an event stream and never reads from it, with a small window.
func deafReader(h *house.House, threadID string) {
	h.T.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(h.URL(), "http://"))
	require.NoError(h.T, err)
	h.T.Cleanup(func() { _ = conn.Close() })
	require.NoError(h.T, conn.(*net.TCPConn).SetReadBuffer(4096))
	_, err = fmt.Fprintf(conn, "GET /v1/threads/%s/events?after=0 HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer %s\r\n\r\n", threadID, house.APIKey)
	require.NoError(h.T, err)
	status, err := bufio.NewReaderSize(conn, 16).ReadString('\n')
	require.NoError(h.T, err)
	require.Contains(h.T, status, "200")
}
