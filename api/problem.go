package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/gin-gonic/gin"

	"bobbin/thread"
)

// Code names what is wrong with a request. Codes are stable; titles and details are for people.
type Code string

// The codes.
const (
	CodeInvalidJSON      Code = "invalid_json"
	CodeUnknownField     Code = "unknown_field"
	CodeInvalidField     Code = "invalid_field"
	CodeLimitExceeded    Code = "limit_exceeded"
	CodeBodyTooLarge     Code = "body_too_large"
	CodeMediaType        Code = "unsupported_media_type"
	CodeMethodNotAllowed Code = "method_not_allowed"
	CodeUnauthorized     Code = "unauthorized"
	CodeUsageLimit       Code = "usage_limit"
	CodeNotFound         Code = "not_found"
	CodeArchived         Code = "thread_archived"
	CodeNoRunningTurn    Code = "no_running_turn"
	CodeStopping         Code = "stopping"
	CodeNotSteerable     Code = "not_steerable"
	CodeInvalidReplyTo   Code = "invalid_reply_to"
	CodeAlreadyDelivered Code = "already_delivered"
	CodeAlreadyWithdrawn Code = "already_withdrawn"
	CodeKeyReused        Code = "idempotency_key_reused"
	CodeConflict         Code = "conflict"
	CodeRateLimited      Code = "rate_limited"
	CodeUnavailable      Code = "unavailable"
	CodeInternal         Code = "internal"
)

// A Problem is a problem document as RFC 9457 has it. Type is always about:blank: Code says which problem it is.
type Problem struct {
	Type      string    `json:"type"`
	Title     string    `json:"title"`
	Status    int       `json:"status"`
	Code      Code      `json:"code"`
	Detail    string    `json:"detail"`
	Field     string    `json:"field,omitempty"`
	Limit     int       `json:"limit,omitempty"`
	Errors    []Mistake `json:"errors,omitempty"`  // where a request holds several mistakes: all of them, the one above first
	Missing   []string  `json:"missing,omitempty"` // of /readyz
	RequestID string    `json:"request_id,omitempty"`
}

// A Mistake is one thing that is wrong with a request.
type Mistake struct {
	Code   Code   `json:"code"`
	Field  string `json:"field,omitempty"` // a member of the body, a query parameter or a header
	Detail string `json:"detail"`
	Limit  int    `json:"limit,omitempty"`
}

func (p *Problem) Error() string { return string(p.Code) + ": " + p.Detail }

// mistaken makes one problem of the mistakes of a request, nil of none. The first that cannot be read at all decides the
// status.
func mistaken(list []Mistake) error {
	if len(list) == 0 {
		return nil
	}
	slices.SortStableFunc(list, func(a, b Mistake) int { return statusOf[a.Code] - statusOf[b.Code] })
	m := list[0]
	p := &Problem{Status: statusOf[m.Code], Code: m.Code, Detail: m.Detail, Field: m.Field, Limit: m.Limit}
	if len(list) > 1 {
		p.Errors = list
	}
	return p
}

var statusOf = map[Code]int{
	CodeInvalidJSON: http.StatusBadRequest, CodeUnknownField: http.StatusBadRequest, CodeInvalidField: http.StatusBadRequest,
	CodeLimitExceeded: http.StatusUnprocessableEntity, CodeBodyTooLarge: http.StatusRequestEntityTooLarge,
}

