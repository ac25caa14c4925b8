package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"bobbin/thread"
)

// Outcome is how a turn's worker saw it end. A turn that was told to stop ends cancelled, whatever its worker saw.
type Outcome struct {
	Error *thread.TurnError // nil: the turn's last round holds the answer
}

// Ended is how a turn ended, and what starts next.
type Ended struct {
	Status thread.TurnStatus // queued: it will be retried
	Turn   *thread.Turn      // as it ended
	Next   *thread.Turn      // the conversation turn claimed in the same transaction; nil: none is due
}

// The waits before a failed turn is tried again, on channels whose failure policy is retry. After the last it stays
// failed.
var retryDelays = []time.Duration{30 * time.Second, 2 * time.Minute, 10 * time.Minute, 30 * time.Minute}

// End settles a running turn, turns a message that could not be loaded into a follow-up turn, and claims the next turn,
// in one transaction. attempt is the turn's Attempt as it was claimed: a repeated End, or one of an earlier attempt,
// changes nothing and returns what the first decided.
func (db *DB) End(ctx context.Context, turnID string, attempt int, o Outcome) (Ended, error) {
	var out Ended
	var threadID string
	err := db.pool.QueryRow(ctx, `SELECT thread_id FROM turns WHERE id = $1`, turnID).Scan(&threadID)
	if err != nil {
		return out, wrap("end", err)
	}
	err = db.transact(ctx, "end", func(ctx context.Context, t *tx) error {
		e := &end{tx: t, b: &pgx.Batch{}}
		h, err := t.lock(ctx, threadID, func(b *pgx.Batch) {
			e.queueReads(b, turnID)
			queueSpending(b, db.cfg.MonthlyLimit, `(SELECT owner_id FROM threads WHERE id = $2)`, threadID, &e.limit)
		})
		if err != nil {
			return err
		}
		e.held = h
		t.point(ctx, PointEnd)
		if e.turn.Status != thread.TurnRunning || e.turn.Attempt != attempt {
			out = e.recorded(attempt)
			return nil
		}
		out = e.decide(o)
		return t.commit(ctx, e.b)
	})
	return out, err
}

type end struct {
	*tx
	*held
	b *pgx.Batch

	turn    *turnRow
	answer  *string // the text of the round that answers
	partial string  // what had been written of an answer
	lost    leftover
	limit   thread.Spending // of the owner
}

func (e *end) queueReads(b *pgx.Batch, turnID string) {
	b.Queue(`SELECT`+turnColumns+`FROM turns t WHERE t.id = $1 FOR NO KEY UPDATE`, turnID).Query(first(&e.turn, scanTurn))
	b.Queue(`
		SELECT e.text
		FROM rounds r
		JOIN turns t ON t.id = r.turn_id
		JOIN entries e ON e.session_id = CASE t.kind WHEN 'background' THEN t.id ELSE t.thread_id END AND e.pos = r.entry_pos
		WHERE r.turn_id = $1 AND r.n = t.rounds AND r.outcome = 'answer'`, turnID).Query(first(&e.answer, scanText))
	queueOpen(b, turnID, &e.lost)
	b.Queue(`
		SELECT COALESCE(string_agg(e.data ->> 'text', '' ORDER BY e.seq), '')
		FROM events e
		WHERE e.turn_id = $1 AND e.name = 'answer.delta' AND e.seq > COALESCE((
			SELECT max(r.seq) FROM events r WHERE r.turn_id = $1 AND r.name IN ('answer.restarted', 'turn.started')), 0)`,
		turnID).QueryRow(func(r pgx.Row) error { return r.Scan(&e.partial) })
}

func scanText(r pgx.Row) (*string, error) {
	var s string
	return &s, r.Scan(&s)
}

// recorded returns what the first End of an attempt decided. One that was claimed again since was put back in the line.
func (e *end) recorded(attempt int) Ended {
	turn := e.turn.Turn
	if turn.Attempt > attempt {
		turn.Status = thread.TurnQueued
	}
	out := Ended{Status: turn.Status, Turn: &turn}
	if e.turn.nextTurnID == "" || e.turn.nextTurnID != e.runningID {
		return out // nothing followed, or what followed has ended too
	}
	out.Next = &e.running.Turn
	return out
}

func (e *end) decide(o Outcome) Ended {
	stopping := e.stopping && e.turn.ID == e.runningID || e.turn.stopping
	switch {
	case stopping:
		e.settle(thread.TurnCancelled, nil)
	case e.answer != nil: // it is written, and nothing that failed since can take it back
		e.settle(thread.TurnSucceeded, nil)
	case o.Error == nil:
		e.fail(&thread.TurnError{Code: thread.FailInternal, Detail: "The turn ended without an answer."})
	case o.Error.Code == thread.FailUsageLimit:
		detail := e.limit.String()
		e.fail(&thread.TurnError{Code: o.Error.Code, Detail: o.Error.Detail + " To be exact: " + detail + "."})
	default:
		e.fail(o.Error)
	}
	return e.next()
}

