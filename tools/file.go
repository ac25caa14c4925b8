package tools

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"golang.org/x/net/http/httpguts"
)

// maxFile is the largest tools file, in bytes: a thousand times what a long list needs.
const maxFile = 1 << 20

// LoadFile reads the HTTP tools that the YAML file at path lists; see Parse. lookup gives the values of environment
// variables, as os.LookupEnv does.
func LoadFile(path string, lookup func(name string) (string, bool)) ([]Tool, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("tools file: %w", err)
	}
	defer f.Close()
	tools, err := Parse(f, lookup)
	if err != nil {
		return nil, fmt.Errorf("tools file %s:\n%w", path, err)
	}
	return tools, nil
}

// Parse reads a YAML list of HTTP tools. Each has the fields
//
//	name, description   as in Tool
//	parameters          a JSON Schema, written as YAML; without it the tool takes no arguments
//	url                 http or https, without credentials
//	method              POST (default), PUT or PATCH
//	headers             a mapping; ${NAME} in a value stands for an environment variable, found by lookup
//	read_only           true or false (default)
//	idempotent          true or false (default)
//	approval            never (default) or ask
//	timeout             such as 30s or 2m; default 2m, at most 1h
//	result_limit        bytes; default 65536, at most 1048576
//
// and no others. The error lists every mistake with the tool and the field, and repeats no header's value. A key
// belongs in a variable: the value of a variable, from 8 bytes on, is also taken out of what the server answers.
//
// A call sends {"call_id", "thread_id", "turn_id", "arguments"} once, with an Idempotency-Key header that is the same on
// every attempt of the call. Only a tool that is read-only or idempotent may be sent it again, where a kept connection breaks.
// The body of a 2xx answer is the result as it is; anything else, redirects too, is a failure that the model reads. The proxy
// that the environment names is used.
func Parse(r io.Reader, lookup func(name string) (string, bool)) ([]Tool, error) {
	list, err := decodeList(r)
	if err != nil {
		return nil, err
	}
	clients := newHTTPClients()
	var tools []Tool
	var errs []error
	seen := map[string]bool{}
	for i, item := range list {
		e := &entry{lookup: lookup}
		t := e.tool(item, clients)
		if t.Name != "" && seen[t.Name] {
			e.wrong("name", "another tool has it")
		}
		seen[t.Name] = true
		errs = append(errs, labelled(label(i, t.Name), e.mistakes))
		tools = append(tools, t)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return tools, nil
}

// decodeList reads one YAML document that is a list.
func decodeList(r io.Reader) (list []any, err error) {
	defer func() {
		if recover() != nil { // the decoder has met unforeseen input before
			list, err = nil, errors.New("not valid YAML")
		}
	}()
	raw, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(raw) > maxFile {
		return nil, fmt.Errorf("want at most %d bytes", maxFile)
	}
	d := yaml.NewDecoder(strings.NewReader(string(raw)))
	var doc, more any
	if err := d.Decode(&doc); err != nil && !errors.Is(err, io.EOF) {
		return nil, notYAML(err)
	}
	if err := d.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, errors.New("want one YAML document, not several")
	}
	list, ok := doc.([]any)
	if !ok {
		return nil, errors.New("want a YAML list of tools, each beginning with a dash")
	}
	return list, nil
}

// notYAML says where the YAML is wrong without quoting it: the line may hold a secret.
func notYAML(err error) error {
	if e, ok := errors.AsType[yaml.Error](err); ok {
		if p := e.GetToken().Position; p != nil {
			return fmt.Errorf("not valid YAML: line %d, column %d: %s", p.Line, p.Column, kindOf(e))
		}
	}
	return errors.New("not valid YAML")
}

func kindOf(err yaml.Error) string {
	if strings.Contains(err.GetMessage(), "already defined") {
		return "a field stands there for the second time"
	}
	return "what stands there cannot be read"
}

// An entry is one tool of the list while it is read.
type entry struct {
	lookup   func(string) (string, bool)
	fields   map[string]any // what has not been read yet
	mistakes []error
}

func (e *entry) wrong(field, format string, args ...any) {
	e.mistakes = append(e.mistakes, fmt.Errorf(field+": "+format, args...))
}

func (e *entry) tool(item any, clients httpClients) Tool {
	fields, ok := item.(map[string]any)
	if !ok {
		e.mistakes = append(e.mistakes, errors.New("want a mapping of fields"))
		return Tool{}
	}
	e.fields = fields
	t := Tool{
		Name:        e.text("name"),
		Description: e.text("description"),
		Parameters:  e.parameters(),
		ReadOnly:    e.flag("read_only"),
		Idempotent:  e.flag("idempotent"),
		Approval:    Approval(e.text("approval")),
		Timeout:     e.duration("timeout"),
		ResultLimit: e.bytes("result_limit"),
	}.withDefaults()
	h := &httpTool{method: e.method(), url: e.url(), limit: t.ResultLimit, once: t.SideEffects(), clients: clients}
	h.headers, h.secrets = e.headers()
	t.Run = h.run
	e.rest()
	e.checked(t)
	return t
}

// checked adds what Tool.check finds, but for fields that were wrong already.
func (e *entry) checked(t Tool) {
	_, wrong := t.check()
	for _, err := range wrong {
		field, _, _ := strings.Cut(err.Error(), ":")
		known := func(m error) bool { return strings.HasPrefix(m.Error(), field+":") }
		if !slices.ContainsFunc(e.mistakes, known) {
			e.mistakes = append(e.mistakes, err)
		}
	}
}

