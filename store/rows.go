package store

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"bobbin/thread"
)

const messageColumns = `
	m.id, m.role, m.text, m.state, m.turn_id, m.channel, m.reply_to, m.stopped, m.created_at,
	(SELECT json_agg(json_build_object('text', p.text, 'sent_at', p.sent_at, 'client_id', p.client_id) ORDER BY p.n)
		FROM message_parts p WHERE p.message_id = m.id),
	ARRAY(SELECT a.file_id FROM message_attachments a WHERE a.message_id = m.id ORDER BY a.n),
	ARRAY(SELECT t.target FROM message_mentions t WHERE t.message_id = m.id ORDER BY t.n)`

func scanMessage(r pgx.Row) (*thread.Message, error) {
	var m messageRow
	if err := r.Scan(m.into()...); err != nil {
		return nil, err
	}
	return m.message()
}

// messageRow is what messageColumns give; all NULL where an outer join found none.
type messageRow struct {
	id, role, text, state, turnID, channel, replyTo zeronull.Text
	stopped                                         pgtype.Bool
	createdAt                                       pgtype.Timestamptz
	parts                                           []byte
	attachments, mentions                           []string
}

func (r *messageRow) into() []any {
	return []any{
		&r.id, &r.role, &r.text, &r.state, &r.turnID, &r.channel, &r.replyTo, &r.stopped, &r.createdAt,
		&r.parts, &r.attachments, &r.mentions,
	}
}

// message returns nil where there is none.
func (r *messageRow) message() (*thread.Message, error) {
	if r.id == "" {
		return nil, nil
	}
	m := &thread.Message{
		ID: string(r.id), Role: thread.Role(r.role), Text: string(r.text), State: thread.MessageState(r.state), TurnID: string(r.turnID),
		Channel: string(r.channel), ReplyTo: string(r.replyTo), Stopped: r.stopped.Bool, CreatedAt: r.createdAt.Time,
		Attachments: r.attachments, Mentions: r.mentions, Parts: []thread.Part{},
	}
	if r.parts == nil {
		return m, nil
	}
	return m, json.Unmarshal(r.parts, &m.Parts)
}

// scanWaiting reads a turn and the message that waits with it; nil: none does.
func scanWaiting(r pgx.Row) (*turnRow, *thread.Message, error) {
	var m messageRow
	turn, err := scanTurnWith(r, m.into()...)
	if err != nil {
		return nil, nil, err
	}
	waiting, err := m.message()
	return turn, waiting, err
}

// turnRow is a turn with what only the store needs.
type turnRow struct {
	thread.Turn
	rank          int64
	failures      int
	retryAt       *time.Time
	stopping      bool
	historyEnd    int64
	steps         int
	nextTurnID    string
	urgent        bool // an interrupt made it
	barren        int  // stints in a row that wrote nothing
	modelAttempts int  // model attempts, which deltas are told apart by

	limit thread.Counters
}

const turnColumns = `
	t.id, t.thread_id, t.source, t.kind, t.mode, t.status, t.rank, COALESCE(t.follow_up_of, ''), t.reply_channel,
	t.created_at, t.started_at, t.finished_at, t.trace, t.attempt, t.failures, t.retry_at, t.urgent, t.barren, t.stopping, t.history_end, t.rounds, t.tool_calls,
	t.steps, t.input_tokens, t.cached_tokens, t.output_tokens, t.reasoning_tokens, t.cost, COALESCE(t.answer_id, ''), COALESCE(t.next_turn_id, ''),
	COALESCE(t.error_code, ''), COALESCE(t.error_detail, ''),
	t.limit_since, t.limit_rounds, t.limit_tool_calls, t.empty_retries, t.malformed_retries, t.tool_failures, t.wrap_up_warned,
	t.model_failures, t.refused_tokens, t.summary_failed, t.model_attempts, clock_timestamp()`

func scanTurn(r pgx.Row) (*turnRow, error) { return scanTurnWith(r) }