// fail follows the channel's failure policy. A tool whose outcome is unknown always asks the person; a limit is not reached
// less in half an hour.
func (e *end) fail(why *thread.TurnError) {
	retry := thread.ProfileOf(e.turn.ReplyChannel).Failure == thread.FailureRetry && e.turn.Kind == thread.Conversation
	if !retry || why.Code == thread.FailToolUnknown || why.Code == thread.FailUsageLimit || e.turn.failures >= len(retryDelays) {
		e.settle(thread.TurnFailed, why)
		return
	}
	e.retry(why)
}

// retry puts the turn back at the head of the line. A message that waits to be loaded makes it go on at once; one that
// cannot be loaded becomes the turn behind it.
func (e *end) retry(why *thread.TurnError) {
	at := e.now.Add(retryDelays[e.turn.failures])
	loadable := e.steering != nil && len(e.steering.Attachments) == 0 && len(e.steering.Mentions) == 0
	switch {
	case loadable:
		at = e.now
	case e.steering != nil:
		e.moveSteering(e.b, e.held, e.frontRank(), e.turn.ID)
	}
	e.turn.rank = e.frontRank()
	e.turn.Status, e.turn.Error, e.turn.retryAt = thread.TurnQueued, why, &at
	e.turn.failures++
	e.writeLost()
	e.void(TurnRef{ID: e.turn.ID}, e.partial != "", "failed")
	e.b.Queue(`
		UPDATE turns
		SET status = 'queued', rank = @rank, failures = failures + 1, retry_at = @at, driven_at = @now, error_code = @code,
			error_detail = @detail, next_turn_id = NULL
		WHERE id = @turn AND status = 'running'`, pgx.NamedArgs{
		"turn": e.turn.ID, "rank": e.turn.rank, "at": at, "now": e.now, "code": string(why.Code), "detail": why.Detail,
	})
	e.emitTurn(thread.EventTurnQueued, &e.turn.Turn)
	e.head, e.headMsg = e.turn, nil
}

// settle ends the turn for good: interrupted calls get their results, what was written of an answer is kept, and the
// answer or the fixed notice is posted.
func (e *end) settle(status thread.TurnStatus, why *thread.TurnError) {
	e.turn.Status, e.turn.FinishedAt, e.turn.Error = status, &e.now, why
	e.interrupt(e.b, e.turn.ID)
	e.writeLost()
	switch {
	case e.answer != nil:
		e.turn.Answer = e.say(thread.RoleAssistant, *e.answer, status != thread.TurnSucceeded)
	case e.partial != "" && why != nil && why.Code.LeavesNothing():
		e.void(TurnRef{ID: e.turn.ID}, true, "failed")
	case e.partial != "":
		e.turn.Answer = e.keepPartial(status)
	}
	if status == thread.TurnFailed {
		e.say(thread.RoleNotice, noticeOf(why.Code), false)
	}
	args := pgx.NamedArgs{"turn": e.turn.ID, "status": string(status), "now": e.now, "answer": e.turn.Answer, "code": "", "detail": ""}
	if why != nil {
		args["code"], args["detail"] = string(why.Code), why.Detail
	}
	e.b.Queue(`
		UPDATE turns
		SET status = @status, finished_at = @now, driven_at = @now, stopping = false, retry_at = NULL,
			answer_id = NULLIF(@answer, ''), error_code = NULLIF(@code, ''),
			error_detail = CASE WHEN @code = '' THEN NULL ELSE @detail END
		WHERE id = @turn AND status = 'running'`, args)
	e.emitTurn(map[thread.TurnStatus]thread.EventName{
		thread.TurnSucceeded: thread.EventTurnSucceeded, thread.TurnFailed: thread.EventTurnFailed, thread.TurnCancelled: thread.EventTurnCancelled,
	}[status], &e.turn.Turn)
}

// failedNotice is the one fixed message of a failed turn.
const failedNotice = "Something went wrong and this could not be finished. If it was doing something outside this " +
	"conversation, please check whether that happened. Say *continue* to go on from here."

// limitNotice is that of a turn that the spending limit ended.
const limitNotice = "This month's spending limit is reached, so this could not be finished. What was done so far is kept; say " +
	"*continue* once there is room again."

func noticeOf(code thread.FailCode) string {
	if code == thread.FailUsageLimit {
		return limitNotice
	}
	return failedNotice
}

// writeLost settles the model calls that the turn's workers left.
func (e *end) writeLost() {
	if e.lost.calls > 0 {
		e.turn.Usage, e.lost = e.turn.Usage.Add(e.lost.Usage), leftover{}
		queueLost(e.b, e.turn.ID)
	}
}

// The results that a call gets when its turn ends first.
const (
	neverRan   = "This call was not run: the turn ended first."
	mayHaveRun = "The turn ended while this call was running. It may have taken effect; check before doing it again."
)