// rest refuses the fields that nobody read.
func (e *entry) rest() {
	for _, field := range slices.Sorted(maps.Keys(e.fields)) {
		e.mistakes = append(e.mistakes, fmt.Errorf("%.80q: there is no such field", field))
	}
}

// take returns the field's value and marks it as read. A field without a value counts as absent.
func (e *entry) take(field string) (any, bool) {
	v := e.fields[field]
	delete(e.fields, field)
	return v, v != nil
}

func (e *entry) text(field string) string {
	v, ok := e.take(field)
	s, isText := v.(string)
	if ok && !isText {
		e.wrong(field, "want text; put it in quotes")
	}
	return strings.TrimSpace(s)
}

func (e *entry) flag(field string) bool {
	v, ok := e.take(field)
	b, isFlag := v.(bool)
	if ok && !isFlag {
		e.wrong(field, "want true or false")
	}
	return b
}

func (e *entry) duration(field string) time.Duration {
	v, ok := e.take(field)
	if !ok {
		return 0
	}
	s, _ := v.(string)
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 || d > MaxTimeout {
		e.wrong(field, "want a time such as 30s or 2m, more than 0s and at most %v", MaxTimeout)
		return 0
	}
	return d
}

func (e *entry) bytes(field string) int {
	v, ok := e.take(field)
	if !ok {
		return 0
	}
	n, isNumber := v.(uint64) // the decoder's type for what is not negative
	if !isNumber || n == 0 || n > MaxResultLimit {
		e.wrong(field, "want a number of bytes, 1 to %d", MaxResultLimit)
		return 0
	}
	return int(n)
}

func (e *entry) parameters() json.RawMessage {
	v, ok := e.take("parameters")
	if !ok {
		return nil
	}
	raw, err := json.Marshal(v)
	if err != nil {
		e.wrong("parameters", "want what JSON can express: %v", err)
	}
	return raw
}

func (e *entry) method() string {
	m := e.text("method")
	if m == "" {
		return http.MethodPost
	}
	if !slices.Contains([]string{http.MethodPost, http.MethodPut, http.MethodPatch}, m) {
		// Others carry no body by their meaning: https://www.rfc-editor.org/rfc/rfc9110#section-9.3
		e.wrong("method", "want POST, PUT or PATCH")
	}
	return m
}

func (e *entry) url() string {
	s := e.text("url")
	u, err := url.Parse(s)
	switch {
	case s == "":
		e.wrong("url", "want the address to call")
	case err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "":
		e.wrong("url", "want http:// or https:// and a host")
	case u.User != nil:
		e.wrong("url", "want no user or password in it; use a header")
	case u.Fragment != "":
		e.wrong("url", "want no fragment (#) in it: it would not be sent")
	}
	return s
}

// reserved are the headers that Bobbin or net/http writes.
var reserved = []string{"Connection", "Content-Length", "Content-Type", "Host", "Idempotency-Key", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

// headers returns the headers and the values of the variables in them that count as secret.
func (e *entry) headers() (http.Header, []string) {
	h := http.Header{}
	v, ok := e.take("headers")
	if !ok {
		return h, nil
	}
	fields, ok := v.(map[string]any)
	if !ok {
		e.wrong("headers", "want a mapping of names to texts")
		return h, nil
	}
	var secrets []string
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		value, used := e.header(h, name, fields[name])
		h.Set(name, value)
		secrets = append(secrets, used...)
	}
	// A value that holds another one is taken out first.
	slices.SortFunc(secrets, func(a, b string) int { return len(b) - len(a) })
	return h, secrets
}

func (e *entry) header(h http.Header, name string, v any) (value string, secrets []string) {
	text, isText := v.(string)
	_, twice := h[http.CanonicalHeaderKey(name)]
	switch {
	case !httpguts.ValidHeaderFieldName(name):
		e.wrong("headers", "%.80q is not a header's name", name)
	case slices.Contains(reserved, http.CanonicalHeaderKey(name)):
		e.wrong("headers", "%.80q is written by Bobbin", name)
	case twice:
		e.wrong("headers", "%.80q is there twice; case does not count", name)
	case !isText:
		e.wrong("headers", "%.80q: want text; put it in quotes", name)
	default:
		value, secrets = e.expand(name, text)
		if !httpguts.ValidHeaderFieldValue(value) {
			e.wrong("headers", "%.80q: want a value of one line, also after its variables are put in", name)
		}
	}
	return value, secrets
}

var variable = regexp.MustCompile(`\$\{([^}]*)(\}?)`)

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// expand puts the variables into a header's value.
func (e *entry) expand(header, text string) (value string, secrets []string) {
	value = variable.ReplaceAllStringFunc(text, func(found string) string {
		m := variable.FindStringSubmatch(found)
		if m[2] == "" || !variableName.MatchString(m[1]) {
			e.wrong("headers", "%.80q: want ${NAME} with the name of an environment variable", header)
			return ""
		}
		v, _ := e.lookup(m[1])
		if v == "" {
			e.wrong("headers", "%.80q: the environment variable %s is not set or empty", header, m[1])
		}
		if len(v) >= minSecret {
			secrets = append(secrets, v)
		}
		return v
	})
	return value, secrets
}
