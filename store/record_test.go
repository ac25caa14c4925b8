package store_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
)

// A record is what the tables say of a thread, read by one statement, and so at one moment.
type record struct {
	Status   string
	Running  string // id of the turn that the run row names
	Stopping bool
	LastSeq  int64 `json:"last_seq"`

	Turns    []turnRecord    // by id
	Messages []messageRecord // as they are listed: the delivered in their order, then the others by id
	Entries  []entryRecord   // of the conversation's session, by position
	Steering []steeringRecord
	Events   []eventRecord // by number
	Rounds   []roundRecord // by turn and number
	Calls    []callRecord  // by turn, round and index
	Steps    []stepRecord  // by turn and number
	Nudges   []string      // as they were written
}

type turnRecord struct {
	ID, Kind, Status                 string
	Rank                             int64
	Attempt, Rounds, Steps, Failures int
	FollowUpOf                       string     `json:"follow_up_of"`
	ErrorCode                        string     `json:"error_code"`
	StartedAt                        *time.Time `json:"started_at"`
	RetryAt                          *time.Time `json:"retry_at"`
	Stopping                         bool
}

type messageRecord struct {
	ID, Role, State, Text string
	TurnID                string `json:"turn_id"`
	Seq                   int64
	Stopped               bool
	Files                 []string
	Parts                 []struct {
		N      int
		Text   string
		SentAt time.Time `json:"sent_at"`
	}
}

type entryRecord struct {
	Pos        int64
	Kind, Text string
	MessageID  string `json:"message_id"`
}

type steeringRecord struct {
	State     string
	MessageID string `json:"message_id"`
}

type eventRecord struct {
	Seq       int64
	Name      string
	TurnID    string `json:"turn_id"`
	Message   string
	CreatedAt time.Time `json:"created_at"`
}

type roundRecord struct {
	TurnID string `json:"turn_id"`
	N      int
}

type callRecord struct {
	TurnID      string `json:"turn_id"`
	Name, State string
	Result      string
}

type stepRecord struct {
	TurnID        string `json:"turn_id"`
	N             int
	Title, Status string
}

const recordOf = `
	WITH mine AS MATERIALIZED (SELECT * FROM turns WHERE thread_id = $1)
	SELECT json_build_object(
		'status', t.status, 'running', r.turn_id, 'stopping', r.stopping, 'last_seq', s.last_seq,
		'turns', (SELECT json_agg(m ORDER BY id) FROM mine m),
		'messages', (
			SELECT json_agg(json_build_object('id', m.id, 'role', m.role, 'state', m.state, 'text', m.text, 'channel', m.channel,
				'turn_id', m.turn_id, 'seq', m.seq, 'stopped', m.stopped,
				'files', (SELECT json_agg(a.file_id ORDER BY a.n) FROM message_attachments a WHERE a.message_id = m.id),
				'parts', (SELECT json_agg(p ORDER BY p.n) FROM message_parts p WHERE p.message_id = m.id)) ORDER BY m.seq, m.id)
			FROM messages m WHERE m.thread_id = t.id),
		'entries', (SELECT json_agg(e ORDER BY pos) FROM entries e WHERE session_id = t.id),
		'steering', (SELECT json_agg(e ORDER BY id) FROM steering e WHERE thread_id = t.id),
		'events', (
			SELECT json_agg(json_build_object('seq', seq, 'name', name, 'turn_id', turn_id, 'created_at', created_at,
				'message', data #>> '{message,id}') ORDER BY seq)
			FROM events WHERE thread_id = t.id),
		'rounds', (SELECT json_agg(o ORDER BY turn_id, n) FROM rounds o WHERE turn_id IN (SELECT id FROM mine)),
		'calls', (SELECT json_agg(c ORDER BY turn_id, round, idx) FROM calls c WHERE turn_id IN (SELECT id FROM mine)),
		'steps', (SELECT json_agg(p ORDER BY turn_id, n) FROM steps p WHERE turn_id IN (SELECT id FROM mine)),
		'nudges', (SELECT json_agg(kind ORDER BY id) FROM outbox WHERE thread_id = t.id))
	FROM threads t
	JOIN runs r ON r.thread_id = t.id
	JOIN streams s ON s.thread_id = t.id
	WHERE t.id = $1`

