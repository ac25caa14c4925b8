package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gin-gonic/gin"

	"bobbin/store"
	"bobbin/thread"
)

// bound says until when a request's body must be there, also where nobody asks for it: the server reads what is left of
// one before it answers.
func (a *api) bound(c *gin.Context) {
	if c.Request.Body != nil && c.Request.Body != http.NoBody {
		_ = http.NewResponseController(c.Writer).SetReadDeadline(time.Now().Add(a.cfg.Timeout)) // a recorder in a test has none
	}
}

// readBody reads a request's body whole. An empty one is returned as an empty object where the route allows that.
func (a *api) readBody(c *gin.Context, optional bool) ([]byte, error) {
	data, err := io.ReadAll(http.MaxBytesReader(c.Writer, c.Request.Body, a.cfg.Limits.Body))
	if err == nil { // else the server must not wait for the rest of it
		_ = http.NewResponseController(c.Writer).SetReadDeadline(time.Time{})
	}
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, mistaken([]Mistake{{
			Code: CodeBodyTooLarge, Limit: int(tooLarge.Limit), Detail: fmt.Sprintf("The body may have at most %d bytes.", tooLarge.Limit),
		}})
	case err != nil:
		return nil, invalidJSON("The body could not be read whole.")
	case len(data) == 0 && optional:
		return []byte("{}"), nil
	case len(data) > 0 && !isJSON(c.GetHeader("Content-Type")):
		return nil, &Problem{Status: http.StatusUnsupportedMediaType, Code: CodeMediaType, Detail: "Send the body as application/json in UTF-8."}
	}
	return data, nil
}

func isJSON(contentType string) bool {
	media, params, err := mime.ParseMediaType(contentType)
	charset := strings.ToLower(params["charset"])
	return err == nil && media == "application/json" && (charset == "" || charset == "utf-8")
}

func invalidJSON(detail string) error {
	return mistaken([]Mistake{{Code: CodeInvalidJSON, Detail: detail}})
}

// A form is a JSON object that is taken apart member by member. What is wrong with it is gathered, so that a client
// learns of all its mistakes at once.
type form struct {
	members  map[string]json.RawMessage // not yet taken
	known    []string
	mistakes []Mistake
}

// parseForm reads one JSON object and nothing behind it.
func parseForm(data []byte) (*form, error) {
	var whole json.RawMessage
	if err := json.Unmarshal(data, &whole); err != nil {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) && len(data) > 0 {
			return nil, invalidJSON(fmt.Sprintf("The body is not one JSON object: %s, at byte %d.", printable(syntax.Error()), syntax.Offset))
		}
		return nil, invalidJSON("The body is empty; a JSON object is expected.")
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	if open, _ := dec.Token(); open != json.Delim('{') {
		return nil, invalidJSON("The body is not a JSON object.")
	}
	f := &form{members: map[string]json.RawMessage{}}
	for dec.More() {
		name, raw, err := member(dec)
		if err != nil {
			return nil, invalidJSON("The body is not one JSON object.")
		}
		if _, twice := f.members[name]; twice {
			f.wrong(name, CodeInvalidField, 0, "is given twice")
		}
		f.members[name] = raw
	}
	return f, nil
}

func member(dec *json.Decoder) (name string, raw json.RawMessage, err error) {
	t, err := dec.Token()
	if err != nil {
		return "", nil, err
	}
	name, _ = t.(string)
	return name, raw, dec.Decode(&raw)
}

// wrong notes a mistake; rest ends a sentence that starts with the field's name.
func (f *form) wrong(field string, code Code, limit int, rest string) {
	field = printable(field)
	f.mistakes = append(f.mistakes, Mistake{Code: code, Field: field, Limit: limit, Detail: "`" + field + "` " + rest + "."})
}

// printable makes what a client sent fit to be shown back.
func printable(s string) string {
	const longest = 80
	s = strings.ToValidUTF8(s, "\uFFFD")
	quoted := strconv.Quote(s)
	if s = quoted[1 : len(quoted)-1]; utf8.RuneCountInString(s) > longest {
		s = string([]rune(s)[:longest]) + "…"
	}
	return strings.ReplaceAll(s, `\"`, `"`)
}

