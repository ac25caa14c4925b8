package llm

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/sashabaranov/go-openai"

	"bobbin/thread"
)

// NoteTag begins every message in which Bobbin itself speaks to the model. Such messages have the role user, since some
// providers refuse a system message that is not the first.
const NoteTag = "[Bobbin] "

// maxTools is how many tools one request may offer: https://platform.openai.com/docs/api-reference/chat/create (tools).
const maxTools = 128

// What stands where a provider wants a text and there is none.
const (
	emptyUser    = "(empty message)"
	emptyNote    = "(nothing to note)"
	emptyResult  = "(empty result)"
	failedResult = "The call failed and left no explanation."
	nothingYet   = NoteTag + "(no message yet)"
	// Some providers (https://docs.mistral.ai/api) refuse a request that ends with the assistant's own words.
	carryOn = NoteTag + "Nothing new was said. Carry on as instructed."

	pendingResult     = "No result: this call was not run."
	startedResult     = "No result: this call was interrupted after it had started. It may have taken effect; check before you repeat it."
	interruptedResult = "No result: this call was interrupted before it had one."
)

// shape renders a prompt as chat messages that a strict provider accepts, whatever the entries are:
//
//   - Each assistant message with calls is followed at once by one tool message per call, in order. A call without a result
//     gets a text that says so; arguments that are no JSON object go out as {}.
//   - An assistant message has text or calls; an entry with neither is left out. Reasoning is not sent back.
//   - Ids are unique in the whole request and at most 40 characters; names fit ^[a-zA-Z0-9_-]{1,64}$.
//   - Texts are valid UTF-8 without NUL, never empty, and otherwise exactly as they are: one user or note entry is one message.
//   - The files that came with a user entry are one message more, behind it.
//   - The last message is not the assistant's, and there is one besides the system's.
//
// The same entries give the same messages, and more entries only append, so that providers can cache the prefix. (The
// message that stands in for a missing last one is the exception.)
//
// blind: pictures are named, not shown. images is how many are shown.
func shape(p thread.Prompt, names toolNames, blind bool) (messages []openai.ChatCompletionMessage, images int) {
	s := shaper{names: names, blind: blind}
	if system := clean(p.System); strings.TrimSpace(system) != "" {
		s.say(openai.ChatMessageRoleSystem, system)
	}
	said := len(s.messages)
	for _, e := range p.Entries {
		s.entry(e)
	}
	switch n := len(s.messages); {
	case n == said:
		s.say(openai.ChatMessageRoleUser, nothingYet)
	case s.messages[n-1].Role == openai.ChatMessageRoleAssistant:
		s.say(openai.ChatMessageRoleUser, carryOn)
	}
	return s.messages, s.images
}

type shaper struct {
	names    toolNames
	blind    bool
	images   int
	ids      idSet
	messages []openai.ChatCompletionMessage
}

func (s *shaper) say(role, text string) {
	s.messages = append(s.messages, openai.ChatCompletionMessage{Role: role, Content: text})
}

func (s *shaper) entry(e thread.Entry) {
	switch e.Kind {
	case thread.EntryUser:
		s.say(openai.ChatMessageRoleUser, or(clean(e.Text), emptyUser))
		s.attached(e.Files)
	case thread.EntryAssistant:
		s.assistant(e)
	default: // a note, or a kind that is not known yet
		s.say(openai.ChatMessageRoleUser, NoteTag+or(clean(e.Text), emptyNote))
	}
}

func (s *shaper) assistant(e thread.Entry) {
	m := openai.ChatCompletionMessage{Role: openai.ChatMessageRoleAssistant, Content: or(clean(e.Text), "")}
	results := make([]openai.ChatCompletionMessage, 0, len(e.Calls))
	for _, c := range e.Calls {
		call := s.call(c)
		m.ToolCalls = append(m.ToolCalls, call)
		results = append(results, openai.ChatCompletionMessage{
			Role: openai.ChatMessageRoleTool, ToolCallID: call.ID, Content: result(c),
		})
	}
	if m.Content == "" && len(m.ToolCalls) == 0 {
		return
	}
	s.messages = append(append(s.messages, m), results...)
}

func (s *shaper) call(c thread.Call) openai.ToolCall {
	arguments := cleanEscapes(clean(c.Arguments))
	if !isObject(arguments) {
		arguments = "{}"
	}
	return openai.ToolCall{
		ID:       s.ids.unique(or(cleanID(c.ID), "call")),
		Type:     openai.ToolTypeFunction,
		Function: openai.FunctionCall{Name: s.names.sentAs(c.Name), Arguments: arguments},
	}
}

// result is what the model reads as a call's result.
func result(c thread.Call) string {
	text := or(clean(c.Result), "")
	switch {
	case c.State == thread.CallPending:
		return pendingResult
	case c.State == thread.CallStarted:
		return startedResult
	case text != "":
		return text
	case c.State == thread.CallSucceeded:
		return emptyResult
	case c.State == thread.CallFailed:
		return failedResult
	}
	return interruptedResult
}

// or returns s, or otherwise if there is nothing to read in s.
func or(s, otherwise string) string {
	if strings.TrimSpace(s) == "" {
		return otherwise
	}
	return s
}

// toolNames holds a request's tools under names that providers take, and the way back.
type toolNames struct {
	tools []openai.Tool
	sent  map[string]string // by the tool's own name
	own   map[string]string // by the name that is sent
}

// nameTools renders tools. A tool whose name was there before is left out, as are those beyond the 128th.
func nameTools(specs []thread.ToolSpec) toolNames {
	n := toolNames{sent: map[string]string{}, own: map[string]string{}}
	var taken idSet
	for _, spec := range specs {
		if _, again := n.sent[spec.Name]; again || len(n.tools) == maxTools {
			continue
		}
		name := taken.uniqueWithin(cleanName(spec.Name), maxName)
		n.sent[spec.Name], n.own[name] = name, spec.Name
		n.tools = append(n.tools, openai.Tool{Type: openai.ToolTypeFunction, Function: &openai.FunctionDefinition{
			Name: name, Description: clean(spec.Description), Parameters: mendSchema(spec.Parameters),
		}})
	}
	return n
}

func (n toolNames) sentAs(name string) string {
	if sent, ok := n.sent[name]; ok {
		return sent
	}
	return cleanName(name)
}

// original returns the name of the tool that the model calls name.
func (n toolNames) original(name string) string {
	if own, ok := n.own[name]; ok {
		return own
	}
	return name
}

// mendSchema returns a schema of type object with properties, which is the least that OpenAI takes as parameters
// ("object schema missing properties"). A schema that has both is sent as it is.
func mendSchema(schema json.RawMessage) json.RawMessage {
	schema = bytes.ToValidUTF8(schema, nil)
	var fields map[string]json.RawMessage
	if json.Unmarshal(schema, &fields) != nil || fields == nil {
		return json.RawMessage(`{"type":"object","properties":{}}`)
	}
	properties := strings.TrimSpace(string(fields["properties"]))
	if text(fields["type"]) == "object" && strings.HasPrefix(properties, "{") {
		return schema
	}
	fields["type"] = json.RawMessage(`"object"`)
	if !strings.HasPrefix(properties, "{") {
		fields["properties"] = json.RawMessage(`{}`)
	}
	mended, err := json.Marshal(fields)
	if err != nil {
		return json.RawMessage(`{"type":"object","properties":{}}`)
	}
	return mended
}
