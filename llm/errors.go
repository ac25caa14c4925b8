package llm

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"bobbin/thread"
)

const statusOK = http.StatusOK

// maxRefusal bounds how much of an error's body is read. FastAPI servers send the whole request back in it.
const maxRefusal = 1 << 20

// A refusal is a provider's error answer, before it is sorted. It stays inside the package: its message may quote the
// prompt.
type refusal struct {
	status     int
	inStream   bool // it came as a chunk, after a 200
	retryAfter time.Duration
	problem    problem
}

func (r *refusal) Error() string { return "refused by the provider" }

// A problem is what an error body says, whatever its spelling.
type problem struct {
	code    string // a word, such as context_length_exceeded
	kind    string // OpenAI's "type"
	number  int    // a numeric code, mostly an HTTP status
	message string // lower case; may quote the prompt
	body    []byte
}

func readRefusal(resp *http.Response, body io.Reader) error {
	b, _ := io.ReadAll(io.LimitReader(body, maxRefusal)) // what is lost of it is missed only in the sorting
	return &refusal{status: resp.StatusCode, retryAfter: retryAfter(resp.Header), problem: readProblem(b)}
}

// readProblem understands {"error":{…}} (OpenAI), {"error":"…"}, {"message":…} (vLLM), [{"error":{…}}] (Gemini), Azure's
// innererror and OpenRouter's metadata.raw.
func readProblem(body []byte) problem {
	p := problem{body: body}
	var list []json.RawMessage
	if json.Unmarshal(body, &list) == nil && len(list) > 0 {
		body = list[0]
	}
	var outer struct {
		Error json.RawMessage `json:"error"`
	}
	if json.Unmarshal(body, &outer) == nil && len(outer.Error) > 0 && string(outer.Error) != "null" {
		body = outer.Error
	}
	if json.Unmarshal(body, &p.message) == nil {
		p.message = strings.ToLower(p.message)
		return p
	}
	p.readObject(body)
	return p
}

func (p *problem) readObject(body []byte) {
	var o struct {
		Code    json.RawMessage `json:"code"`
		Type    json.RawMessage `json:"type"`
		Status  json.RawMessage `json:"status"`
		Message json.RawMessage `json:"message"`
		Inner   struct {
			Code json.RawMessage `json:"code"`
		} `json:"innererror"`
		Metadata struct {
			Raw json.RawMessage `json:"raw"`
		} `json:"metadata"`
	}
	if json.Unmarshal(body, &o) != nil {
		return
	}
	code := text(o.Code)
	if n, err := strconv.Atoi(code); err == nil {
		p.number, code = n, text(o.Status) // Gemini: {"code":400,"status":"INVALID_ARGUMENT"}
	}
	p.code, p.kind = code, text(o.Type)
	p.message = strings.ToLower(text(o.Message) + "\n" + text(o.Inner.Code) + "\n" + text(o.Metadata.Raw))
}

// text returns a JSON string's text, and any other JSON as it is.
func text(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) != nil {
		return string(raw)
	}
	return s
}

// names reports whether the refusal speaks of a field.
func (r *refusal) names(field string) bool { return bytes.Contains(r.problem.body, []byte(field)) }

// effectiveStatus is the HTTP status that the refusal amounts to.
func (r *refusal) effectiveStatus() int {
	if n := r.problem.number; r.inStream && n >= 400 && n < 600 {
		return n
	}
	return r.status
}

func (r *refusal) modelError() *thread.ModelError {
	return &thread.ModelError{
		Kind:       r.kind(),
		Status:     r.effectiveStatus(),
		Code:       r.code(),
		RetryAfter: r.retryAfter,
	}
}

// word is what a code may look like. Anything else might be a sentence that quotes what was said.
var word = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

// code returns the first of code and type that is a word.
func (r *refusal) code() string {
	for _, c := range []string{r.problem.code, r.problem.kind} {
		if word.MatchString(c) && c != "null" {
			return c
		}
	}
	return ""
}

func (r *refusal) has(words ...string) bool {
	return slices.Contains(words, strings.ToLower(r.problem.code)) || slices.Contains(words, strings.ToLower(r.problem.kind))
}

func (r *refusal) says(phrases ...string) bool {
	return slices.ContainsFunc(phrases, func(p string) bool { return strings.Contains(r.problem.message, p) })
}

// kind sorts the refusal. The order matters: what is most certain comes first.
func (r *refusal) kind() thread.ModelErrorKind {
	status := r.effectiveStatus()
	switch {
	case r.tooLong(status):
		return thread.ModelTooLong
	case r.quota(status):
		return thread.ModelQuota
	case r.filtered(status):
		return thread.ModelFiltered
	case temporary(status), r.inStream && status == statusOK && !r.has("invalid_request_error"):
		return thread.ModelTemporary
	}
	return thread.ModelInvalid
}