// take removes a member, and reports whether it is there and not null.
func (f *form) take(name string) (json.RawMessage, bool) {
	f.known = append(f.known, name)
	raw, ok := f.members[name]
	delete(f.members, name)
	return raw, ok && string(raw) != "null"
}

// text takes a string of at most limit characters; empty if it is left out.
func (f *form) text(name string, limit int) string {
	raw, ok := f.take(name)
	if !ok {
		return ""
	}
	s, why := stringOf(raw)
	if why != "" {
		f.wrong(name, CodeInvalidField, 0, why)
		return ""
	}
	f.measure(name, utf8.RuneCountInString(s), limit, "characters")
	return s
}

// list takes a list of at most count strings, each of 1 to limit characters; empty if it is left out.
func (f *form) list(name string, count, limit int) []string {
	raw, ok := f.take(name)
	if !ok {
		return nil
	}
	var items []json.RawMessage
	if json.Unmarshal(raw, &items) != nil {
		f.wrong(name, CodeInvalidField, 0, "must be a list of strings")
		return nil
	}
	if !f.measure(name, len(items), count, "entries") {
		return nil
	}
	out := make([]string, 0, len(items))
	for i, item := range items {
		at := fmt.Sprintf("%s[%d]", name, i)
		s, why := stringOf(item)
		switch {
		case why != "":
			f.wrong(at, CodeInvalidField, 0, why)
		case strings.TrimSpace(s) == "":
			f.wrong(at, CodeInvalidField, 0, "must not be empty")
		case f.measure(at, utf8.RuneCountInString(s), limit, "characters"):
			out = append(out, s)
		}
	}
	return out
}

// choice takes one of a few words; the empty one if it is left out.
func choice[T ~string](f *form, name string, words ...T) T {
	raw, ok := f.take(name)
	if !ok {
		return ""
	}
	s, why := stringOf(raw)
	if why == "" && slices.Contains(words, T(s)) {
		return T(s)
	}
	f.wrong(name, CodeInvalidField, 0, fmt.Sprintf("must be one of %q", words))
	return ""
}

func (f *form) measure(field string, got, limit int, unit string) bool {
	if got <= limit {
		return true
	}
	f.wrong(field, CodeLimitExceeded, limit, fmt.Sprintf("may have at most %d %s, and has %d", limit, unit, got))
	return false
}

// done returns the problem with the form, after the last member was taken.
func (f *form) done() error {
	for _, name := range slices.Sorted(maps.Keys(f.members)) {
		rest := "is not known here"
		if len(f.known) > 0 {
			rest += "; what is: " + strings.Join(f.known, ", ")
		}
		f.wrong(name, CodeUnknownField, 0, rest)
	}
	return mistaken(f.mistakes)
}

// stringOf decodes a JSON string that can be kept as it is: Postgres holds no NUL, and damaged Unicode would be changed
// without a word.
func stringOf(raw json.RawMessage) (s, why string) {
	switch {
	case len(raw) == 0 || raw[0] != '"' || !utf8.Valid(raw) && json.Unmarshal(raw, &s) != nil:
		return "", "must be a string"
	case !utf8.Valid(raw):
		return "", "is not valid UTF-8"
	case json.Unmarshal(raw, &s) != nil:
		return "", "must be a string"
	}
	return s, unfit(s, halved(raw))
}

func unfit(s string, halved bool) string {
	switch {
	case !utf8.ValidString(s):
		return "is not valid UTF-8"
	case halved:
		return "holds half of a surrogate pair"
	case strings.ContainsRune(s, 0):
		return "holds a NUL character"
	}
	return ""
}

