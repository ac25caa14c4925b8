package e2e

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"bobbin/llm/scripted"
	"bobbin/thread"
)

func TestAProviderThat(t *testing.T) {
	t.Parallel()
	h := furnish(t)
	for name, story := range map[string]func(*house){
		"AsksToWaitIsAskedAgain":                     providerAsksToWait,
		"FailsFourTimesFailsTheTurnWithTheNotice":    providerStaysAway,
		"BreaksOffInMidAnswerIsAskedAgain":           providerBreaksOff,
		"AnswersNothingOnceIsAskedForTheAnswer":      providerAnswersNothing,
		"WritesACallAsTextOnceIsAskedForTheAnswer":   providerAnswersMalformed,
		"SendsGarbageInTheStreamIsAskedAgain":        providerSendsGarbage,
		"AsksForToolsThatDoNotExistReadsThatInstead": providerAsksForUnknownTools,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			story(h.in(t))
		})
	}
}

func providerAsksToWait(h *house) {
	t := h.t
	c := h.chat(scripted.List(
		scripted.Reply{Status: http.StatusTooManyRequests, RetryAfter: 2 * time.Second}, scripted.Say("In time."),
	))
	first := c.start("Now.")
	c.answered(first.TurnID)
	one, two := h.request(c.marker, 1), h.request(c.marker, 2)
	require.GreaterOrEqual(t, two.Arrived.Sub(one.Arrived), 2*time.Second)
	require.Equal(t, one.Body, two.Body, "nothing of the failed attempt is in the session")
	require.Len(t, c.requests(), 2)
	c.checkOrder()
}

func providerStaysAway(h *house) {
	t := h.t
	down := scripted.Reply{Status: http.StatusInternalServerError}
	c := h.chat(scripted.List(down, down, down, down, scripted.Say("Back again.")))
	first := c.start("Now.")
	c.send("and this") // is loaded before the first or a later attempt, or follows
	end := c.ended(first.TurnID)
	require.Equal(t, thread.EventTurnFailed, end.Name)
	require.Equal(t, thread.FailModelUnavailable, end.Turn.Error.Code)
	c.idle()
	if len(c.turns()) == 1 {
		c.answered(c.send("continue").TurnID)
	}
	notices := 0
	for _, m := range c.messages() {
		if m.Role == thread.RoleNotice {
			notices++
		}
	}
	require.Equal(t, 1, notices)
	require.Len(t, c.requests(), 5)
	require.Equal(t, 1, c.times("and this"))
	c.checkOrder()
}

func providerBreaksOff(h *house) {
	t := h.t
	c := h.chat(scripted.List(
		scripted.Reply{Pieces: []string{"The half ", "that is lost"}, Fault: scripted.Break, After: 2}, scripted.Say("The whole answer."),
		scripted.Say("More."),
	))
	first := c.start("Answer.")
	c.answered(first.TurnID)
	c.awaitNamed(thread.EventAnswerRestarted, first.TurnID)
	require.Equal(t, "The whole answer.", c.streamed(first.TurnID))
	c.answered(c.send("Again.").TurnID)
	for _, r := range c.requests() {
		require.False(t, r.Mentions("that is lost"))
	}
	c.checkOrder()
}

func providerAnswersNothing(h *house) {
	t := h.t
	c := h.chat(scripted.List(scripted.Reply{}, scripted.Say("Something."), scripted.Say("More.")))
	first := c.start("Answer.")
	c.answered(first.TurnID)
	require.Len(t, c.requests(), 2)
	require.Empty(t, h.request(c.marker, 2).Tools, "the retry only writes")
	c.answered(c.send("Again.").TurnID)
	c.checkOrder()
}

func providerAnswersMalformed(h *house) {
	t := h.t
	c := h.chat(scripted.List(scripted.Say(`<tool_call>{"name": "look"}`), scripted.Say("In words."), scripted.Say("More.")))
	first := c.start("Answer.")
	c.answered(first.TurnID)
	require.Equal(t, "In words.", c.streamed(first.TurnID))
	c.answered(c.send("Again.").TurnID)
	require.False(t, h.request(c.marker, 3).Mentions("<tool_call>"))
	c.checkOrder()
}

func providerSendsGarbage(h *house) {
	c := h.chat(scripted.List(scripted.Reply{Text: "lost words", Fault: scripted.Garbage, After: 1}, scripted.Say("Clean.")))
	first := c.start("Answer.")
	c.answered(first.TurnID)
	require.Equal(h.t, "Clean.", c.streamed(first.TurnID))
	c.checkOrder()
}

func providerAsksForUnknownTools(h *house) {
	c := h.chat(scripted.Rounds(
		scripted.Reply{Calls: []scripted.Call{{Name: "rm -rf", Arguments: "{"}, {Name: "look", Arguments: `{"key": 7}`}, {ID: "same", Name: "look", Arguments: `{"key":"a"}`}, {ID: "same", Name: "look", Arguments: `{"key":"b"}`}}},
		scripted.Say("Understood."), scripted.Say("Still here.")))
	c.answered(c.start("Do it.").TurnID)
	require.Len(h.t, h.request(c.marker, 2).Results(), 4)
	c.answered(c.send("Again.").TurnID)
	c.checkOrder()
}

// openclaw/openclaw#67173
func TestAModelCallThatHangsToTheTimeLimitLeavesWhatWaitsItsTurn(t *testing.T) {
	t.Parallel()
	h := furnish(t, "BOBBIN_TURN_MAX_DURATION=2s", "BOBBIN_WRAP_UP_DURATION=1s")
	c := h.chat(func(r scripted.Request) scripted.Reply {
		if r.Mentions("M2") {
			return scripted.Say("An answer to M2.")
		}
		return scripted.Reply{Fault: scripted.Hang}
	})
	first := c.start("Hang.")
	h.request(c.marker, 1)
	c.send("M2")
	end := c.ended(first.TurnID)
	require.Equal(t, thread.EventTurnFailed, end.Name)
	require.Equal(t, thread.FailTimeLimit, end.Turn.Error.Code)
	follow := c.await("the follow-up", func(e event) bool { return e.Name == thread.EventTurnStarted && e.Turn.FollowUpOf == first.TurnID })
	c.answered(follow.TurnID)
	require.Empty(t, h.request(c.marker, 2).Tools, "the wrap-up only writes, and takes nothing")
	require.False(t, h.request(c.marker, 2).Mentions("M2"))
	require.Equal(t, []string{"M2"}, h.request(c.marker, 3).News()[1:])
	c.checkOrder()
}

// pydantic/pydantic-ai#7157
func TestAToolResultBeyondAllLimitsIsCutWithANote(t *testing.T) {
	t.Parallel()
	h := furnish(t)
	c := h.chat(scripted.Rounds(
		scripted.Reply{Calls: []scripted.Call{
			{Name: "look", Arguments: `{"key":"huge","size":3000000}`}, {Name: "charge", Arguments: `{"key":"huge too","size":3000000}`},
		}}, scripted.Say("Cut."),
	))
	c.answered(c.start("Get it all.").TurnID)
	for _, r := range h.request(c.marker, 2).Results() {
		require.Less(t, len(r.Text), 70_000)
		require.True(t, strings.HasPrefix(r.Text, "result of huge"))
		require.NotEqual(t, byte('x'), r.Text[len(r.Text)-1], "a note says that it was cut")
	}
	c.checkOrder()
}
