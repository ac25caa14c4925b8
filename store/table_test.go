package store_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"bobbin/store"
	"bobbin/thread"
)

var update = flag.Bool("update", false, "rewrite the table of states, in testdata and in docs/state-machine.md")

const (
	goldenTable = "testdata/states.txt"
	pageOfTable = "../docs/state-machine.md"
	tableBegin  = "<!-- states: go test ./store -run TestEveryOperationInEveryState -update -->\n"
	tableEnd    = "<!-- /states -->\n"
)

// A world is a thread in one of the states of the table, with what the operations act on.
type world struct {
	*bundle
	channel string
	failed  string // id of a turn that failed before, if the operation asked for one
	driven  run    // the turn that runs, or ran last
}

type state struct {
	name string
	make func(*world)
}

// states are the columns, each brought about by operations. The channel of those with a retry is one whose failure policy
// is retry.
var states = []state{
	{"I0", func(w *world) { w.begin(); w.driven.answer("Hi.") }},
	{"Ir", func(w *world) { w.beginRetry() }},
	{"Ir1", func(w *world) { w.beginRetry(); w.behind() }},
	{"Id", func(w *world) { w.beginRetry(); w.due() }},
	{"Id1", func(w *world) { w.beginRetry(); w.behind(); w.due() }},
	{"I1", func(w *world) {
		w.begin()
		w.driven.end(unknown()) // fails under either policy
		_, err := w.db.Replay(w.ctx(), owner, w.driven.ref.ID)
		require.NoError(w.t, err)
	}},
	{"I1m", func(w *world) { // what held back the line is cancelled
		w.beginRetry()
		w.behind()
		w.cancelTurn(w.driven)
	}},
	{"R0", func(w *world) { w.begin() }},
	{"R0s", func(w *world) { w.begin(); w.send("steering") }},
	{"R1", func(w *world) { w.begin(); w.behind() }},
	{"R1s", func(w *world) { w.begin(); w.send("steering"); w.behind() }},
	{"S0", func(w *world) { w.begin(); w.stop(store.ScopeConversation) }},
	{"S1", func(w *world) { w.begin(); w.behind(); w.stop(store.ScopeConversation) }},
	{"X", func(w *world) {
		w.begin()
		w.send("steering")
		w.behind()
		_, err := w.db.Reset(w.ctx(), owner, w.thread)
		require.NoError(w.t, err)
	}},
}

// fail leaves a failed turn behind.
func (w *world) fail() {
	w.t.Helper()
	r := w.start("failed")
	r.end(unknown())
	w.failed = r.ref.ID
}

func (w *world) begin() {
	w.t.Helper()
	w.driven = w.start("request", channel(w.channel))
}

func (w *world) beginRetry() {
	w.t.Helper()
	w.channel = thread.ChannelSMS
	w.begin()
	require.Equal(w.t, thread.TurnQueued, w.driven.end(broken()).Status)
}

func (w *world) send(text string, mods ...with) store.Accepted {
	w.t.Helper()
	return w.accept(text, append([]with{channel(w.channel)}, mods...)...)
}

func (w *world) behind() {
	w.t.Helper()
	w.send("waiting", delivery(thread.DeliverTurn))
}

func unknown() store.Outcome {
	return store.Outcome{Error: &thread.TurnError{Code: thread.FailToolUnknown, Detail: "unknown"}}
}

// errNone means that an operation finds nothing in this state that it could be asked for.
var errNone = errors.New("nothing to ask it for")

// An operation returns what its caller is told.
type operation struct {
	name    string
	channel string       // of the thread; empty: web
	before  func(*world) // done before the thread is brought into its state
	do      func(*world) (string, error)
}

