package races

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"bobbin/e2e/tally"
	"bobbin/thread"
)

// A kind is a kind of fault. The first six are those that a tally counts by themselves.
type kind string

// The kinds.
const (
	isLost        kind = "lost"
	isDoubled     kind = "doubled"
	isReordered   kind = "reordered"
	isLoadedAfter kind = "loaded after withdrawal"
	isToolTwice   kind = "tool twice"
	isReplyTwice  kind = "reply twice"
	isUnexplained kind = "unexplained" // no serial order of the calls gives this answer, or this event
	isNotGiven    kind = "given back wrong"
	isUnasked     kind = "unasked" // the model was shown what nobody had accepted
	isOrphan      kind = "orphan call"
	isScreen      kind = "screen"
	isReply       kind = "no reply"
)

// A violation is one fault.
type violation struct {
	Kind   kind
	Place  int
	Thread string
	Mark   string // the part, answer, turn or tool call; of one kind each is counted once a thread
	Detail string
}

func (v violation) String() string {
	return fmt.Sprintf("%s: place %d %s %s: %s", v.Kind, v.Place, v.Thread, v.Mark, v.Detail)
}

// count sums violations up for a tally.
func count(all []violation) tally.Row {
	var row tally.Row
	other := map[string]int{}
	for _, v := range all {
		switch v.Kind {
		case isLost:
			row.Lost++
		case isDoubled:
			row.Doubled++
		case isReordered:
			row.Reordered++
		case isLoadedAfter:
			row.LoadedAfterWithdrawal++
		case isToolTwice:
			row.ToolTwice++
		case isReplyTwice:
			row.ReplyTwice++
		default:
			other[string(v.Kind)]++
		}
	}
	for _, k := range slices.Sorted(maps.Keys(other)) {
		if row.Figures == nil {
			row.Figures = map[string]string{}
		}
		row.Figures[k] = fmt.Sprint(other[k])
	}
	return row
}

// partMark and answerMark are what parts and answers begin with.
var partMark, answerMark = regexp.MustCompile(`part-\d+-\d+-\d+;`), regexp.MustCompile(`answer-\d+-\d+;`)

var anyMark = regexp.MustCompile(`(?:part-\d+-\d+|answer-\d+)-\d+;`)

// check looks for everything that must not be. It has no memory and no clock.
func check(r record, attachments int) []violation {
	c := &checker{record: r, limit: attachments, seen: map[violation]bool{}}
	c.calls()
	for _, s := range r.Threads {
		c.thread(s)
	}
	c.effects()
	c.promised()
	if len(c.found) == 0 || !slices.ContainsFunc(c.found, func(v violation) bool { return v.Kind == isUnexplained }) {
		c.explain()
	}
	return c.found
}

type checker struct {
	record
	limit int
	found []violation
	seen  map[violation]bool

	byKey  map[string]*call
	byMark map[string]*call
	given  map[string][]*call // by part: who got it back

	homes  map[string]string // by part: the thread that has it
	placed map[*call]told    // what the truth tells, of calls whose events were found
	states []state           // of all threads
}

// A state is a truth and how long it held.
type state struct {
	thread   string
	from, to time.Time // zero: always
	truth    truth
}

func (c *checker) fault(k kind, threadID, mark, format string, args ...any) {
	v := violation{Kind: k, Place: c.Place, Thread: threadID, Mark: mark}
	if c.seen[v] {
		return
	}
	c.seen[v] = true
	v.Detail = fmt.Sprintf(format, args...)
	c.found = append(c.found, v)
}

// calls reads what clients were told.
func (c *checker) calls() {
	c.byKey, c.byMark, c.given, c.homes = map[string]*call{}, map[string]*call{}, map[string][]*call{}, map[string]string{}
	c.placed = map[*call]told{}
	for _, op := range c.Calls {
		if op.Key != "" {
			c.byKey[op.Key] = op
		}
		if op.Do == send {
			c.byMark[op.Said.text] = op
		}
		for _, t := range op.Tries {
			for _, m := range partMark.FindAllString(t.Told.withdrawn, -1) {
				if !slices.Contains(c.given[m], op) {
					c.given[m] = append(c.given[m], op)
				}
			}
		}
	}
}

// A tale is what a thread's events say of its parts.
type tale struct {
	story
	accepted  []string            // parts, in the order of their acceptance
	jumped    map[string]bool     // those of interrupts
	loaded    []line              // messages, as the model should have them
	order     []string            // parts, likewise
	withdrawn map[string]bool     // parts
	ended     map[string][]string // turns: how
}

