package thread

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// A Prompt is what one model call is shown.
type Prompt struct {
	System  string
	Entries []Entry
	Tools   []ToolSpec // empty: the model can only write
	// MaxOutput bounds what the model may write in tokens, thinking included, where the client's own bound is not lower. 0: no
	// bound of this call.
	MaxOutput int
}

// A ToolSpec is a tool as the model is told of it.
type ToolSpec struct {
	Name        string
	Description string
	Parameters  json.RawMessage // a JSON Schema of type object
}

// A Reply is what one model call came back with. Beside an error it holds Model, Usage and Estimated alone.
type Reply struct {
	Text      string
	Reasoning string // what the model thought, where the provider shows it
	Calls     []Asked
	Finish    Finish
	Model     string // as the provider names it
	Usage     Usage
	Estimated bool // Usage is a guess from what was sent and received: the provider did not come to count it
}

// Counted is how many tokens the provider counted in the prompt; 0: it did not.
func (r Reply) Counted() int64 {
	if r.Estimated {
		return 0
	}
	return r.Usage.InputTokens
}

// Asked is one tool call in a Reply, as the model wrote it.
type Asked struct {
	ID        string
	Name      string
	Arguments string // perhaps not valid JSON
}

// Finish says why the model stopped writing.
type Finish string

// The finish reasons, as OpenAI names them: https://platform.openai.com/docs/api-reference/chat/object
const (
	FinishStop     Finish = "stop"
	FinishLength   Finish = "length"
	FinishCalls    Finish = "tool_calls"
	FinishFiltered Finish = "content_filter"
)

// A ModelError says why a model call failed. It holds nothing that was said.
type ModelError struct {
	Kind       ModelErrorKind
	Status     int           // HTTP status; 0 if there was no answer
	Code       string        // the provider's own code; may be empty
	RetryAfter time.Duration // what the provider asks to wait; 0 if it does not say
	Err        error         // the cause on our side (time-out, broken stream); may be nil
}

// ModelErrorKind sorts model errors by what can be done about them.
type ModelErrorKind string

// The kinds of model error.
const (
	ModelTemporary ModelErrorKind = "temporary"        // 429, 5xx, time-out, broken stream: try again
	ModelTooLong   ModelErrorKind = "context_too_long" // shorten the session
	ModelInvalid   ModelErrorKind = "invalid"          // the request is wrong and stays wrong
	ModelFiltered  ModelErrorKind = "filtered"         // the provider's filter refused
	ModelQuota     ModelErrorKind = "quota"            // the account has no credit
)

func (e *ModelError) Error() string {
	s := fmt.Sprintf("model call: %s", e.Kind)
	if e.Status != 0 {
		s += fmt.Sprintf(" (HTTP %d)", e.Status)
	}
	if e.Code != "" {
		s += " " + e.Code
	}
	return s
}

func (e *ModelError) Unwrap() error { return e.Err }

// AsModelError returns the ModelError in err's tree, or nil.
func AsModelError(err error) *ModelError {
	var e *ModelError
	if errors.As(err, &e) {
		return e
	}
	return nil
}
