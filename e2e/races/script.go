package races

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"bobbin/e2e/house"
	"bobbin/llm/scripted"
)

type (
	modelRequest = scripted.Request
	modelReply   = scripted.Reply
)

// A script is what the model and the tools do in a run: the nth request of a place gets the nth draw from the run's seed.
type script struct {
	seed uint64
	mu   sync.Mutex
	next map[int]uint64 // by place
}

func newScript(seed uint64) *script { return &script{seed: seed, next: map[int]uint64{}} }

// mostRounds bounds how often the model asks for tools before it answers what people wrote last.
const mostRounds = 6

func (s *script) draw(at int) (*rand.Rand, uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next[at]++
	return rand.New(rand.NewPCG(s.seed^uint64(at)<<32, s.next[at])), s.next[at]
}

func (s *script) answer(req modelRequest) modelReply {
	at, last := placeOf(req)
	r, n := s.draw(at)
	reply := scripted.Reply{Text: fmt.Sprintf("answer-%d-%d; is what I found, in a few words.", at, n)}
	if last {
		return reply
	}
	reply.Delay, reply.TokenDelay = upTo(r, 6), upTo(r, 3)
	rounds := 0
	for _, m := range req.Messages {
		switch {
		case m.Role == "user":
			rounds = 0
		case len(m.Calls) > 0:
			rounds++
		}
	}
	switch k := r.IntN(100); {
	case k < 70 && rounds < mostRounds && len(req.Tools) > 0:
		reply.Text, reply.Calls = "", calls(r, at, n)
	case k < 72:
		return scripted.Reply{Status: http.StatusServiceUnavailable}
	case k < 74:
		reply.Fault, reply.After = scripted.Break, 1+r.IntN(4)
	case k < 77:
		reply.Text = ""
	case k < 78:
		reply.Fault, reply.After = scripted.Garbage, 1
	case k < 79:
		reply.Fault = scripted.NoFinish
	case k < 82:
		return scripted.Reply{Status: http.StatusBadRequest, ErrorCode: "content_filter"}
	}
	return reply
}

// calls asks for one to three tools, some of them for something else than they take.
func calls(r *rand.Rand, at int, n uint64) []scripted.Call {
	var all []scripted.Call
	for i := range 1 + r.IntN(3) {
		tool := []string{"look", "look", "put", "charge"}[r.IntN(4)]
		c := house.Ask(tool, fmt.Sprintf("call-%d-%d-%d", at, n, i)).Calls[0]
		if r.IntN(12) == 0 {
			c.Arguments = `{"colour":3}`
		}
		all = append(all, c)
	}
	return all
}

// tool takes some time, and fails one call in ten.
func (s *script) tool(c house.ToolCall) int {
	r := rand.New(rand.NewPCG(s.seed, uint64(len(c.Key))<<32+hash(c.Key)))
	time.Sleep(upTo(r, 8)) // the plan's own
	if r.IntN(10) == 0 {
		return http.StatusInternalServerError
	}
	return 0
}

func hash(text string) uint64 {
	h := uint64(14695981039346656037)
	for _, b := range []byte(text) {
		h = (h ^ uint64(b)) * 1099511628211
	}
	return h
}

func upTo(r *rand.Rand, ms int64) time.Duration {
	return time.Duration(r.Int64N(ms * int64(time.Millisecond)))
}

// placeOf is the place that a request comes from, and whether it shows its last message.
func placeOf(req modelRequest) (at int, last bool) {
	for _, m := range req.Messages {
		if m.Role != "user" {
			continue
		}
		for _, mark := range partMark.FindAllString(m.Text, -1) {
			f := strings.Split(mark, "-")
			at, _ = strconv.Atoi(f[1]) // the pattern says that it is a number
			last = last || f[2] == "99"
		}
	}
	return at, last
}
