package scripted

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// A Reply is what the model answers to one request, and how. The zero Reply is an empty answer.
type Reply struct {
	Text      string
	Reasoning string // sent before Text, as reasoning_content
	Calls     []Call
	// Pieces, if set, is how Text is cut; Text is then ignored. Otherwise a piece is a word and the space after it.
	Pieces []string
	// Finish is the finish reason; empty: tool_calls if there are Calls, else stop.
	Finish string
	// Usage is what the request cost; nil: a rough count of four bytes a token.
	Usage *Usage

	Delay      time.Duration // before the first byte
	TokenDelay time.Duration // before each piece
	// Gate holds the reply: at each point that GateAt names it waits until it can receive once. A test that sends to an
	// unbuffered Gate knows that the server has come to the point; closing the channel opens all points.
	Gate   <-chan struct{}
	GateAt Point

	// Status, if it is 400 or more, answers with an HTTP error in place of a model's words.
	Status       int
	RetryAfter   time.Duration // sent as Retry-After, rounded up to seconds, and as retry-after-ms
	ErrorCode    string        // the error's code; empty: as the provider names it for Status
	ErrorMessage string        // the error's message; empty: one that says it is scripted

	// Fault is what goes wrong once After pieces were sent. (The pieces of reasoning and calls count as well.) After the
	// last piece, and before the finish reason, if there are fewer.
	Fault Fault
	After int
}

// Usage counts tokens.
type Usage struct {
	Input     int64
	Cached    int64 // of Input
	Output    int64
	Reasoning int64 // of Output
}

// A Point is where a reply waits at its Gate.
type Point string

// The points. The zero value is every one of them: start, each piece, finish.
const (
	EveryPoint Point = ""
	AtStart    Point = "start"  // before the first byte
	AtFinish   Point = "finish" // before the finish reason, after the last piece
	atPiece    Point = "piece"
)

// A Fault is what goes wrong with a reply.
type Fault string

// The faults. Break and Hang with After 0 come before the response header.
const (
	NoFault     Fault = ""
	Break       Fault = "break"        // the connection is cut
	Hang        Fault = "hang"         // nothing more comes until the client goes or the server is closed
	Garbage     Fault = "garbage"      // a chunk that is not JSON, then the rest
	StreamError Fault = "stream_error" // an error as a chunk, with ErrorCode; then the end
	NoFinish    Fault = "no_finish"    // the stream ends in good order but without a finish reason
)

// Say answers with text.
func Say(text string) Reply { return Reply{Text: text} }

// Ask asks for one tool call; arguments are JSON.
func Ask(tool, arguments string) Reply {
	return Reply{Calls: []Call{{Name: tool, Arguments: arguments}}}
}

// A stage plays one reply to one client.
type stage struct {
	w      http.ResponseWriter
	ctx    context.Context // ends when the client goes
	closed <-chan struct{} // closed with the server
	fast   bool
	req    Request
	reply  Reply
	begun  bool
	cut    bool // the script, or the server's end, cut the reply
}

// play sends the reply. It returns false if the reply is not whole: the client went, or cut says why.
func (s *stage) play() bool {
	if !s.gate(AtStart) || !s.sleep(s.reply.Delay) {
		return false
	}
	switch {
	case s.reply.Status >= 400:
		s.refuse(s.reply.refusal())
		return true
	case s.req.Stream:
		return s.stream()
	}
	return s.whole()
}

func (s *stage) stream() bool {
	deltas := s.reply.deltas(s.req.N)
	for i, d := range deltas {
		if s.faultAt(i, len(deltas)) {
			if goOn, ok := s.fail(); !goOn {
				return ok
			}
		}
		if !s.gate(atPiece) || !s.sleep(s.reply.TokenDelay) || !s.send(s.chunk(d, nil)) {
			return false
		}
	}
	if s.reply.Fault != NoFault && s.reply.After >= len(deltas) {
		if goOn, ok := s.fail(); !goOn {
			return ok
		}
	}
	return s.gate(AtFinish) && s.finish()
}

