// Package contract is the wire between the API, the workflows and the activities: every name and every payload that
// crosses Temporal. Payloads hold ids, counters and enums, never what was said, tool arguments or secrets; histories keep
// them for as long as the namespace says. A change here is a question of replay: running workflows were started with, and
// will be replayed with, what stood here before.
package contract

import (
	"crypto/sha256"
	"encoding/hex"
	"time"

	"bobbin/thread"
)

// Task queues. Each worker polls both, with slots of its own for each.
const (
	TaskQueue = "bobbin"       // workflows and stints
	ToolQueue = "bobbin-tools" // tools with side effects, so that slow ones hold up no stint, and the reverse
)

// Priority keys of Temporal, where 1 comes first and 3 is the default. Workflows are started with them; their activities
// inherit them. What a person waits for goes before what nobody watches.
const (
	ConversationPriority = 2
	BackgroundPriority   = 4
)

// maxFairnessKey is the length at which the server refuses a key, and the workflow with it.
const maxFairnessKey = 64

// FairnessKey is what a server that dispatches fairly takes an owner's tasks together by: each owner in turn gets a slot.
// It is the owner's id, or its hash where that is too long.
func FairnessKey(ownerID string) string {
	if len(ownerID) <= maxFairnessKey {
		return ownerID
	}
	sum := sha256.Sum256([]byte(ownerID))
	return hex.EncodeToString(sum[:])
}

// Workflow types, and the ids of their executions.
const (
	ThreadWorkflow     = "thread"
	BackgroundWorkflow = "background"
)

// ThreadWorkflowID is the id of a thread's workflow.
func ThreadWorkflowID(threadID string) string { return "thread/" + threadID }

// TurnWorkflowID is the id of a background turn's workflow.
func TurnWorkflowID(turnID string) string { return "turn/" + turnID }

// Signals of the thread workflow.
const (
	NudgeSignal    = "nudge"
	ProgressSignal = "progress"
)

// Activities. A tool with side effects is an activity under the tool's own name.
const (
	ClaimActivity = "claim" // local
	EndActivity   = "end"   // local
	StintActivity = "stint"
)

// Search attributes, all keywords. Those of a thread's turn say what was last worth a write: a turn that takes longer than
// two seconds, or one that did not succeed.
const (
	ThreadAttribute = "BobbinThread"
	OwnerAttribute  = "BobbinOwner"
	TurnAttribute   = "BobbinTurn"
	SourceAttribute = "BobbinSource" // of that turn
	StatusAttribute = "BobbinStatus" // of that turn: a thread.TurnStatus
)

// SearchAttributes are the names to register, all of type keyword.
var SearchAttributes = []string{ThreadAttribute, OwnerAttribute, TurnAttribute, SourceAttribute, StatusAttribute}

// Types of activities' errors. All but NotFound are retried.
const (
	WorkerGone  = "WorkerGone" // another worker failed the attempt of a dead one
	NotFound    = "NotFound"
	Unavailable = "Unavailable" // Postgres is away
	Internal    = "Internal"
)

// A Nudge says that there is something to look at. What there is stands in Postgres.
type Nudge struct {
	Kind   NudgeKind `json:"kind"`
	TurnID string    `json:"turn_id,omitempty"`
}

// NudgeKind says what a nudge is about.
type NudgeKind string

// The kinds of nudge.
const (
	NudgeWork       NudgeKind = "work"       // a conversation turn waits, or the sweep found a thread that stands still
	NudgeBackground NudgeKind = "background" // a background turn waits, or has ended
	NudgeStop       NudgeKind = "stop"       // TurnID has been told to stop
)

// ThreadInput starts a thread's workflow, or goes on with it after a roll-over.
type ThreadInput struct {
	ThreadID string            `json:"thread_id"`
	Children []string          `json:"children,omitempty"` // background turns whose workflows were started
	Lines    []TurnLine        `json:"lines,omitempty"`    // what the UI shows of the last turns
	Status   thread.TurnStatus `json:"status,omitempty"`   // as the search attributes have it
}

// TurnLine is what the UI shows of a turn that ended.
type TurnLine struct {
	TurnID   string            `json:"turn_id"`
	Source   thread.Source     `json:"source"`
	Status   thread.TurnStatus `json:"status"`
	Rounds   int               `json:"rounds"`
	Tokens   int64             `json:"tokens"`
	CostUSD  float64           `json:"cost_usd"`
	Duration time.Duration     `json:"duration"`
}

