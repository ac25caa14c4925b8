package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"bobbin/thread"
)

// Claimed says which turns of a thread are to be driven.
type Claimed struct {
	OwnerID      string
	Conversation *thread.Turn  // the turn that the run row names; nil: none runs
	Background   []thread.Turn // background turns that run, those claimed now among them
	Waiting      int           // conversation turns that wait, and the message on the steering row
	RetryAt      *time.Time    // when the next waiting turn may start, where that is what holds it back
	Now          time.Time     // of the database
	Archived     bool
}

// Claim starts the next conversation turn of a thread, if none runs and one is due, and all its queued background
// turns. A repeated claim returns the turn that the run row already names.
func (db *DB) Claim(ctx context.Context, threadID string) (Claimed, error) {
	var out Claimed
	err := db.transact(ctx, "claim", func(ctx context.Context, t *tx) error {
		var background []*turnRow
		var count int
		h, err := t.lock(ctx, threadID, func(b *pgx.Batch) {
			b.Queue(`SELECT`+turnColumns+`
				FROM turns t
				WHERE t.thread_id = $1 AND t.kind = 'background' AND t.status IN ('queued', 'running')
				ORDER BY t.created_at
				FOR NO KEY UPDATE`, threadID).Query(collect(&background, scanTurn))
			b.Queue(countWaiting, threadID).QueryRow(func(r pgx.Row) error { return r.Scan(&count) })
		})
		if err != nil {
			return err
		}
		t.point(ctx, PointClaim)
		b := &pgx.Batch{}
		out = Claimed{OwnerID: h.ownerID, Waiting: count, Now: t.now, Archived: h.archived}
		ran := h.runningID != ""
		switch out.Conversation = t.claimNext(b, h); {
		case out.Conversation != nil && !ran:
			out.Waiting-- // the one that was claimed
		case out.Conversation == nil && h.head != nil:
			out.RetryAt = h.head.retryAt
		}
		for _, turn := range background {
			if turn.Status == thread.TurnQueued && !h.archived {
				t.setRunning(b, turn)
			}
			if turn.Status == thread.TurnRunning {
				out.Background = append(out.Background, turn.Turn)
			}
		}
		if b.Len() == 0 {
			return nil
		}
		return t.commit(ctx, b)
	})
	return out, err
}

// claimNext returns the turn that the run row names, after claiming the next due one if it names none.
func (t *tx) claimNext(b *pgx.Batch, h *held) *thread.Turn {
	if h.runningID != "" {
		return &h.running.Turn
	}
	turn := h.due(t.now)
	if turn == nil || h.archived {
		return nil
	}
	t.claim(b, h, turn, h.headMsg)
	return &turn.Turn
}

// claim makes the run row name turn, and delivers m, the request it waited with (nil: a retry, which has its request).
func (t *tx) claim(b *pgx.Batch, h *held, turn *turnRow, m *thread.Message) {
	t.setRunning(b, turn)
	t.name(b, h, turn)
	if m != nil {
		t.deliver(b, m, turn)
	} else {
		t.takeUpAgain(b, turn)
	}
	if turn.limit.WrapUpWarned {
		t.appendEntries(b, turn, []thread.Entry{{Kind: thread.EntryNote, TurnID: turn.ID, Text: unwarn}})
	}
}

// name makes the run row name turn.
func (t *tx) name(b *pgx.Batch, h *held, turn *turnRow) {
	b.Queue(`UPDATE runs SET turn_id = $2, stopping = false WHERE thread_id = $1`, h.threadID, turn.ID)
	h.runningID, h.stopping, h.running = turn.ID, false, turn
}

// takeUpAgain says which request is answered where others were answered since.
func (t *tx) takeUpAgain(b *pgx.Batch, turn *turnRow) {
	b.Queue(`
		INSERT INTO entries (session_id, pos, kind, turn_id, text)
		SELECT last.session_id, last.pos + 1, 'note', @turn,
			'An earlier request was not finished. Take it up again now and answer it: ' || chr(10) || request.text
		FROM (SELECT * FROM entries WHERE session_id = @session ORDER BY pos DESC LIMIT 1) last,
			(SELECT string_agg(text, chr(10) || chr(10) ORDER BY seq) AS text FROM messages WHERE turn_id = @turn AND role = 'user') request
		WHERE last.turn_id <> @turn AND request.text IS NOT NULL`,
		pgx.NamedArgs{"session": sessionID(&turn.Turn), "turn": turn.ID})
}

// setRunning moves a queued turn to running. Its limits count from now, and so do the tries of the round under way; model
// attempts go on counting, so that no delta of an earlier claim passes for one of this.
func (t *tx) setRunning(b *pgx.Batch, turn *turnRow) {
	t.start(turn)
	b.Queue(`
		UPDATE turns
		SET status = 'running', attempt = attempt + 1, started_at = COALESCE(started_at, @now), driven_at = @now, retry_at = NULL, urgent = false, stopping = false,
			limit_since = @now, limit_rounds = 0, limit_tool_calls = 0, empty_retries = 0, malformed_retries = 0,
			tool_failures = '{}', wrap_up_warned = false, refused_tokens = 0, summary_failed = false, barren = 0, model_failures = 0, error_code = NULL, error_detail = NULL
		WHERE id = @turn AND status = 'queued'`, pgx.NamedArgs{"turn": turn.ID, "now": t.now})
}