// operations are the rows.
var operations = []operation{
	{name: "message, `auto`", do: accepting(thread.DeliverAuto)},
	{name: "message, `steer`", do: accepting(thread.DeliverSteer)},
	{name: "message, `turn`", do: accepting(thread.DeliverTurn)},
	{name: "message, `interrupt`", do: accepting(thread.DeliverInterrupt)},
	{name: "`interrupt`, then one with a file", do: func(w *world) (string, error) { // which joins no other
		if _, err := accepting(thread.DeliverInterrupt)(w); err != nil {
			return "", err
		}
		return accepting(thread.DeliverInterrupt, files("f"))(w)
	}},
	{name: "take", do: func(w *world) (string, error) {
		_, err := w.db.Take(w.ctx(), w.driven.ref.ID)
		return "", err
	}},
	{name: "withdraw steering", do: func(w *world) (string, error) {
		_, err := w.db.WithdrawSteering(w.ctx(), owner, w.thread)
		return "", err
	}},
	{name: "withdraw a waiting turn's message", do: func(w *world) (string, error) {
		list := w.list(`SELECT id FROM messages WHERE thread_id = $1 AND text = 'waiting'`, w.thread)
		if len(list) == 0 {
			return "", errNone
		}
		_, err := w.db.WithdrawMessage(w.ctx(), owner, list[0])
		return "", err
	}},
	{name: "stop", do: stopping(store.ScopeConversation)},
	{name: "stop `all`", do: stopping(store.ScopeAll)},
	{name: "cancel the running turn", do: func(w *world) (string, error) { return w.cancelAny("running", "ASC") }},
	{name: "cancel the first waiting turn", do: func(w *world) (string, error) { return w.cancelAny("queued", "ASC") }},
	{name: "cancel the last waiting turn", do: func(w *world) (string, error) { return w.cancelAny("queued", "DESC") }},
	{name: "end: answered", do: func(w *world) (string, error) {
		if w.runRow() == "running" {
			w.driven.commit(store.RoundAnswer, "Hi.")
		}
		return w.ends(store.Outcome{})
	}},
	{name: "end: failed, policy `ask`", do: func(w *world) (string, error) { return w.ends(late()) }},
	{name: "end: failed, policy `retry`", channel: thread.ChannelSMS, do: func(w *world) (string, error) { return w.ends(late()) }},
	{name: "claim", do: func(w *world) (string, error) {
		_, err := w.db.Claim(w.ctx(), w.thread)
		return "", err
	}},
	{name: "replay a failed turn", before: (*world).fail, do: func(w *world) (string, error) {
		_, err := w.db.Replay(w.ctx(), owner, w.failed)
		return "", err
	}},
	{name: "reset", do: func(w *world) (string, error) {
		_, err := w.db.Reset(w.ctx(), owner, w.thread)
		return "", err
	}},
}

// accepting sends a plain message on the thread's channel, and tells its disposition and where it waits.
func accepting(d thread.Delivery, mods ...with) func(*world) (string, error) {
	return func(w *world) (string, error) {
		out, err := w.db.Accept(w.ctx(), w.incoming("new", append(mods, channel(w.channel), delivery(d))...))
		if err != nil {
			return "", err
		}
		told := string(out.Disposition)
		line := w.list(`
			SELECT id FROM turns
			WHERE thread_id = $1 AND kind = 'conversation' AND status = 'queued'
			ORDER BY rank`, w.thread)
		if i := slices.Index(line, out.TurnID); i >= 0 {
			told += fmt.Sprintf(" %d/%d", i+1, len(line))
		}
		if len(out.Message.Parts) > 1 {
			told += ", joined"
		}
		return told, nil
	}
}

func stopping(s store.Scope) func(*world) (string, error) {
	return func(w *world) (string, error) {
		_, err := w.db.Stop(w.ctx(), owner, w.thread, s)
		return "", err
	}
}

func (w *world) cancelAny(status, order string) (string, error) {
	list := w.list(`SELECT id FROM turns WHERE thread_id = $1 AND status = $2 ORDER BY rank `+order, w.thread, status)
	if len(list) == 0 {
		return "", errNone
	}
	_, err := w.db.Cancel(w.ctx(), owner, list[0])
	return "", err
}

// ends ends the turn that runs. Where none does it repeats the last end, which may not have got its answer.
func (w *world) ends(o store.Outcome) (string, error) {
	out, err := w.db.End(w.ctx(), w.driven.ref.ID, w.driven.attempt, o)
	return string(out.Status), err
}

// runRow is the state of the run row.
func (w *world) runRow() (s string) {
	w.t.Helper()
	w.scan(`SELECT CASE WHEN turn_id IS NULL THEN 'idle' WHEN stopping THEN 'stopping' ELSE 'running' END FROM runs WHERE thread_id = $1`,
		[]any{w.thread}, &s)
	return s
}

// A sight is what the rows of a thread say.
type sight struct {
	State    string   // of the table
	Running  string   // id of the turn that the run row names
	Steering []string // text on the steering row
	Line     []string // requests of the waiting turns; of one that started before, "…"
	Rows     string   // a hash of all rows of the thread
}

