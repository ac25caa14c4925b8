package api_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/require"

	"bobbin/store"
	"bobbin/store/storetest"
)

// A world is a thread of Anna's in which a turn runs and a message waits, for tests that walk the document.
type world struct {
	*bundle
	thread, turn, message, file string
}

func (b *bundle) world() *world {
	b.Helper()
	w := &world{bundle: b, thread: b.open()}
	w.turn = text(b.say(w.thread, "work"), "turn_id")
	w.message = text(b.say(w.thread, "and then"), "message", "id")
	w.file = "file_1"
	return w
}

// path puts the world's ids in a path of the document.
func (w *world) path(p string) string {
	p = strings.NewReplacer("{thread}", w.thread, "{turn}", w.turn, "{message}", w.message, "{file}", w.file).Replace(p)
	require.NotContains(w, p, "{", "the world has no such thing")
	return p
}

// state is all that Anna can read of what she has.
func (w *world) state() string {
	w.Helper()
	var all strings.Builder
	for _, path := range []string{
		"/v1/threads", "/v1/threads/{thread}", "/v1/threads/{thread}/messages", "/v1/threads/{thread}/turns", "/v1/turns/{turn}/steps", "/v1/health",
	} {
		all.WriteString(w.do("GET", w.path(path), "").raw)
	}
	return all.String()
}

// walk calls fn for each operation that wants a key.
func walk(t *testing.T, fn func(method, path string, op *openapi3.Operation)) {
	t.Helper()
	operations(spec(t), func(method, path string, op *openapi3.Operation) {
		if op.Security == nil {
			fn(method, path, op)
		}
	})
}

func answers(op *openapi3.Operation, code string) bool {
	for _, r := range op.Responses.Map() {
		for _, c := range codesOf(r) {
			if c == code {
				return true
			}
		}
	}
	return false
}

// example returns a body that an operation takes.
func example(t *testing.T, op *openapi3.Operation) map[string]any {
	t.Helper()
	body := map[string]any{}
	if op.RequestBody != nil && op.RequestBody.Value.Required && op.RequestBody.Value.Content["application/json"] != nil {
		for _, e := range op.RequestBody.Value.Content["application/json"].Examples {
			raw, err := json.Marshal(e.Value.Value)
			require.NoError(t, err)
			require.NoError(t, json.Unmarshal(raw, &body))
			break
		}
	}
	return body
}

func encode(t *testing.T, v any) string {
	t.Helper()
	raw, err := json.Marshal(v)
	require.NoError(t, err)
	return string(raw)
}

func TestEveryOperationRefusesABodyThatItCannotRead(t *testing.T) {
	t.Parallel()
	w := setup(t).world()
	before := w.state()
	walk(t, func(method, path string, op *openapi3.Operation) {
		if !answers(op, "invalid_json") {
			return
		}
		path = w.path(path)
		for _, body := range []string{
			"nope", "{", `{"a": 1} {}`, `{"a": 1,}`, "[]", "null", `"text"`, "3", "\x00", "{\"a\": \"\x00\"}", "\xff\xfe", "{} x",
			strings.Repeat("[", 100_000), strings.Repeat(`{"a":`, 100_000), `{'a': 1}`, "<a/>", "a=b",
		} {
			w.refused(400, "invalid_json", method, path, body)
		}
		for _, name := range []string{"nobody-knows-me", "Text", "🎈", "\u202etxet", "e\u0301", "\u200b", `\u0000`, ``, strings.Repeat("long", 1000)} {
			raw := encode(t, example(t, op))
			if raw = strings.TrimPrefix(raw, "{"); raw != "}" {
				raw = ", " + raw
			}
			a := w.refused(400, "unknown_field", method, path, fmt.Sprintf(`{"%s": 1%s`, name, raw))
			require.Less(t, len(a.raw), 2000, "what came in is not sent back whole")
		}
		for _, body := range []string{`{"text": 1, "text": 2, "title": 1, "scope": 2}`, `{"x": 1, "x": 1}`, `{"x": 1, "\u0078": 1}`} {
			a := w.do(method, path, body)
			require.Equal(t, 400, a.status, "%s %s %s: %s", method, path, body, a.raw)
		}
		w.refused(400, "invalid_field", method, path, `{"x": 1, "x": 1}`)
		for _, media := range []string{"", "text/plain", "application/json; charset=latin1", ";"} {
			w.refused(415, "unsupported_media_type", method, path, "{}", "Content-Type", media)
		}
		a := w.refused(413, "body_too_large", method, path, `{"text": "`+strings.Repeat("x", 1<<20)+`"}`)
		require.EqualValues(t, 1<<20, a.body["limit"])
	})
	require.Equal(t, before, w.state())
}

