package thread

import "time"

// A Thread is one conversation of one owner.
type Thread struct {
	ID         string       `json:"id"`
	OwnerID    string       `json:"-"`
	Title      string       `json:"title"` // may be empty
	Home       bool         `json:"home"`  // each owner has exactly one active home thread
	Status     ThreadStatus `json:"status"`
	CreatedAt  time.Time    `json:"created_at"`
	ArchivedAt *time.Time   `json:"archived_at,omitempty"`

	RunningTurn string   `json:"running_turn,omitempty"` // the conversation turn that the run row names
	Stopping    bool     `json:"stopping,omitempty"`     // that turn has been told to stop
	Steering    *Message `json:"steering,omitempty"`     // the message that waits to be loaded into it
	LastEvent   int64    `json:"last_event"`             // sequence number to resume the event stream from
}

// ThreadStatus says whether a thread still takes messages.
type ThreadStatus string

// A thread is active until a reset archives it; an archived one takes and writes nothing more.
const (
	ThreadActive   ThreadStatus = "active"
	ThreadArchived ThreadStatus = "archived"
)
