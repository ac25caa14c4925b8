package workflows

import (
	"fmt"
	"strings"
	"time"

	"go.temporal.io/sdk/workflow"

	"bobbin/contract"
	"bobbin/thread"
)

// show writes what a person sees who opens the thread's workflow in Temporal's UI. It holds nothing that was said.
func (t *threadRun) show(ctx workflow.Context) {
	var b strings.Builder
	switch {
	case t.running != nil:
		b.WriteString(t.running.details(workflow.Now(ctx)))
	case t.claimed.RetryIn > 0:
		fmt.Fprintf(&b, "**A failed turn is tried again** in %s\n", t.claimed.RetryIn.Round(time.Second))
	case t.claimed.Archived:
		b.WriteString("**Archived**\n")
	default:
		b.WriteString("**Idle**\n")
	}
	if n := len(t.in.Children); n > 0 {
		fmt.Fprintf(&b, "\nBackground turns: %s\n", strings.Join(t.in.Children, ", "))
	}
	if len(t.in.Lines) > 0 {
		b.WriteString("\n| turn | source | status | rounds | tokens | cost | took |\n| --- | --- | --- | --- | --- | --- | --- |\n")
		for i := range t.in.Lines {
			l := t.in.Lines[len(t.in.Lines)-1-i]
			fmt.Fprintf(&b, "| %s | %s | %s | %d | %d | $%.4f | %s |\n", l.TurnID, l.Source, l.Status, l.Rounds, l.Tokens, l.CostUSD,
				l.Duration.Round(10*time.Millisecond))
		}
	}
	workflow.SetCurrentDetails(ctx, b.String())
}

// recent rounds of the running turn that the UI shows.
const recentRounds = 8

func (r *turnRun) details(now time.Time) string {
	var b strings.Builder
	fmt.Fprintf(&b, "**Turn %s** (%s, %s) %s\n\nRound %d · stint %d · %s so far · %d waiting\n", r.turn.ID, r.turn.Source, r.turn.Mode,
		r.now, r.round, r.stints, now.Sub(r.started).Round(time.Second), r.waiting)
	if len(r.rounds) == 0 {
		return b.String()
	}
	b.WriteString("\n| round | tools | took | tokens in | out |\n| --- | --- | --- | --- | --- |\n")
	for _, l := range r.rounds[max(0, len(r.rounds)-recentRounds):] {
		tools := strings.Join(l.Tools, ", ")
		if l.Loaded {
			tools = "message loaded; " + tools
		}
		fmt.Fprintf(&b, "| %d | %s | %s | %d | %d |\n", l.Round, tools, l.Duration.Round(time.Millisecond), l.InputTokens, l.OutputTokens)
	}
	return b.String()
}

func progressText(p contract.Progress) string {
	if len(p.Tools) == 0 {
		return "waits for the model"
	}
	return "runs " + strings.Join(p.Tools, ", ")
}

// turnGroup is what Temporal's UI groups a turn's events under, where the server keeps such groups.
func turnGroup(turn contract.TurnRef) workflow.EventGroup {
	return workflow.NewEventGroupWithOptions(turn.ID, workflow.EventGroupOptions{Label: "Turn from " + string(turn.Source)})
}

func stintSummary(turn contract.TurnRef, stint, round int) string {
	what := "Conversation turn"
	if turn.Kind == thread.Background {
		what = "Background turn"
	}
	return fmt.Sprintf("%s %s: stint %d, from round %d", what, turn.ID, stint, round)
}

func toolSummary(t contract.ToolRef) string {
	return fmt.Sprintf("%s: call %d of round %d", t.Name, t.Index+1, t.Round)
}