// The limits that the document names are those that the server has: what is at one is taken, what is above is refused.
func TestTheLimitsOfTheDocumentAreThoseOfTheServer(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.url = b.serve(storetest.Open(t, b.dsn, func(c *store.Config) { c.MaxAttachments = 1000 }))
	walk(t, func(method, path string, op *openapi3.Operation) {
		if op.RequestBody == nil || op.RequestBody.Value.Content["application/json"] == nil {
			return
		}
		for name, p := range op.RequestBody.Value.Content["application/json"].Schema.Value.Properties {
			send := func(value any) answer {
				w := b.world()
				body := example(t, op)
				delete(body, "delivery")
				body[name] = value
				return b.do(method, w.path(path), encode(t, body))
			}
			field := method + " " + path + " " + name
			if limit := p.Value.MaxLength; limit != nil {
				if a := send(strings.Repeat("é", int(*limit))); name != "reply_to" { // no such message, but short enough
					require.Less(t, a.status, 300, "%s: %s", field, a.raw)
				} else {
					require.Equal(t, "invalid_reply_to", a.body["code"], "%s: %s", field, a.raw)
				}
				requireLimit(t, send(strings.Repeat("é", int(*limit)+1)), name, int(*limit))
			}
			if limit := p.Value.MaxItems; limit != nil {
				item := int(*p.Value.Items.Value.MaxLength)
				if name == "attachments" {
					storetest.AddFiles(t, b.dsn, "anna", entries(int(*limit), item)...)
				}
				require.Less(t, send(entries(int(*limit), item)).status, 300, field)
				requireLimit(t, send(entries(int(*limit)+1, 5)), name, int(*limit))
				requireLimit(t, send(entries(1, item+1)), name+"[0]", item)
			}
			if len(p.Value.Enum) > 0 {
				require.Equal(t, 400, send("nothing of the list").status, field)
			}
		}
	})
}

func entries(n, length int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("%0*d", length, i)
	}
	return list
}

func requireLimit(t *testing.T, a answer, field string, limit int) {
	t.Helper()
	require.Equal(t, "limit_exceeded", a.body["code"], "%s", a.raw)
	require.Equal(t, field, a.body["field"])
	require.EqualValues(t, limit, a.body["limit"])
}

func TestTheParametersOfTheDocumentAreThoseOfTheServer(t *testing.T) {
	t.Parallel()
	w := setup(t).world()
	before := w.state()
	walk(t, func(method, path string, op *openapi3.Operation) {
		p := w.path(path)
		for _, ref := range op.Parameters {
			param := ref.Value
			schema := param.Schema.Value
			switch {
			case param.In == "query" && schema.Type.Is("integer"):
				for _, n := range []float64{*schema.Min, *schema.Max} {
					w.ok(method, fmt.Sprintf("%s?%s=%.0f", p, param.Name, n), "")
				}
				for _, v := range []string{fmt.Sprintf("%.0f", *schema.Min-1), fmt.Sprintf("%.0f", *schema.Max+1), "1e1", "0x1", "", " 1", "1.0", "٣", "\x00", "9999999999999999999999"} {
					a := w.refused(400, "invalid_field", method, p+"?"+param.Name+"="+url.QueryEscape(v), "")
					require.Equal(t, param.Name, a.body["field"])
				}
			case param.In == "query":
				for _, v := range []string{"\x00", "\xff", "a b", "🎈", strings.Repeat("x", 201), "'--", "../"} {
					a := w.refused(400, "invalid_field", method, p+"?"+param.Name+"="+url.QueryEscape(v), "")
					require.Equal(t, param.Name, a.body["field"])
				}
			case param.In == "header" && schema.MaxLength != nil:
				body := encode(t, example(t, op))
				a := w.do(method, p, body, param.Name, strings.Repeat("k", int(*schema.MaxLength)+1))
				requireLimit(t, a, param.Name, int(*schema.MaxLength))
			}
		}
		if method == "GET" && answers(op, "unknown_field") {
			a := w.refused(400, "unknown_field", method, p+"?nobody-knows-me=1", "")
			require.Equal(t, "nobody-knows-me", a.body["field"])
		}
	})
	require.Equal(t, before, w.state())
}
