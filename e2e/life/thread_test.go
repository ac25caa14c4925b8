package life

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"bobbin/contract"
	"bobbin/e2e/house"
	"bobbin/e2e/tally"
	"bobbin/llm/scripted"
	"bobbin/thread"
)

const quiet = 5 // turns in a row with nothing else going on, whose cost is compared

// temporalio/temporal#1069, temporalio/sdk-go#533
func TestOneThreadThroughManyTurnsAndRollOversLosesDoublesAndMovesNothing(t *testing.T) {
	t.Parallel()
	turns, steers, rollOver := tally.Pick(60, 2000), tally.Pick(20, 200), tally.Pick(40, 150)
	book := tally.Keep(t, "life")
	env := []string{fmt.Sprintf("BOBBIN_HISTORY_ROLL_OVER=%d", rollOver), "BOBBIN_STINT_MAX_ROUNDS=1", "BOBBIN_RATE_LIMIT=0"}
	if tally.Long() {
		env = append(env, "BOBBIN_MODEL_CONTEXT_TOKENS=8000") // a prompt of thousands of turns would measure the provider alone
	}
	h := house.Furnish(t, env...)
	h.API()
	h.Model.Keep(200)
	l := &life{tags: map[string]string{}, said: map[string][]string{}, long: make(chan scripted.Reply)}
	l.Chat = h.Chat(l.play)
	l.Answered(l.Start("first").TurnID)

	before := l.cost()
	l.talk(turns, rollOver, tally.Pick(12, 500))
	l.Idle()
	l.requireRollOverIn(steers)
	l.Idle()
	after := l.cost()

	row := l.judge()
	runs := l.H.WorkflowRuns(l.WorkflowID())
	largest := 0
	for _, r := range runs {
		largest = max(largest, len(r.Events))
	}
	rolled := l.backgroundRuns()
	row.Runs = 1
	row.Figures = map[string]string{
		"turns and roll-overs of one thread":                        fmt.Sprintf("%d turns, %d runs, the largest with %d events; %d messages at a roll-over", len(l.Turns()), len(runs), largest, l.atRollOver.Load()),
		"roll-overs of background turns":                            fmt.Sprintf("%d turns, %d runs", len(l.background), rolled),
		"history events of a turn, at the beginning and at the end": fmt.Sprintf("%.1f, %.1f", before, after),
	}
	book.Add(row)
	require.Zero(t, row.Wrong(), "%+v", row)
	require.Greater(t, len(runs), 3)
	require.Greater(t, rolled, len(l.background), "background turns roll over as well")
	require.Positive(t, l.atRollOver.Load())
	require.InDelta(t, before, after, before/2, "the last turns cost what the first did")
	l.CheckReplies()
	l.CheckCalls()
}

// A life is a thread, and all that was ever sent to it.
type life struct {
	*house.Chat

	operations atomic.Int64
	atRollOver atomic.Int64 // messages that were sent when the history was near its limit or had just been cut
	calls      atomic.Int64
	long       chan scripted.Reply // of a turn that is led by hand
	led        atomic.Bool

	mu         sync.Mutex
	tags       map[string]string   // of what was accepted: withdrawn, or nothing
	said       map[string][]string // tags of messages that were each to be a turn, by who sent them, in order
	seen       []string            // tags in the order in which the model was shown them
	background []string            // turns
}

var tag = regexp.MustCompile(`m\d+;`)

