package life

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"bobbin/e2e/house"
	"bobbin/e2e/tally"
	"bobbin/llm/scripted"
	"bobbin/thread"
)

// soakVar is how long the long form lasts.
const soakVar = "BOBBIN_LAB_SOAK"

func TestUnderASteadyLoadNothingGrows(t *testing.T) {
	t.Parallel()
	lasts, every, think := 15*time.Second, 500*time.Millisecond, 500*time.Millisecond
	if tally.Long() {
		lasts, every, think = 30*time.Minute, 5*time.Second, 2*time.Second
		if s := os.Getenv(soakVar); s != "" {
			var err error
			lasts, err = time.ParseDuration(s)
			require.NoError(t, err, soakVar)
		}
	}
	book := tally.Keep(t, "soak")
	s := &soak{House: house.Open(t, "BOBBIN_RATE_LIMIT=0"), think: think}
	s.Migrate()
	api := s.API()
	_, worker := s.Operated()
	s.Ready(worker)
	s.Model.Keep(200)
	s.Model.On("soak", func(r scripted.Request) scripted.Reply {
		if len(r.Results()) > 0 && len(r.News()) == 0 {
			return scripted.Say("Done, as far as it goes.")
		}
		return house.Ask([]string{"look", "put", "charge"}[len(r.Messages)%3], strconv.FormatInt(s.calls.Add(1), 10))
	})

	ctx, cancel := context.WithTimeout(t.Context(), lasts)
	defer cancel()
	var people sync.WaitGroup
	for i := range 20 {
		people.Go(func() { s.live(ctx, rand.New(rand.NewPCG(1, uint64(i)))) })
	}
	m := measures{}
	for tick := time.NewTicker(every); ctx.Err() == nil; {
		select {
		case <-ctx.Done():
			tick.Stop()
		case <-tick.C:
			s.measure(m, map[string]string{"api": "http://" + api.Addr, "worker": worker})
		}
	}
	people.Wait()
	s.Until("everything to come to rest", func() bool {
		return s.Count(`SELECT count(*) FROM turns WHERE status IN ('queued', 'running')`) == 0
	})

	row := tally.Row{Runs: 1, Operations: int(s.operations.Load()), Figures: map[string]string{}}
	settled := s.Count(`SELECT count(*) FROM message_parts p JOIN messages m ON m.id = p.message_id WHERE m.role = 'user' AND m.state <> 'queued'`)
	row.Lost = max(0, int(s.accepted.Load())-settled)
	row.Doubled = max(0, settled-int(s.accepted.Load()))
	row.ReplyTwice = s.Count(`SELECT count(*) FROM (SELECT FROM messages WHERE role = 'assistant' GROUP BY turn_id HAVING count(*) > 1) twice`)
	row.Figures["the load"] = fmt.Sprintf("%s, %d messages, %d turns, %.1f turns/s", lasts, s.accepted.Load(),
		s.Count(`SELECT count(*) FROM turns`), float64(s.Count(`SELECT count(*) FROM turns`))/lasts.Seconds())
	for _, b := range bounds {
		row.Figures[b.of] = m.figure(b)
	}
	book.Add(row)
	require.Zero(t, row.Wrong(), "%+v", row)
	for _, b := range bounds {
		m.requireFlat(t, b)
	}
	s.requireNoBloat()
}

// A soak is a house under load.
type soak struct {
	*house.House
	think time.Duration

	calls, keys, operations, accepted atomic.Int64
}

// live writes to one thread after the other, each for some turns, and resets it then.
func (s *soak) live(ctx context.Context, r *rand.Rand) {
	for ctx.Err() == nil {
		var th thread.Thread
		if err := s.call("POST", "/v1/threads", map[string]any{}, &th); err != nil {
			return
		}
		w := s.Follow(th.ID, 0)
		for range 5 + r.IntN(15) {
			if ctx.Err() == nil && !s.turn(ctx, r, w, "/v1/threads/"+th.ID) {
				break
			}
		}
		var reset map[string]any
		_ = s.call("POST", "/v1/threads/"+th.ID+"/reset", map[string]any{}, &reset)
		w.Close()
	}
}

// turn starts a turn, disturbs it, and waits for its end. False: something failed, and the test has.
func (s *soak) turn(ctx context.Context, r *rand.Rand, w *house.Watch, at string) bool {
	first, err := s.say(at, "auto")
	if err != nil {
		return false
	}
	if r.IntN(2) == 0 {
		_, _ = s.say(at, "auto")
	}
	if r.IntN(6) == 0 {
		_, _ = s.say(at, "turn")
	}
	if r.IntN(8) == 0 {
		var out house.Stopped
		_ = s.call("POST", at+"/stop", map[string]any{"scope": "all"}, &out)
	}
	if _, err := w.Await(func(e house.Event) bool { return e.TurnID == first.TurnID && e.Turn != nil && e.Turn.Status.Ended() }); err != nil {
		s.T.Errorf("the end of %s: %v", first.TurnID, err)
		return false
	}
	select {
	case <-ctx.Done():
	case <-time.After(s.think/2 + rand.N(s.think)):
	}
	return true
}

func (s *soak) say(at, delivery string) (out house.Accepted, err error) {
	n := s.operations.Load()
	err = s.call("POST", at+"/messages", map[string]any{"text": fmt.Sprintf("soak %d", n), "delivery": delivery}, &out,
		"Idempotency-Key", fmt.Sprintf("soak-%d", s.keys.Add(1)))
	if err == nil {
		s.accepted.Add(1)
	}
	return out, err
}

