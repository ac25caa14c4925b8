package crashes

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"bobbin/e2e/house"
	"bobbin/embedded/postgres"
	"bobbin/embedded/temporal"
	"bobbin/llm/scripted"
	"bobbin/store"
	"bobbin/thread"
)

// A Storm is a house with a Postgres and a Temporal server of its own, in which anything is killed while people write.
type Storm struct {
	t    *testing.T
	h    *house.House
	lane *Lane

	postgres *postgres.Server
	temporal *temporal.Server
	database postgres.Config
	cluster  temporal.Config
	model    *house.Line // the way to the provider

	kills, cuts int
	calm        chan struct{} // closed when nothing is killed any more
}

// NewStorm opens the house, with one API and two workers.
func NewStorm(t *testing.T) *Storm {
	t.Helper()
	dir, err := os.MkdirTemp("", "bobbin-storm-")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755)) // Postgres may run as another user
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	s := &Storm{
		t: t, calm: make(chan struct{}),
		database: postgres.Config{Dir: filepath.Join(dir, "postgres"), Ephemeral: true},
	}
	s.postgres, err = postgres.Start(t.Context(), s.database)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.postgres.Stop(t.Context()) })
	dsn := s.postgres.DSN()
	require.NoError(t, store.Migrate(t.Context(), dsn))
	s.cluster = temporal.Config{
		Dir: filepath.Join(dir, "temporal"), PostgresDSN: dsn, Namespace: "default", Headless: true,
		Program: os.Getenv("BOBBIN_TEST_TEMPORAL_PROGRAM"),
	}
	s.temporal, err = temporal.Start(t.Context(), s.cluster)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.temporal.Stop(t.Context()) })
	s.h = house.OpenAt(t, s.temporal.Address(), dsn)
	s.h.Migrate()
	model, err := url.Parse(s.h.ModelURL)
	require.NoError(t, err)
	s.model = house.NewLine(t, model.Host)
	s.lane = OpenLane(s.h, 2, "OPENAI_BASE_URL=http://"+s.model.Addr+"/v1")
	return s
}

// Rage kills and cuts at random times, so many times, and starts again what it killed. It returns how many processes it
// killed, those of Temporal and Postgres among them, and how often it cut or slowed a line.
func (s *Storm) Rage(chance *rand.Rand, times int) (kills, cuts int) {
	defer close(s.calm)
	var deck []int
	for range times {
		if len(deck) == 0 {
			deck = chance.Perm(12) // so that each comes, and none too often
		}
		what := deck[0]
		deck = deck[1:]
		time.Sleep(time.Duration(200+chance.IntN(900)) * time.Millisecond) // a random moment is the point
		down := time.Duration(chance.IntN(500)) * time.Millisecond
		switch what {
		case 0, 1:
			s.killOurs("api", 1)
		case 2, 3:
			s.killOurs("worker", 1)
		case 4:
			s.killOurs("worker", 2)
		case 5:
			s.killPostgres(down)
		case 6:
			s.killTemporal(down)
		case 7: // all at once, as when the machine is reset
			s.killOurs("api", 1)
			s.killOurs("worker", 2)
			s.killTemporal(0)
			s.killPostgres(down)
		case 8:
			s.each(func(w *Wire) { w.Cut() })
		case 9:
			s.cut(s.h.Line, down, chance.IntN(3))
		case 10:
			s.cut(s.model, down, chance.IntN(3))
		case 11:
			s.each(func(w *Wire) { w.Slow(down / 10) })
			last(down)
			s.each(func(w *Wire) { w.Slow(0) })
		}
		s.lane.staff(s.h)
	}
	return s.kills, s.cuts
}

func (s *Storm) killOurs(role string, n int) {
	for range n {
		if p := s.lane.living(role); p != nil {
			p.Kill()
			s.kills++
		}
	}
}

// each does something to the wires of all that live.
func (s *Storm) each(do func(*Wire)) {
	s.cuts++
	s.lane.mu.Lock()
	defer s.lane.mu.Unlock()
	for _, p := range s.lane.procs {
		if !p.Ended() {
			do(p.wire)
		}
	}
}

func (s *Storm) cut(line *house.Line, down time.Duration, how int) {
	s.cuts++
	switch how {
	case 0:
		line.Cut()
		last(down)
		line.Mend()
	case 1:
		line.Halve()
	case 2:
		line.Slow(down / 10)
		last(down)
		line.Slow(0)
	}
}

// last is how long an outage takes, which the seed says.
func last(down time.Duration) { time.Sleep(down) } // the outage itself: nothing is waited for

func (s *Storm) killPostgres(down time.Duration) {
	s.kills++
	require.NoError(s.t, syscall.Kill(s.postgres.PID(), syscall.SIGKILL))
	<-s.postgres.Done()
	_ = s.postgres.Stop(s.t.Context()) // lets go of the folder; it says that it was killed
	last(down)
	var err error
	s.postgres, err = postgres.Start(s.t.Context(), s.database)
	require.NoError(s.t, err)
	s.revive()
}