// play answers a turn after one call, and a background turn after so many that its workflow rolls over.
func (l *life) play(r scripted.Request) scripted.Reply {
	if len(r.Tools) == 0 && strings.HasPrefix(r.Messages[0].Text, "You summarise") {
		return scripted.Say("They went on and on.")
	}
	if r.Mentions("bg-") {
		for i := range tally.Pick(8, 35) {
			if key := fmt.Sprintf("bg-%d;", i); !r.Mentions("result of " + key) {
				return house.Ask("look", key)
			}
		}
		return scripted.Say("Looked after.")
	}
	l.mu.Lock()
	for _, text := range r.Texts("user") {
		for _, t := range tag.FindAllString(text, -1) {
			if !slices.Contains(l.seen[max(0, len(l.seen)-500):], t) && !slices.Contains(l.seen, t) {
				l.seen = append(l.seen, t)
			}
		}
	}
	l.mu.Unlock()
	if l.led.Load() {
		return <-l.long
	}
	if len(r.Results()) > 0 && len(r.News()) == 0 {
		return scripted.Say("Done.")
	}
	return house.Ask("look", fmt.Sprintf("look-%d", l.calls.Add(1)))
}

// say sends a message through a chat that may be a view of l's.
func (l *life) say(through *house.Chat, who string, mods ...house.With) (house.Accepted, error) {
	text := fmt.Sprintf("m%d;", l.operations.Add(1))
	a, err := through.TrySend(through.Marker+" "+text, mods...)
	if err != nil {
		return a, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tags[text] == "" { // a stop may have given it back already
		l.tags[text] = "accepted"
	}
	if who != "" {
		l.said[who] = append(l.said[who], text)
	}
	return a, nil
}

func (l *life) gaveBack(w *thread.Withdrawn) {
	if w == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range tag.FindAllString(w.Text, -1) {
		l.tags[t] = "withdrawn"
	}
}

// cost is how many history events a turn takes that nothing disturbs.
func (l *life) cost() float64 {
	l.T.Helper()
	l.Idle()
	before := l.events()
	for range quiet {
		a, err := l.say(l.Chat, "me")
		require.NoError(l.T, err)
		l.Answered(a.TurnID)
	}
	l.Idle()
	return float64(l.events()-before) / quiet
}

// events is the length of all of the thread's histories.
func (l *life) events() (n int) {
	for _, r := range l.H.WorkflowRuns(l.WorkflowID()) {
		n += len(r.Events)
	}
	return n
}

// talk sends turns one after the other, a few of them waiting, while others write at each roll-over.
func (l *life) talk(turns, rollOver, bursts int) {
	l.T.Helper()
	done := make(chan struct{})
	var others sync.WaitGroup
	others.Go(func() { l.atEachRollOver(done, int64(rollOver), bursts) })
	first := l.Messages()[0].ID
	var sent []string
	for i := range turns {
		a, err := l.say(l.Chat, "me", house.ReplyTo(first))
		require.NoError(l.T, err)
		if sent = append(sent, a.TurnID); i >= 3 {
			l.Ended(sent[i-3])
		}
		if i%max(10, turns/20) == 5 {
			b, err := l.H.DB.AddBackground(l.H.Ctx(), l.ID, thread.SourceEvent, l.Marker+" bg-")
			require.NoError(l.T, err)
			l.background = append(l.background, b.ID)
		}
	}
	l.Ended(sent[turns-1])
	close(done)
	others.Wait()
	for _, id := range l.background {
		l.Answered(id)
	}
}

// atEachRollOver lets three write at once, through two APIs, when the history is near its limit and when it has been cut.
func (l *life) atEachRollOver(done <-chan struct{}, limit int64, bursts int) {
	apis := slices.DeleteFunc(slices.Clone(l.H.Processes), func(p *house.Process) bool { return p.Addr == "" })
	run, near := "", ""
	for n := 0; ; {
		select {
		case <-done:
			return
		case <-time.After(house.PollEvery):
		}
		d, err := l.H.Temporal.DescribeWorkflowExecution(l.H.T.Context(), l.WorkflowID(), "")
		if err != nil {
			continue
		}
		info := d.WorkflowExecutionInfo
		cut := run != "" && info.Execution.RunId != run
		full := info.HistoryLength >= limit-limit/5 && near != info.Execution.RunId
		if run = info.Execution.RunId; full {
			near = run
		}
		if !cut && !full {
			continue
		}
		if n++; n > bursts {
			return
		}
		l.burst(n, apis)
	}
}

// burst is what three people do at once.
func (l *life) burst(n int, apis []*house.Process) {
	var all sync.WaitGroup
	send := func(i int, who string, mods ...house.With) {
		all.Go(func() {
			if _, err := l.say(l.Through(apis[i%len(apis)]), who, mods...); err != nil {
				l.T.Errorf("a message at a roll-over: %v", err)
				return
			}
			l.atRollOver.Add(1)
		})
	}
	send(n, "")
	send(n+1, "", house.Key(fmt.Sprintf("burst-%d", n)))
	send(n, "other", house.Delivery(thread.DeliverTurn))
	if n%4 == 0 {
		all.Go(func() {
			var out house.Stopped
			err := l.H.Through(apis[n%len(apis)]).Call("POST", "/v1/threads/"+l.ID+"/stop", map[string]any{"scope": "conversation"}, &out)
			if err != nil {
				l.T.Errorf("a stop at a roll-over: %v", err)
			}
			l.operations.Add(1)
			l.gaveBack(out.Withdrawn)
		})
	}
	all.Wait()
}

// requireRollOverIn steers one turn so often that its workflow rolls over while it runs.
func (l *life) requireRollOverIn(steers int) {
	l.T.Helper()
	l.led.Store(true)
	runs := len(l.H.WorkflowRuns(l.WorkflowID()))
	a, err := l.say(l.Chat, "me")
	require.NoError(l.T, err)
	for i := range steers {
		s, err := l.say(l.Chat, "")
		require.NoError(l.T, err)
		require.Equal(l.T, a.TurnID, s.TurnID)
		l.long <- house.Ask("look", fmt.Sprintf("led-%d", i))
		l.Await("the boundary of a steer", func(e house.Event) bool {
			return e.Name == thread.EventMessageDelivered && e.Message != nil && e.Message.ID == s.Message.ID
		})
	}
	l.long <- scripted.Say("Done at last.")
	l.led.Store(false)
	l.Answered(a.TurnID)
	require.Greater(l.T, len(l.H.WorkflowRuns(l.WorkflowID())), runs, "the workflow rolls over inside the turn")
}

// backgroundRuns counts the runs of the background turns' workflows.
func (l *life) backgroundRuns() (n int) {
	for _, id := range l.background {
		n += len(l.H.WorkflowRuns(contract.TurnWorkflowID(id)))
	}
	return n
}

// judge counts what went wrong with a thread that has come to rest and whose last turn has answered.
func (l *life) judge() tally.Row {
	l.mu.Lock()
	defer l.mu.Unlock()
	row := tally.Row{Operations: int(l.operations.Load()) + len(l.background)}
	shown, times := []string{}, map[string]int{}
	for _, m := range l.Messages() {
		if m.Role != thread.RoleUser || m.State != thread.MessageDelivered {
			continue
		}
		for _, t := range tag.FindAllString(m.Text, -1) {
			if times[t]++; times[t] == 1 {
				shown = append(shown, t)
			}
		}
	}
	at := map[string]int{}
	for i, t := range l.seen {
		at[t] = i + 1
		if l.tags[t] == "withdrawn" {
			row.LoadedAfterWithdrawal++
		}
	}
	for t, state := range l.tags {
		row.Doubled += max(0, times[t]-1)
		if state != "withdrawn" && (times[t] == 0 || at[t] == 0) {
			row.Lost++
		}
	}
	for i, t := range shown {
		if i < len(l.seen) && l.seen[i] != t {
			row.Reordered++
		}
	}
	for _, list := range l.said {
		if !slices.IsSortedFunc(list, func(a, b string) int { return at[a] - at[b] }) {
			row.Reordered++
		}
	}
	for i := range l.calls.Load() {
		row.ToolTwice += max(0, len(l.H.Tools.Called(fmt.Sprintf("look-%d", i+1)))-1)
	}
	return row
}
