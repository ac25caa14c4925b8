package e2e

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"bobbin/e2e/house"
	"bobbin/llm/scripted"
	"bobbin/thread"
)

func TestSteering(t *testing.T) {
	t.Parallel()
	h := house.Furnish(t)
	for name, story := range map[string]func(*house.House){
		"LinesSentWhileAToolRunsReachTheModelAsOneMessage": linesReachTheModelAsOne,
		"AWithdrawnLineNeverReachesTheModel":               withdrawnLineStaysUnseen,
		"AWithdrawThatRacesTheTakeIsEitherSeenOrUnseen":    withdrawRacesTake,
		"FiveLinesInOneTurnAreDeliveredAndNeverReplayed":   fiveLinesInOneTurn,
		"ARepeatedSteerIsOneDelivery":                      repeatedSteerIsOne,
		"WhatCannotBeLoadedStartsTheNextTurnByItself":      followUpStartsByItself,
		"AMessageToAnIdleThreadStartsATurn":                idleThreadStarts,
		"AnInterruptGoesFirstAndKeepsWhatWasWritten":       interruptGoesFirst,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			story(h.In(t))
		})
	}
}

func linesReachTheModelAsOne(h *house.House) {
	t := h.T
	g := h.Tools.Gate("listing")
	c := h.Chat(scripted.Rounds(house.Ask("look", "listing"), scripted.Say("Here is the list.")))
	first := c.Start("List the companies.")
	h.Arrives(g)
	one := c.Send("Only domestic companies")
	two := c.Send("Limit it to listed ones")
	require.Equal(t, thread.DisposedSteering, one.Disposition)
	require.Equal(t, one.Message.ID, two.Message.ID)
	require.Equal(t, first.TurnID, two.TurnID)
	g.Release()
	c.Answered(first.TurnID)
	next := h.Request(c.Marker, 2)
	require.Equal(t, []string{"Only domestic companies\n\nLimit it to listed ones"}, next.News())
	boundary := c.AwaitNamed(thread.EventTurnBoundary, first.TurnID)
	delivered := c.Await("the delivery", func(e house.Event) bool {
		return e.Name == thread.EventMessageDelivered && e.Message.ID == one.Message.ID
	})
	require.Less(t, delivered.Seq, boundary.Seq)
	kinds := []thread.StepKind{}
	for _, s := range c.Steps(first.TurnID) {
		kinds = append(kinds, s.Kind)
	}
	require.Equal(t, []thread.StepKind{thread.StepTool, thread.StepBoundary}, kinds)
	require.Len(t, c.Requests(), 2)
	c.CheckOrder()
}

// github/app#1549, prime-radiant-inc/evener#41, tiann/hapi#568
func withdrawnLineStaysUnseen(h *house.House) {
	t := h.T
	g := h.Tools.Gate("withdrawn")
	c := h.Chat(scripted.Rounds(house.Ask("look", "withdrawn"), scripted.Say("Done.")))
	first := c.Start("Find the address.")
	h.Arrives(g)
	long := strings.Repeat("not this line, it is wrong\n\n  indented\n", 125) + "the end"
	obsolete := c.Send(long)
	back, err := c.Withdraw()
	require.NoError(t, err)
	require.Equal(t, thread.Withdrawn{MessageID: obsolete.Message.ID, Text: long, Attachments: []string{}, Mentions: []string{}}, back)
	_, err = c.WithdrawMessage(obsolete.Message.ID)
	house.RequireProblem(t, err, 404, "already_withdrawn")
	_, err = c.Withdraw()
	house.RequireProblem(t, err, 404, "already_withdrawn")
	right := c.Send("this line instead")
	g.Release()
	c.Answered(first.TurnID)
	require.Equal(t, []string{"this line instead"}, h.Request(c.Marker, 2).News())
	for _, r := range c.Requests() {
		require.False(t, r.Mentions("not this line"))
	}
	_, err = c.WithdrawMessage(right.Message.ID)
	house.RequireProblem(t, err, 409, "already_delivered")
	c.Await("the withdrawal, for all who watch", func(e house.Event) bool {
		return e.Name == thread.EventMessageWithdrawn && e.Message.ID == obsolete.Message.ID
	})
	c.CheckOrder()
}

