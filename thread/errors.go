package thread

import (
	"errors"
	"fmt"
)

// The errors that callers match with errors.Is. Each adapter turns its own codes into these in one place.
var (
	ErrNotFound         = errors.New("not found")
	ErrArchived         = errors.New("thread is archived")
	ErrNoRunningTurn    = errors.New("no turn is running")
	ErrStopping         = errors.New("the running turn is stopping")
	ErrNotSteerable     = errors.New("the message cannot be loaded into the running turn")
	ErrAlreadyDelivered = errors.New("the message was already loaded")
	ErrAlreadyWithdrawn = errors.New("the message was already withdrawn")
	ErrReplyTarget      = errors.New("the message that is answered is not in this thread")
	ErrKeyReused        = errors.New("the idempotency key was used for something else")
	ErrConflict         = errors.New("the present state does not allow this")
	ErrUnauthorized     = errors.New("no valid key")
	ErrUnavailable      = errors.New("temporarily unavailable")
	ErrNoEntry          = errors.New("the list has no such entry")
	ErrReserved         = errors.New("what is left of the spending limit is reserved by other calls")

	// ErrFenced means that the turn no longer runs, is stopping, or its thread is archived: nothing was written.
	ErrFenced = errors.New("the turn may not write any more")
	// ErrMoved means that the session grew since the round was built: the round was thrown away.
	ErrMoved = errors.New("the session has moved on")
)

// An AttachmentError says which attachment of a message is no stored file of its owner. errors.As finds it.
type AttachmentError struct {
	Index int // in the message as it came, from 0
}

func (e *AttachmentError) Error() string {
	return fmt.Sprintf("attachments[%d] is no file of this owner", e.Index)
}

// A LimitError says which limit an input broke. errors.As finds it.
type LimitError struct {
	Field string // as the API names it
	Limit int
	Got   int
	Unit  string // "characters", "files" …
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("%s: at most %d %s, got %d", e.Field, e.Limit, e.Unit, e.Got)
}