func (s *stage) faultAt(i, n int) bool {
	return s.reply.Fault != NoFault && s.reply.After == i && i < n
}

// fail lets the fault happen. goOn says that the rest follows; ok is play's result if it does not.
func (s *stage) fail() (goOn, ok bool) {
	switch s.reply.Fault {
	case Break:
		s.cut = true
		return false, false
	case Hang:
		return false, wait[struct{}](s, nil)
	case Garbage:
		return s.raw(`data: {"choices":[{"index":0,"delta":{"content":"hal` + "\n\n"), false
	case StreamError:
		return false, s.send(s.reply.refusal().body()) && s.raw("data: [DONE]\n\n")
	case NoFinish:
		return false, s.raw("data: [DONE]\n\n")
	}
	return true, true
}

func (s *stage) finish() bool {
	if !s.send(s.chunk(object{}, s.reply.finish())) {
		return false
	}
	if s.req.Usage {
		c := s.chunk(nil, nil)
		c["choices"], c["usage"] = []any{}, s.usage()
		if !s.send(c) {
			return false
		}
	}
	return s.raw("data: [DONE]\n\n")
}

// whole answers a request that did not ask for a stream.
func (s *stage) whole() bool {
	switch s.reply.Fault {
	case Break, Hang:
		_, ok := s.fail()
		return ok
	case StreamError:
		r := s.reply.refusal()
		r.Status = http.StatusInternalServerError
		s.refuse(r)
		return true
	}
	if !s.gate(AtFinish) {
		return false
	}
	message := object{"role": "assistant", "content": strings.Join(s.reply.pieces(), "")}
	if s.reply.Reasoning != "" {
		message["reasoning_content"] = s.reply.Reasoning
	}
	if calls := s.reply.calls(s.req.N); len(calls) > 0 {
		message["tool_calls"] = calls
	}
	c := s.chunk(nil, nil)
	c["object"] = "chat.completion"
	c["choices"] = []any{object{"index": 0, "message": message, "finish_reason": s.reply.finish()}}
	c["usage"] = s.usage()
	writeJSON(s.w, http.StatusOK, c)
	return true
}

// chunk: https://platform.openai.com/docs/api-reference/chat-streaming
func (s *stage) chunk(delta object, finish any) object {
	return object{
		"id":      "chatcmpl-" + strconv.Itoa(s.req.N),
		"object":  "chat.completion.chunk",
		"created": s.req.Arrived.Unix(),
		"model":   s.req.Model,
		"choices": []any{object{"index": 0, "delta": delta, "finish_reason": finish}},
	}
}

func (s *stage) usage() object {
	u := s.reply.Usage
	if u == nil {
		written := len(s.reply.Reasoning) + len(strings.Join(s.reply.pieces(), ""))
		for _, c := range s.reply.Calls {
			written += len(c.Name) + len(c.Arguments)
		}
		u = &Usage{Input: s.req.tokens(), Output: int64(written/4 + 1)}
	}
	return object{
		"prompt_tokens": u.Input, "completion_tokens": u.Output, "total_tokens": u.Input + u.Output,
		"prompt_tokens_details":     object{"cached_tokens": u.Cached},
		"completion_tokens_details": object{"reasoning_tokens": u.Reasoning},
	}
}

func (s *stage) send(chunk object) bool {
	b, err := json.Marshal(chunk)
	return err == nil && s.raw("data: "+string(b)+"\n\n")
}

func (s *stage) raw(event string) bool {
	if !s.begun {
		s.begun = true
		s.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		s.w.Header().Set("Cache-Control", "no-cache")
		first, _ := json.Marshal(s.chunk(object{"role": "assistant", "content": ""}, nil))
		event = "data: " + string(first) + "\n\n" + event
	}
	if _, err := s.w.Write([]byte(event)); err != nil {
		return false
	}
	return http.NewResponseController(s.w).Flush() == nil
}

func (s *stage) refuse(r *Refusal) {
	if after := s.reply.RetryAfter; after > 0 {
		s.w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(after.Seconds()))))
		s.w.Header().Set("Retry-After-Ms", strconv.FormatInt(after.Milliseconds(), 10))
	}
	r.write(s.w)
}

