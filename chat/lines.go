package chat

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"bobbin/thread"
)

// lines is the chat without a terminal: each line that comes in is a message, and what comes out is the answers to them.
type lines struct {
	client   *Client
	threadID string
	in       io.Reader
	out      io.Writer

	keys    []string            // of messages that were sent and not yet seen
	mine    map[string]*message // by id
	printed string              // of the answer under way
	broken  bool                // the last line of the output has no end
	failure error
}

// message is one that was sent.
type message struct {
	turnID string
	read   bool
	done   bool
}

type lineSent struct {
	key string
	eof bool
	err error
}

func (l *lines) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	th, err := l.client.Thread(ctx, l.threadID)
	if err != nil {
		return err
	}
	l.threadID, l.mine = th.ID, map[string]*message{}
	events := make(chan eventsMsg)
	go l.follow(ctx, th.LastEvent, events)
	sent := make(chan lineSent)
	go l.send(ctx, sent)
	for sending := true; sending || !l.finished(); {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case s := <-sent:
			if s.err != nil {
				return s.err
			}
			if sending = !s.eof; s.key != "" {
				l.keys = append(l.keys, s.key)
			}
		case m := <-events:
			if m.err != nil {
				return m.err
			}
			if err := l.event(m.list[0]); err != nil {
				return err
			}
		}
	}
	return l.failure
}

func (l *lines) follow(ctx context.Context, after int64, events chan<- eventsMsg) {
	stream := l.client.Stream(ctx, l.threadID, after)
	defer stream.Close()
	for {
		e, err := stream.Next()
		select {
		case events <- eventsMsg{list: []thread.Event{e}, err: err}:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// send sends each line. It names the key before it sends, so that no event comes before its key is known.
func (l *lines) send(ctx context.Context, sent chan<- lineSent) {
	tell := func(s lineSent) bool {
		select {
		case sent <- s:
			return true
		case <-ctx.Done():
			return false
		}
	}
	r := bufio.NewReader(l.in)
	for {
		line, err := r.ReadString('\n')
		if line = strings.TrimRight(line, "\r\n"); strings.TrimSpace(line) != "" {
			key := rand.Text()
			if !tell(lineSent{key: key}) {
				return
			}
			if _, err := l.client.Send(ctx, l.threadID, Draft{Text: line}, key); err != nil {
				tell(lineSent{err: fmt.Errorf("not sent: %w", err)})
				return
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			tell(lineSent{eof: true})
			return
		case err != nil:
			tell(lineSent{err: fmt.Errorf("read a line: %w", err)})
			return
		}
	}
}

// finished reports whether all that was sent has been seen, and its turns have ended.
func (l *lines) finished() bool {
	for _, m := range l.mine {
		if !m.done {
			return false
		}
	}
	return len(l.keys) == 0
}

func (l *lines) event(e thread.Event) error {
	var d struct {
		Message *thread.Message `json:"message"`
		Turn    *thread.Turn    `json:"turn"`
		thread.Delta
	}
	if err := json.Unmarshal(e.Data, &d); err != nil {
		return fmt.Errorf("event %s: %w", e.Name, err)
	}
	switch {
	case e.Name == thread.EventGap:
		return errors.New("events were lost; the thread goes on without being shown")
	case e.Name == thread.EventThreadReset:
		return errors.New("the thread was reset")
	case d.Message != nil && d.Message.Role == thread.RoleUser:
		l.heard(d.Message)
	case d.Message != nil && l.answers(d.Message.TurnID):
		l.say(d.Message)
	case d.Turn != nil && d.Turn.Status.Ended():
		l.endTurn(d.Turn)
	case e.Name == thread.EventAnswerDelta && l.answers(e.TurnID):
		l.print(clean(d.Text))
		l.printed += clean(d.Text)
	case e.Name == thread.EventAnswerRestarted && l.answers(e.TurnID):
		l.endLine()
		l.printed = ""
	}
	return nil
}

// heard notes where one of the sent messages is.
func (l *lines) heard(m *thread.Message) {
	for _, p := range m.Parts {
		if i := slices.Index(l.keys, p.ClientID); i >= 0 {
			l.keys = slices.Delete(l.keys, i, i+1)
			l.mine[m.ID] = &message{}
		}
	}
	if own := l.mine[m.ID]; own != nil {
		own.turnID, own.read = m.TurnID, m.State == thread.MessageDelivered
		own.done = own.done || m.State == thread.MessageWithdrawn
	}
}

// answers reports whether a turn has one of the sent messages.
func (l *lines) answers(turnID string) bool {
	for _, m := range l.mine {
		if m.turnID == turnID && m.read {
			return true
		}
	}
	return false
}

func (l *lines) say(m *thread.Message) {
	text := clean(m.Text)
	rest, ok := strings.CutPrefix(text, l.printed)
	if !ok || m.Role == thread.RoleNotice {
		l.endLine()
		rest = text
	}
	l.print(rest)
	l.endLine()
	l.printed = ""
}

func (l *lines) endTurn(turn *thread.Turn) {
	for _, m := range l.mine {
		if m.turnID != turn.ID || m.done || !m.read && turn.Status != thread.TurnCancelled {
			continue
		}
		m.done = true
		switch {
		case turn.Status == thread.TurnFailed && turn.Error != nil:
			l.failure = fmt.Errorf("the turn failed: %s", turn.Error.Detail)
		case turn.Status == thread.TurnCancelled:
			l.failure = errors.New("the turn was stopped")
		}
	}
}

func (l *lines) print(s string) {
	if s == "" {
		return
	}
	_, _ = io.WriteString(l.out, s) // a reader that went away is no reason to leave the turn alone
	l.broken = !strings.HasSuffix(s, "\n")
}

func (l *lines) endLine() {
	if l.broken {
		l.print("\n")
	}
}
