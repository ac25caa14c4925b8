package store

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"bobbin/thread"
)

// Incoming is a message as it arrives.
type Incoming struct {
	OwnerID     string
	ThreadID    string // "home": the owner's home thread, opened if there is none
	Channel     string
	Key         string // idempotency key or the channel's message id, unique within owner and channel; empty: not repeatable
	Text        string
	Attachments []string // file ids
	Mentions    []string
	ReplyTo     string          // id of the message it answers
	Mode        thread.Mode     // empty: not asked for
	Delivery    thread.Delivery // empty: auto
}

// plain reports whether the message has no attachment, no mention and no reply target.
func (in Incoming) plain() bool {
	return len(in.Attachments) == 0 && len(in.Mentions) == 0 && in.ReplyTo == ""
}

// Accepted is what became of a message. A repeated delivery gets the original ids and their present state.
type Accepted struct {
	Message     *thread.Message
	Disposition thread.Disposition
	TurnID      string // the turn it started, steers or waits as
	Repeated    bool
	Trace       string // of the turn that it steers, see thread.Turn; empty where it made one
}

// Accept stores a message and decides where it goes; docs/state-machine.md has the table. It returns ErrNotFound,
// ErrArchived, ErrReplyTarget, ErrNoRunningTurn or ErrStopping (delivery steer), ErrNotSteerable (delivery steer), ErrKeyReused, an
// AttachmentError, a UsageLimitError, or a LimitError for attachments or text. After an error nothing has changed.
func (db *DB) Accept(ctx context.Context, in Incoming) (Accepted, error) {
	var out Accepted
	named := cleanAll(in.Attachments)
	in.Attachments, in.Mentions = unique(named), unique(cleanAll(in.Mentions))
	in.Text, in.Key, in.Channel, in.ReplyTo = clean(in.Text), clean(in.Key), clean(in.Channel), clean(in.ReplyTo)
	err := db.onThread(ctx, "accept", in.OwnerID, in.ThreadID, func(ctx context.Context, t *tx, threadID string) error {
		a := &accept{tx: t, in: in, named: named}
		var err error
		out, err = a.run(ctx, threadID)
		return err
	})
	return out, err
}

// onThread runs fn in a transaction on a thread. Where the thread was named as "home" and a reset archived it in
// between, it looks for the new one and tries again.
func (db *DB) onThread(ctx context.Context, op, ownerID, threadID string, fn func(context.Context, *tx, string) error) error {
	for {
		id := threadID
		if threadID == Home {
			var err error
			if id, err = db.homeID(ctx, ownerID); err != nil {
				return wrap(op, err)
			}
		}
		err := db.transact(ctx, op, func(ctx context.Context, t *tx) error { return fn(ctx, t, id) })
		if threadID != Home || !errors.Is(err, thread.ErrArchived) {
			return err
		}
	}
}

type accept struct {
	*tx
	*held
	in Incoming
	b  *pgx.Batch

	named  []string // the attachments as they came, perhaps one twice
	stored []string // those that are stored files of the owner

	urgent      *turnRow // the last waiting turn that an interrupt made
	urgentMsg   *thread.Message
	target      bool // the message that it answers is there
	spending    thread.Spending
	prior       *Accepted
	priorHere   bool // the prior delivery named the same thread
	priorPrint  []byte
	fingerprint []byte
}

func (a *accept) run(ctx context.Context, threadID string) (Accepted, error) {
	a.fingerprint = fingerprint(a.in)
	var err error
	if a.held, err = a.lock(ctx, threadID, func(b *pgx.Batch) { a.queueReads(b, threadID) }); err != nil {
		return Accepted{}, err
	}
	a.point(ctx, PointAccept)
	switch {
	case a.ownerID != a.in.OwnerID:
		return Accepted{}, thread.ErrNotFound
	case a.prior != nil && (!a.priorHere || !slices.Equal(a.priorPrint, a.fingerprint)):
		return Accepted{}, thread.ErrKeyReused
	case a.prior != nil:
		return *a.prior, nil
	case a.archived:
		return Accepted{}, thread.ErrArchived
	case a.spending.Over():
		return Accepted{}, &thread.UsageLimitError{Spending: a.spending}
	case a.in.ReplyTo != "" && !a.target:
		return Accepted{}, thread.ErrReplyTarget
	}
	if err := a.checkStored(); err != nil {
		return Accepted{}, err
	}
	a.b = &pgx.Batch{}
	out, err := a.decide()
	if err != nil {
		return Accepted{}, err
	}
	a.remember(out)
	return out, a.commit(ctx, a.b)
}

