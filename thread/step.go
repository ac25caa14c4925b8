package thread

import (
	"encoding/json"
	"strconv"
	"time"
)

// A Step is one numbered entry of a turn's Thinking.
type Step struct {
	TurnID     string          `json:"turn_id"`
	N          int             `json:"n"` // from 1, never reused
	Kind       StepKind        `json:"kind"`
	Title      string          `json:"title"`
	Status     StepStatus      `json:"status"`
	StartedAt  time.Time       `json:"started_at"`
	FinishedAt *time.Time      `json:"finished_at,omitempty"`
	MessageID  string          `json:"message_id,omitempty"` // the message that a boundary loaded
	Detail     json.RawMessage `json:"detail"`               // an object; its fields depend on Kind
}

// StepKind says what a step shows.
type StepKind string

// The kinds of step.
const (
	StepReasoning StepKind = "reasoning"
	StepTool      StepKind = "tool"
	StepBoundary  StepKind = "boundary" // a message was loaded here
	StepPlan      StepKind = "plan"
	StepNote      StepKind = "note"
)

// StepStatus says how far a step has come.
type StepStatus string

// The states of a step.
const (
	StepRunning     StepStatus = "running"
	StepDone        StepStatus = "done"
	StepFailed      StepStatus = "failed"
	StepInterrupted StepStatus = "interrupted"
)

func callKey(turn string, round, index int) string {
	return turn + "/" + strconv.Itoa(round) + "/" + strconv.Itoa(index)
}