// sentinels says what becomes of the errors of package thread. All others are internal.
var sentinels = []struct {
	err    error
	status int
	code   Code
	detail string
	field  string
}{
	{thread.ErrNotFound, http.StatusNotFound, CodeNotFound, "There is no such thing, or it is not yours.", ""},
	{thread.ErrArchived, http.StatusConflict, CodeArchived, "The thread was reset. Write to the home thread or open a new one.", ""},
	{thread.ErrNoRunningTurn, http.StatusConflict, CodeNoRunningTurn, "No turn is running that the message could be loaded into.", ""},
	{thread.ErrStopping, http.StatusConflict, CodeStopping, "The running turn is stopping. Send the message without delivery `steer`.", ""},
	{thread.ErrReplyTarget, http.StatusUnprocessableEntity, CodeInvalidReplyTo, "The field `reply_to` must be the id of a message of this thread.", "reply_to"},
	{thread.ErrNotSteerable, http.StatusConflict, CodeNotSteerable, "The message cannot be loaded into the running turn. Send it without delivery `steer`.", ""},
	{thread.ErrAlreadyDelivered, http.StatusConflict, CodeAlreadyDelivered, "The model already has the message. Stop the turn if it should not go on.", ""},
	{thread.ErrAlreadyWithdrawn, http.StatusNotFound, CodeAlreadyWithdrawn, "The message was already withdrawn.", ""},
	{thread.ErrKeyReused, http.StatusUnprocessableEntity, CodeKeyReused, "The Idempotency-Key was used for something else. Use a new key for each thing that you want done.", "Idempotency-Key"},
	{thread.ErrNoEntry, http.StatusBadRequest, CodeInvalidField, "`before` must be the id of an entry of this list.", "before"},
	{thread.ErrConflict, http.StatusConflict, CodeConflict, "The present state does not allow this.", ""},
	{thread.ErrUnauthorized, http.StatusUnauthorized, CodeUnauthorized, "Send a valid key as `Authorization: Bearer KEY`.", ""},
	{thread.ErrUnavailable, http.StatusServiceUnavailable, CodeUnavailable, "Not available at the moment. Try again.", ""},
	{context.DeadlineExceeded, http.StatusServiceUnavailable, CodeUnavailable, "This took too long. Try again, with the same Idempotency-Key.", ""},
}

// problemOf turns any error into a problem. The second result is false where the error is the server's own fault.
func problemOf(err error) (*Problem, bool) {
	var p *Problem
	if errors.As(err, &p) {
		return p, true
	}
	var le *thread.LimitError
	if errors.As(err, &le) {
		detail := strings.ToUpper(le.Error()[:1]) + le.Error()[1:] + "."
		return &Problem{Status: http.StatusUnprocessableEntity, Code: CodeLimitExceeded, Detail: detail, Field: le.Field, Limit: le.Limit}, true
	}
	var ue *thread.UsageLimitError
	if errors.As(err, &ue) {
		detail := "The message was not stored: " + ue.Spending.String() + "."
		return &Problem{Status: http.StatusPaymentRequired, Code: CodeUsageLimit, Detail: detail}, true
	}
	var ae *thread.AttachmentError
	if errors.As(err, &ae) {
		field := fmt.Sprintf("attachments[%d]", ae.Index)
		return &Problem{Status: http.StatusBadRequest, Code: CodeInvalidField, Detail: "`" + field + "` must be the id of a file of yours; `GET /v1/files` lists them.", Field: field}, true
	}
	for _, s := range sentinels {
		if errors.Is(err, s.err) {
			return &Problem{Status: s.status, Code: s.code, Detail: s.detail, Field: s.field}, true
		}
	}
	return &Problem{Status: http.StatusInternalServerError, Code: CodeInternal, Detail: "Something went wrong on the server. Its log knows the request id."}, false
}

// fail answers with a problem document.
func (a *api) fail(c *gin.Context, err error) {
	if c.Request.Context().Err() != nil && errors.Is(err, context.Canceled) {
		c.Status(statusClientGone) // for the log; nobody reads the answer
		c.Abort()
		return
	}
	known, ok := problemOf(err)
	switch {
	case !ok:
		a.cfg.Log.ErrorContext(c.Request.Context(), "request failed", "route", c.FullPath(), "request_id", requestID(c), "error", err)
	case errors.Is(err, thread.ErrUnavailable):
		a.cfg.Log.WarnContext(c.Request.Context(), "request not served", "route", c.FullPath(), "request_id", requestID(c), "error", err)
	}
	p := *known
	p.Type, p.Title, p.RequestID = "about:blank", http.StatusText(p.Status), requestID(c)
	switch p.Status {
	case http.StatusUnauthorized:
		c.Header("WWW-Authenticate", `Bearer realm="bobbin"`)
	case http.StatusServiceUnavailable:
		c.Header("Retry-After", "1")
	}
	raw, err := json.Marshal(p)
	if err != nil {
		panic(err) // our own type
	}
	c.Abort()
	c.Data(p.Status, "application/problem+json", raw)
}

// statusClientGone is nginx's status for a client that went away before the answer.
const statusClientGone = 499