// microsoft/vscode#336466
func withdrawRacesTake(h *house.House) {
	const races = 25
	t := h.T
	var rounds []scripted.Reply
	gates := make([]*house.Gate, races)
	for i := range races {
		k := fmt.Sprintf("race-%d", i)
		gates[i] = h.Tools.Gate(k)
		rounds = append(rounds, house.Ask("look", k))
	}
	c := h.Chat(scripted.Rounds(append(rounds, scripted.Say("Raced."))...))
	first := c.Start("Race.")
	gone := map[string]bool{}
	for i, g := range gates {
		h.Arrives(g)
		text := fmt.Sprintf("line-%d.", i)
		c.Send(text)
		var both sync.WaitGroup
		both.Go(g.Release)
		_, err := c.Withdraw()
		both.Wait()
		if gone[text] = err == nil; err != nil {
			house.RequireProblem(t, err, 409, "already_delivered")
		}
	}
	c.Answered(first.TurnID)
	for text, withdrawn := range gone {
		for _, r := range c.Requests() {
			require.False(t, withdrawn && r.Mentions(text), "%s was withdrawn and sent", text)
		}
		want := 1
		if withdrawn {
			want = 0
		}
		require.Equal(t, want, c.Times(text), text)
	}
	c.CheckOrder()
}

// triggerdotdev/trigger.dev#4176
func fiveLinesInOneTurn(h *house.House) {
	t := h.T
	one, two := h.Tools.Gate("five-1"), h.Tools.Gate("five-2")
	c := h.Chat(scripted.Rounds(house.Ask("look", "five-1"), house.Ask("look", "five-2"), scripted.Say("All five."), scripted.Say("Sixth.")))
	first := c.Start("Five more follow.")
	h.Arrives(one)
	for _, text := range []string{"m1;", "m2;", "m3;"} {
		c.Send(text)
	}
	one.Release()
	h.Arrives(two)
	c.Send("m4;")
	c.Send("m5;")
	two.Release()
	c.Answered(first.TurnID)
	c.Answered(c.Send("m6;").TurnID)
	require.Equal(t, []string{"m1;\n\nm2;\n\nm3;"}, h.Request(c.Marker, 2).News())
	require.Equal(t, []string{"m4;\n\nm5;"}, h.Request(c.Marker, 3).News())
	require.Equal(t, []string{"m6;"}, h.Request(c.Marker, 4).News())
	require.Len(t, c.Requests(), 4)
	c.CheckOrder()
}

// milind-soni/OpenMausBot#1323
func repeatedSteerIsOne(h *house.House) {
	t := h.T
	g := h.Tools.Gate("repeated")
	c := h.Chat(scripted.Rounds(house.Ask("look", "repeated"), scripted.Say("Once.")))
	first := c.Start("Wait.", house.Key(c.Marker+"first"))
	h.Arrives(g)
	var both sync.WaitGroup
	for range 4 { // the client gave up on the answer and sends again, while the first is under way
		both.Go(func() {
			_, err := c.TrySend("only once", house.Delivery(thread.DeliverSteer), house.Key(c.Marker+"steer"))
			if err != nil {
				t.Errorf("repeat: %v", err)
			}
		})
	}
	both.Wait()
	ordinary := c.Send("only once", house.Key(c.Marker+"steer"))
	require.Equal(t, 1, ordinary.Message.Parts)
	require.Equal(t, thread.DisposedSteering, ordinary.Disposition)
	g.Release()
	c.Answered(first.TurnID)
	late := c.Send("only once", house.Key(c.Marker+"steer"))
	require.Equal(t, ordinary.Message.ID, late.Message.ID)
	require.Equal(t, thread.MessageDelivered, late.Message.State)
	again, err := c.TrySend(c.Marker+" Wait.", house.Key(c.Marker+"first"))
	require.NoError(t, err)
	require.Equal(t, first.Message.ID, again.Message.ID)
	c.Idle()
	require.Equal(t, []string{"only once"}, h.Request(c.Marker, 2).News())
	require.Len(t, c.Requests(), 2)
	require.Len(t, c.Turns(), 1)
	_, err = c.TrySend("another text", house.Key(c.Marker+"steer"))
	house.RequireProblem(t, err, 422, "idempotency_key_reused")
}