// decide is the accept table of docs/state-machine.md, from top to bottom.
func (a *accept) decide() (Accepted, error) {
	interrupt := a.in.Delivery == thread.DeliverInterrupt
	switch {
	case a.in.Delivery == thread.DeliverSteer:
		return a.steerOnly()
	case interrupt && a.runningID != "":
		return a.interrupt()
	case a.runningID == "" && (a.head == nil || interrupt):
		return a.startTurn()
	case a.runningID == "" && a.wakesRetry():
		return a.wakeRetry()
	case a.steers():
		return a.steer()
	case a.joins(a.last, a.lastMsg):
		return a.join(a.last, a.lastMsg)
	}
	return a.wait(a.backRank())
}

func (a *accept) steerOnly() (Accepted, error) {
	switch {
	case a.runningID == "":
		return Accepted{}, thread.ErrNoRunningTurn
	case a.stopping:
		return Accepted{}, thread.ErrStopping
	case !a.steers():
		return Accepted{}, thread.ErrNotSteerable
	}
	return a.steer()
}

func (a *accept) steers() bool {
	return a.runningID != "" && !a.stopping && a.head == nil && a.in.Delivery != thread.DeliverTurn &&
		a.in.Channel == a.running.ReplyChannel && thread.ProfileOf(a.in.Channel).Steering &&
		a.in.ReplyTo == "" && (a.in.Mode == "" || a.in.Mode == thread.Chat)
}

// wakesRetry: a failed turn waits for its retry, and nothing behind it.
func (a *accept) wakesRetry() bool {
	return a.head.failures > 0 && a.head.ID == a.last.ID && a.in.Channel == a.head.ReplyChannel && a.in.plain() &&
		a.in.Mode != thread.DeepResearch && a.in.Delivery != thread.DeliverTurn
}

// joins: plain, same channel, inside the burst window of a waiting user turn that has not started.
func (a *accept) joins(turn *turnRow, m *thread.Message) bool {
	if turn == nil || m == nil || m.TurnID != turn.ID || turn.StartedAt != nil || turn.Source != thread.SourceUser {
		return false
	}
	if !a.in.plain() || m.ReplyTo != "" || a.in.Channel != m.Channel || a.in.Mode != "" && a.in.Mode != turn.Mode {
		return false
	}
	window := thread.ProfileOf(a.in.Channel).BurstWindow
	return window < 0 || a.now.Sub(m.Parts[0].SentAt) <= window
}

func (a *accept) startTurn() (Accepted, error) {
	turn := a.newTurn(a.frontRank(), a.in.Mode)
	m, err := a.newMessage(turn.ID)
	if err != nil {
		return Accepted{}, err
	}
	a.emitMessage(thread.EventMessageCreated, m)
	a.start(turn)
	insertTurn(a.b, turn)
	a.insertMessage(m, a.delivered(m, turn))
	a.name(a.b, a.held, turn)
	a.appendEntries(a.b, turn, entriesOf(m, turn))
	a.nudge(NudgeWork, turn.ID)
	return Accepted{Message: m, Disposition: thread.DisposedTurn, TurnID: turn.ID}, nil
}

func (a *accept) wakeRetry() (Accepted, error) {
	turn := a.head
	a.claim(a.b, a.held, turn, nil)
	m, err := a.newSteering(turn.ID)
	if err != nil {
		return Accepted{}, err
	}
	a.nudge(NudgeWork, turn.ID)
	return Accepted{Message: m, Disposition: thread.DisposedQueued, TurnID: turn.ID}, nil
}

