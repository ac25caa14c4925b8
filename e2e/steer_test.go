package e2e

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"bobbin/llm/scripted"
	"bobbin/thread"
)

func TestSteering(t *testing.T) {
	t.Parallel()
	h := furnish(t)
	for name, story := range map[string]func(*house){
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
			story(h.in(t))
		})
	}
}

func linesReachTheModelAsOne(h *house) {
	t := h.t
	g := h.tools.gate("listing")
	c := h.chat(scripted.Rounds(ask("look", "listing"), scripted.Say("Here is the list.")))
	first := c.start("List the companies.")
	h.arrives(g)
	one := c.send("Only domestic companies")
	two := c.send("Limit it to listed ones")
	require.Equal(t, thread.DisposedSteering, one.Disposition)
	require.Equal(t, one.Message.ID, two.Message.ID)
	require.Equal(t, first.TurnID, two.TurnID)
	g.release()
	c.answered(first.TurnID)
	next := h.request(c.marker, 2)
	require.Equal(t, []string{"Only domestic companies\n\nLimit it to listed ones"}, next.News())
	boundary := c.awaitNamed(thread.EventTurnBoundary, first.TurnID)
	delivered := c.await("the delivery", func(e event) bool {
		return e.Name == thread.EventMessageDelivered && e.Message.ID == one.Message.ID
	})
	require.Less(t, delivered.Seq, boundary.Seq)
	kinds := []thread.StepKind{}
	for _, s := range c.steps(first.TurnID) {
		kinds = append(kinds, s.Kind)
	}
	require.Equal(t, []thread.StepKind{thread.StepTool, thread.StepBoundary}, kinds)
	require.Len(t, c.requests(), 2)
	c.checkOrder()
}

// github/app#1549, prime-radiant-inc/evener#41, tiann/hapi#568
func withdrawnLineStaysUnseen(h *house) {
	t := h.t
	g := h.tools.gate("withdrawn")
	c := h.chat(scripted.Rounds(ask("look", "withdrawn"), scripted.Say("Done.")))
	first := c.start("Find the address.")
	h.arrives(g)
	long := strings.Repeat("not this line, it is wrong\n\n  indented\n", 125) + "the end"
	obsolete := c.send(long)
	back, err := c.withdraw()
	require.NoError(t, err)
	require.Equal(t, thread.Withdrawn{MessageID: obsolete.Message.ID, Text: long, Attachments: []string{}, Mentions: []string{}}, back)
	_, err = c.withdrawMessage(obsolete.Message.ID)
	requireProblem(t, err, 404, "already_withdrawn")
	_, err = c.withdraw()
	requireProblem(t, err, 404, "already_withdrawn")
	right := c.send("this line instead")
	g.release()
	c.answered(first.TurnID)
	require.Equal(t, []string{"this line instead"}, h.request(c.marker, 2).News())
	for _, r := range c.requests() {
		require.False(t, r.Mentions("not this line"))
	}
	_, err = c.withdrawMessage(right.Message.ID)
	requireProblem(t, err, 409, "already_delivered")
	c.await("the withdrawal, for all who watch", func(e event) bool {
		return e.Name == thread.EventMessageWithdrawn && e.Message.ID == obsolete.Message.ID
	})
	c.checkOrder()
}

func requireProblem(t require.TestingT, err error, status int, code string) {
	var p *problem
	require.ErrorAs(t, err, &p)
	require.Equal(t, []any{status, code}, []any{p.Status, p.Code})
}

// microsoft/vscode#336466
func withdrawRacesTake(h *house) {
	const races = 25
	t := h.t
	var rounds []scripted.Reply
	gates := make([]*gate, races)
	for i := range races {
		k := fmt.Sprintf("race-%d", i)
		gates[i] = h.tools.gate(k)
		rounds = append(rounds, ask("look", k))
	}
	c := h.chat(scripted.Rounds(append(rounds, scripted.Say("Raced."))...))
	first := c.start("Race.")
	gone := map[string]bool{}
	for i, g := range gates {
		h.arrives(g)
		text := fmt.Sprintf("line-%d.", i)
		c.send(text)
		var both sync.WaitGroup
		both.Go(g.release)
		_, err := c.withdraw()
		both.Wait()
		if gone[text] = err == nil; err != nil {
			requireProblem(t, err, 409, "already_delivered")
		}
	}
	c.answered(first.TurnID)
	for text, withdrawn := range gone {
		for _, r := range c.requests() {
			require.False(t, withdrawn && r.Mentions(text), "%s was withdrawn and sent", text)
		}
		want := 1
		if withdrawn {
			want = 0
		}
		require.Equal(t, want, c.times(text), text)
	}
	c.checkOrder()
}

// triggerdotdev/trigger.dev#4176
func fiveLinesInOneTurn(h *house) {
	t := h.t
	one, two := h.tools.gate("five-1"), h.tools.gate("five-2")
	c := h.chat(scripted.Rounds(ask("look", "five-1"), ask("look", "five-2"), scripted.Say("All five."), scripted.Say("Sixth.")))
	first := c.start("Five more follow.")
	h.arrives(one)
	for _, text := range []string{"m1;", "m2;", "m3;"} {
		c.send(text)
	}
	one.release()
	h.arrives(two)
	c.send("m4;")
	c.send("m5;")
	two.release()
	c.answered(first.TurnID)
	c.answered(c.send("m6;").TurnID)
	require.Equal(t, []string{"m1;\n\nm2;\n\nm3;"}, h.request(c.marker, 2).News())
	require.Equal(t, []string{"m4;\n\nm5;"}, h.request(c.marker, 3).News())
	require.Equal(t, []string{"m6;"}, h.request(c.marker, 4).News())
	require.Len(t, c.requests(), 4)
	c.checkOrder()
}