func (c *checker) tell(s story) *tale {
	t := &tale{story: s, jumped: map[string]bool{}, withdrawn: map[string]bool{}, ended: map[string][]string{}}
	known := map[string]int{}
	for i, e := range s.Events {
		if e.Seq != int64(i)+1 {
			c.fault(isLost, s.ID, fmt.Sprintf("event %d", e.Seq), "events have a gap")
		}
		if e.decides() == "" {
			continue
		}
		switch e.Name {
		case thread.EventMessageCreated, thread.EventMessageUpdated:
			for _, p := range e.Message.Parts[min(known[e.Message.ID], len(e.Message.Parts)):] {
				if slices.Contains(t.accepted, p.Text) {
					c.fault(isDoubled, s.ID, p.Text, "it was accepted again with event %d", e.Seq)
				}
				t.accepted = append(t.accepted, p.Text)
				if op := c.byMark[p.Text]; op != nil {
					t.jumped[p.Text] = op.Said.delivery == thread.DeliverInterrupt
				}
			}
			known[e.Message.ID] = len(e.Message.Parts)
		case thread.EventMessageDelivered:
			marks := partMark.FindAllString(e.Message.Text, -1)
			for _, m := range marks {
				if slices.Contains(t.order, m) {
					c.fault(isDoubled, s.ID, m, "it was delivered again with event %d", e.Seq)
				}
			}
			t.loaded, t.order = append(t.loaded, line{"user", marks}), append(t.order, marks...)
		case thread.EventMessageWithdrawn:
			for _, m := range partMark.FindAllString(e.Message.Text, -1) {
				t.withdrawn[m] = true
			}
		}
	}
	return t
}

// thread checks one thread.
func (c *checker) thread(s story) {
	t := c.tell(s)
	c.fates(t)
	c.order(t, t.order, "its delivery")
	c.requests(t)
	c.screen(t)
	c.replies(t)
	c.history(t)
}

// fates: each part that was accepted is in the conversation, or was given back, once and to one client.
func (c *checker) fates(t *tale) {
	for _, m := range t.accepted {
		if other := c.homes[m]; other != "" {
			c.fault(isDoubled, t.ID, m, "it was accepted in %s too", other)
		}
		c.homes[m] = t.ID
		loaded := slices.Contains(t.order, m)
		switch {
		case loaded && t.withdrawn[m]:
			c.fault(isLoadedAfter, t.ID, m, "it was withdrawn, and delivered")
		case loaded && len(c.given[m]) > 0:
			c.fault(isLoadedAfter, t.ID, m, "%s got it back, and it was delivered", c.given[m][0].Who)
		case !loaded && !t.withdrawn[m]:
			c.fault(isLost, t.ID, m, "it was accepted, and neither delivered nor withdrawn")
		case t.withdrawn[m] && len(c.given[m]) == 0:
			c.fault(isNotGiven, t.ID, m, "it was withdrawn, and nobody got it back")
		case len(c.given[m]) > 1:
			c.fault(isNotGiven, t.ID, m, "%s and %s got it back", c.given[m][0].Who, c.given[m][1].Who)
		}
	}
	for m := range t.withdrawn {
		if !slices.Contains(t.accepted, m) {
			c.fault(isUnasked, t.ID, m, "it was withdrawn, and never accepted")
		}
	}
}

// promised: what a client was told was accepted is somewhere.
func (c *checker) promised() {
	for _, op := range c.Calls {
		for _, t := range op.Tries {
			if op.Do == send && t.Told.message != "" && c.homes[op.Said.text] == "" {
				c.fault(isLost, op.Thread, op.Said.text, "%s was told that it is message %s, and no thread has it", op.Who, t.Told.message)
			}
		}
	}
}

// order: what was accepted first is shown first, but for what was sent to go first.
func (c *checker) order(t *tale, marks []string, where string) {
	last := -1
	for _, m := range marks {
		at := slices.Index(t.accepted, m)
		if at < 0 || t.jumped[m] {
			continue
		}
		if at < last {
			c.fault(isReordered, t.ID, m, "in %s it comes behind %s, which was accepted later", where, t.accepted[last])
		}
		last = max(last, at)
	}
}

// of returns the requests of a thread: those that show what was accepted there.
func (c *checker) of(t *tale) []request {
	return slices.DeleteFunc(slices.Clone(c.Requests), func(r request) bool {
		return !slices.ContainsFunc(r.marks("user"), func(m string) bool { return slices.Contains(t.accepted, m) })
	})
}

