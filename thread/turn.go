package thread

import (
	"slices"
	"time"
)

// A Turn is one run of the agent: a request comes in, an answer goes out.
type Turn struct {
	ID           string     `json:"id"`
	ThreadID     string     `json:"thread_id"`
	Source       Source     `json:"source"`
	Kind         Kind       `json:"kind"`
	Mode         Mode       `json:"mode"`
	Status       TurnStatus `json:"status"`
	FollowUpOf   string     `json:"follow_up_of,omitempty"` // the turn that ended while this one's message waited
	ReplyChannel string     `json:"reply_channel"`          // where the request came from and the answer goes
	CreatedAt    time.Time  `json:"created_at"`
	StartedAt    *time.Time `json:"started_at,omitempty"`  // first claim
	FinishedAt   *time.Time `json:"finished_at,omitempty"` // when Status became final
	Attempt      int        `json:"attempt"`               // how often it was claimed: 0 while it waits, more than 1 after a retry or replay
	Rounds       int        `json:"rounds"`                // model calls that entered the step log, never reset
	ToolCalls    int        `json:"tool_calls"`            // tool calls asked for, never reset
	Usage        Usage      `json:"usage"`
	Answer       string     `json:"answer,omitempty"` // id of the assistant message
	Error        *TurnError `json:"error,omitempty"`

	Trace string `json:"-"` // W3C traceparent of what made it; empty: nothing was traced
}

// A TurnError says why a turn failed. Code is stable; Detail is for people and holds no message text.
type TurnError struct {
	Code   FailCode `json:"code"`
	Detail string   `json:"detail"`
}

// FailCode names why a turn failed.
type FailCode string

// The codes of TurnError.
const (
	FailModelUnavailable FailCode = "model_unavailable" // temporary errors outlasted the retries
	FailModelInvalid     FailCode = "model_invalid"     // the provider refused the request
	FailModelFiltered    FailCode = "model_filtered"    // the provider's filter refused the content
	FailModelQuota       FailCode = "model_quota"       // the provider account has no credit left
	FailContextTooLong   FailCode = "context_too_long"  // the session does not fit the model
	FailEmptyResponse    FailCode = "empty_response"    // the model answered nothing, twice
	FailMalformedAnswer  FailCode = "malformed_answer"  // the model's answer had no usable form, twice
	FailTimeLimit        FailCode = "time_limit"        // even the wrap-up round ran out of time
	FailUsageLimit       FailCode = "usage_limit"       // the owner's monthly limit leaves no room for a model call
	FailToolUnknown      FailCode = "tool_outcome_unknown"
	FailInternal         FailCode = "internal"
)

// LeavesNothing reports whether what a failed turn had shown of an answer came from a model call that failed, which
// leaves nothing in the session. Else it is kept.
func (c FailCode) LeavesNothing() bool {
	switch c {
	case FailTimeLimit, FailUsageLimit, FailToolUnknown, FailInternal:
		return false
	}
	return true
}

// Source says why a turn exists.
type Source string

// Where turns come from.
const (
	SourceUser     Source = "user"     // a message
	SourceSchedule Source = "schedule" // a schedule fired
	SourceEvent    Source = "event"    // something happened outside
	SourceResume   Source = "resume"   // a person answered a request
)

// Kind says how a turn runs beside others.
type Kind string

// Conversation turns run one at a time in the thread's session; background turns run in parallel, each in its own.
const (
	Conversation Kind = "conversation"
	Background   Kind = "background"
)

// Mode says which agent runs.
type Mode string

// The modes.
const (
	Chat         Mode = "chat"
	DeepResearch Mode = "deep_research"
)

// TurnStatus is where a turn stands.
type TurnStatus string

// A turn moves queued → running → succeeded, waiting, failed or cancelled; see CanBecome.
const (
	TurnQueued    TurnStatus = "queued"
	TurnRunning   TurnStatus = "running"
	TurnWaiting   TurnStatus = "waiting" // ended, and a person must answer before its work goes on
	TurnSucceeded TurnStatus = "succeeded"
	TurnFailed    TurnStatus = "failed"
	TurnCancelled TurnStatus = "cancelled"
)

var moves = map[TurnStatus][]TurnStatus{
	TurnQueued:  {TurnRunning, TurnCancelled},
	TurnRunning: {TurnSucceeded, TurnWaiting, TurnFailed, TurnCancelled, TurnQueued}, // queued: a retry
	TurnWaiting: {TurnCancelled, TurnSucceeded},                                      // succeeded: its request was answered
	TurnFailed:  {TurnQueued},                                                        // a replay
}

// CanBecome reports whether a turn may move from s to next. Nothing else moves.
func (s TurnStatus) CanBecome(next TurnStatus) bool { return slices.Contains(moves[s], next) }

// Ended reports whether a turn with this status runs no more.
func (s TurnStatus) Ended() bool { return s != TurnQueued && s != TurnRunning }
