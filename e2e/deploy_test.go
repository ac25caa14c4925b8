package e2e

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"bobbin/llm/scripted"
	"bobbin/thread"
)

// operated starts a worker that serves an operator, and returns where.
func (h *house) operated(env ...string) (*process, string) {
	h.t.Helper()
	w := h.start("worker", append([]string{"BOBBIN_WORKER_ADDR=127.0.0.1:0"}, env...)...)
	return w, "http://" + w.waitLog(regexp.MustCompile(`msg="operator listens" addr=(\S+)`))
}

// get returns the status and the body of an address; 0 where nobody answers.
func get(url string) (int, string) {
	resp, err := http.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(raw)
}

// ready waits until a process says that it is.
func (h *house) ready(url string) {
	h.t.Helper()
	h.until(url+" to be ready", func() bool {
		status, _ := get(url + "/readyz")
		return status == http.StatusOK
	})
}

// Turns run all the time while every worker is replaced, one after the other. The heartbeat time-out is longer than the
// test may take, so whatever would wait for it fails the test.
func TestARollingDeployBreaksNoTurnAndRepeatsNothing(t *testing.T) {
	t.Parallel()
	const chats, turns = 4, 6
	h := open(t, "BOBBIN_HEARTBEAT_TIMEOUT=10m", "BOBBIN_STINT_MAX_ROUNDS=3")
	h.migrate()
	h.api()
	type running struct {
		*process
		url string
	}
	var workers []running
	for range 2 {
		w, url := h.operated()
		h.ready(url)
		workers = append(workers, running{w, url})
	}
	list := make([]*chat, chats)
	for i := range list {
		var rounds []scripted.Reply
		for n := range turns {
			for r := range 3 {
				rounds = append(rounds, ask([]string{"look", "put", "charge"}[r], fmt.Sprintf("roll-%d-%d-%d", i, n, r)))
			}
			rounds = append(rounds, scripted.Reply{Pieces: []string{"All ", "of ", "it."}})
		}
		list[i] = h.chat(scripted.Rounds(rounds...))
	}
	done := make(chan error, chats)
	for _, c := range list {
		go func() {
			for n := range turns {
				text := fmt.Sprintf("turn %d", n)
				if n == 0 {
					text = c.marker + " " + text
				}
				a, err := c.trySend(text)
				if err == nil {
					_, err = c.watch.await(func(e event) bool { return e.TurnID == a.TurnID && e.Name == thread.EventTurnSucceeded })
				}
				if err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	left := chats
	for i := 0; left > 0; i++ {
		w, url := h.operated()
		h.ready(url)
		leaving := workers[0]
		workers = append(workers[1:], running{w, url})
		leaving.terminate()
		require.Zero(t, leaving.waitEnd())
		for more := i >= 2; more && left > 0 || left > 0 && len(done) > 0; {
			require.NoError(t, <-done)
			left--
		}
	}
	for i, c := range list {
		require.Len(t, c.requests(), 4*turns, "no model call is repeated")
		for n := range turns {
			for r := range 3 {
				require.Len(t, h.tools.called(fmt.Sprintf("roll-%d-%d-%d", i, n, r)), 1)
			}
		}
		for _, e := range c.watch.all() {
			require.NotEqual(t, thread.EventAnswerRestarted, e.Name)
			require.NotEqual(t, thread.EventTurnFailed, e.Name)
		}
		c.checkOrder()
	}
}

// A round that outlasts the drain is done again by another worker, at once: the one that leaves says so.
func TestAWorkerWhoseDrainIsTooShortLeavesItsRoundToAnotherAtOnce(t *testing.T) {
	t.Parallel()
	h := open(t, "BOBBIN_HEARTBEAT_TIMEOUT=10m")
	h.migrate()
	h.api()
	leaving, url := h.operated("BOBBIN_DRAIN_TIMEOUT=1s")
	h.ready(url)
	hold := newGate()
	c := h.chat(scripted.Rounds(ask("look", "before"), scripted.Reply{Text: "Said.", Gate: hold.open, GateAt: scripted.AtFinish}))
	first := c.start("Say something long.")
	h.request(c.marker, 2)
	h.worker()
	leaving.terminate()
	h.until("the one that leaves to say so", func() bool {
		status, body := get(url + "/readyz")
		return status == http.StatusServiceUnavailable && strings.Contains(body, "told to end") || leaving.ended()
	})
	require.Zero(t, leaving.waitEnd())
	h.request(c.marker, 3)
	hold.release()
	c.answered(first.TurnID)
	require.Len(t, c.requests(), 3)
	require.Len(t, h.tools.called("before"), 1, "only the round under way is done again")
	c.checkOrder()
}

// The old version is in the middle of a tool, and the new one is there already: the turn is finished by whoever is left.
func TestADeployOfAnotherBuildInTheMiddleOfATurnFinishesTheTurn(t *testing.T) {
	t.Parallel()
	h := open(t, "BOBBIN_HEARTBEAT_TIMEOUT=10m", "BOBBIN_WORKER_VERSIONING=auto")
	h.migrate()
	h.api()
	a, url := h.operated("BOBBIN_BUILD_ID=a")
	h.ready(url)
	current := func(build string) {
		h.until("build "+build+" to be current", func() bool {
			p := h.start("deploy")
			require.Zero(t, p.waitEnd(), p.logText())
			return regexp.MustCompile(`(?m)^` + build + `\s+current`).MatchString(p.logText())
		})
	}
	current("a")
	look, pay := h.tools.gate("old-look"), h.tools.gate("old-pay")
	looking := h.chat(scripted.Rounds(ask("look", "old-look"), ask("look", "after"), scripted.Say("Looked.")))
	paying := h.chat(scripted.Rounds(ask("charge", "old-pay"), scripted.Say("Paid."), scripted.Say("Gone.")))
	one, two := looking.start("Look."), paying.start("Pay.")
	h.arrives(look)
	h.arrives(pay)
	_, url = h.operated("BOBBIN_BUILD_ID=b")
	h.ready(url)
	current("b")
	a.terminate()
	looking.send("sent between two versions")
	look.release()
	pay.release()
	looking.answered(one.TurnID)
	paying.answered(two.TurnID)
	require.Zero(t, a.waitEnd())
	paying.answered(paying.send("and with the old one gone?").TurnID)
	require.Len(t, h.tools.called("old-pay"), 1)
	require.Equal(t, 1, looking.times("sent between two versions"))

	// The old build comes back, as where one machine was forgotten: it does not take over.
	back, _ := h.operated("BOBBIN_BUILD_ID=a")
	back.waitLog(regexp.MustCompile(`msg="(another build is current)" build=a current=b`))
	current("b")
	looking.checkOrder()
	paying.checkOrder()
}
