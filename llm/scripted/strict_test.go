package scripted_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"bobbin/llm/scripted"
)

// body is a request with the given messages and more fields after them.
func body(messages string, more ...string) string {
	return fmt.Sprintf(`{"model":"m","messages":[%s]%s}`, messages, strings.Join(append([]string{""}, more...), ","))
}

func asks(ids ...string) string {
	var calls []string
	for _, id := range ids {
		calls = append(calls, fmt.Sprintf(`{"id":%q,"type":"function","function":{"name":"f","arguments":"{}"}}`, id))
	}
	return `{"role":"assistant","tool_calls":[` + strings.Join(calls, ",") + `]}`
}

func answers(id string) string {
	return fmt.Sprintf(`{"role":"tool","tool_call_id":%q,"content":"r"}`, id)
}

const hi = `{"role":"user","content":"hi"}`

func withTool(function string) string {
	return body(hi, `"tools":[{"type":"function","function":`+function+`}]`)
}

func withCall(call string) string {
	return body(hi + `,{"role":"assistant","tool_calls":[` + call + `]},` + answers("a"))
}

func TestCheckAcceptsWhatTheProviderAccepts(t *testing.T) {
	t.Parallel()
	for name, b := range map[string]string{
		"AQuestion":                     body(hi),
		"EveryRole":                     body(`{"role":"system","content":"s"},{"role":"developer","content":"d"},` + hi + `,{"role":"assistant","content":"a"},` + hi),
		"PartsAsContent":                body(`{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgoAAAANSUhEUg=="}}]}`),
		"CallsAndResultsInAnyOrder":     body(hi + "," + asks("a", "b") + "," + answers("b") + "," + answers("a")),
		"NullContentBesideCalls":        body(hi + `,` + strings.Replace(asks("a"), `"assistant"`, `"assistant","content":null`, 1) + "," + answers("a")),
		"AnEmptyResult":                 body(hi + "," + asks("a") + `,{"role":"tool","tool_call_id":"a","content":""}`),
		"AMessageOfAPersonAfterAResult": body(hi + "," + asks("a") + "," + answers("a") + "," + hi),
		"ATool":                         withTool(`{"name":"f","description":"d","parameters":{"type":"object","properties":{"a":{"type":"array","items":{"type":"string"}}},"required":["a"]}}`),
		"AToolWithoutParameters":        withTool(`{"name":"f"}`),
		"StreamOptions":                 body(hi, `"stream":true`, `"stream_options":{"include_usage":true}`, `"max_completion_tokens":5`),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if r := scripted.Check([]byte(b)); r != nil {
				t.Fatal(r)
			}
		})
	}
}