func (b *bundle) record() *record {
	b.t.Helper()
	var raw []byte
	b.scan(recordOf, []any{b.thread}, &raw)
	r := &record{}
	require.NoError(b.t, json.Unmarshal(raw, r))
	return r
}

// invariants says what is wrong with a thread, whatever was done to it by whomever. sent are the parts that were accepted,
// each text once; given are the parts that callers were given back.
func (r *record) invariants(sent, given []string) (wrong []string) {
	bad := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	r.partsStandOnce(bad, sent, given)
	r.messagesAreWhereTheySay(bad)
	r.oneTurnRuns(bad)
	r.turnsAreWhole(bad)
	r.numbersHaveNoGap(bad)
	return wrong
}

// Every accepted part is in one message, in its order; a withdrawn one was given back once, no other ever.
func (r *record) partsStandOnce(bad func(string, ...any), sent, given []string) {
	found := map[string]int{}
	back := map[string]int{}
	for _, g := range given {
		back[g]++
	}
	for _, m := range r.Messages {
		if m.Role != "user" {
			continue
		}
		var texts []string
		for i, p := range m.Parts {
			texts = append(texts, p.Text)
			found[p.Text]++
			if p.N != i+1 || i > 0 && p.SentAt.Before(m.Parts[i-1].SentAt) {
				bad("part %d of %q is out of order", p.N, m.Text)
			}
			if want := map[bool]int{true: 1}[m.State == "withdrawn"]; back[p.Text] != want {
				bad("%q is %s and was given back %d times", p.Text, m.State, back[p.Text])
			}
		}
		if joined := strings.Join(texts, "\n\n"); m.Text != joined {
			bad("a message says %q and its parts %q", m.Text, joined)
		}
	}
	for _, text := range sent {
		if found[text] != 1 {
			bad("%q was accepted and stands %d times", text, found[text])
		}
	}
	for text := range found {
		if !slices.Contains(sent, text) {
			bad("%q came of itself", text)
		}
	}
}

// A delivered message is one entry of the session, a queued one is on the steering row or the request of a waiting turn, a
// withdrawn one is nowhere; and its events say the same.
func (r *record) messagesAreWhereTheySay(bad func(string, ...any)) {
	entries, rows, told := map[string]int{}, map[string]string{}, map[string]int{}
	var session, listed []string
	for _, e := range r.Entries {
		if e.Kind == "user" {
			entries[e.MessageID]++
			session = append(session, e.MessageID)
		}
	}
	for _, s := range r.Steering {
		rows[s.MessageID] = s.State
	}
	for _, e := range r.Events {
		told[e.Name+" "+e.Message]++
	}
	for _, m := range r.Messages {
		if m.Role != "user" {
			continue
		}
		delivered, withdrawn := m.State == "delivered", m.State == "withdrawn"
		if n := entries[m.ID]; n != map[bool]int{true: 1}[delivered] {
			bad("%q is %s and stands %d times in the session", m.Text, m.State, n)
		}
		onRow := rows[m.ID] == "queued"
		asTurn := r.turnStatus(m.TurnID) == "queued" && !onRow
		if m.State == "queued" && onRow == asTurn || m.State != "queued" && onRow {
			bad("%q is %s; on the steering row: %t, waits as a turn: %t", m.Text, m.State, onRow, asTurn)
		}
		if n := told["message.delivered "+m.ID]; n != map[bool]int{true: 1}[delivered] {
			bad("%q is %s and its delivery was told %d times", m.Text, m.State, n)
		}
		if n := told["message.withdrawn "+m.ID]; n != map[bool]int{true: 1}[withdrawn] {
			bad("%q is %s and its withdrawal was told %d times", m.Text, m.State, n)
		}
		if delivered {
			listed = append(listed, m.ID)
			if at := r.Events[min(m.Seq, int64(len(r.Events)))-1]; at.Message != m.ID || at.Name != "message.delivered" {
				bad("%q has the place of another event", m.Text)
			}
		}
	}
	if !slices.Equal(session, listed) {
		bad("the conversation is listed in another order than the model received it")
	}
}

func (r *record) turnStatus(id string) string {
	for _, t := range r.Turns {
		if t.ID == id {
			return t.Status
		}
	}
	return ""
}