// TurnRef names a turn that is to be driven.
type TurnRef struct {
	ID       string        `json:"id"`
	ThreadID string        `json:"thread_id"`
	Kind     thread.Kind   `json:"kind"`
	Source   thread.Source `json:"source"`
	Mode     thread.Mode   `json:"mode"`
	Attempt  int           `json:"attempt"`
	Trace    string        `json:"trace,omitempty"` // W3C traceparent: two random ids and a flag
}

// Claimed is the result of the claim activity.
type Claimed struct {
	OwnerID      string        `json:"owner_id"`
	Conversation *TurnRef      `json:"conversation,omitempty"`
	Background   []TurnRef     `json:"background,omitempty"`
	Waiting      int           `json:"waiting"`
	RetryIn      time.Duration `json:"retry_in,omitempty"` // until the next waiting turn may start; 0: nothing holds one back
	Archived     bool          `json:"archived,omitempty"`
	Settings     Settings      `json:"settings"`
}

// Settings are what workflow code needs of the configuration. They come with a claim, so that a replay sees the same.
type Settings struct {
	Idle      time.Duration `json:"idle"`      // a thread with nothing to do for so long ends its workflow
	RollOver  int           `json:"roll_over"` // history events after which a workflow continues as new
	Heartbeat time.Duration `json:"heartbeat"` // heartbeat time-out of stints and tools
}

// BackgroundInput starts a background turn's workflow.
type BackgroundInput struct {
	Turn     TurnRef  `json:"turn"`
	Settings Settings `json:"settings"`
}

// StintInput starts a stint.
type StintInput struct {
	Turn TurnRef `json:"turn"`
}

// StintResult says why a stint came back and what it did.
type StintResult struct {
	Outcome StintOutcome    `json:"outcome"`
	Fail    thread.FailCode `json:"fail,omitempty"`  // with StintFailed
	Tools   []ToolRef       `json:"tools,omitempty"` // with StintTools
	Wait    time.Duration   `json:"wait,omitempty"`  // with StintWait
	Rounds  []RoundLine     `json:"rounds,omitempty"`
	Waiting int             `json:"waiting"` // messages and turns that waited as the stint came back
}

// StintOutcome says why a stint came back.
type StintOutcome string

// The outcomes.
const (
	StintAnswered StintOutcome = "answered" // the last round answers
	StintFailed   StintOutcome = "failed"
	StintFenced   StintOutcome = "fenced" // told to stop, or the turn ended otherwise
	StintTools    StintOutcome = "tools"  // tools with side effects are to be run
	StintWait     StintOutcome = "wait"   // the model's provider asks to wait
	StintBudget   StintOutcome = "budget" // its rounds or its time are used up, or its worker drains
)

// GoesOn reports whether the turn has more to do after such a stint.
func (o StintOutcome) GoesOn() bool {
	return o == StintTools || o == StintWait || o == StintBudget
}

// RoundLine is what a stint did in one round.
type RoundLine struct {
	Round        int           `json:"round"`
	Tools        []string      `json:"tools,omitempty"` // names
	Loaded       bool          `json:"loaded,omitempty"`
	Duration     time.Duration `json:"duration"`
	InputTokens  int64         `json:"input_tokens"`
	OutputTokens int64         `json:"output_tokens"`
}

// ToolRef names a tool call.
type ToolRef struct {
	Turn  TurnRef       `json:"turn"`
	Round int           `json:"round"`
	Index int           `json:"index"`
	Name  string        `json:"name"`
	Limit time.Duration `json:"limit"` // the tool's time limit
}

// EndInput ends a turn.
type EndInput struct {
	Turn TurnRef         `json:"turn"`
	Fail thread.FailCode `json:"fail,omitempty"`
}

// Ended is the result of the end activity.
type Ended struct {
	Status  thread.TurnStatus `json:"status"`
	Next    *TurnRef          `json:"next,omitempty"`
	Rounds  int               `json:"rounds"` // of the turn, all attempts together
	Tokens  int64             `json:"tokens"`
	CostUSD float64           `json:"cost_usd"`
}

// Progress says what a stint does now, where that takes long.
type Progress struct {
	TurnID  string   `json:"turn_id"`
	Round   int      `json:"round"`
	Tools   []string `json:"tools,omitempty"` // running; none: the model writes
	Waiting int      `json:"waiting"`
}
