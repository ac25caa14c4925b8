package store

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"bobbin/thread"
)

// Scope says what a stop reaches.
type Scope string

// The scopes. ScopeConversation is the default.
const (
	ScopeConversation Scope = "conversation" // the conversation turn, and the message on the steering row
	ScopeAll          Scope = "all"          // background turns too, and everything that waits
)

// Stopped is what a stop did.
type Stopped struct {
	Turns     []string          // turns told to stop, and waiting ones cancelled
	Withdrawn *thread.Withdrawn // what is given back, joined in the order it would have been loaded; nil: nothing
}

// Stop tells a thread's turns to stop, and withdraws what waits, in one transaction. Where nothing runs it stops nothing
// and returns no error. The turns end when their workers let go; nothing they write is accepted any more. ErrKeyReused is
// the repeat's.
func (db *DB) Stop(ctx context.Context, ownerID, threadID string, scope Scope, repeat ...*Repeat) (Stopped, error) {
	var out Stopped
	r := repeatOf(repeat, ownerID, "stop", threadID, string(defaulted(scope, ScopeConversation)))
	err := db.onThread(ctx, "stop", ownerID, threadID, func(ctx context.Context, t *tx, threadID string) error {
		out = Stopped{}
		s := &stop{tx: t, repeat: r, out: &out}
		return s.run(ctx, ownerID, threadID, scope)
	})
	return out, err
}

type stop struct {
	*tx
	*held
	repeat *Repeat
	out    *Stopped
	b      *pgx.Batch
}

func (s *stop) run(ctx context.Context, ownerID, threadID string, scope Scope) error {
	var turns []*turnRow
	var messages []*thread.Message
	var err error
	s.held, err = s.lock(ctx, threadID, func(b *pgx.Batch) {
		if scope == ScopeAll {
			queueLive(b, threadID, &turns, &messages)
		}
		s.repeat.queueRead(b)
	})
	if err != nil {
		return err
	}
	s.point(ctx, PointStop)
	if s.ownerID != ownerID {
		return thread.ErrNotFound
	}
	if known, err := s.repeat.answered(s.out); known || err != nil {
		return err
	}
	s.b = &pgx.Batch{}
	s.conversation()
	s.others(turns, messages)
	if err := s.repeat.remember(s.b, s.out); err != nil {
		return err
	}
	if s.b.Len() == 0 {
		return nil
	}
	return s.commit(ctx, s.b)
}

func (s *stop) conversation() {
	switch {
	case s.runningID != "":
		if !s.stopping {
			s.setStopping(s.b, s.held)
		}
		s.out.Turns = append(s.out.Turns, s.runningID)
	case s.head != nil && s.head.failures > 0: // it failed, and would go on by itself
		s.cancel(s.b, s.held, s.head)
		s.out.Turns = append(s.out.Turns, s.head.ID)
	}
	if s.steering != nil {
		s.out.give(s.withdrawSteering(s.b, s.held))
	}
}

func (s *stop) others(turns []*turnRow, messages []*thread.Message) {
	for _, turn := range turns {
		switch {
		case turn.ID == s.runningID, s.head != nil && turn.ID == s.head.ID && s.head.Status == thread.TurnCancelled:
		case turn.Status == thread.TurnRunning:
			s.stopBackground(s.b, turn)
			s.out.Turns = append(s.out.Turns, turn.ID)
		default:
			s.cancel(s.b, s.held, turn)
			s.out.Turns = append(s.out.Turns, turn.ID)
		}
	}
	for _, m := range messages {
		s.out.give(s.withdraw(s.b, m))
	}
}

// queueLive reads all turns that run or wait, and the messages that wait as turns, in their order: what runs has left the
// line, and its rank may be that of one that waits.
func queueLive(b *pgx.Batch, threadID string, turns *[]*turnRow, messages *[]*thread.Message) {
	b.Queue(`SELECT`+turnColumns+`
		FROM turns t
		WHERE t.thread_id = $1 AND t.status IN ('queued', 'running', 'waiting')
		ORDER BY t.kind DESC, t.status <> 'running', t.rank, t.id
		FOR NO KEY UPDATE`, threadID).Query(collect(turns, scanTurn))
	b.Queue(`SELECT`+messageColumns+`
		FROM messages m
		JOIN turns t ON t.id = m.turn_id
		WHERE m.thread_id = $1 AND m.state = 'queued' AND t.status = 'queued' AND NOT EXISTS (
			SELECT FROM steering s WHERE s.message_id = m.id AND s.state = 'queued')
		ORDER BY t.rank`, threadID).Query(collect(messages, scanMessage))
}

func (t *tx) setStopping(b *pgx.Batch, h *held) {
	h.stopping = true
	b.Queue(`UPDATE runs SET stopping = true WHERE thread_id = $1`, h.threadID)
	t.phase(h.runningID, thread.PhaseStopping)
	t.nudge(NudgeStop, h.runningID)
	t.stops = append(t.stops, h.runningID)
}

func (t *tx) stopBackground(b *pgx.Batch, turn *turnRow) {
	b.Queue(`UPDATE turns SET stopping = true WHERE id = $1 AND status = 'running'`, turn.ID)
	t.nudge(NudgeStop, turn.ID)
	t.stops = append(t.stops, turn.ID)
}

// give adds a withdrawn message to what the person gets back.
func (s *Stopped) give(w thread.Withdrawn) {
	if s.Withdrawn == nil {
		s.Withdrawn = &w
		return
	}
	s.Withdrawn.Text = joinTexts(s.Withdrawn.Text, w.Text)
	s.Withdrawn.Attachments = unique(append(s.Withdrawn.Attachments, w.Attachments...))
	s.Withdrawn.Mentions = unique(append(s.Withdrawn.Mentions, w.Mentions...))
}

// Cancel stops one turn: a waiting one is cancelled and its message withdrawn, a running one is told to stop.
// ErrConflict: it has ended. ErrKeyReused is the repeat's.
func (db *DB) Cancel(ctx context.Context, ownerID, turnID string, repeat ...*Repeat) (Stopped, error) {
	var out Stopped
	r := repeatOf(repeat, ownerID, "cancel", turnID)
	threadID, err := db.threadOf(ctx, "turns", ownerID, turnID)
	if err != nil {
		return out, wrap("cancel", err)
	}
	err = db.transact(ctx, "cancel", func(ctx context.Context, t *tx) error {
		out = Stopped{}
		var turns []*turnRow
		var messages []*thread.Message
		h, err := t.lock(ctx, threadID, func(b *pgx.Batch) {
			queueLive(b, threadID, &turns, &messages)
			r.queueRead(b)
		})
		if err != nil {
			return err
		}
		t.point(ctx, PointStop)
		if known, err := r.answered(&out); known || err != nil {
			return err
		}
		s := &stop{tx: t, held: h, out: &out, b: &pgx.Batch{}}
		turns = slices.DeleteFunc(turns, func(o *turnRow) bool { return o.ID != turnID })
		messages = slices.DeleteFunc(messages, func(m *thread.Message) bool { return m.TurnID != turnID })
		switch {
		case len(turns) == 0:
			return thread.ErrConflict
		case turnID == h.runningID:
			s.conversation()
		default:
			s.others(turns, messages)
		}
		if err := r.remember(s.b, out); err != nil {
			return err
		}
		return t.commit(ctx, s.b)
	})
	return out, err
}