// At most one conversation turn runs, the run row names it, and a message waits to be loaded only if one will load it.
func (r *record) oneTurnRuns(bad func(string, ...any)) {
	running, ranks := "", map[int64]bool{}
	for _, t := range r.Turns {
		switch {
		case t.Status == "queued" && r.Status == "archived", t.Status == "running" && r.Status == "archived":
			bad("a turn is %s in an archived thread", t.Status)
		case t.Kind == "background":
		case t.Status == "running" && running != "":
			bad("two conversation turns run")
		case t.Status == "running":
			running = t.ID
		case t.Status == "queued" && ranks[t.Rank]:
			bad("two turns wait at one place")
		case t.Status == "queued":
			ranks[t.Rank] = true
		}
	}
	if running != r.Running {
		bad("the run row names %q, and %q runs", r.Running, running)
	}
	if r.Stopping && r.Running == "" {
		bad("nothing runs, and it is to stop")
	}
	queued := 0
	for _, s := range r.Steering {
		if s.State == "queued" {
			queued++
		}
	}
	if queued > 1 || queued == 1 && (r.Running == "" || r.Stopping) {
		bad("%d messages wait to be loaded; running: %q, stopping: %t", queued, r.Running, r.Stopping)
	}
}

// A turn starts once per attempt, has each round and each step once, leaves nothing open when it has ended, and waits with
// a request or having started before.
func (r *record) turnsAreWhole(bad func(string, ...any)) {
	for _, t := range r.Turns {
		started, ended, rounds, steps := 0, 0, 0, 0
		for _, e := range r.Events {
			if e.TurnID != t.ID {
				continue
			}
			switch e.Name {
			case "turn.started":
				started++
			case "turn.succeeded", "turn.failed", "turn.cancelled":
				ended++
			}
		}
		if started != t.Attempt || t.Status == "running" && started == 0 {
			bad("%s was claimed %d times and its start told %d times", t.ID, t.Attempt, started)
		}
		over := t.Status == "succeeded" || t.Status == "failed" || t.Status == "cancelled"
		if over && ended == 0 || ended > max(1, t.Attempt+1) || ended > 1 && over && t.Attempt <= 1 && !r.replayed(t.ID) {
			bad("%s is %s and its end was told %d times", t.ID, t.Status, ended)
		}
		for _, o := range r.Rounds {
			if o.TurnID == t.ID {
				if rounds++; o.N != rounds {
					bad("round %d of %s has number %d", rounds, t.ID, o.N)
				}
			}
		}
		for _, s := range r.Steps {
			if s.TurnID != t.ID {
				continue
			}
			if steps++; s.N != steps || over && s.Status == "running" {
				bad("step %d of %s is %s and has number %d", steps, t.ID, s.Status, s.N)
			}
		}
		if rounds != t.Rounds || steps != t.Steps {
			bad("%s counts %d rounds and %d steps, and has %d and %d", t.ID, t.Rounds, t.Steps, rounds, steps)
		}
		for _, c := range r.Calls {
			if open := c.State == "pending" || c.State == "started"; c.TurnID == t.ID && open && over {
				bad("call %s of %s is %s", c.Name, t.ID, c.State)
			}
		}
		if t.Status == "queued" && t.Kind == "conversation" && t.StartedAt == nil {
			requests := 0
			for _, m := range r.Messages {
				if m.TurnID == t.ID && m.State == "queued" {
					requests++
				}
			}
			if requests != 1 {
				bad("%s waits with %d requests", t.ID, requests)
			}
		}
	}
}

func (r *record) replayed(turnID string) bool {
	queued := 0
	for _, e := range r.Events {
		if e.TurnID == turnID && e.Name == "turn.queued" {
			queued++
		}
	}
	return queued > 0
}

// Events and the session are numbered without a gap, and no event is older than the one before it.
func (r *record) numbersHaveNoGap(bad func(string, ...any)) {
	for i, e := range r.Events {
		if e.Seq != int64(i+1) || i > 0 && e.CreatedAt.Before(r.Events[i-1].CreatedAt) {
			bad("event %d has number %d, and came at %s", i+1, e.Seq, e.CreatedAt)
		}
	}
	if int64(len(r.Events)) != r.LastSeq {
		bad("%d events, and the last is said to be %d", len(r.Events), r.LastSeq)
	}
	for i, e := range r.Entries {
		if e.Pos != int64(i) {
			bad("entry %d stands at %d", i, e.Pos)
		}
	}
}