func (a *accept) steer() (Accepted, error) {
	m, err := a.steering, error(nil)
	if m == nil {
		m, err = a.newSteering(a.runningID)
	} else {
		err = a.appendTo(m)
	}
	return Accepted{Message: m, Disposition: thread.DisposedSteering, TurnID: a.runningID, Trace: a.running.Trace}, err
}

func (a *accept) join(turn *turnRow, m *thread.Message) (Accepted, error) {
	err := a.appendTo(m)
	a.nudge(NudgeWork, turn.ID)
	return Accepted{Message: m, Disposition: thread.DisposedQueued, TurnID: turn.ID, Trace: turn.Trace}, err
}

func (a *accept) wait(rank int64) (Accepted, error) {
	turn := a.newTurn(rank, a.in.Mode)
	m, err := a.newMessage(turn.ID)
	if err != nil {
		return Accepted{}, err
	}
	insertTurn(a.b, turn)
	a.insertMessage(m, 0)
	a.emitMessage(thread.EventMessageCreated, m)
	a.emitTurn(thread.EventTurnQueued, &turn.Turn)
	a.nudge(NudgeWork, turn.ID)
	return Accepted{Message: m, Disposition: thread.DisposedQueued, TurnID: turn.ID}, nil
}

// interrupt stops the running turn, makes the steering message a waiting turn, and puts this message into it or right
// behind it, ahead of all others. The turns of earlier interrupts stay ahead of it.
func (a *accept) interrupt() (Accepted, error) {
	if !a.stopping {
		a.setStopping(a.b, a.held)
	}
	before, m := a.urgent, a.urgentMsg
	if a.steering != nil {
		m = a.steering
		before = a.moveSteering(a.b, a.held, a.frontRank(), "")
	}
	switch {
	case a.joins(before, m):
		return a.join(before, m)
	case before != nil:
		return a.wait(before.rank + 1)
	}
	return a.wait(a.frontRank())
}

func (a *accept) newTurn(rank int64, mode thread.Mode) *turnRow {
	turn := &turnRow{rank: rank, Turn: thread.Turn{
		ID: newID("trn"), ThreadID: a.threadID, Source: thread.SourceUser, Kind: thread.Conversation,
		Mode: defaulted(mode, thread.Chat), Status: thread.TurnQueued, ReplyChannel: a.in.Channel, CreatedAt: a.now, Trace: a.trace,
	}}
	turn.urgent = a.in.Delivery == thread.DeliverInterrupt
	return turn
}

// newMessage makes a queued message.
func (a *accept) newMessage(turnID string) (*thread.Message, error) {
	m := &thread.Message{
		ID: newID("msg"), Role: thread.RoleUser, Text: a.in.Text, State: thread.MessageQueued, TurnID: turnID,
		Channel: a.in.Channel, ReplyTo: a.in.ReplyTo, CreatedAt: a.now,
		Attachments: a.in.Attachments, Mentions: a.in.Mentions, Parts: []thread.Part{a.part()},
	}
	if err := a.checkAttachments(m); err != nil {
		return nil, err
	}
	return m, nil
}

// insertMessage writes a message; seq is that of the event that delivered it, 0 where it waits.
func (a *accept) insertMessage(m *thread.Message, seq int64) {
	a.b.Queue(`
		INSERT INTO messages (id, thread_id, turn_id, role, state, channel, text, reply_to, created_at, seq)
		VALUES (@id, @thread, @turn, 'user', @state, @channel, @text, NULLIF(@reply, ''), @now, NULLIF(@seq::bigint, 0))`,
		pgx.NamedArgs{
			"id": m.ID, "thread": a.threadID, "turn": m.TurnID, "state": string(m.State), "channel": m.Channel, "text": m.Text,
			"reply": m.ReplyTo, "now": a.now, "seq": seq,
		})
	a.writePart(m)
}