func (w *world) look() sight {
	w.t.Helper()
	var s sight
	var archived, steers, stops, due, retry, message bool
	var waiting int
	w.scan(`
		WITH line AS (
			SELECT t.*, row_number() OVER (ORDER BY rank) AS place,
				EXISTS (SELECT FROM messages m WHERE m.turn_id = t.id AND m.state = 'queued') AS message
			FROM turns t
			WHERE t.thread_id = $1 AND t.kind = 'conversation' AND t.status = 'queued'
		)
		SELECT t.status = 'archived', COALESCE(r.turn_id, ''), r.stopping,
			EXISTS (SELECT FROM steering WHERE thread_id = $1 AND state = 'queued'),
			(SELECT count(*) FROM line),
			COALESCE((SELECT retry_at IS NULL OR retry_at <= clock_timestamp() FROM line WHERE place = 1), false),
			COALESCE((SELECT failures > 0 FROM line WHERE place = 1), false),
			COALESCE((SELECT message FROM line WHERE place = 1), false)
		FROM threads t
		JOIN runs r ON r.thread_id = t.id
		WHERE t.id = $1`, []any{w.thread}, &archived, &s.Running, &stops, &steers, &waiting, &due, &retry, &message)
	switch {
	case archived:
		s.State = "X"
	case s.Running != "" && stops:
		s.State = "S"
	case s.Running != "":
		s.State = "R"
	case retry && due:
		s.State = "Id"
	case retry:
		s.State = "Ir"
	default:
		s.State = "I"
	}
	behind := waiting
	if retry && s.Running == "" {
		behind--
	}
	switch {
	case archived:
		require.Zero(w.t, waiting, "turns of an archived thread")
	case behind > 0:
		s.State += "1"
	case s.State == "I", s.State == "R", s.State == "S":
		s.State += "0"
	}
	if steers {
		s.State += "s"
	}
	if s.State == "I1" && message {
		s.State = "I1m"
	}
	s.Steering = w.list(`
		SELECT m.text FROM steering s JOIN messages m ON m.id = s.message_id WHERE s.thread_id = $1 AND s.state = 'queued'`, w.thread)
	s.Line = w.list(`
		SELECT COALESCE((SELECT m.text FROM messages m WHERE m.turn_id = t.id AND m.state = 'queued'), '…')
		FROM turns t
		WHERE t.thread_id = $1 AND t.kind = 'conversation' AND t.status = 'queued'
		ORDER BY t.rank`, w.thread)
	w.scan(`
		SELECT md5(concat(
			(SELECT string_agg(t::text, ';' ORDER BY id) FROM threads t WHERE id = $1),
			(SELECT string_agg(t::text, ';') FROM runs t WHERE thread_id = $1),
			(SELECT string_agg(t::text, ';') FROM streams t WHERE thread_id = $1),
			(SELECT string_agg(t::text, ';' ORDER BY id) FROM turns t WHERE thread_id = $1),
			(SELECT string_agg(t::text, ';' ORDER BY id) FROM messages t WHERE thread_id = $1),
			(SELECT string_agg(t::text, ';' ORDER BY id) FROM steering t WHERE thread_id = $1),
			(SELECT string_agg(t::text, ';' ORDER BY pos) FROM entries t WHERE session_id = $1),
			(SELECT string_agg(t::text, ';' ORDER BY id) FROM outbox t WHERE thread_id = $1)))`, []any{w.thread}, &s.Rows)
	return s
}

// A cell is what an operation does in a state: as the page shows it, and in full.
type cell struct{ short, full string }

// try does an operation in a state, and holds what must be so in every cell.
func (w *world) try(op operation) cell {
	w.t.Helper()
	w.exec(`DELETE FROM outbox WHERE thread_id = $1`, w.thread) // whoever was to be told of the state knows it
	before := w.look()
	told, err := op.do(w)
	after := w.look()
	nudges := w.list(`SELECT kind FROM outbox WHERE thread_id = $1 ORDER BY id`, w.thread)
	switch {
	case errors.Is(err, errNone):
		return cell{"", "(nothing to ask it for)"}
	case err != nil:
		require.Equal(w.t, before, after, "a refusal changes nothing")
		return cell{"*" + nameOf(w.t, err) + "*", nameOf(w.t, err)}
	case before.Rows == after.Rows:
		return cell{"–", strings.TrimSpace("changes nothing " + told)}
	}
	w.tells(before, after, nudges, op.name == "claim")
	short := strings.TrimSpace("`" + after.State + "` " + told)
	full := strings.ReplaceAll(short, "`", "")
	for _, part := range []struct {
		name string
		list []string
	}{{"steering", after.Steering}, {"line", after.Line}, {"nudges", nudges}} {
		if len(part.list) > 0 {
			full += fmt.Sprintf("; %s %q", part.name, part.list)
		}
	}
	return cell{short, full}
}

