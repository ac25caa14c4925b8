package activities_test

import (
	"bytes"
	"context"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"bobbin/activities"
	"bobbin/contract"
	"bobbin/files"
	"bobbin/llm/scripted"
	"bobbin/store"
	"bobbin/store/storetest"
	"bobbin/thread"
)

// shelf is a file store of a test's.
type shelf struct {
	mu     sync.Mutex
	away   int // how many times it does not answer yet
	opened []string
	hangs  chan struct{} // closed when someone waits for it; nil: it answers
}

func (s *shelf) Open(ctx context.Context, id string, _ int64) (io.ReadSeekCloser, error) {
	s.mu.Lock()
	s.opened = append(s.opened, id)
	s.away--
	away := s.away >= 0
	s.mu.Unlock()
	if s.hangs != nil {
		close(s.hangs)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if away {
		return nil, thread.ErrUnavailable
	}
	return book{bytes.NewReader([]byte("what stands in " + id))}, nil
}

type book struct{ *bytes.Reader }

func (book) Close() error { return nil }

// startWith sends a message with files and claims its turn.
func (b *bundle) startWith(ids ...string) contract.TurnRef {
	b.t.Helper()
	storetest.AddFiles(b.t, b.dsn, owner, ids...)
	_, err := b.db.Accept(b.ctx(), store.Incoming{OwnerID: owner, ThreadID: b.thread, Channel: thread.ChannelWeb, Text: "Read.", Attachments: ids})
	require.NoError(b.t, err)
	c, err := b.db.Claim(b.ctx(), b.thread)
	require.NoError(b.t, err)
	t := c.Conversation
	return contract.TurnRef{ID: t.ID, ThreadID: t.ThreadID, Kind: t.Kind, Source: t.Source, Mode: t.Mode, Attempt: t.Attempt}
}

func reads(s *shelf, wait time.Duration) with {
	return func(c *activities.Config) {
		c.Files, c.FilePatience, c.Reader = s, wait, files.Reader{MaxText: 1000, Timeout: time.Minute}
	}
}

func shown(r scripted.Request) string { return strings.Join(r.Texts("user"), "\n") }

func TestAFileStoreThatComesBackIsWaitedForAndEachTextIsReadOnce(t *testing.T) {
	b := setup(t, scripted.Rounds(scripted.Say("One."), scripted.Say("Two.")))
	s := &shelf{away: 1}
	w := b.worker(reads(s, time.Minute))
	turn := b.startWith("fil_a", "fil_b")
	res := w.stint(turn)
	require.Equal(t, contract.StintAnswered, res.Outcome)
	first := b.model.Requests()[0]
	require.Contains(t, shown(first), "what stands in fil_a")
	require.Contains(t, shown(first), "what stands in fil_b")
	require.Equal(t, []string{"fil_b", "fil_b", "fil_a"}, s.opened)

	other := &shelf{}
	w.end(turn, res)
	b.worker(reads(other, time.Minute)).stint(b.start("Again."))
	require.Contains(t, shown(b.model.Requests()[1]), "what stands in fil_a")
	require.Empty(t, other.opened)
	require.Empty(t, b.model.Refusals())
}

func TestAFileStoreThatStaysAwayEndsNoTurn(t *testing.T) {
	b := setup(t, scripted.Rounds(scripted.Say("I cannot read it."), scripted.Say("Now I can.")))
	w := b.worker(reads(&shelf{away: 1000}, time.Millisecond))
	turn := b.startWith("fil_a")
	res := w.stint(turn)
	require.Equal(t, contract.StintAnswered, res.Outcome)
	require.Contains(t, shown(b.model.Requests()[0]), "could not be read now")
	w.end(turn, res)
	b.worker(reads(&shelf{}, time.Minute)).stint(b.start("Again."))
	require.Contains(t, shown(b.model.Requests()[1]), "what stands in fil_a", "it is tried again, as nothing was kept")
}

func TestAStopReachesATurnThatWaitsForAFile(t *testing.T) {
	b := setup(t, scripted.Always(scripted.Say("Never.")))
	s := &shelf{hangs: make(chan struct{})}
	w := b.worker(reads(s, time.Hour))
	turn := b.startWith("fil_a")
	done := later(func() contract.StintResult { return w.stint(turn) })
	come(t, s.hangs)
	b.stop()
	res := come(t, done)
	require.Equal(t, contract.StintFenced, res.Outcome)
	require.Equal(t, thread.TurnCancelled, w.end(turn, res).Status)
	require.Empty(t, b.model.Requests())
}
