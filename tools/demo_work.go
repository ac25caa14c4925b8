package tools

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"time"
)

//go:embed demo_work.md
var demoWorkDescription string

// DemoWork returns the tool demo_work, which does nothing but take the time it is told. The scripted model of
// `bobbin dev` calls it, so that a newcomer sees a turn at work without a model of their own.
func DemoWork() Tool {
	return Tool{
		Name:        "demo_work",
		Description: demoWorkDescription,
		Parameters: json.RawMessage(`{
			"type": "object",
			"properties": {
				"task": {"type": "string", "description": "What to work on, in a few words.", "minLength": 1},
				"seconds": {"type": "number", "description": "How long it takes, in seconds.", "minimum": 0, "maximum": 120}
			},
			"required": ["task", "seconds"],
			"additionalProperties": false
		}`),
		ReadOnly: true,
		Timeout:  3 * time.Minute, // the longest work takes DefaultTimeout, to the second
		Run:      demoWork,
	}
}

func demoWork(ctx context.Context, c Call) (string, error) {
	var in struct {
		Task    string  `json:"task"`
		Seconds float64 `json:"seconds"`
	}
	if err := json.Unmarshal(c.Arguments, &in); err != nil {
		return "", err
	}
	done := time.NewTimer(time.Duration(in.Seconds * float64(time.Second)))
	defer done.Stop()
	select {
	case <-done.C:
		return fmt.Sprintf("Done after %g s: %s. Nothing unusual was found.", in.Seconds, in.Task), nil
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}