// tells holds that whoever must act on the new state is nudged: the workflow, to claim or to drive, or to cancel.
func (w *world) tells(before, after sight, nudges []string, byWorkflow bool) {
	w.t.Helper()
	due := func(s sight) bool { return s.State[0] == 'I' && s.State != "I0" && !strings.HasPrefix(s.State, "Ir") }
	starts := after.Running != "" && after.Running != before.Running
	if due(after) && !due(before) || starts && !byWorkflow {
		require.Contains(w.t, nudges, "work")
	}
	if after.State[0] == 'S' && before.State[0] != 'S' || after.State == "X" && before.Running != "" {
		require.Contains(w.t, nudges, "stop")
	}
	require.True(w.t, len(after.Steering) == 0 || after.State[0] == 'R', "a message stands on the steering row, and none will take it: %s", after.State)
}

// nameOf is an error's name: its code in the API, or that of an error which never leaves the worker.
func nameOf(t *testing.T, err error) string {
	t.Helper()
	for name, e := range map[string]error{
		"not_found": thread.ErrNotFound, "thread_archived": thread.ErrArchived, "no_running_turn": thread.ErrNoRunningTurn,
		"stopping": thread.ErrStopping, "not_steerable": thread.ErrNotSteerable, "already_delivered": thread.ErrAlreadyDelivered,
		"already_withdrawn": thread.ErrAlreadyWithdrawn, "conflict": thread.ErrConflict, "fenced": thread.ErrFenced,
	} {
		if errors.Is(err, e) {
			return name
		}
	}
	t.Fatalf("an error that no cell should have: %v", err)
	return ""
}

// The closed world: every operation in every state leads to a state of the table, or is refused and changes nothing.
func TestEveryOperationInEveryState(t *testing.T) {
	all := setup(t)
	table := make([][]cell, len(operations))
	for i := range table {
		table[i] = make([]cell, len(states))
	}
	var mu sync.Mutex
	t.Run("cells", func(t *testing.T) {
		for i, op := range operations {
			for j, state := range states {
				t.Run(op.name+"/"+state.name, func(t *testing.T) {
					w := &world{bundle: all.sub(t), channel: thread.ChannelWeb}
					if op.channel != "" {
						w.channel = op.channel
					}
					if op.before != nil {
						op.before(w)
					}
					state.make(w)
					require.Equal(t, state.name, w.look().State)
					got := w.try(op)
					mu.Lock()
					defer mu.Unlock()
					table[i][j] = got
				})
			}
		}
	})
	if t.Failed() {
		return
	}
	for _, row := range table {
		for _, c := range row {
			if to, _, ok := strings.Cut(strings.TrimPrefix(c.short, "`"), "`"); ok {
				require.True(t, slices.ContainsFunc(states, func(s state) bool { return s.name == to }), "%s is no state of the table", to)
			}
		}
	}
	full, short := inFull(table), inShort(table)
	page, err := os.ReadFile(pageOfTable)
	require.NoError(t, err)
	head, rest, found := strings.Cut(string(page), tableBegin)
	_, tail, ended := strings.Cut(rest, tableEnd)
	require.True(t, found && ended, "%s has no place for the table", pageOfTable)
	whole := head + tableBegin + short + tableEnd + tail
	if *update {
		require.NoError(t, os.MkdirAll(filepath.Dir(goldenTable), 0o750))
		require.NoError(t, os.WriteFile(goldenTable, []byte(full), 0o600))
		require.NoError(t, os.WriteFile(pageOfTable, []byte(whole), 0o600))
		return
	}
	golden, err := os.ReadFile(goldenTable)
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(strings.Split(string(golden), "\n"), strings.Split(full, "\n")), "- %s, + what happens; -update rewrites it", goldenTable)
	require.Empty(t, cmp.Diff(strings.Split(string(page), "\n"), strings.Split(whole, "\n")), "- %s, + what happens; -update rewrites it", pageOfTable)
}

// inFull writes a line a cell.
func inFull(table [][]cell) string {
	var b strings.Builder
	for i, op := range operations {
		fmt.Fprintf(&b, "%s\n", strings.ReplaceAll(op.name, "`", ""))
		for j, state := range states {
			fmt.Fprintf(&b, "  %-3s → %s\n", state.name, table[i][j].full)
		}
	}
	return b.String()
}

// inShort writes the table of the page.
func inShort(table [][]cell) string {
	var b strings.Builder
	b.WriteString("| |")
	for _, state := range states {
		fmt.Fprintf(&b, " %s |", state.name)
	}
	b.WriteString("\n| --- |" + strings.Repeat(" --- |", len(states)) + "\n")
	for i, op := range operations {
		fmt.Fprintf(&b, "| **%s** |", op.name)
		for j := range states {
			fmt.Fprintf(&b, " %s |", table[i][j].short)
		}
		b.WriteString("\n")
	}
	return b.String()
}
