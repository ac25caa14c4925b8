package thread

import (
	"encoding/json"
	"time"
)

// An Event is one entry of a thread's event stream. Seq grows by one from event to event of a thread, without a gap.
type Event struct {
	ThreadID  string
	Seq       int64
	Name      EventName
	TurnID    string // empty where the event belongs to no turn
	Data      json.RawMessage
	CreatedAt time.Time
}

// EventName names an event.
type EventName string

// The events.
const (
	MessageCreated     EventName = "message.created"
	MessageUpdated     EventName = "message.updated"
	MessageWithdrawnEv EventName = "message.withdrawn"
	MessageDeliveredEv EventName = "message.delivered"
	TurnQueuedEv       EventName = "turn.queued"
	TurnStartedEv      EventName = "turn.started"
	TurnPhase          EventName = "turn.phase"
	TurnBoundary       EventName = "turn.boundary"
	StepCreated        EventName = "step.created"
	StepUpdated        EventName = "step.updated"
	AnswerDelta        EventName = "answer.delta"
	AnswerRestarted    EventName = "answer.restarted"
	AnswerCompleted    EventName = "answer.completed"
	PlanProposed       EventName = "plan.proposed"
	RequestCreated     EventName = "request.created"
	RequestResolved    EventName = "request.resolved"
	TurnWaitingEv      EventName = "turn.waiting"
	TurnSucceededEv    EventName = "turn.succeeded"
	TurnFailedEv       EventName = "turn.failed"
	TurnCancelledEv    EventName = "turn.cancelled"
	ThreadReset        EventName = "thread.reset"
	Gap                EventName = "gap" // events before this one can no longer be served
)

// Phase is what a running turn does, as the composer's hint needs it.
type Phase string

// The phases.
const (
	PhaseTools       Phase = "tools"
	PhaseAnswering   Phase = "answering"
	PhasePlanReview  Phase = "plan_review"
	PhaseResearching Phase = "researching"
	PhaseStopping    Phase = "stopping" // told to stop, not yet ended
)

// A Delta is a piece of an answer while it is written. Offset counts bytes of the answer's text before Text. The
// pieces of one attempt of one round follow each other without a gap.
type Delta struct {
	TurnID  string `json:"turn_id"`
	Round   int    `json:"round"`
	Attempt int    `json:"attempt"`
	Offset  int    `json:"offset"`
	Text    string `json:"text"`
}