// milind-soni/OpenMausBot#1323
func repeatedSteerIsOne(h *house) {
	t := h.t
	g := h.tools.gate("repeated")
	c := h.chat(scripted.Rounds(ask("look", "repeated"), scripted.Say("Once.")))
	first := c.start("Wait.", key(c.marker+"first"))
	h.arrives(g)
	var both sync.WaitGroup
	for range 4 { // the client gave up on the answer and sends again, while the first is under way
		both.Go(func() {
			_, err := c.trySend("only once", delivery(thread.DeliverSteer), key(c.marker+"steer"))
			if err != nil {
				t.Errorf("repeat: %v", err)
			}
		})
	}
	both.Wait()
	ordinary := c.send("only once", key(c.marker+"steer"))
	require.Equal(t, 1, ordinary.Message.Parts)
	require.Equal(t, thread.DisposedSteering, ordinary.Disposition)
	g.release()
	c.answered(first.TurnID)
	late := c.send("only once", key(c.marker+"steer"))
	require.Equal(t, ordinary.Message.ID, late.Message.ID)
	require.Equal(t, thread.MessageDelivered, late.Message.State)
	again, err := c.trySend(c.marker+" Wait.", key(c.marker+"first"))
	require.NoError(t, err)
	require.Equal(t, first.Message.ID, again.Message.ID)
	c.idle()
	require.Equal(t, []string{"only once"}, h.request(c.marker, 2).News())
	require.Len(t, c.requests(), 2)
	require.Len(t, c.turns(), 1)
	_, err = c.trySend("another text", key(c.marker+"steer"))
	requireProblem(t, err, 422, "idempotency_key_reused")
}

// coder/coder#24714
func followUpStartsByItself(h *house) {
	t := h.t
	g := h.tools.gate("follow")
	c := h.chat(scripted.Rounds(ask("look", "follow"), scripted.Say("First."), scripted.Say("Second.")))
	first := c.start("Look.")
	h.arrives(g)
	second := c.send("with a file", files("fil_1"))
	require.Equal(t, thread.DisposedSteering, second.Disposition)
	g.release()
	c.answered(first.TurnID)
	started := c.await("the follow-up's start", func(e event) bool {
		return e.Name == thread.EventTurnStarted && e.Turn.FollowUpOf == first.TurnID
	})
	c.answered(started.TurnID)
	require.Empty(t, h.request(c.marker, 2).News(), "what has a file is not loaded into a running turn")
	require.Equal(t, []string{"with a file"}, h.request(c.marker, 3).News())
	between := map[thread.EventName]bool{}
	for _, e := range c.watch.all() {
		if e.Seq > c.ended(first.TurnID).Seq && e.Seq < started.Seq {
			between[e.Name] = true
		}
	}
	require.Subset(t, []thread.EventName{thread.EventMessageUpdated, thread.EventTurnQueued}, keysOf(between),
		"the turn that ends starts the next in its own transaction, so nobody has to be woken for it")
	c.checkOrder()
}

func keysOf[K comparable, V any](m map[K]V) []K {
	list := []K{}
	for k := range m {
		list = append(list, k)
	}
	return list
}

// OpenHands/OpenHands#4678
func idleThreadStarts(h *house) {
	t := h.t
	c := h.chat(scripted.Echo)
	c.answered(c.start("one").TurnID)
	c.idle()
	for _, text := range []string{"two", "three"} {
		a := c.send(text)
		require.Equal(t, thread.DisposedTurn, a.Disposition)
		require.Equal(t, thread.MessageDelivered, a.Message.State, "claimed as it was accepted")
		c.answered(a.TurnID)
	}
	c.checkOrder()
}

// op7418/CodePilot#665
func interruptGoesFirst(h *house) {
	t := h.t
	g := make(chan struct{})
	c := h.chat(scripted.Rounds(
		scripted.Reply{Pieces: []string{"This ", "is ", "long."}, Gate: g}, scripted.Say("Now this."), scripted.Say("Then that."),
	))
	first := c.start("Tell me everything.")
	step(g, 3) // its start and two pieces
	c.await("what was written", func(e event) bool { return e.Name == thread.EventAnswerDelta && strings.Contains(e.Text, "is ") })
	c.send("later", replyTo(first.Message.ID))
	now := c.send("now!", delivery(thread.DeliverInterrupt))
	require.Equal(t, thread.EventTurnCancelled, c.ended(first.TurnID).Name)
	c.answered(now.TurnID)
	c.idle()
	require.Equal(t, []string{"now!"}, h.request(c.marker, 2).News())
	require.Equal(t, []string{
		"user: " + c.marker + " Tell me everything.", "assistant: This is ", "user: now!", "assistant: Now this.", "user: later",
		"assistant: Then that.",
	}, c.screen())
	c.checkOrder()
}

// step lets a gated reply pass n points.
func step(g chan<- struct{}, n int) {
	for range n {
		g <- struct{}{}
	}
}