func TestCheckRefusesWhatTheProviderRefuses(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, body, want string }{
		{"NoJSON", `{"model":`, "could not parse"},
		{"TwoBodies", body(hi) + body(hi), "could not parse"},
		{"NoObject", `[]`, "could not parse"},
		{"BrokenUTF8", body("{\"role\":\"user\",\"content\":\"\xff\"}"), "UTF-8"},
		{"NUL", body(`{"role":"user","content":"a\u0000"}`), "NUL"},
		{"NoModel", `{"messages":[` + hi + `]}`, "model parameter"},
		{"AnUnknownField", body(hi, `"temprature":1`), "Unknown parameter: 'temprature'"},
		{"NoMessages", `{"model":"m"}`, "Missing required parameter: 'messages'"},
		{"EmptyMessages", body(""), "empty array"},
		{"MessagesAsAnObject", `{"model":"m","messages":{}}`, "Invalid type for 'messages'"},
		{"AMessageAsAString", body(`"hi"`), "Invalid type for 'messages[0]'"},
		{"NoRole", body(`{"content":"hi"}`), "Supported values are"},
		{"AnUnknownRole", body(`{"role":"person","content":"hi"}`), "Invalid value: 'person'"},
		{"AnUnknownFieldOfAMessage", body(`{"role":"user","content":"hi","reasoning_content":"x"}`), "Unknown parameter: 'messages[0].reasoning_content'"},
		{"NoContent", body(`{"role":"user"}`), "got null"},
		{"NullContentWithoutCalls", body(hi + `,{"role":"assistant","content":null},` + hi), "got null"},
		{"ContentAsANumber", body(`{"role":"user","content":1}`), "Invalid type for 'messages[0].content'"},
		{"EmptyParts", body(`{"role":"user","content":[]}`), "empty array"},
		{"AnUnknownPart", body(`{"role":"user","content":[{"type":"sound"}]}`), "'text' and 'image_url'"},
		{"AnEmptyMessageOfAPerson", body(`{"role":"user","content":" "}`), "non-whitespace"},
		{"AnEmptyAssistant", body(hi + `,{"role":"assistant","content":""},` + hi), "non-whitespace"},
		{"TheAssistantLast", body(hi + `,{"role":"assistant","content":"a"}`), "last role"},
		{"AResultWithoutACall", body(hi + "," + answers("a")), "must be a response to a preceeding message"},
		{"AResultOfAnotherCall", body(hi + "," + asks("a") + "," + answers("b")), "must be a response"},
		{"AResultTwice", body(hi + "," + asks("a") + "," + answers("a") + "," + answers("a")), "must be a response"},
		{"AResultWithoutAnId", body(hi + "," + asks("a") + `,{"role":"tool","content":"r"}`), "tool_call_id"},
		{"AResultWithoutContent", body(hi + "," + asks("a") + `,{"role":"tool","tool_call_id":"a"}`), "got null"},
		{"ACallWithoutAResult", body(hi + "," + asks("a", "b") + "," + answers("a")), "must be followed by tool messages responding to each 'tool_call_id'. The following tool_call_ids did not have response messages: b"},
		{"AMessageBetweenCallAndResult", body(hi + "," + asks("a") + "," + hi + "," + answers("a")), "must be followed by tool messages"},
		{"EmptyCalls", body(hi + `,{"role":"assistant","content":"a","tool_calls":[]},` + hi), "empty array"},
		{"AnIdTwiceInOneMessage", body(hi + "," + asks("a", "a") + "," + answers("a")), "duplicate"},
		{"AnIdTwiceInOneRequest", body(hi + "," + asks("a") + "," + answers("a") + "," + asks("a") + "," + answers("a")), "duplicate"},
		{"ALongId", body(hi + "," + asks(strings.Repeat("a", 41))), "maximum length 40"},
		{"AnOddId", body(hi + "," + asks("a:b")), "pattern"},
		{"ACallWithoutAnId", withCall(`{"type":"function","function":{"name":"f","arguments":"{}"}}`), "tool_calls[0].id"},
		{"ACallWithoutAType", withCall(`{"id":"a","function":{"name":"f","arguments":"{}"}}`), "tool_calls[0].type"},
		{"ACallWithAnIndex", withCall(`{"id":"a","index":0,"type":"function","function":{"name":"f","arguments":"{}"}}`), "Unknown parameter"},
		{"ACallWithAnOddName", withCall(`{"id":"a","type":"function","function":{"name":"a.b","arguments":"{}"}}`), "pattern"},
		{"ArgumentsAsAnObject", withCall(`{"id":"a","type":"function","function":{"name":"f","arguments":{}}}`), "expected a string, but got an object"},
		{"NoArguments", withCall(`{"id":"a","type":"function","function":{"name":"f"}}`), "expected a string, but got null"},
		{"ArgumentsThatAreNoJSON", withCall(`{"id":"a","type":"function","function":{"name":"f","arguments":"{"}}`), "JSON object"},
		{"EmptyTools", body(hi, `"tools":[]`), "empty array"},
		{"TooManyTools", body(hi, `"tools":[`+strings.TrimSuffix(strings.Repeat(`{},`, 129), ",")+`]`), "maximum length 128"},
		{"AToolWithAnOddName", withTool(`{"name":"a.b"}`), "pattern"},
		{"AToolWithoutAName", withTool(`{}`), "function.name"},
		{"AToolTwice", body(hi, `"tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"f"}}]`), "unique"},
		{"AToolWithAnUnknownField", withTool(`{"name":"f","params":{}}`), "Unknown parameter"},
		{"ASchemaThatIsNoObject", withTool(`{"name":"f","parameters":{"type":"string"}}`), "Invalid schema for function 'f'"},
		{"ASchemaWithoutProperties", withTool(`{"name":"f","parameters":{"type":"object"}}`), "object schema missing properties"},
		{"AnArrayWithoutItems", withTool(`{"name":"f","parameters":{"type":"object","properties":{"a":{"type":"array"}}}}`), "array schema missing items"},
		{"AnUnknownType", withTool(`{"name":"f","parameters":{"type":"object","properties":{"a":{"type":"text"}}}}`), "'text' is not valid"},
		{"AToolChoiceWithoutTools", body(hi, `"tool_choice":"auto"`), "only allowed when 'tools' are specified"},
		{"StreamOptionsWithoutAStream", body(hi, `"stream_options":{}`), "only allowed when 'stream' is enabled"},
		{"NoTokens", body(hi, `"max_tokens":0`), "at least 1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := scripted.Check([]byte(tc.body))
			require.NotNil(t, r)
			require.Equal(t, http.StatusBadRequest, r.Status)
			require.Contains(t, r.Message, tc.want)
		})
	}
}