func (r request) marks(role string) []string {
	var all []string
	for _, l := range r.Lines {
		if l.Role == role {
			all = append(all, l.Marks...)
		}
	}
	return all
}

// requests: each shows the beginning of what was delivered, whole, in its order, and nothing else that people wrote.
func (c *checker) requests(t *tale) {
	mine := c.of(t)
	for _, r := range mine {
		where := fmt.Sprintf("request %d", r.N)
		shown := c.sound(t, r, where)
		c.order(t, shown, where)
		last := -1
		for _, m := range shown {
			if at := slices.Index(t.order, m); at < last {
				c.fault(isReordered, t.ID, m, "%s shows it behind %s, which was delivered later", where, t.order[last])
			} else {
				last = at
			}
		}
		for _, m := range t.order[:last+1] {
			if !slices.Contains(shown, m) && !t.withdrawn[m] && len(c.given[m]) == 0 {
				c.fault(isLost, t.ID, m, "%s shows %s, which was delivered later, and not this", where, t.order[last])
			}
		}
		c.cuts(t, r, where)
		for _, o := range r.Orphans {
			c.fault(isOrphan, t.ID, o, "in %s", where)
		}
	}
	if !t.Closed {
		return
	}
	if len(mine) == 0 {
		c.fault(isLost, t.ID, "all", "the provider was never asked")
		return
	}
	final := mine[len(mine)-1]
	for _, m := range t.order {
		if !slices.Contains(final.marks("user"), m) {
			c.fault(isLost, t.ID, m, "it was delivered, and the last request, %d, does not show it", final.N)
		}
	}
}

// sound returns the parts that a request shows and may show, each once.
func (c *checker) sound(t *tale, r request, where string) []string {
	var shown []string
	for _, m := range r.marks("user") {
		switch {
		case t.withdrawn[m] || len(c.given[m]) > 0:
			c.fault(isLoadedAfter, t.ID, m, "it was withdrawn, and %s shows it", where)
		case slices.Contains(shown, m):
			c.fault(isDoubled, t.ID, m, "%s shows it more than once", where)
		case !slices.Contains(t.accepted, m):
			c.fault(isUnasked, t.ID, m, "%s shows it, and it was not accepted here", where)
		case !slices.Contains(t.order, m):
			c.fault(isUnasked, t.ID, m, "%s shows it, and it was not delivered", where)
		default:
			shown = append(shown, m)
		}
	}
	for i, m := range r.marks("assistant") {
		if slices.Contains(r.marks("assistant")[:i], m) {
			c.fault(isReplyTwice, t.ID, m, "%s shows this answer more than once", where)
		}
	}
	return shown
}

// cuts: messages come as they were delivered, with all their parts.
func (c *checker) cuts(t *tale, r request, where string) {
	n := 0
	for _, l := range r.Lines {
		if l.Role != "user" || len(l.Marks) == 0 {
			continue
		}
		if n < len(t.loaded) && slices.Equal(slices.Sorted(slices.Values(l.Marks)), slices.Sorted(slices.Values(t.loaded[n].Marks))) {
			n++
			continue
		}
		if len(c.found) == 0 { // else that is the reason
			c.fault(isUnexplained, t.ID, l.Marks[0], "%s shows %v as message %d, which was delivered as %v", where, l.Marks, n+1, at(t.loaded, n))
		}
		return
	}
}

func at(lines []line, n int) []string {
	if n >= len(lines) {
		return nil
	}
	return lines[n].Marks
}

// screen: the page shows what the model was shown, in that order, and then the answer.
func (c *checker) screen(t *tale) {
	var page, model []string
	for _, m := range t.Screen {
		if m.State == thread.MessageDelivered && m.Role != thread.RoleNotice {
			page = append(page, anyMark.FindAllString(m.Text, -1)...)
		}
	}
	user := slices.DeleteFunc(slices.Clone(page), func(m string) bool { return !partMark.MatchString(m) })
	if !slices.Equal(user, t.order) {
		c.fault(isScreen, t.ID, "", "the page shows %v, and delivered was %v", user, t.order)
	}
	mine := c.of(t)
	if !t.Closed || len(mine) == 0 {
		return
	}
	for _, l := range mine[len(mine)-1].Lines {
		model = append(model, l.Marks...)
	}
	if n := len(page) - 1; n < 0 || !answerMark.MatchString(page[n]) || !slices.Equal(page[:n], model) {
		c.fault(isScreen, t.ID, "", "the page shows %v, and the model was shown %v", page, model)
	}
}