// start makes a queued turn a running one, and tells. The caller writes it.
func (t *tx) start(turn *turnRow) {
	turn.Status, turn.retryAt, turn.urgent = thread.TurnRunning, nil, false
	turn.Attempt++
	if turn.StartedAt == nil {
		turn.StartedAt = &t.now
	}
	t.emitTurn(thread.EventTurnStarted, &turn.Turn)
}

// deliver marks a waiting message as loaded by turn, moves its time to now, and appends it to the turn's session. It
// returns the entries that it appended, without positions.
func (t *tx) deliver(b *pgx.Batch, m *thread.Message, turn *turnRow) []thread.Entry {
	seq := t.delivered(m, turn)
	b.Queue(`
		UPDATE messages
		SET state = 'delivered', turn_id = @turn, created_at = @now, seq = @seq
		WHERE id = @id AND state = 'queued'`, pgx.NamedArgs{"id": m.ID, "turn": turn.ID, "now": t.now, "seq": seq})
	entries := entriesOf(m, turn)
	t.appendEntries(b, turn, entries)
	return entries
}

// delivered makes a waiting message one that turn has loaded, and tells. It returns the number of the event, which is the
// message's place. The caller writes it.
func (t *tx) delivered(m *thread.Message, turn *turnRow) int64 {
	m.State, m.TurnID, m.CreatedAt = thread.MessageDelivered, turn.ID, t.now
	return t.emitMessage(thread.EventMessageDelivered, m)
}

// entriesOf is what a message is in the session of the turn that loads it.
func entriesOf(m *thread.Message, turn *turnRow) []thread.Entry {
	entries := []thread.Entry{{Kind: thread.EntryUser, TurnID: turn.ID, MessageID: m.ID, Text: m.Text}}
	for _, note := range messageNotes(m) {
		entries = append(entries, thread.Entry{Kind: thread.EntryNote, TurnID: turn.ID, Text: note})
	}
	return entries
}

// messageNotes is what the model is told about a message beside its text.
func messageNotes(m *thread.Message) []string {
	var notes []string
	if len(m.Parts) > 1 {
		note := fmt.Sprintf("The message above came as %d messages in a row, at", len(m.Parts))
		for i, p := range m.Parts {
			if i > 0 {
				note += ","
			}
			note += " " + p.SentAt.UTC().Format("15:04:05")
		}
		notes = append(notes, note+" UTC. A later one may correct, narrow or add to an earlier one.")
	}
	if len(m.Mentions) > 0 {
		notes = append(notes, fmt.Sprintf("Mentioned in the message above: %q.", m.Mentions))
	}
	return notes
}

// appendEntries queues entries at the end of the turn's session. The caller holds the run row (a background turn: its
// own row) exclusively.
func (t *tx) appendEntries(b *pgx.Batch, turn *turnRow, entries []thread.Entry) {
	for _, e := range entries {
		b.Queue(`
			INSERT INTO entries (session_id, pos, kind, turn_id, round, message_id, text, reasoning)
			SELECT @session, COALESCE(max(pos), -1) + 1, @kind, @turn, @round, NULLIF(@message, ''), @text, @reasoning
			FROM entries
			WHERE session_id = @session`,
			pgx.NamedArgs{
				"session": sessionID(&turn.Turn), "kind": string(e.Kind), "turn": turn.ID, "round": e.Round, "message": e.MessageID,
				"text": e.Text, "reasoning": e.Reasoning,
			})
	}
}

// sessionID names the session that a turn writes: the thread's, or a background turn's own.
func sessionID(t *thread.Turn) string {
	if t.Kind == thread.Background {
		return t.ID
	}
	return t.ThreadID
}

// AddBackground queues a background turn. It is shown the conversation turns that have finished by now, and request,
// which is not part of the conversation.
func (db *DB) AddBackground(ctx context.Context, threadID string, source thread.Source, request string) (*thread.Turn, error) {
	var out *thread.Turn
	err := db.transact(ctx, "add background turn", func(ctx context.Context, t *tx) error {
		end := int64(-1)
		h, err := t.lock(ctx, threadID, func(b *pgx.Batch) {
			b.Queue(`
				SELECT COALESCE(max(e.pos), -1)
				FROM entries e
				WHERE e.session_id = $1 AND e.pos < COALESCE((
					SELECT min(o.pos)
					FROM turns t
					JOIN entries o ON o.turn_id = t.id AND o.round = 0 AND o.kind IN ('user', 'note') -- a turn begins with what it was asked
					WHERE t.thread_id = $1 AND t.kind = 'conversation' AND t.status IN ('queued', 'running')), 9223372036854775807)`, threadID).QueryRow(func(r pgx.Row) error {
				return r.Scan(&end)
			})
		})
		if err != nil {
			return err
		}
		if h.archived {
			return thread.ErrArchived
		}
		turn := &turnRow{historyEnd: end, Turn: thread.Turn{
			ID: newID("trn"), ThreadID: threadID, Source: source, Kind: thread.Background, Mode: thread.Chat,
			Status: thread.TurnQueued, ReplyChannel: thread.ChannelWeb, CreatedAt: t.now, Trace: t.trace,
		}}
		b := &pgx.Batch{}
		insertTurn(b, turn)
		t.appendEntries(b, turn, []thread.Entry{{Kind: thread.EntryUser, TurnID: turn.ID, Text: clean(request)}})
		t.emitTurn(thread.EventTurnQueued, &turn.Turn)
		t.nudge(NudgeBackground, turn.ID)
		out = &turn.Turn
		return t.commit(ctx, b)
	})
	return out, err
}
