package agent

import (
	_ "embed"
	"errors"
	"strings"
	"time"

	"bobbin/thread"
)

// Spec is what makes one agent differ from another.
type Spec struct {
	System string
	Tools  []thread.ToolSpec
	Limits Limits
	Window Window
	// Check says what is wrong with the form of a final answer; nil: nothing.
	Check func(thread.Reply) error
}

// Limits bound a turn. They count from its claim, or from the last message that was loaded into it; Tokens and Cost count all that
// the turn ever used.
type Limits struct {
	Rounds       int           // then a wrap-up round without tools
	Duration     time.Duration // likewise
	ToolCalls    int           // likewise
	Tokens       int64         // likewise, read and written; 0: no limit
	Cost         thread.USD    // likewise; 0: no limit
	WrapUp       time.Duration // how long the wrap-up round may take
	ToolFailures int           // consecutive failures after which a tool is taken away
	ModelRetries int           // of one round's model call after temporary errors
	LongWait     time.Duration // a wait before a retry that is longer is left to the workflow, which holds no worker's slot
}

// DefaultLimits are those of a chat turn.
var DefaultLimits = Limits{
	Rounds: 40, Duration: 40 * time.Minute, ToolCalls: 400, WrapUp: 2 * time.Minute, ToolFailures: 5, ModelRetries: 3,
	LongWait: time.Second,
}

// spent reports whether a turn has used what it may.
func (l Limits) spent(u thread.Usage) bool {
	return l.Tokens > 0 && u.Tokens() >= l.Tokens || l.Cost > 0 && u.Cost >= l.Cost
}

//go:embed prompts/chat.md
var chatPrompt string

//go:embed prompts/background.md
var backgroundPrompt string

// Chat is the agent of conversation turns.
func Chat(tools []thread.ToolSpec, limits Limits) Spec {
	return Spec{System: strings.TrimSpace(chatPrompt), Tools: tools, Limits: limits, Window: DefaultWindow, Check: CheckAnswer}
}

// Background is the agent of turns that nobody watches.
func Background(tools []thread.ToolSpec, limits Limits) Spec {
	return Spec{System: strings.TrimSpace(backgroundPrompt), Tools: tools, Limits: limits, Window: DefaultWindow, Check: CheckAnswer}
}

// CheckAnswer refuses an answer that is a tool call written out as text, which some models do when their template and the
// provider disagree.
func CheckAnswer(r thread.Reply) error {
	text := strings.TrimSpace(r.Text)
	for _, mark := range []string{"<tool_call>", "<function=", "<|tool"} {
		if strings.HasPrefix(text, mark) {
			return errors.New("a tool call was written as text")
		}
	}
	return nil
}