// tooLong knows the spellings of OpenAI (https://platform.openai.com/docs/guides/error-codes), vLLM, llama.cpp
// (https://github.com/ggml-org/llama.cpp/pull/15780), Anthropic (https://docs.claude.com/en/api/errors), Gemini, Mistral, Groq,
// xAI, Bedrock and OpenRouter.
func (r *refusal) tooLong(status int) bool {
	switch {
	case status == http.StatusRequestEntityTooLarge:
		return true
	case r.has("context_length_exceeded", "exceed_context_size_error", "context_exceeded", "request_too_large", "string_above_max_length"):
		return true
	case status == http.StatusTooManyRequests:
		// One request above a tokens-per-minute limit: no wait helps, a shorter one does. Bedrock's "too many tokens,
		// please wait" is a rate limit.
		return r.says("request too large for")
	case status == http.StatusUnauthorized, status == http.StatusForbidden, status == http.StatusNotFound:
		return false
	}
	return r.says(
		"maximum context length", "context length exceeded", "context_length_exceeded", "exceeds the context", "context window",
		"available context size", "context size has been exceeded", "exceeds context size", "exceed context limit",
		"prompt is too long", "input is too long", "too many tokens", "too many input tokens",
		"maximum prompt length", "maximum model length", "maximum number of tokens allowed", "too large for model",
		"reduce the length of the messages", "exceed_context_size_error",
	)
}

// quota: 429 is a quota only by its code, since Gemini says "exceeded your current quota" for every rate limit.
func (r *refusal) quota(status int) bool {
	return status == http.StatusPaymentRequired ||
		r.has("insufficient_quota", "billing_not_active", "billing_hard_limit_reached", "billing_error", "insufficient_credits") ||
		(status < 429 && r.says("credit balance is too low", "insufficient balance", "insufficient credits"))
}

// filtered: https://learn.microsoft.com/azure/ai-services/openai/concepts/content-filter; invalid_prompt is what OpenAI's
// reasoning models answer to a flagged prompt.
func (r *refusal) filtered(status int) bool {
	return r.has("content_filter", "content_policy_violation", "responsibleaipolicyviolation", "invalid_prompt",
		"data_inspection_failed", "moderation_blocked") ||
		(status < 429 && r.says("responsibleaipolicyviolation", "content management policy", "requires moderation"))
}

func temporary(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	}
	return status >= 500
}

// maxRetryAfter only keeps the arithmetic sound; how long is worth waiting is the caller's decision.
const maxRetryAfter = 24 * time.Hour

// retryAfter reads retry-after-ms (OpenAI, Azure), then Retry-After as seconds or as a date (RFC 9110, 10.2.3). A date is
// compared with the provider's own clock where it tells it.
func retryAfter(h http.Header) time.Duration {
	if d, ok := number(h.Get("Retry-After-Ms"), time.Millisecond); ok {
		return d
	}
	after := h.Get("Retry-After")
	if d, ok := number(after, time.Second); ok {
		return d
	}
	at, err := http.ParseTime(after)
	if err != nil {
		return 0
	}
	now, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		now = time.Now()
	}
	return min(max(at.Sub(now), 0), maxRetryAfter)
}

func number(s string, unit time.Duration) (time.Duration, bool) {
	f, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
	if err != nil || f != f {
		return 0, false
	}
	f = min(max(f, 0), float64(maxRetryAfter/unit))
	return time.Duration(f * float64(unit)), true
}

// failure turns whatever ended the call into what Call promises: the caller's cancellation, or a *thread.ModelError.
func failure(ctx, callCtx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return &cancelled{cause: context.Cause(ctx)}
	}
	if m := thread.AsModelError(err); m != nil {
		return m
	}
	if errors.Is(context.Cause(callCtx), errCallTimeout) {
		err = errCallTimeout
	}
	return &thread.ModelError{Kind: thread.ModelTemporary, Err: safeCause(err)}
}

// cancelled is the caller's cancellation together with its cause.
type cancelled struct{ cause error }

func (c *cancelled) Error() string   { return "model call: " + context.Canceled.Error() }
func (c *cancelled) Unwrap() []error { return []error{context.Canceled, c.cause} }

// safeCause keeps errors that are known to hold addresses and reasons only. Others, such as net/http's "malformed
// response", quote what the server sent.
func safeCause(err error) error {
	for _, own := range []error{errFirstByte, errIdle, errCallTimeout, errNoFinish, errGarbage, context.DeadlineExceeded, io.ErrUnexpectedEOF} {
		if errors.Is(err, own) {
			return own
		}
	}
	if e, ok := errors.AsType[*net.OpError](err); ok {
		return e
	}
	if e, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return e
	}
	if e, ok := errors.AsType[syscall.Errno](err); ok {
		return e
	}
	return errBroken
}
