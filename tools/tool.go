// Package tools holds what the agent may do: the Tool, the Registry that checks and runs calls, the tools that an
// operator lists in a YAML file, and the tools that come with Bobbin.
//
// Whatever goes wrong in a call is a result that the model reads: an unknown tool, arguments that do not fit, an
// error, a time-out, a panic. Only a stopped turn is an error of Registry.Run.
package tools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
)

const (
	// DefaultTimeout is the time limit of a tool that names none.
	DefaultTimeout = 2 * time.Minute
	// DefaultResultLimit is the result limit, in bytes, of a tool that names none: some 16,000 tokens of English.
	DefaultResultLimit = 64 << 10
	// MaxTimeout is the longest time limit that a tool may name: a turn has 40 minutes, a deep research turn 60.
	MaxTimeout = time.Hour
	// MaxResultLimit is the largest result limit, in bytes, that a tool may name: more fits no model's context.
	MaxResultLimit = 1 << 20
)

// A Tool is something that the agent may do. The zero value of each limit means its default. A Tool is not changed
// once it is in a Registry.
type Tool struct {
	Name        string // 1 to 64 of a-z A-Z 0-9 _ -
	Description string // what the model is told; never empty
	// Parameters is a JSON Schema (2020-12 if it names no other) of type object. References that leave the schema are
	// refused. Empty: the tool takes no arguments.
	Parameters json.RawMessage
	ReadOnly   bool          // it changes nothing outside
	Idempotent bool          // twice with the same Call.Key is as good as once
	Approval   Approval      // whether a person must agree first; the caller of Run asks
	Timeout    time.Duration // 0: DefaultTimeout; at most MaxTimeout
	// ResultLimit is the size of the result, in bytes, from which it is cut and a note added. 0: DefaultResultLimit; at
	// most MaxResultLimit.
	ResultLimit int
	// Run does the work. It runs concurrently with other calls and must end soon after its context does: what still
	// runs a moment later is left behind. Its error text is read by the model, so it says what to do and holds no
	// secret.
	Run func(context.Context, Call) (string, error)
}

// SideEffects reports whether a second run of the same call could do harm, so that a call has one attempt.
func (t Tool) SideEffects() bool { return !t.ReadOnly && !t.Idempotent }

// A Call is one call of a tool.
type Call struct {
	Key      string // the same on every attempt of the call, and unique: thread.Call.Key
	ThreadID string
	TurnID   string
	// Arguments is what the model wrote; empty means {}. Tool.Run receives it checked against the schema and written
	// anew, so that what was checked is what is read.
	Arguments json.RawMessage
}

// Approval says whether a person must agree before a tool runs. The zero value means ApprovalNever.
type Approval string

// The approvals.
const (
	ApprovalNever Approval = "never"
	ApprovalAsk   Approval = "ask"
)

var namePattern = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

// noArguments is the schema of a tool without parameters.
var noArguments = json.RawMessage(`{"type":"object","properties":{},"additionalProperties":false}`)

func (t Tool) withDefaults() Tool {
	if len(t.Parameters) == 0 {
		t.Parameters = noArguments
	}
	if t.Approval == "" {
		t.Approval = ApprovalNever
	}
	if t.Timeout == 0 {
		t.Timeout = DefaultTimeout
	}
	if t.ResultLimit == 0 {
		t.ResultLimit = DefaultResultLimit
	}
	return t
}

// check returns the compiled schema of a tool with its defaults, and everything that is wrong with the tool, by field.
func (t Tool) check() (*schema, []error) {
	var wrong []error
	rule := func(ok bool, format string, args ...any) {
		if !ok {
			wrong = append(wrong, fmt.Errorf(format, args...))
		}
	}
	rule(namePattern.MatchString(t.Name), "name: want 1 to 64 of a-z A-Z 0-9 _ -, got %.80q", t.Name)
	rule(strings.TrimSpace(t.Description) != "", "description: want some text that tells the model what the tool does")
	rule(t.Approval == ApprovalNever || t.Approval == ApprovalAsk, "approval: want never or ask, got %.80q", t.Approval)
	rule(t.Timeout > 0 && t.Timeout <= MaxTimeout, "timeout: want more than 0s and at most %v, got %v", MaxTimeout, t.Timeout)
	rule(t.ResultLimit > 0 && t.ResultLimit <= MaxResultLimit, "result_limit: want 1 to %d bytes, got %d", MaxResultLimit, t.ResultLimit)
	rule(t.Run != nil, "run: want a function")
	s, err := compile(t.Parameters)
	if err != nil {
		wrong = append(wrong, fmt.Errorf("parameters: %w", err))
	}
	return s, wrong
}

// label names a tool in a list of mistakes; i counts from 0.
func label(i int, name string) string {
	if name == "" {
		return fmt.Sprintf("tool %d", i+1)
	}
	return fmt.Sprintf("tool %d (%.80q)", i+1, name)
}

// labelled puts the tool's label before each of its mistakes.
func labelled(label string, wrong []error) error {
	for i, err := range wrong {
		wrong[i] = fmt.Errorf("%s: %w", label, err)
	}
	return errors.Join(wrong...)
}