// replies: each turn has ended, with one reply at most, and exactly one if it succeeded.
func (c *checker) replies(t *tale) {
	replies := map[string][]thread.Message{}
	marks := map[string]bool{}
	for _, m := range t.Screen {
		if m.Role != thread.RoleAssistant {
			continue
		}
		replies[m.TurnID] = append(replies[m.TurnID], m)
		for _, mark := range answerMark.FindAllString(m.Text, -1) {
			if marks[mark] {
				c.fault(isReplyTwice, t.ID, mark, "the page shows this answer more than once")
			}
			marks[mark] = true
		}
	}
	streamed := c.streamed(t)
	for _, turn := range t.Turns {
		n := len(replies[turn.ID])
		switch {
		case !turn.Status.Ended():
			c.fault(isUnexplained, t.ID, turn.ID, "at rest the turn is %s", turn.Status)
		case turn.Attempt <= 1 && n > 1: // a replay may answer where an earlier attempt left a part of an answer
			c.fault(isReplyTwice, t.ID, turn.ID, "the turn has %d replies", n)
		case turn.Status == thread.TurnSucceeded && (n == 0 || replies[turn.ID][n-1].Stopped):
			c.fault(isReply, t.ID, turn.ID, "the turn succeeded without a reply")
		case turn.Status == thread.TurnSucceeded && replies[turn.ID][n-1].Text != streamed[turn.ID]:
			c.fault(isReply, t.ID, turn.ID, "streamed was %q, and the answer is %q", streamed[turn.ID], replies[turn.ID][n-1].Text)
		}
	}
}

// streamed is what a page shows of each turn's answer after all its events.
func (c *checker) streamed(t *tale) map[string]string {
	texts := map[string]string{}
	for _, e := range t.Events {
		switch e.Name {
		case thread.EventTurnStarted:
			delete(texts, e.Turn.ID)
		case thread.EventAnswerRestarted:
			delete(texts, e.TurnID)
		case thread.EventAnswerDelta:
			if e.Offset != len(texts[e.TurnID]) {
				c.fault(isReply, t.ID, e.TurnID, "event %d is a piece at %d, behind %d bytes", e.Seq, e.Offset, len(texts[e.TurnID]))
			}
			texts[e.TurnID] += e.Text
		}
	}
	return texts
}

// effects: what has side effects happens once for each call of the model.
func (c *checker) effects() {
	times := map[string]int{}
	for _, e := range c.Effects {
		if times[e.Key]++; times[e.Key] == 2 {
			c.fault(isToolTwice, "", e.Key, "the tool with side effects was called again for it")
		}
	}
}

// steers and stops are the latencies of a record: from the transaction that accepted what was loaded into a running turn to
// the first request that shows it, and from that of a stop to the connection's end at the provider.
func (r record) latencies() (steers, stops []time.Duration) {
	for _, s := range r.Threads {
		waits := map[string]time.Time{}
		for _, m := range moments(s.Events) {
			for _, e := range m.events {
				switch {
				case (e.Name == thread.EventMessageCreated || e.Name == thread.EventMessageUpdated) && len(e.Message.Parts) > 0:
					waits[e.Message.Parts[len(e.Message.Parts)-1].Text] = m.at
				case e.Name == thread.EventMessageDelivered && m.first(thread.EventTurnBoundary) != nil:
					steers = append(steers, r.shown(e.Message, waits)...)
				case e.decides() != "" && e.Name == thread.EventTurnPhase:
					stops = append(stops, r.left(s, m.at)...)
				}
			}
		}
	}
	return steers, stops
}

func (r record) shown(m *thread.Message, waits map[string]time.Time) (took []time.Duration) {
	for _, p := range m.Parts {
		for _, q := range r.Requests {
			if slices.Contains(q.marks("user"), p.Text) {
				took = append(took, q.Arrived.Sub(waits[p.Text]))
				break
			}
		}
	}
	return took
}

func (r record) left(s story, stopped time.Time) (took []time.Duration) {
	ids := strings.Builder{}
	for _, m := range s.Screen {
		ids.WriteString(m.Text)
	}
	for _, q := range r.Requests {
		marks := q.marks("user")
		if q.Arrived.Before(stopped) && q.Left.After(stopped) && len(marks) > 0 && strings.Contains(ids.String(), marks[0]) {
			took = append(took, q.Left.Sub(stopped))
		}
	}
	return took
}