func (a *accept) newSteering(turnID string) (*thread.Message, error) {
	m, err := a.newMessage(turnID)
	if err != nil {
		return nil, err
	}
	a.insertMessage(m, 0)
	a.b.Queue(`INSERT INTO steering (thread_id, message_id, state) VALUES ($1, $2, 'queued')`, a.threadID, m.ID)
	a.emitMessage(thread.EventMessageCreated, m)
	return m, nil
}

// appendTo adds the message as a further part of m, which still waits.
func (a *accept) appendTo(m *thread.Message) error {
	m.Text, m.Parts = joinTexts(m.Text, a.in.Text), append(m.Parts, a.part())
	m.Attachments = unique(append(m.Attachments, a.in.Attachments...))
	m.Mentions = unique(append(m.Mentions, a.in.Mentions...))
	if n := utf8.RuneCountInString(m.Text); n > a.db.cfg.MaxText {
		return &thread.LimitError{Field: "text", Limit: a.db.cfg.MaxText, Got: n, Unit: "characters in one message"}
	}
	if err := a.checkAttachments(m); err != nil {
		return err
	}
	a.b.Queue(`UPDATE messages SET text = $2 WHERE id = $1 AND state = 'queued'`, m.ID, m.Text)
	a.writePart(m)
	a.emitMessage(thread.EventMessageUpdated, m)
	return nil
}

func (a *accept) part() thread.Part {
	return thread.Part{Text: a.in.Text, SentAt: a.now, ClientID: a.in.Key}
}

// writePart writes the last part of m.
func (a *accept) writePart(m *thread.Message) {
	a.b.Queue(`
		INSERT INTO message_parts (message_id, n, text, client_id, sent_at)
		VALUES (@message, @n, @text, NULLIF(@client, ''), @now)`,
		pgx.NamedArgs{"message": m.ID, "n": len(m.Parts), "text": a.in.Text, "client": a.in.Key, "now": a.now})
	writeSet(a.b, "message_attachments", "file_id", m.ID, m.Attachments)
	writeSet(a.b, "message_mentions", "target", m.ID, m.Mentions)
}

func writeSet(b *pgx.Batch, table, column, messageID string, values []string) {
	if len(values) == 0 {
		return
	}
	b.Queue(fmt.Sprintf(`
		INSERT INTO %s (message_id, %s, n)
		SELECT $1, v, n FROM unnest($2::text[]) WITH ORDINALITY AS v (v, n)
		ON CONFLICT DO NOTHING`, table, column), messageID, values)
}

func (a *accept) checkAttachments(m *thread.Message) error {
	if limit := a.db.cfg.MaxAttachments; len(m.Attachments) > limit {
		return &thread.LimitError{Field: "attachments", Limit: limit, Got: len(m.Attachments), Unit: "files in one message"}
	}
	return nil
}

// checkStored: a file that is being deleted, and another owner's, is none.
func (a *accept) checkStored() error {
	for i, id := range a.named {
		if !slices.Contains(a.stored, id) {
			return &thread.AttachmentError{Index: i}
		}
	}
	return nil
}

func (a *accept) queueReads(b *pgx.Batch, threadID string) {
	if len(a.named) > 0 {
		// The lock keeps a file from being deleted before this message names it.
		b.Queue(`
			SELECT id
			FROM files
			WHERE id = ANY ($1) AND owner_id = $2 AND state = 'stored'
			ORDER BY id
			FOR SHARE`, a.named, a.in.OwnerID).Query(func(rows pgx.Rows) (err error) {
			a.stored, err = pgx.CollectRows(rows, pgx.RowTo[string])
			return err
		})
	}
	if a.in.ReplyTo != "" {
		b.Queue(`SELECT EXISTS (SELECT FROM messages WHERE id = $1 AND thread_id = $2)`, a.in.ReplyTo, threadID).QueryRow(
			func(r pgx.Row) error { return r.Scan(&a.target) })
	}
	if a.in.Delivery == thread.DeliverInterrupt {
		queueWaiting(b, threadID, "t.urgent", "DESC", &a.urgent, &a.urgentMsg)
	}
	if a.in.Key != "" {
		a.queuePrior(b)
	}
	queueSpending(b, a.db.cfg.MonthlyLimit, "$2", a.in.OwnerID, &a.spending)
}