// halved reports whether a JSON string escapes half of a surrogate pair, which decoding would replace.
func halved(raw []byte) bool {
	for i := 0; i+1 < len(raw); i++ {
		if raw[i] != '\\' {
			continue
		}
		if raw[i+1] != 'u' {
			i++
			continue
		}
		switch unit := escaped(raw[i:]); {
		case unit >= 0xDC00 && unit < 0xE000:
			return true
		case unit >= 0xD800 && unit < 0xDC00:
			if low := escaped(raw[i+6:]); low < 0xDC00 || low >= 0xE000 {
				return true
			}
			i += 6
		}
		i += 5
	}
	return false
}

// escaped returns the value of the \uXXXX that raw starts with, or -1.
func escaped(raw []byte) int64 {
	if len(raw) < 6 || raw[0] != '\\' || raw[1] != 'u' {
		return -1
	}
	v, err := strconv.ParseInt(string(raw[2:6]), 16, 32)
	if err != nil {
		return -1
	}
	return v
}

// decodeMessage reads the body of an accept and its Idempotency-Key.
func decodeMessage(limits Limits, data []byte, key string) (store.Incoming, error) {
	f, err := parseForm(data)
	if err != nil {
		return store.Incoming{}, err
	}
	in := store.Incoming{
		Channel:     thread.ChannelWeb,
		Key:         key,
		Text:        f.text("text", limits.Text),
		Attachments: f.list("attachments", limits.Attachments, limits.ID),
		Mentions:    f.list("mentions", limits.Mentions, limits.Mention),
		ReplyTo:     f.text("reply_to", limits.ID),
		Mode:        choice(f, "mode", thread.Chat, thread.DeepResearch),
		Delivery: choice(f, "delivery", thread.DeliverAuto, thread.DeliverSteer, thread.DeliverTurn,
			thread.DeliverInterrupt),
	}
	if in.Mode == thread.DeepResearch {
		f.wrong("mode", CodeInvalidField, 0, "cannot be `deep_research`: deep research is not there yet; send without mode or with chat")
	}
	if strings.TrimSpace(in.Text) == "" && len(in.Attachments) == 0 && !f.names("text", "attachments") {
		f.wrong("text", CodeInvalidField, 0, "must hold something to read, or `attachments` must name a file")
	}
	f.key(key, limits.Key)
	return in, f.done()
}

// key checks an Idempotency-Key.
func (f *form) key(key string, limit int) {
	if why := unfit(key, false); why != "" {
		f.wrong("Idempotency-Key", CodeInvalidField, 0, why)
	}
	f.measure("Idempotency-Key", utf8.RuneCountInString(key), limit, "characters")
}

// names reports whether a mistake in one of the fields was noted.
func (f *form) names(fields ...string) bool {
	return slices.ContainsFunc(f.mistakes, func(m Mistake) bool {
		name, _, _ := strings.Cut(m.Field, "[")
		return slices.Contains(fields, name)
	})
}

// A query is the parameters of a list, read as strictly as a form.
type query struct {
	c *gin.Context
	form
}

func newQuery(c *gin.Context, known ...string) *query {
	q := &query{c: c}
	for name, values := range c.Request.URL.Query() {
		switch {
		case !slices.Contains(known, name):
			q.wrong(name, CodeUnknownField, 0, "is not known here; what is: "+strings.Join(known, ", "))
		case len(values) > 1:
			q.wrong(name, CodeInvalidField, 0, "is given twice")
		}
	}
	slices.SortFunc(q.mistakes, func(a, b Mistake) int { return strings.Compare(a.Field, b.Field) })
	return q
}

// number takes a whole number from low to high.
func (q *query) number(name string, fallback, low, high int64) int64 {
	s, ok := q.c.GetQuery(name)
	if !ok {
		return fallback
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < low || n > high {
		q.wrong(name, CodeInvalidField, 0, fmt.Sprintf("must be a whole number from %d to %d", low, high))
		return fallback
	}
	return n
}

func (q *query) id(name string) string {
	s := q.c.Query(name)
	if s != "" && !isID(s) {
		q.wrong(name, CodeInvalidField, 0, "must be the id of an entry of the list")
		return ""
	}
	return s
}

// isID reports whether s can be an id at all. What cannot is never asked of the database.
func isID(s string) bool {
	const longest = 100
	return s != "" && len(s) <= longest && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == ""
}
