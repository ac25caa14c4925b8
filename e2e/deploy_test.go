package e2e

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"bobbin/e2e/house"
	"bobbin/llm/scripted"
	"bobbin/thread"
)

// Turns run all the time while every worker is replaced, one after the other.
func TestARollingDeployBreaksNoTurnAndRepeatsNothing(t *testing.T) {
	t.Parallel()
	const chats, turns = 4, 6
	h := house.Open(t, "BOBBIN_HEARTBEAT_TIMEOUT=10m", "BOBBIN_STINT_MAX_ROUNDS=3")
	h.Migrate()
	h.API()
	type running struct {
		*house.Process
		url string
	}
	var workers []running
	for range 2 {
		w, url := h.Operated()
		h.Ready(url)
		workers = append(workers, running{w, url})
	}
	list := make([]*house.Chat, chats)
	for i := range list {
		var rounds []scripted.Reply
		for n := range turns {
			for r := range 3 {
				rounds = append(rounds, house.Ask([]string{"look", "put", "charge"}[r], fmt.Sprintf("roll-%d-%d-%d", i, n, r)))
			}
			rounds = append(rounds, scripted.Reply{Pieces: []string{"All ", "of ", "it."}})
		}
		list[i] = h.Chat(scripted.Rounds(rounds...))
	}
	done := make(chan error, chats)
	for _, c := range list {
		go func() {
			for n := range turns {
				text := fmt.Sprintf("turn %d", n)
				if n == 0 {
					text = c.Marker + " " + text
				}
				a, err := c.TrySend(text)
				if err == nil {
					_, err = c.Watch.Await(func(e house.Event) bool { return e.TurnID == a.TurnID && e.Name == thread.EventTurnSucceeded })
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
		w, url := h.Operated()
		h.Ready(url)
		leaving := workers[0]
		workers = append(workers[1:], running{w, url})
		leaving.Terminate()
		require.Zero(t, leaving.WaitEnd())
		for more := i >= 2; more && left > 0 || left > 0 && len(done) > 0; {
			require.NoError(t, <-done)
			left--
		}
	}
	for i, c := range list {
		require.Len(t, c.Requests(), 4*turns, "no model call is repeated")
		for n := range turns {
			for r := range 3 {
				require.Len(t, h.Tools.Called(fmt.Sprintf("roll-%d-%d-%d", i, n, r)), 1)
			}
		}
		for _, e := range c.Watch.All() {
			require.NotEqual(t, thread.EventAnswerRestarted, e.Name)
			require.NotEqual(t, thread.EventTurnFailed, e.Name)
		}
		c.CheckOrder()
	}
}

// A round that outlasts the drain is done again by another worker, at once: the one that leaves says so.
func TestAWorkerWhoseDrainIsTooShortLeavesItsRoundToAnotherAtOnce(t *testing.T) {
	t.Parallel()
	h := house.Open(t, "BOBBIN_HEARTBEAT_TIMEOUT=10m")
	h.Migrate()
	h.API()
	leaving, url := h.Operated("BOBBIN_DRAIN_TIMEOUT=1s")
	h.Ready(url)
	hold := house.NewGate()
	c := h.Chat(scripted.Rounds(house.Ask("look", "before"), scripted.Reply{Text: "Said.", Gate: hold.Open, GateAt: scripted.AtFinish}))
	first := c.Start("Say something long.")
	h.Request(c.Marker, 2)
	h.Worker()
	leaving.Terminate()
	h.Until("the one that leaves to say so", func() bool {
		status, body := house.Get(url + "/readyz")
		return status == http.StatusServiceUnavailable && strings.Contains(body, "told to end") || leaving.Ended()
	})
	require.Zero(t, leaving.WaitEnd())
	h.Request(c.Marker, 3)
	hold.Release()
	c.Answered(first.TurnID)
	require.Len(t, c.Requests(), 3)
	require.Len(t, h.Tools.Called("before"), 1, "only the round under way is done again")
	c.CheckOrder()
}

// The old version is in the middle of a tool, and the new one is there already: the turn is finished by whoever is left.
func TestADeployOfAnotherBuildInTheMiddleOfATurnFinishesTheTurn(t *testing.T) {
	t.Parallel()
	h := house.Open(t, "BOBBIN_HEARTBEAT_TIMEOUT=10m", "BOBBIN_WORKER_VERSIONING=auto")
	h.Migrate()
	h.API()
	a, url := h.Operated("BOBBIN_BUILD_ID=a")
	h.Ready(url)
	current := func(build string) {
		h.Until("build "+build+" to be current", func() bool {
			p := h.Start("deploy")
			require.Zero(t, p.WaitEnd(), p.LogText())
			return regexp.MustCompile(`(?m)^` + build + `\s+current`).MatchString(p.LogText())
		})
	}
	current("a")
	look, pay := h.Tools.Gate("old-look"), h.Tools.Gate("old-pay")
	looking := h.Chat(scripted.Rounds(house.Ask("look", "old-look"), house.Ask("look", "after"), scripted.Say("Looked.")))
	paying := h.Chat(scripted.Rounds(house.Ask("charge", "old-pay"), scripted.Say("Paid."), scripted.Say("Gone.")))
	one, two := looking.Start("Look."), paying.Start("Pay.")
	h.Arrives(look)
	h.Arrives(pay)
	_, url = h.Operated("BOBBIN_BUILD_ID=b")
	h.Ready(url)
	current("b")
	a.Terminate()
	looking.Send("sent between two versions")
	look.Release()
	pay.Release()
	looking.Answered(one.TurnID)
	paying.Answered(two.TurnID)
	require.Zero(t, a.WaitEnd())
	paying.Answered(paying.Send("and with the old one gone?").TurnID)
	require.Len(t, h.Tools.Called("old-pay"), 1)
	require.Equal(t, 1, looking.Times("sent between two versions"))

	// The old build comes back, as where one machine was forgotten: it does not take over.
	back, _ := h.Operated("BOBBIN_BUILD_ID=a")
	back.WaitLog(regexp.MustCompile(`msg="(another build is current)" build=a current=b`))
	current("b")
	looking.CheckOrder()
	paying.CheckOrder()
}
