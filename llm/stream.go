package llm

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"

	"bobbin/thread"
)

var (
	errBroken   = errors.New("the stream broke")
	errNoFinish = errors.New("the stream ended without a finish reason")
	errGarbage  = errors.New("the stream held something that is no chunk")
)

const (
	maxLine   = 8 << 20  // one event; whole replies that are not streamed come as one
	maxAnswer = 64 << 20 // all events of one call
)

// A chunk is one event of the stream, or a whole reply of a provider that does not stream: as much of it as is needed, so
// that an oddity in the rest fails nothing. https://platform.openai.com/docs/api-reference/chat-streaming
type chunk struct {
	Object  string          `json:"object"`
	Model   string          `json:"model"`
	Choices []choice        `json:"choices"`
	Usage   *usage          `json:"usage"`
	Error   json.RawMessage `json:"error"`
}

type choice struct {
	Index   int    `json:"index"`
	Delta   delta  `json:"delta"`
	Message *delta `json:"message"`
	Finish  string `json:"finish_reason"`
}

type delta struct {
	Content   json.RawMessage `json:"content"`
	Refusal   json.RawMessage `json:"refusal"`
	Thinking  json.RawMessage `json:"reasoning_content"` // https://api-docs.deepseek.com/guides/thinking_mode
	Reasoning json.RawMessage `json:"reasoning"`         // https://openrouter.ai/docs/use-cases/reasoning-tokens
	Calls     []callDelta     `json:"tool_calls"`
}

type callDelta struct {
	Index    *int   `json:"index"`
	ID       string `json:"id"`
	Function struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	} `json:"function"`
}

// https://platform.openai.com/docs/api-reference/chat/object
type usage struct {
	Prompt        int64 `json:"prompt_tokens"`
	Completion    int64 `json:"completion_tokens"`
	Total         int64 `json:"total_tokens"`
	PromptDetails struct {
		Cached int64 `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
	CompletionDetails struct {
		Reasoning int64 `json:"reasoning_tokens"`
	} `json:"completion_tokens_details"`
}

// usage makes parts of their wholes: cached tokens are input, thought ones output. Some providers leave what was thought out of
// completion_tokens, and have it in total_tokens (https://docs.x.ai/docs/guides/reasoning).
func (u usage) usage() thread.Usage {
	out := thread.Usage{InputTokens: tokens(u.Prompt), OutputTokens: tokens(u.Completion)}
	out.CachedTokens = min(tokens(u.PromptDetails.Cached), out.InputTokens)
	out.ReasoningTokens = tokens(u.CompletionDetails.Reasoning)
	if out.ReasoningTokens > 0 && tokens(u.Total) == out.InputTokens+out.OutputTokens+out.ReasoningTokens {
		out.OutputTokens += out.ReasoningTokens
	}
	out.ReasoningTokens = min(out.ReasoningTokens, out.OutputTokens)
	return out
}

// An assembly puts a reply together from its chunks.
type assembly struct {
	text      joiner
	reasoning joiner
	calls     callTable
	finish    string
	model     string
	usage     thread.Usage
}

func newAssembly(onText func(string)) *assembly {
	return &assembly{text: joiner{emit: onText}}
}

// read reads the whole answer. Once the finish reason has come the reply is complete, so that whatever goes wrong later
// costs the usage and nothing else.
func (a *assembly) read(w *watchdog, contentType string) error {
	body := io.LimitReader(w, maxAnswer)
	var err error
	if strings.HasPrefix(contentType, "application/json") {
		err = a.readWhole(body)
	} else {
		err = a.readEvents(body, w)
	}
	a.text.flush()
	a.reasoning.flush()
	if a.finish != "" && a.finish != "error" {
		return nil
	}
	if err == nil {
		err = errNoFinish
	}
	return err
}

func (a *assembly) readWhole(body io.Reader) error {
	b, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	return a.add(b)
}

func (a *assembly) readEvents(body io.Reader, w *watchdog) error {
	lines := bufio.NewScanner(body)
	lines.Buffer(make([]byte, 0, 16<<10), maxLine)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(bytes.TrimSpace(lines.Bytes()), []byte("data:"))
		if !ok {
			continue // comments, event names, blank lines
		}
		data = bytes.TrimSpace(data)
		if string(data) == "[DONE]" {
			w.drain()
			return nil
		}
		if len(data) == 0 {
			continue
		}
		if err := a.add(data); err != nil {
			return err
		}
		if a.finish != "" {
			w.idle = min(w.idle, usageGrace)
		}
	}
	return lines.Err()
}

// add takes one chunk. It returns a *refusal for an error that the provider sent in the stream.
func (a *assembly) add(data []byte) error {
	var c chunk
	if err := json.Unmarshal(data, &c); err != nil {
		return errGarbage // the decoder's own error would quote the chunk
	}
	if (len(c.Error) > 0 && string(c.Error) != "null") || c.Object == "error" {
		return &refusal{status: statusOK, inStream: true, problem: readProblem(data)}
	}
	if c.Model != "" {
		a.model = c.Model
	}
	if c.Usage != nil {
		a.usage = c.Usage.usage()
	}
	for _, ch := range c.Choices {
		if ch.Index == 0 {
			a.take(ch)
		}
	}
	return nil
}

func (a *assembly) take(ch choice) {
	d := ch.Delta
	if ch.Message != nil {
		d = *ch.Message
	}
	a.text.add(d.Content)
	a.text.add(d.Refusal) // what the model says instead of an answer
	if !a.reasoning.add(d.Thinking) {
		a.reasoning.add(d.Reasoning)
	}
	for i, call := range d.Calls {
		a.calls.add(call, i)
	}
	if ch.Finish != "" {
		a.finish = ch.Finish
	}
}

func (a *assembly) reply() thread.Reply {
	return thread.Reply{
		Text:      a.text.String(),
		Reasoning: a.reasoning.String(),
		Calls:     a.calls.asked(),
		Finish:    thread.Finish(a.finish),
		Model:     a.model,
		Usage:     a.usage,
	}
}