// coder/coder#24714
func followUpStartsByItself(h *house.House) {
	t := h.T
	g := h.Tools.Gate("follow")
	c := h.Chat(scripted.Rounds(house.Ask("look", "follow"), scripted.Say("First."), scripted.Say("Second.")))
	first := c.Start("Look.")
	h.Arrives(g)
	second := c.Send("with a file", house.Files("fil_1"))
	require.Equal(t, thread.DisposedSteering, second.Disposition)
	g.Release()
	c.Answered(first.TurnID)
	started := c.Await("the follow-up's start", func(e house.Event) bool {
		return e.Name == thread.EventTurnStarted && e.Turn.FollowUpOf == first.TurnID
	})
	c.Answered(started.TurnID)
	require.Empty(t, h.Request(c.Marker, 2).News(), "what has a file is not loaded into a running turn")
	require.Equal(t, []string{"with a file"}, h.Request(c.Marker, 3).News())
	between := map[thread.EventName]bool{}
	for _, e := range c.Watch.All() {
		if e.Seq > c.Ended(first.TurnID).Seq && e.Seq < started.Seq {
			between[e.Name] = true
		}
	}
	require.Subset(t, []thread.EventName{thread.EventMessageUpdated, thread.EventTurnQueued}, keysOf(between),
		"the turn that ends starts the next in its own transaction, so nobody has to be woken for it")
	c.CheckOrder()
}

func keysOf[K comparable, V any](m map[K]V) []K {
	list := []K{}
	for k := range m {
		list = append(list, k)
	}
	return list
}

// OpenHands/OpenHands#4678
func idleThreadStarts(h *house.House) {
	t := h.T
	c := h.Chat(scripted.Echo)
	c.Answered(c.Start("one").TurnID)
	c.Idle()
	for _, text := range []string{"two", "three"} {
		a := c.Send(text)
		require.Equal(t, thread.DisposedTurn, a.Disposition)
		require.Equal(t, thread.MessageDelivered, a.Message.State, "claimed as it was accepted")
		c.Answered(a.TurnID)
	}
	c.CheckOrder()
}

// op7418/CodePilot#665
func interruptGoesFirst(h *house.House) {
	t := h.T
	g := make(chan struct{})
	c := h.Chat(scripted.Rounds(
		scripted.Reply{Pieces: []string{"This ", "is ", "long."}, Gate: g}, scripted.Say("Now this."), scripted.Say("Then that."),
	))
	first := c.Start("Tell me everything.")
	house.Step(g, 3) // its start and two pieces
	c.Await("what was written", func(e house.Event) bool { return e.Name == thread.EventAnswerDelta && strings.Contains(e.Text, "is ") })
	c.Send("later", house.ReplyTo(first.Message.ID))
	now := c.Send("now!", house.Delivery(thread.DeliverInterrupt))
	require.Equal(t, thread.EventTurnCancelled, c.Ended(first.TurnID).Name)
	c.Answered(now.TurnID)
	c.Idle()
	require.Equal(t, []string{"now!"}, h.Request(c.Marker, 2).News())
	require.Equal(t, []string{
		"user: " + c.Marker + " Tell me everything.", "assistant: This is ", "user: now!", "assistant: Now this.", "user: later",
		"assistant: Then that.",
	}, c.Screen())
	c.CheckOrder()
}
