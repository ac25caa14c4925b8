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
	EventMessageCreated   EventName = "message.created"
	EventMessageUpdated   EventName = "message.updated"
	EventMessageWithdrawn EventName = "message.withdrawn"
	EventMessageDelivered EventName = "message.delivered"
	EventTurnQueued       EventName = "turn.queued"
	EventTurnStarted      EventName = "turn.started"
	EventTurnPhase        EventName = "turn.phase"
	EventTurnBoundary     EventName = "turn.boundary"
	EventStepCreated      EventName = "step.created"
	EventStepUpdated      EventName = "step.updated"
	EventAnswerDelta      EventName = "answer.delta"
	EventAnswerRestarted  EventName = "answer.restarted"
	EventAnswerCompleted  EventName = "answer.completed"
	EventPlanProposed     EventName = "plan.proposed"
	EventRequestCreated   EventName = "request.created"
	EventRequestResolved  EventName = "request.resolved"
	EventTurnWaiting      EventName = "turn.waiting"
	EventTurnSucceeded    EventName = "turn.succeeded"
	EventTurnFailed       EventName = "turn.failed"
	EventTurnCancelled    EventName = "turn.cancelled"
	EventThreadReset      EventName = "thread.reset"
	EventGap              EventName = "gap" // events before this one can no longer be served
)

// Phase is what a running turn does, as the composer's hint needs it.
type Phase string

// The phases.
const (
	PhaseTools       Phase = "tools"
	PhaseAnswering   Phase = "answering"
	PhasePlanReview  Phase = "plan_review"
	PhaseResearching Phase = "researching"
	PhaseSummarising Phase = "summarising" // the older part of the conversation, before the next model call
	PhaseStopping    Phase = "stopping"    // told to stop, not yet ended
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