// names says what ids stand for: a turn is named by its request, a message by its first line.
func (r *record) names(owner string) *strings.Replacer {
	pairs := []string{"file_" + owner, "a.txt", owner, "the owner"}
	requests := map[string]string{}
	byID := slices.SortedFunc(slices.Values(r.Messages), func(a, b messageRecord) int { return strings.Compare(a.ID, b.ID) })
	for _, m := range byID {
		line, _, _ := strings.Cut(m.Text, "\n")
		if m.Role != "user" {
			line = m.Role
		}
		pairs = append(pairs, m.ID, "«"+line+"»")
		if requests[m.TurnID] == "" && m.Role == "user" {
			requests[m.TurnID] = line
		}
	}
	for _, t := range r.Turns {
		name := requests[t.ID]
		if t.Kind == "background" {
			name = "background"
		}
		pairs = append(pairs, t.ID, "«"+name+"»")
	}
	return strings.NewReplacer(pairs...)
}

// stands is where a thread stands, in one line; ids for names. Of messages ? marks those that wait, × the withdrawn.
func (r *record) stands() string {
	state := "idle"
	switch {
	case r.Status == "archived":
		state = "archived"
	case r.Stopping:
		state = "stopping " + r.called(r.Running)
	case r.Running != "":
		state = "runs " + r.called(r.Running)
	}
	for i, id := range r.line() {
		state += map[bool]string{true: ", waiting ", false: " "}[i == 0] + r.called(id)
	}
	for _, t := range r.Turns {
		if t.Kind == "background" {
			state += fmt.Sprintf(", %s %s%s", t.ID, t.Status, map[bool]string{true: " and stopping"}[t.Stopping])
		}
	}
	var said []string
	for _, m := range r.Messages {
		line := strconv.Quote(m.Text)
		if m.Role == "notice" {
			line = m.Role
		}
		said = append(said, map[string]string{"queued": "?", "withdrawn": "×"}[m.State]+line+map[bool]string{true: " stopped"}[m.Stopped])
	}
	return state + ": " + strings.Join(said, " ")
}

// called is a turn, and the one that it follows up.
func (r *record) called(id string) string {
	for _, t := range r.Turns {
		if t.ID == id && t.FollowUpOf != "" {
			return fmt.Sprintf("%s (after %s)", id, t.FollowUpOf)
		}
	}
	return id
}

// line are the conversation turns that wait, in order.
func (r *record) line() (ids []string) {
	byRank := slices.SortedFunc(slices.Values(r.Turns), func(a, b turnRecord) int { return cmp.Compare(a.Rank, b.Rank) })
	for _, t := range byRank {
		if t.Kind == "conversation" && t.Status == "queued" {
			ids = append(ids, t.ID)
		}
	}
	return ids
}

var clock = regexp.MustCompile(`\d\d:\d\d:\d\d`)

// whole is all that two threads to which the same was done, in the same order, have in common; ids for names.
func (r *record) whole() string {
	var b strings.Builder
	fmt.Fprintln(&b, r.stands())
	for _, t := range r.Turns {
		fmt.Fprintf(&b, "turn %s: %s, attempt %d, %d failures, retry %t, after %q, %s\n", t.ID, t.Status, t.Attempt, t.Failures,
			t.RetryAt != nil, t.FollowUpOf, t.ErrorCode)
	}
	for _, m := range r.Messages {
		fmt.Fprintf(&b, "%s of %s: %q, %s, stopped %t, files %v, %d parts\n", m.Role, m.TurnID, m.Text, m.State, m.Stopped, m.Files, len(m.Parts))
	}
	for _, e := range r.Entries {
		fmt.Fprintf(&b, "%s: %q\n", e.Kind, clock.ReplaceAllString(e.Text, "00:00:00"))
	}
	for _, s := range r.Steering {
		fmt.Fprintf(&b, "steering: %s %s\n", s.MessageID, s.State)
	}
	for _, c := range r.Calls {
		fmt.Fprintf(&b, "call %s: %s %q\n", c.Name, c.State, c.Result)
	}
	for _, s := range r.Steps {
		fmt.Fprintf(&b, "step %d of %s: %s %s\n", s.N, s.TurnID, s.Title, s.Status)
	}
	for _, e := range r.Events {
		fmt.Fprintf(&b, "event %s of %s %s\n", e.Name, e.TurnID, e.Message)
	}
	fmt.Fprintln(&b, "nudges", r.Nudges)
	return b.String()
}
