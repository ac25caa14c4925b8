package api

import (
	"time"

	"github.com/gin-gonic/gin"

	"bobbin/thread"
	"bobbin/tracing"
)

// Accepted is the answer to a message. A repeated delivery has the original's ids and their present state, and the header
// Idempotency-Replayed.
type Accepted struct {
	Message     AcceptedMessage    `json:"message"`
	Disposition thread.Disposition `json:"disposition"`
	TurnID      string             `json:"turn_id"` // the turn it started, steers or waits as
}

// AcceptedMessage is the message that what was sent became, or became a part of.
type AcceptedMessage struct {
	ID          string              `json:"id"`
	Text        string              `json:"text"`
	State       thread.MessageState `json:"state"`
	Parts       int                 `json:"parts"` // how many; the list of messages has them
	CreatedAt   time.Time           `json:"created_at"`
	Attachments []string            `json:"attachments"`
	Mentions    []string            `json:"mentions"`
}

func (a *api) accept(c *gin.Context) (any, error) {
	defer a.metrics.timer("accept")()
	id, err := param(c, "thread")
	if err != nil {
		return nil, err
	}
	data, err := a.readBody(c, false)
	if err != nil {
		return nil, err
	}
	in, err := decodeMessage(a.cfg.Limits, data, c.GetHeader("Idempotency-Key"))
	if err != nil {
		return nil, err
	}
	in.OwnerID, in.ThreadID = owner(c), id
	ctx, span := tracing.Start(c.Request.Context(), "accept")
	out, err := a.store.Accept(ctx, in)
	if err != nil {
		span.End("refused")
		return nil, err
	}
	span.Set(tracing.MessageID.String(out.Message.ID), tracing.TurnID.String(out.TurnID), tracing.Outcome.String(string(out.Disposition)))
	span.Link(out.Trace)
	span.End("")
	if out.Repeated {
		c.Header("Idempotency-Replayed", "true")
	}
	m := out.Message
	return Accepted{
		Message: AcceptedMessage{
			ID: m.ID, Text: m.Text, State: m.State, Parts: len(m.Parts), CreatedAt: m.CreatedAt,
			Attachments: append([]string{}, m.Attachments...), Mentions: append([]string{}, m.Mentions...),
		},
		Disposition: out.Disposition, TurnID: out.TurnID,
	}, nil
}

func (a *api) listMessages(c *gin.Context) (any, error) {
	id, err := param(c, "thread")
	if err != nil {
		return nil, err
	}
	p, err := page(c)
	if err != nil {
		return nil, err
	}
	list, err := a.store.Messages(c.Request.Context(), owner(c), id, p)
	return oldestFirst(list, p), err
}

func (a *api) withdrawSteering(c *gin.Context) (any, error) {
	id, r, err := a.bare(c, "thread")
	if err != nil {
		return nil, err
	}
	out, err := a.store.WithdrawSteering(c.Request.Context(), owner(c), id, r)
	return replayed(c, r, out), err
}

func (a *api) withdrawMessage(c *gin.Context) (any, error) {
	id, r, err := a.bare(c, "message")
	if err != nil {
		return nil, err
	}
	out, err := a.store.WithdrawMessage(c.Request.Context(), owner(c), id, r)
	return replayed(c, r, out), err
}
