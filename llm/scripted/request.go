package scripted

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"
)

// ConversationHeader may name the conversation of a request. Without it the first user message does.
const ConversationHeader = "X-Scripted-Conversation"

// NoteTag begins the user messages in which the caller's own software speaks, as package llm sends them.
const NoteTag = "[Bobbin]"

// A Request is one accepted request, as the server saw it. Times are zero until they have come.
type Request struct {
	N        int // from 1, in order of arrival, over the life of the server
	Header   http.Header
	Body     []byte // as it came
	Model    string
	Messages []Message
	Tools    []Tool
	Stream   bool
	Usage    bool // stream_options.include_usage

	Arrived  time.Time
	Finished time.Time // the reply was sent whole, or as whole as the script wanted it
	Gone     time.Time // the client closed its connection before that
}

// A Message is one message of a request.
type Message struct {
	Role   string
	Text   string   // content; of several parts the texts, joined
	Images []string // URLs of the pictures among the parts
	Calls  []Call   // of an assistant
	CallID string   // of a tool
}

// A Call is one tool call.
type Call struct {
	ID        string // empty in a Reply: the server makes one
	Name      string
	Arguments string // JSON
}

// A Tool is one offered tool.
type Tool struct {
	Name        string
	Description string
	Parameters  json.RawMessage
}

// Conversation names the conversation: ConversationHeader, or the first user message.
func (r Request) Conversation() string {
	if name := r.Header.Get(ConversationHeader); name != "" {
		return name
	}
	for _, m := range r.Messages {
		if m.Role == "user" {
			return m.Text
		}
	}
	return ""
}

// tokens is a rough count of four bytes a token.
func (r Request) tokens() int64 { return int64(len(r.Body)/4 + 1) }

// Mentions reports whether text occurs in any message: its text or the arguments of its calls.
func (r Request) Mentions(text string) bool {
	return slices.ContainsFunc(r.Messages, func(m Message) bool {
		return strings.Contains(m.Text, text) ||
			slices.ContainsFunc(m.Calls, func(c Call) bool { return strings.Contains(c.Arguments, text) })
	})
}

// Offers reports whether the request offers a tool.
func (r Request) Offers(tool string) bool {
	return slices.ContainsFunc(r.Tools, func(t Tool) bool { return t.Name == tool })
}

// Texts returns the texts of all messages with a role, in order.
func (r Request) Texts(role string) []string {
	var texts []string
	for _, m := range r.Messages {
		if m.Role == role {
			texts = append(texts, m.Text)
		}
	}
	return texts
}

// News returns what people wrote after the assistant's last message, without notes: what this request is the first to show.
func (r Request) News() []string {
	var news []string
	for _, m := range r.Messages {
		switch {
		case m.Role == "assistant":
			news = nil
		case m.isPerson():
			news = append(news, m.Text)
		}
	}
	return news
}

// Results returns the tool messages after the assistant's last message.
func (r Request) Results() []Message {
	var results []Message
	for _, m := range r.Messages {
		switch m.Role {
		case "assistant":
			results = nil
		case "tool":
			results = append(results, m)
		}
	}
	return results
}

func (m Message) isPerson() bool { return m.Role == "user" && !strings.HasPrefix(m.Text, NoteTag) }

// wireRequest is the part of a checked body that a Request is made from.
type wireRequest struct {
	Model    string `json:"model"`
	Messages []struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
		CallID  string          `json:"tool_call_id"`
		Calls   []struct {
			ID       string   `json:"id"`
			Function wireCall `json:"function"`
		} `json:"tool_calls"`
	} `json:"messages"`
	Tools []struct {
		Function struct {
			Name        string          `json:"name"`
			Description string          `json:"description"`
			Parameters  json.RawMessage `json:"parameters"`
		} `json:"function"`
	} `json:"tools"`
	Stream        bool `json:"stream"`
	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
}

type wireCall struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// parse reads a body that Check has accepted.
func parse(header http.Header, body []byte) (Request, error) {
	var w wireRequest
	if err := json.Unmarshal(body, &w); err != nil {
		return Request{}, err
	}
	r := Request{Header: header, Body: body, Model: w.Model, Stream: w.Stream, Usage: w.StreamOptions.IncludeUsage}
	for _, m := range w.Messages {
		msg := Message{Role: m.Role, CallID: m.CallID}
		msg.Text, msg.Images = content(m.Content)
		for _, c := range m.Calls {
			msg.Calls = append(msg.Calls, Call{ID: c.ID, Name: c.Function.Name, Arguments: c.Function.Arguments})
		}
		r.Messages = append(r.Messages, msg)
	}
	for _, t := range w.Tools {
		r.Tools = append(r.Tools, Tool(t.Function))
	}
	return r, nil
}

// content returns the text of a message's content, a string or the texts of its parts, and the pictures among them.
func content(raw json.RawMessage) (text string, images []string) {
	if json.Unmarshal(raw, &text) == nil {
		return text, nil
	}
	var parts []struct {
		Text  string `json:"text"`
		Image struct {
			URL string `json:"url"`
		} `json:"image_url"`
	}
	_ = json.Unmarshal(raw, &parts) // absent: no text
	for _, p := range parts {
		if text += p.Text; p.Image.URL != "" {
			images = append(images, p.Image.URL)
		}
	}
	return text, images
}