// queuePrior reads what the key was used for. A home thread stands for all that the owner had.
func (a *accept) queuePrior(b *pgx.Batch) {
	b.Queue(`
		SELECT d.fingerprint, d.turn_id, d.disposition, CASE $4 WHEN 'home' THEN t.home ELSE t.id = $4 END,`+messageColumns+`
		FROM deliveries d
		JOIN turns o ON o.id = d.turn_id
		JOIN threads t ON t.id = o.thread_id
		JOIN messages m ON m.id = d.message_id
		WHERE d.owner_id = $1 AND d.channel = $2 AND d.key = $3`, a.in.OwnerID, a.in.Channel, a.in.Key, a.in.ThreadID).Query(func(rows pgx.Rows) (err error) {
		for rows.Next() {
			var m messageRow
			p := Accepted{Repeated: true}
			if err := rows.Scan(append([]any{&a.priorPrint, &p.TurnID, &p.Disposition, &a.priorHere}, m.into()...)...); err != nil {
				return err
			}
			if p.Message, err = m.message(); err != nil {
				return err
			}
			a.prior = &p
		}
		return rows.Err()
	})
}

func (a *accept) remember(out Accepted) {
	if a.in.Key == "" {
		return
	}
	a.b.Queue(`
		INSERT INTO deliveries (owner_id, channel, key, fingerprint, message_id, turn_id, disposition)
		VALUES (@owner, @channel, @key, @print, @message, @turn, @disposition)`,
		pgx.NamedArgs{
			"owner": a.in.OwnerID, "channel": a.in.Channel, "key": a.in.Key, "print": a.fingerprint,
			"message": out.Message.ID, "turn": out.TurnID, "disposition": string(out.Disposition),
		})
}

// fingerprint tells messages under one key apart. How it is to be delivered does not count: a client that lost the
// answer to a steer may repeat it as an ordinary message.
func fingerprint(in Incoming) []byte {
	h := sha256.New()
	for _, s := range [][]string{{in.Text, in.ReplyTo, string(in.Mode)}, in.Attachments, in.Mentions} {
		fmt.Fprintf(h, "%q", s)
	}
	return h.Sum(nil)
}

func joinTexts(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return strings.TrimRight(a, "\n") + "\n\n" + strings.TrimLeft(b, "\n")
}

// clean replaces what no text column takes: NUL, and bytes that are not UTF-8. A person's message, a model's reply and a
// tool's result may hold either, and a statement that fails on them would fail again at every try.
func clean(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\ufffd"), "\x00", "\ufffd")
}

func cleanAll(list []string) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = clean(s)
	}
	return out
}

// unique keeps the first of each value, and never returns nil.
func unique(list []string) []string {
	out := make([]string, 0, len(list))
	for _, v := range list {
		if !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	return out
}

// insertTurn writes a turn, which waits or has been started.
func insertTurn(b *pgx.Batch, t *turnRow) {
	b.Queue(`
		INSERT INTO turns (id, thread_id, source, kind, mode, status, rank, follow_up_of, reply_channel, created_at, driven_at,
			history_end, urgent, trace, attempt, started_at, limit_since)
		VALUES (@id, @thread, @source, @kind, @mode, @status, @rank, NULLIF(@of, ''), @channel, @now, @now, @history, @urgent, @trace,
			@attempt, @started, @started)`,
		pgx.NamedArgs{
			"id": t.ID, "thread": t.ThreadID, "source": string(t.Source), "kind": string(t.Kind), "mode": string(t.Mode),
			"status": string(t.Status), "rank": t.rank, "of": t.FollowUpOf, "channel": t.ReplyChannel, "now": t.CreatedAt,
			"history": t.historyEnd, "urgent": t.urgent, "trace": t.Trace, "attempt": t.Attempt, "started": t.StartedAt,
		})
}