// scanTurnWith reads a turn, and what the row has behind it into more.
func scanTurnWith(r pgx.Row, more ...any) (*turnRow, error) {
	var t turnRow
	var e thread.TurnError
	var since *time.Time
	var now time.Time
	err := r.Scan(append([]any{
		&t.ID, &t.ThreadID, &t.Source, &t.Kind, &t.Mode, &t.Status, &t.rank, &t.FollowUpOf, &t.ReplyChannel,
		&t.CreatedAt, &t.StartedAt, &t.FinishedAt, &t.Trace, &t.Attempt, &t.failures, &t.retryAt, &t.urgent, &t.barren, &t.stopping, &t.historyEnd, &t.Rounds, &t.ToolCalls,
		&t.steps, &t.Usage.InputTokens, &t.Usage.CachedTokens, &t.Usage.OutputTokens, &t.Usage.ReasoningTokens, &t.Usage.Cost, &t.Answer, &t.nextTurnID,
		&e.Code, &e.Detail,
		&since, &t.limit.Rounds, &t.limit.ToolCalls, &t.limit.EmptyRetries, &t.limit.MalformedRetries, &t.limit.ToolFailures,
		&t.limit.WrapUpWarned, &t.limit.ModelFailures, &t.limit.Refused, &t.limit.SummaryFailed, &t.modelAttempts, &now,
	}, more...)...)
	if err != nil {
		return nil, err
	}
	t.limit.Used = t.Usage
	if e.Code != "" {
		t.Error = &e
	}
	if since != nil {
		t.limit.Elapsed = max(0, now.Sub(*since))
	}
	return &t, nil
}

// collect turns a queued query's rows into a slice.
func collect[T any](dst *[]*T, scan func(pgx.Row) (*T, error)) func(pgx.Rows) error {
	return func(rows pgx.Rows) (err error) {
		*dst, err = pgx.CollectRows(rows, func(r pgx.CollectableRow) (*T, error) { return scan(r) })
		return err
	}
}

// first keeps the only row of a queued query; without one dst is nil.
func first[T any](dst **T, scan func(pgx.Row) (*T, error)) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		var list []*T
		*dst = nil
		if err := collect(&list, scan)(rows); err != nil || len(list) == 0 {
			return err
		}
		*dst = list[0]
		return nil
	}
}

// named are the named arguments of a statement, as pgx.NamedArgs. That takes the statement apart each time it runs, which
// for those of a round is a thirtieth of a worker's CPU; here it is done once.
type named map[string]any

// numbered are the statements that were taken apart, by their text: as many as there are in this package.
var numbered sync.Map

// A numbering is a statement with numbers for names, and the names in their order.
type numbering struct {
	sql   string
	names []string
}

// RewriteQuery makes named a pgx.QueryRewriter.
func (a named) RewriteQuery(ctx context.Context, conn *pgx.Conn, sql string, _ []any) (string, []any, error) {
	known, ok := numbered.Load(sql)
	if !ok {
		n, err := a.number(ctx, conn, sql)
		if err != nil {
			return "", nil, err
		}
		known, _ = numbered.LoadOrStore(sql, n)
	}
	n := known.(*numbering)
	args := make([]any, len(n.names))
	for i, name := range n.names {
		args[i] = a[name]
	}
	return n.sql, args, nil
}

func (a named) number(ctx context.Context, conn *pgx.Conn, sql string) (*numbering, error) {
	itself := pgx.NamedArgs{}
	for name := range a {
		itself[name] = name
	}
	text, list, err := itself.RewriteQuery(ctx, conn, sql, nil)
	if err != nil {
		return nil, err
	}
	n := &numbering{sql: text}
	for i, name := range list {
		s, ok := name.(string)
		if !ok {
			return nil, fmt.Errorf("argument %d of a statement has no value", i+1)
		}
		n.names = append(n.names, s)
	}
	return n, nil
}