func (s *Storm) killTemporal(down time.Duration) {
	s.kills++
	require.NoError(s.t, syscall.Kill(s.temporal.PID(), syscall.SIGKILL))
	<-s.temporal.Done()
	_ = s.temporal.Stop(s.t.Context())
	last(down)
	s.revive()
}

// revive starts Temporal where it does not run: without its database it ends by itself.
func (s *Storm) revive() {
	select {
	case <-s.temporal.Done():
	default:
		return
	}
	_ = s.temporal.Stop(s.t.Context())
	_, port, _ := strings.Cut(s.h.Line.Target, ":")
	_, err := fmt.Sscan(port, &s.cluster.Port)
	require.NoError(s.t, err)
	s.temporal, err = temporal.Start(s.t.Context(), s.cluster)
	require.NoError(s.t, err)
	require.Equal(s.t, s.h.Line.Target, s.temporal.Address(), "on the port that it had")
}

// A Talker is one person who writes through the storm.
type Talker struct {
	s    *Storm
	chat *house.Chat
	rec  Record
}

// Talker opens a thread.
func (s *Storm) Talker() *Talker {
	k := &Talker{s: s}
	k.chat = s.h.Chat(k.play)
	return k
}

// tools by what a message asks for.
var tools = []string{"look", "put", "charge", "say"}

// Talk writes until the storm is over: each message asks for a tool, or for nothing but an answer. It returns how many.
func (k *Talker) Talk(chance *rand.Rand) int {
	n := 0
	for ; ; n++ {
		select {
		case <-k.s.calm:
			return n
		case <-time.After(time.Duration(chance.IntN(600)) * time.Millisecond):
			tool := tools[chance.IntN(len(tools))]
			if tool == "charge" {
				k.rec.Charges = append(k.rec.Charges, k.key(tool, n))
			}
			var mods []house.With
			if chance.IntN(8) == 0 {
				mods = append(mods, house.Files("fil_1"))
			}
			k.send(fmt.Sprintf("%s [%s %d]", k.chat.Marker, tool, n), mods...)
		}
	}
}

func (k *Talker) key(tool string, n int) string {
	return fmt.Sprintf("%s%s-%d", k.chat.Marker, tool, n)
}

func (k *Talker) send(text string, mods ...house.With) {
	mods = append(mods, house.Key(text))
	for deadline := time.Now().Add(house.Patience); time.Now().Before(deadline); time.Sleep(house.PollEvery) { // between two tries
		out, err := k.chat.TrySend(text, mods...)
		var p *house.Problem
		switch {
		case err == nil:
			k.rec.Sent = append(k.rec.Sent, Sent{Text: text, ID: out.Message.ID})
			return
		case errors.As(err, &p) && p.Code != "unavailable":
			k.rec.Other = append(k.rec.Other, p.Error())
		}
	}
	k.rec.Left = append(k.rec.Left, fmt.Sprintf("%q was not accepted", text))
}

// play asks for the tools that the messages ask for and that were not asked for yet, and then answers.
func (k *Talker) play(r scripted.Request) scripted.Reply {
	asked := map[string]bool{}
	var want []string
	for _, m := range r.Messages {
		for _, c := range m.Calls {
			_, key, _ := strings.Cut(c.Arguments, `:"`)
			asked[strings.TrimRight(key, `"}`)] = true
		}
		if m.Role != "user" || strings.HasPrefix(m.Text, scripted.NoteTag) {
			continue
		}
		for rest := m.Text; ; {
			_, after, found := strings.Cut(rest, "[")
			if !found {
				break
			}
			directive, next, _ := strings.Cut(after, "]")
			want, rest = append(want, directive), next
		}
	}
	for _, w := range want {
		var tool string
		var n int
		if _, err := fmt.Sscan(w, &tool, &n); err == nil && tool != "say" && !asked[k.key(tool, n)] {
			return house.Ask(tool, k.key(tool, n))
		}
	}
	return scripted.Reply{Text: fmt.Sprintf("So far %d of them.", len(want)), TokenDelay: 5 * time.Millisecond}
}

// Judge waits until the thread has come to rest, sends one more message, which must be served, and judges it all.
func (k *Talker) Judge() []Wrong {
	h := k.s.h
	if left := rest(h, k.chat.ID, house.Patience); left != "" {
		k.rec.Left = append(k.rec.Left, left)
	}
	k.send(k.chat.Marker + " [say 9999]")
	if left := rest(h, k.chat.ID, house.Patience); left != "" {
		k.rec.Left = append(k.rec.Left, left)
	}
	k.rec.read(h, k.chat)
	k.rec.May = []thread.FailCode{thread.FailToolUnknown}
	if k.s.cuts > 0 { // the provider cannot be reached, time after time
		k.rec.May = append(k.rec.May, thread.FailModelUnavailable)
	}
	if last := k.rec.Turns[len(k.rec.Turns)-1]; last.Status != thread.TurnSucceeded {
		k.rec.Left = append(k.rec.Left, "the last message was not answered")
	}
	return Judge(&k.rec)
}

// All runs something for each of several at once, and waits.
func All[T any](list []T, do func(T)) {
	var all sync.WaitGroup
	for _, one := range list {
		all.Go(func() { do(one) })
	}
	all.Wait()
}