// sleep waits for d; false if the client went or the server was closed.
func (s *stage) sleep(d time.Duration) bool {
	if d <= 0 || s.fast {
		return s.ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	return wait(s, timer.C)
}

// gate waits at a point; false if the client went or the server was closed.
func (s *stage) gate(at Point) bool {
	if s.reply.Gate == nil || (s.reply.GateAt != EveryPoint && s.reply.GateAt != at) {
		return true
	}
	return wait(s, s.reply.Gate)
}

// wait receives once from c; false if the client went or the server was closed.
func wait[T any](s *stage, c <-chan T) bool {
	select {
	case <-c:
		return true
	case <-s.ctx.Done():
	case <-s.closed:
		s.cut = true
	}
	return false
}

func (r Reply) finish() string {
	switch {
	case r.Finish != "":
		return r.Finish
	case len(r.Calls) > 0:
		return "tool_calls"
	}
	return "stop"
}

func (r Reply) pieces() []string {
	if r.Pieces != nil {
		return r.Pieces
	}
	return words(r.Text)
}

// words cuts text after each run of spaces, so that the pieces together are the text.
func words(text string) []string {
	var pieces []string
	for len(text) > 0 {
		n := strings.IndexAny(text, " \n")
		if n < 0 {
			return append(pieces, text)
		}
		for n < len(text) && (text[n] == ' ' || text[n] == '\n') {
			n++
		}
		pieces, text = append(pieces, text[:n]), text[n:]
	}
	return pieces
}

func (r Reply) calls(n int) []object {
	calls := make([]object, len(r.Calls))
	for i, c := range r.Calls {
		id := or(c.ID, fmt.Sprintf("call_%d_%d", n, i))
		calls[i] = object{"id": id, "type": "function", "function": object{"name": c.Name, "arguments": c.Arguments}}
	}
	return calls
}

// deltas are the pieces of the stream. As at the provider, a call comes as its id and name first and its arguments after.
func (r Reply) deltas(n int) []object {
	var deltas []object
	for _, p := range words(r.Reasoning) {
		deltas = append(deltas, object{"reasoning_content": p})
	}
	for _, p := range r.pieces() {
		deltas = append(deltas, object{"content": p})
	}
	for i, c := range r.calls(n) {
		arguments := r.Calls[i].Arguments
		c["index"] = i
		c["function"] = object{"name": r.Calls[i].Name, "arguments": ""}
		deltas = append(deltas, object{"tool_calls": []any{c}})
		for _, part := range []string{arguments[:len(arguments)/2], arguments[len(arguments)/2:]} {
			deltas = append(deltas, object{"tool_calls": []any{object{"index": i, "function": object{"arguments": part}}}})
		}
	}
	return deltas
}

func (r Reply) refusal() *Refusal {
	code, kind := "server_error", "server_error"
	switch {
	case r.Status == http.StatusTooManyRequests:
		code, kind = "rate_limit_exceeded", "requests"
	case r.Status >= 400 && r.Status < 500:
		code, kind = "", "invalid_request_error"
	}
	refusal := &Refusal{Status: r.Status, Message: or(r.ErrorMessage, "This error was scripted."), Type: kind, Code: or(r.ErrorCode, code)}
	if refusal.Code == contextExceeded {
		refusal.Param = "messages"
	}
	return refusal
}

func (r *Refusal) body() object {
	optional := func(s string) any {
		if s == "" {
			return nil
		}
		return s
	}
	return object{"error": object{"message": r.Message, "type": r.Type, "param": optional(r.Param), "code": optional(r.Code)}}
}

func (r *Refusal) write(w http.ResponseWriter) { writeJSON(w, r.Status, r.body()) }

func writeJSON(w http.ResponseWriter, status int, v any) {
	var b bytes.Buffer
	if err := json.NewEncoder(&b).Encode(v); err != nil {
		http.Error(w, "the reply cannot be encoded", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // a client that went is noticed elsewhere
}