func (s *soak) call(method, path string, body, out any, headers ...string) error {
	s.operations.Add(1)
	err := s.Call(method, path, body, out, headers...)
	if err != nil {
		s.T.Errorf("%s %s: %v", method, path, err)
	}
	return err
}

// A bound says how much of something a process or a table may gain in the second half of the time.
type bound struct {
	of    string
	slack float64 // at least so much, as some of it comes and goes
}

const mib = 1 << 20

// What a process holds when the garbage is collected shows in the size at which it collects next. Queue tables hold rows for
// a moment: all that they keep is space, which vacuum gives back to them.
var bounds = []bound{
	{"api: bytes of heap at the next collection", 8 * mib}, {"worker: bytes of heap at the next collection", 16 * mib},
	{"api: goroutines", 60}, {"worker: goroutines", 120}, {"api: file descriptors", 40}, {"worker: file descriptors", 60},
	{"connections to Postgres", 10},
	{"outbox: bytes", 2 * mib}, {"attempts: bytes", 2 * mib}, {"runs: bytes", 2 * mib}, {"streams: bytes", 2 * mib},
}

var collected = map[string]string{
	"go_memstats_next_gc_bytes": "bytes of heap at the next collection", "go_goroutines": "goroutines", "process_open_fds": "file descriptors",
}

// measures are the samples of each thing, in order.
type measures map[string][]float64

func (s *soak) measure(m measures, processes map[string]string) {
	s.T.Helper()
	for name, url := range processes {
		_, text := house.Get(url + "/metrics")
		for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
			metric, value, _ := strings.Cut(lines.Text(), " ")
			if what := collected[metric]; what != "" {
				v, err := strconv.ParseFloat(value, 64)
				require.NoError(s.T, err, lines.Text())
				m[name+": "+what] = append(m[name+": "+what], v)
			}
		}
	}
	connections := s.Count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'bobbin'`)
	m["connections to Postgres"] = append(m["connections to Postgres"], float64(connections))
	for _, table := range []string{"outbox", "attempts", "runs", "streams"} {
		m[table+": bytes"] = append(m[table+": bytes"], float64(s.Count(`SELECT pg_total_relation_size($1::text::regclass)`, table)))
	}
}

// half is the second half of the samples of a thing, its mean, and what it gains by the line that fits it best.
func (m measures) half(of string) (mean, gain float64, n int) {
	y := m[of][len(m[of])/2:]
	middle := float64(len(y)-1) / 2
	for _, v := range y {
		mean += v / float64(len(y))
	}
	var up, down float64
	for i, v := range y {
		x := float64(i) - middle
		up, down = up+x*(v-mean), down+x*x
	}
	if down == 0 {
		return mean, 0, len(y)
	}
	return mean, up / down * float64(len(y)-1), len(y)
}

func (m measures) figure(b bound) string {
	mean, gain, _ := m.half(b.of)
	if strings.Contains(b.of, "bytes") {
		return fmt.Sprintf("%.2f MiB in the second half, gained %+.2f", mean/mib, gain/mib)
	}
	return fmt.Sprintf("%.0f in the second half, gained %+.1f", mean, gain)
}

func (m measures) requireFlat(t *testing.T, b bound) {
	t.Helper()
	mean, gain, n := m.half(b.of)
	require.Greater(t, n, 5, b.of)
	require.LessOrEqual(t, gain, max(b.slack, mean/5), "%s: %s; %v", b.of, m.figure(b), m[b.of])
}

// requireNoBloat checks that what is left in tables is what their rows explain.
func (s *soak) requireNoBloat() {
	s.T.Helper()
	require.Zero(s.T, s.Count(`SELECT count(*) FROM attempts`))
	s.Until("the outbox to be empty", func() bool { return s.Count(`SELECT count(*) FROM outbox`) == 0 })
	older := func() int {
		return s.Count(`SELECT count(*) FROM steering o WHERE state <> 'queued' AND EXISTS (SELECT FROM steering n WHERE n.thread_id = o.thread_id AND n.id > o.id)`)
	}
	if tally.Long() {
		s.Until("a sweep to remove steering rows that nobody asks for", func() bool { return older() == 0 })
	}
	for table, row := range map[string]int{"deliveries": 1000, "steering": 1000} { // bytes, indexes and room for the dead included
		size, rows := s.Count(`SELECT pg_total_relation_size($1::text::regclass)`, table), s.Count(`SELECT count(*) FROM `+table)
		require.LessOrEqual(s.T, size, 2*mib+rows*row, "%s with %d rows", table, rows)
	}
}

func TestWhatGrowsIsToldFromWhatComesAndGoes(t *testing.T) {
	t.Parallel()
	m := measures{}
	for i := range 200 {
		wave := float64(i%10) * 5
		m["flat"] = append(m["flat"], 100+wave)
		m["settles"] = append(m["settles"], min(float64(i), 90)+wave)
		m["grows"] = append(m["grows"], 100+float64(i)+wave)
	}
	for of, most := range map[string]float64{"flat": 5, "settles": 5} {
		_, gain, n := m.half(of)
		require.Equal(t, 100, n)
		require.InDelta(t, 0, gain, most, of)
	}
	_, gain, _ := m.half("grows")
	require.InDelta(t, 99, gain, 5)
}
