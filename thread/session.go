package thread

import "time"

// A Session is the ordered transcript that the model is shown. A tool call lives inside the entry that asked for it,
// together with its result, so no order of entries can part the two.
type Session struct {
	Summary Summary // stands before Entries
	// Pinned is how many of the first Entries Summary stands for as well: what was asked in the turn that runs is shown word
	// for word.
	Pinned  int
	Entries []Entry
	// End is the position of the last entry, -1 for an empty session. A round is written only if End is still the
	// session's end.
	End int64
}

// A Summary is what the model is shown in place of the older part of a session. The record itself stays.
type Summary struct {
	N    int    // of the session, from 1; 0: none, or a background turn's from the conversation
	Text string // empty: nothing was summarised
}

// An Entry is one item of a session.
type Entry struct {
	Pos       int64
	Kind      EntryKind
	TurnID    string
	Round     int    // of the turn, from 1; 0 for what no round made, such as the notes on a message
	MessageID string // the message that a user entry shows
	Text      string
	Reasoning string     // what an assistant entry thought, where the provider shows it
	Calls     []Call     // what an assistant entry asked for, in order
	Files     []Attached // what a user entry's message brought, in order
	Input     int64      // tokens of the prompt that an assistant entry answers, as the provider counted; 0: not known, or no longer so
}

// EntryKind says who an entry speaks for.
type EntryKind string

// The kinds of entry. A note is Bobbin speaking to the model.
const (
	EntryUser      EntryKind = "user"
	EntryAssistant EntryKind = "assistant"
	EntryNote      EntryKind = "note"
)

// A Call is one tool call of a round, and what came of it.
type Call struct {
	TurnID    string
	Round     int
	Index     int    // place in the round, from 0
	ID        string // the provider's id of the call
	Name      string
	Arguments string // JSON as the model wrote it, perhaps not valid
	State     CallState
	Result    string // what the model reads; empty until the call has one
	// RunningFor is how long a started call has been running on a worker that lives, so that its result may still come. 0: it
	// does not run.
	RunningFor time.Duration
}

// Key is the same for every attempt of a call, and unique.
func (c Call) Key() string { return callKey(c.TurnID, c.Round, c.Index) }

// CallState says how far a tool call has come.
type CallState string

// A call with side effects is pending → started → succeeded or failed; others skip started. A call whose turn ended first is interrupted.
const (
	CallPending     CallState = "pending"
	CallStarted     CallState = "started" // its side effects may have happened
	CallSucceeded   CallState = "succeeded"
	CallFailed      CallState = "failed"
	CallInterrupted CallState = "interrupted"
)

// Open reports whether the call still has no result.
func (s CallState) Open() bool { return s == CallPending || s == CallStarted }