func TestServerRefusesWithTheProvidersBody(t *testing.T) {
	t.Parallel()
	b := setup(t, scripted.Options{Key: "k", Models: []string{"m"}})
	for _, tc := range []struct {
		name, method, path, key, body string
		status                        int
		want                          string
	}{
		{"AFault", "POST", "/v1/chat/completions", "k", `{"model":"m"}`, 400, `{"error":{"message":"Missing required parameter: 'messages'.","type":"invalid_request_error","param":"messages","code":"missing_required_parameter"}}`},
		{"NoKey", "POST", "/v1/chat/completions", "", body(hi), 401, `{"error":{"message":"Incorrect API key provided.","type":"invalid_request_error","param":null,"code":"invalid_api_key"}}`},
		{"AWrongKey", "GET", "/v1/models", "K", "", 401, `{"error":{"message":"Incorrect API key provided.","type":"invalid_request_error","param":null,"code":"invalid_api_key"}}`},
		{"AnUnknownModel", "POST", "/v1/chat/completions", "k", strings.Replace(body(hi), `"m"`, `"x"`, 1), 404, `{"error":{"message":"The model 'x' does not exist or you do not have access to it.","type":"invalid_request_error","param":null,"code":"model_not_found"}}`},
		{"AnUnknownPath", "GET", "/v2", "k", "", 404, `{"error":{"message":"Invalid URL (GET /v2)","type":"invalid_request_error","param":null,"code":null}}`},
		{"TheModels", "GET", "/v1/models", "k", "", 200, `{"object":"list","data":[{"id":"m","object":"model","created":0,"owned_by":"scripted"}]}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			status, got := b.do(t, tc.method, tc.path, tc.key, tc.body)
			require.Equal(t, tc.status, status)
			require.JSONEq(t, tc.want, got, cmp.Diff(tc.want, got))
		})
	}
}

func FuzzCheck(f *testing.F) {
	f.Add([]byte(body(hi)))
	f.Add([]byte(body(hi + "," + asks("a") + "," + answers("a"))))
	f.Add([]byte(withTool(`{"name":"f","parameters":{"type":"object","properties":{"a":{"type":"array"}}}}`)))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r := scripted.Check(b); r != nil {
			require.NotEmpty(t, r.Message)
		}
	})
}