// interrupt gives every open call of a turn its result, and ends the steps that still run. The outcome of a call may have
// come after the stop and stands in its row alone.
func (t *tx) interrupt(b *pgx.Batch, turnID string) {
	b.Queue(`
		UPDATE calls
		SET state = 'interrupted', finished_at = @now, result = CASE state WHEN 'started' THEN @ran ELSE @never END
		WHERE turn_id = @turn AND state IN ('pending', 'started')`,
		pgx.NamedArgs{"turn": turnID, "now": t.now, "ran": mayHaveRun, "never": neverRan})
	b.Queue(`
		UPDATE steps s
		SET finished_at = $2, status = COALESCE((
			SELECT CASE c.state WHEN 'succeeded' THEN 'done' WHEN 'failed' THEN 'failed' END
			FROM calls c
			WHERE c.turn_id = s.turn_id AND c.step = s.n), 'interrupted')
		WHERE s.turn_id = $1 AND s.status = 'running'`, turnID, t.now)
}

// keepPartial keeps what was written of an answer, in the conversation and in the session.
func (e *end) keepPartial(status thread.TurnStatus) string {
	note := "The person stopped this turn here; the answer above is not finished."
	if status == thread.TurnFailed {
		note = "This turn failed here; the answer above is not finished."
	}
	e.appendEntries(e.b, e.turn, []thread.Entry{
		{Kind: thread.EntryAssistant, TurnID: e.turn.ID, Text: e.partial},
		{Kind: thread.EntryNote, TurnID: e.turn.ID, Text: note},
	})
	return e.say(thread.RoleAssistant, e.partial, true)
}

// say posts a message of the agent or the server, and returns its id. Background turns do not speak by answering.
func (e *end) say(role thread.Role, text string, stopped bool) string {
	if e.turn.Kind == thread.Background {
		return ""
	}
	m := &thread.Message{
		ID: newID("msg"), Role: role, Text: text, State: thread.MessageDelivered, TurnID: e.turn.ID, Channel: e.turn.ReplyChannel,
		Stopped: stopped, CreatedAt: e.now, Attachments: []string{}, Mentions: []string{},
		Parts: []thread.Part{{Text: text, SentAt: e.now}},
	}
	name := thread.EventAnswerCompleted
	if role == thread.RoleNotice {
		name = thread.EventMessageCreated
	}
	seq := e.emitMessage(name, m)
	e.b.Queue(`
		INSERT INTO messages (id, thread_id, turn_id, role, state, channel, text, stopped, seq, created_at)
		VALUES (@id, @thread, @turn, @role, 'delivered', @channel, @text, @stopped, @seq, @now)`, pgx.NamedArgs{
		"id": m.ID, "thread": e.threadID, "turn": m.TurnID, "role": string(role), "channel": m.Channel, "text": text,
		"stopped": stopped, "seq": seq, "now": e.now,
	})
	e.b.Queue(`INSERT INTO message_parts (message_id, n, text, sent_at) VALUES ($1, 1, $2, $3)`, m.ID, text, e.now)
	return m.ID
}

// next makes the follow-up turn and claims what is due.
func (e *end) next() Ended {
	turn := e.turn.Turn // the claim below may start this very turn again
	out := Ended{Status: turn.Status, Turn: &turn}
	if e.turn.Kind == thread.Background {
		e.nudge(NudgeBackground, e.turn.ID)
		return out
	}
	e.b.Queue(`UPDATE runs SET turn_id = NULL, stopping = false WHERE thread_id = $1`, e.threadID)
	e.runningID, e.stopping, e.running = "", false, nil
	if e.steering != nil && e.turn.Status != thread.TurnQueued {
		e.moveSteering(e.b, e.held, e.frontRank(), e.turn.ID)
	}
	if out.Next = e.claimNext(e.b, e.held); out.Next != nil {
		e.b.Queue(`UPDATE turns SET next_turn_id = $2 WHERE id = $1`, e.turn.ID, out.Next.ID)
		e.nudge(NudgeWork, out.Next.ID)
	}
	return out
}

// moveSteering makes the message on the steering row the request of a turn of its own, an ordinary chat turn.
func (t *tx) moveSteering(b *pgx.Batch, h *held, rank int64, followUpOf string) *turnRow {
	m := h.steering
	turn := &turnRow{rank: rank, Turn: thread.Turn{
		ID: newID("trn"), ThreadID: h.threadID, Source: thread.SourceUser, Kind: thread.Conversation, Mode: thread.Chat,
		Status: thread.TurnQueued, FollowUpOf: followUpOf, ReplyChannel: m.Channel, CreatedAt: t.now, Trace: t.trace,
	}}
	turn.urgent = followUpOf == "" // an interrupt moves it
	insertTurn(b, turn)
	b.Queue(`UPDATE steering SET state = 'moved', settled_at = $2 WHERE id = $1`, h.steeringID, t.now)
	b.Queue(`UPDATE messages SET turn_id = $2 WHERE id = $1 AND state = 'queued'`, m.ID, turn.ID)
	m.TurnID = turn.ID
	t.emitMessage(thread.EventMessageUpdated, m)
	t.emitTurn(thread.EventTurnQueued, &turn.Turn)
	h.steering, h.steeringID = nil, 0
	h.head, h.headMsg = turn, m
	if h.last == nil {
		h.last, h.lastMsg = turn, m
	}
	return turn
}
