package e2e

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"bobbin/e2e/house"
	"bobbin/llm/scripted"
	"bobbin/thread"
)

func TestAProviderThat(t *testing.T) {
	t.Parallel()
	h := house.Furnish(t)
	for name, story := range map[string]func(*house.House){
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
			story(h.In(t))
		})
	}
}

func providerAsksToWait(h *house.House) {
	t := h.T
	c := h.Chat(scripted.List(
		scripted.Reply{Status: http.StatusTooManyRequests, RetryAfter: 2 * time.Second}, scripted.Say("In time."),
	))
	first := c.Start("Now.")
	c.Answered(first.TurnID)
	one, two := h.Request(c.Marker, 1), h.Request(c.Marker, 2)
	require.GreaterOrEqual(t, two.Arrived.Sub(one.Arrived), 2*time.Second)
	require.Equal(t, one.Body, two.Body, "nothing of the failed attempt is in the session")
	require.Len(t, c.Requests(), 2)
	c.CheckOrder()
}

func providerStaysAway(h *house.House) {
	t := h.T
	down := scripted.Reply{Status: http.StatusInternalServerError}
	c := h.Chat(scripted.List(down, down, down, down, scripted.Say("Back again.")))
	first := c.Start("Now.")
	c.Send("and this") // is loaded before the first or a later attempt, or follows
	end := c.Ended(first.TurnID)
	require.Equal(t, thread.EventTurnFailed, end.Name)
	require.Equal(t, thread.FailModelUnavailable, end.Turn.Error.Code)
	c.Idle()
	if len(c.Turns()) == 1 {
		c.Answered(c.Send("continue").TurnID)
	}
	notices := 0
	for _, m := range c.Messages() {
		if m.Role == thread.RoleNotice {
			notices++
		}
	}
	require.Equal(t, 1, notices)
	require.Len(t, c.Requests(), 5)
	require.Equal(t, 1, c.Times("and this"))
	c.CheckOrder()
}

func providerBreaksOff(h *house.House) {
	t := h.T
	c := h.Chat(scripted.List(
		scripted.Reply{Pieces: []string{"The half ", "that is lost"}, Fault: scripted.Break, After: 2}, scripted.Say("The whole answer."),
		scripted.Say("More."),
	))
	first := c.Start("Answer.")
	c.Answered(first.TurnID)
	c.AwaitNamed(thread.EventAnswerRestarted, first.TurnID)
	require.Equal(t, "The whole answer.", c.Streamed(first.TurnID))
	c.Answered(c.Send("Again.").TurnID)
	for _, r := range c.Requests() {
		require.False(t, r.Mentions("that is lost"))
	}
	c.CheckOrder()
}

func providerAnswersNothing(h *house.House) {
	t := h.T
	c := h.Chat(scripted.List(scripted.Reply{}, scripted.Say("Something."), scripted.Say("More.")))
	first := c.Start("Answer.")
	c.Answered(first.TurnID)
	require.Len(t, c.Requests(), 2)
	require.Empty(t, h.Request(c.Marker, 2).Tools, "the retry only writes")
	c.Answered(c.Send("Again.").TurnID)
	c.CheckOrder()
}

func providerAnswersMalformed(h *house.House) {
	t := h.T
	c := h.Chat(scripted.List(scripted.Say(`<tool_call>{"name": "look"}`), scripted.Say("In words."), scripted.Say("More.")))
	first := c.Start("Answer.")
	c.Answered(first.TurnID)
	require.Equal(t, "In words.", c.Streamed(first.TurnID))
	c.Answered(c.Send("Again.").TurnID)
	require.False(t, h.Request(c.Marker, 3).Mentions("<tool_call>"))
	c.CheckOrder()
}

func providerSendsGarbage(h *house.House) {
	c := h.Chat(scripted.List(scripted.Reply{Text: "lost words", Fault: scripted.Garbage, After: 1}, scripted.Say("Clean.")))
	first := c.Start("Answer.")
	c.Answered(first.TurnID)
	require.Equal(h.T, "Clean.", c.Streamed(first.TurnID))
	c.CheckOrder()
}

func providerAsksForUnknownTools(h *house.House) {
	c := h.Chat(scripted.Rounds(
		scripted.Reply{Calls: []scripted.Call{{Name: "rm -rf", Arguments: "{"}, {Name: "look", Arguments: `{"key": 7}`}, {ID: "same", Name: "look", Arguments: `{"key":"a"}`}, {ID: "same", Name: "look", Arguments: `{"key":"b"}`}}},
		scripted.Say("Understood."), scripted.Say("Still here.")))
	c.Answered(c.Start("Do it.").TurnID)
	require.Len(h.T, h.Request(c.Marker, 2).Results(), 4)
	c.Answered(c.Send("Again.").TurnID)
	c.CheckOrder()
}

// openclaw/openclaw#67173
func TestAModelCallThatHangsToTheTimeLimitLeavesWhatWaitsItsTurn(t *testing.T) {
	t.Parallel()
	h := house.Furnish(t, "BOBBIN_TURN_MAX_DURATION=2s", "BOBBIN_WRAP_UP_DURATION=1s")
	c := h.Chat(func(r scripted.Request) scripted.Reply {
		if r.Mentions("M2") {
			return scripted.Say("An answer to M2.")
		}
		return scripted.Reply{Fault: scripted.Hang}
	})
	first := c.Start("Hang.")
	h.Request(c.Marker, 1)
	c.Send("M2")
	end := c.Ended(first.TurnID)
	require.Equal(t, thread.EventTurnFailed, end.Name)
	require.Equal(t, thread.FailTimeLimit, end.Turn.Error.Code)
	follow := c.Await("the follow-up", func(e house.Event) bool {
		return e.Name == thread.EventTurnStarted && e.Turn.FollowUpOf == first.TurnID
	})
	c.Answered(follow.TurnID)
	require.Empty(t, h.Request(c.Marker, 2).Tools, "the wrap-up only writes, and takes nothing")
	require.False(t, h.Request(c.Marker, 2).Mentions("M2"))
	require.Equal(t, []string{"M2"}, h.Request(c.Marker, 3).News()[1:])
	c.CheckOrder()
}

// pydantic/pydantic-ai#7157
func TestAToolResultBeyondAllLimitsIsCutWithANote(t *testing.T) {
	t.Parallel()
	h := house.Furnish(t)
	c := h.Chat(scripted.Rounds(
		scripted.Reply{Calls: []scripted.Call{
			{Name: "look", Arguments: `{"key":"huge","size":3000000}`}, {Name: "charge", Arguments: `{"key":"huge too","size":3000000}`},
		}}, scripted.Say("Cut."),
	))
	c.Answered(c.Start("Get it all.").TurnID)
	for _, r := range h.Request(c.Marker, 2).Results() {
		require.Less(t, len(r.Text), 70_000)
		require.True(t, strings.HasPrefix(r.Text, "result of huge"))
		require.NotEqual(t, byte('x'), r.Text[len(r.Text)-1], "a note says that it was cut")
	}
	c.CheckOrder()
}
