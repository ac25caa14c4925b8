package scripted

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// A Refusal is an error answer in OpenAI's shape: https://platform.openai.com/docs/guides/error-codes
type Refusal struct {
	Status  int
	Message string
	Type    string // "invalid_request_error" …
	Param   string // the field at fault; may be empty
	Code    string // may be empty
}

func (r *Refusal) Error() string { return fmt.Sprintf("%d %s: %s", r.Status, r.Code, r.Message) }

func invalid(param, code, format string, args ...any) *Refusal {
	return &Refusal{http.StatusBadRequest, fmt.Sprintf(format, args...), "invalid_request_error", param, code}
}

var (
	toolName = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)
	callID   = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,40}$`)
)

const (
	maxTools = 128 // https://platform.openai.com/docs/api-reference/chat/create (tools)
	maxBody  = 64 << 20
)

type object = map[string]any

// Check returns what is wrong with the body of a chat completions request, or nil.
//
// Beyond OpenAI's own rules it refuses what others refuse: empty texts of people (Anthropic), arguments that are no JSON
// object (vLLM), an id twice in one request, a last message of the assistant (Mistral), NUL.
func Check(body []byte) *Refusal {
	if !utf8.Valid(body) {
		return invalid("", "", "We could not parse the JSON body of your request: it is not valid UTF-8.")
	}
	var req object
	if d := json.NewDecoder(bytes.NewReader(body)); d.Decode(&req) != nil || d.More() || req == nil {
		return invalid("", "", "We could not parse the JSON body of your request. The API expects a JSON payload.")
	}
	if path := findNUL(req, ""); path != "" {
		return invalid(path, "invalid_value", "Invalid '%s': it contains a NUL character.", path)
	}
	for _, check := range []func(object) *Refusal{checkFields, checkOptions, checkTools, checkMessages} {
		if r := check(req); r != nil {
			return r
		}
	}
	return nil
}

// requestFields: https://platform.openai.com/docs/api-reference/chat/create
var requestFields = strings.Fields(`audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens
	max_tokens messages metadata modalities model n parallel_tool_calls prediction presence_penalty prompt_cache_key
	reasoning_effort response_format safety_identifier seed service_tier stop store stream stream_options temperature
	tool_choice tools top_logprobs top_p user verbosity web_search_options`)

func checkFields(req object) *Refusal {
	if f := unknownField(req, requestFields...); f != "" {
		return invalid(f, "unknown_parameter", "Unknown parameter: '%s'.", f)
	}
	if model, ok := req["model"].(string); !ok || model == "" {
		return invalid("", "", "you must provide a model parameter")
	}
	return nil
}

func checkOptions(req object) *Refusal {
	stream, isBool := req["stream"].(bool)
	_, hasTools := req["tools"]
	switch {
	case req["stream"] != nil && !isBool:
		return wrongType("stream", "a boolean", req["stream"])
	case req["stream_options"] != nil && !stream:
		return invalid("stream_options", "", "The 'stream_options' parameter is only allowed when 'stream' is enabled.")
	case req["tool_choice"] != nil && !hasTools:
		return invalid("tool_choice", "", "Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are specified.")
	case req["parallel_tool_calls"] != nil && !hasTools:
		return invalid("parallel_tool_calls", "", "Invalid value for 'parallel_tool_calls': 'parallel_tool_calls' is only allowed when 'tools' are specified.")
	}
	for _, f := range []string{"max_tokens", "max_completion_tokens"} {
		if n, ok := req[f].(float64); req[f] != nil && (!ok || n < 1) {
			return wrongType(f, "an integer of at least 1", req[f])
		}
	}
	return nil
}

func checkTools(req object) *Refusal {
	if req["tools"] == nil {
		return nil
	}
	tools, ok := req["tools"].([]any)
	switch {
	case !ok:
		return wrongType("tools", "an array of objects", req["tools"])
	case len(tools) == 0:
		return invalid("tools", "empty_array", "Invalid 'tools': empty array. Expected an array with minimum length 1, but got an empty array instead.")
	case len(tools) > maxTools:
		return invalid("tools", "array_above_max_length", "Invalid 'tools': array too long. Expected an array with maximum length %d, but got an array with length %d instead.", maxTools, len(tools))
	}
	seen := map[string]bool{}
	for i, t := range tools {
		if r := checkTool(fmt.Sprintf("tools[%d]", i), t, seen); r != nil {
			return r
		}
	}
	return nil
}

func checkTool(path string, v any, seen map[string]bool) *Refusal {
	tool, ok := v.(object)
	if !ok {
		return wrongType(path, "an object", v)
	}
	if tool["type"] != "function" {
		return invalid(path+".type", "invalid_value", "Invalid value for '%s.type'. Supported values are: 'function'.", path)
	}
	f, ok := tool["function"].(object)
	if !ok {
		return missing(path + ".function")
	}
	if field := unknownField(f, "name", "description", "parameters", "strict"); field != "" {
		return invalid(path, "unknown_parameter", "Unknown parameter: '%s.function.%s'.", path, field)
	}
	name, r := checkName(path+".function.name", f["name"])
	switch {
	case r != nil:
		return r
	case seen[name]:
		return invalid(path, "", "tools: Tool names must be unique.")
	case f["description"] != nil && !is[string](f["description"]):
		return wrongType(path+".function.description", "a string", f["description"])
	}
	seen[name] = true
	return checkParameters(name, f["parameters"])
}

func checkParameters(tool string, v any) *Refusal {
	if v == nil {
		return nil
	}
	refuse := func(at, why string) *Refusal {
		return invalid("tools", "invalid_function_parameters", "Invalid schema for function '%s': In context=(%s), %s", tool, at, why)
	}
	schema, ok := v.(object)
	switch {
	case !ok || schema["type"] != "object":
		return refuse("", `schema must be a JSON Schema of 'type: "object"'.`)
	case !is[object](schema["properties"]):
		return refuse("", "object schema missing properties.")
	}
	if at, why := checkSchema("", schema); why != "" {
		return refuse(at, why)
	}
	return nil
}

var schemaTypes = []string{"object", "array", "string", "number", "integer", "boolean", "null"}

// checkSchema looks for what OpenAI refuses even where a schema is not strict; it returns the place and the reason.
func checkSchema(at string, s object) (place, why string) {
	if t, ok := s["type"].(string); ok && !slices.Contains(schemaTypes, t) {
		return at, fmt.Sprintf("'%s' is not valid under any of the given schemas.", t)
	}
	if s["type"] == "array" && s["items"] == nil {
		return at, "array schema missing items."
	}
	if s["required"] != nil && !is[[]any](s["required"]) {
		return at, "'required' is not of type 'array'."
	}
	properties, _ := s["properties"].(object)
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		p, ok := properties[name].(object)
		if !ok && !is[bool](properties[name]) {
			return at, fmt.Sprintf("the property '%s' is not of type 'object', 'boolean'.", name)
		}
		if place, why := checkSchema(at+"'properties', '"+name+"'", p); why != "" {
			return place, why
		}
	}
	if items, ok := s["items"].(object); ok {
		return checkSchema(at+"'items'", items)
	}
	return "", ""
}

func checkMessages(req object) *Refusal {
	messages, ok := req["messages"].([]any)
	switch {
	case req["messages"] == nil:
		return missing("messages")
	case !ok:
		return wrongType("messages", "an array of objects", req["messages"])
	case len(messages) == 0:
		return invalid("messages", "empty_array", "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array instead.")
	}
	c := conversation{ids: map[string]bool{}}
	for i, v := range messages {
		m, ok := v.(object)
		if !ok {
			return wrongType(fmt.Sprintf("messages[%d]", i), "an object", v)
		}
		if r := c.add(i, m); r != nil {
			return r
		}
	}
	if r := c.unanswered(); r != nil {
		return r
	}
	if c.last == "assistant" {
		return invalid("messages", "invalid_request_message_order", "Expected last role User or Tool for serving but got assistant.")
	}
	return nil
}

// A conversation follows the order of the messages.
type conversation struct {
	ids  map[string]bool // of every call so far
	open []string        // ids of the last assistant message that no tool message has answered yet
	from int             // the place of that message
	last string          // the last role
}

// messageFields says what each role may hold beside role and content.
var messageFields = map[string][]string{
	"system":    {"name"},
	"developer": {"name"},
	"user":      {"name"},
	"assistant": {"name", "tool_calls", "refusal", "audio", "function_call"},
	"tool":      {"tool_call_id"},
}

func (c *conversation) add(i int, m object) *Refusal {
	path := fmt.Sprintf("messages[%d]", i)
	role, _ := m["role"].(string)
	fields, known := messageFields[role]
	if !known {
		return invalid(path+".role", "invalid_value", "Invalid value: '%v'. Supported values are: 'system', 'assistant', 'user', 'function', 'tool', and 'developer'.", m["role"])
	}
	if f := unknownField(m, append(fields, "role", "content")...); f != "" {
		return invalid(path+"."+f, "unknown_parameter", "Unknown parameter: '%s.%s'.", path, f)
	}
	if r := checkContent(path+".content", role, m); r != nil {
		return r
	}
	c.last = role
	if role == "tool" {
		return c.answer(path, m)
	}
	if r := c.unanswered(); r != nil {
		return r
	}
	if calls := m["tool_calls"]; calls != nil {
		c.from = i
		return c.ask(path+".tool_calls", calls)
	}
	return nil
}

// ask takes an assistant's calls.
func (c *conversation) ask(path string, v any) *Refusal {
	calls, ok := v.([]any)
	if !ok {
		return wrongType(path, "an array of objects", v)
	}
	if len(calls) == 0 {
		return invalid(path, "empty_array", "Invalid '%s': empty array. Expected an array with minimum length 1, but got an empty array instead.", path)
	}
	for i, v := range calls {
		at := fmt.Sprintf("%s[%d]", path, i)
		id, r := checkCall(at, v)
		switch {
		case r != nil:
			return r
		case c.ids[id]:
			return invalid(at+".id", "invalid_value", "Invalid '%s.id': duplicate tool call id '%s'.", at, id)
		}
		c.ids[id] = true
		c.open = append(c.open, id)
	}
	return nil
}

func checkCall(path string, v any) (id string, r *Refusal) {
	call, ok := v.(object)
	if !ok {
		return "", wrongType(path, "an object", v)
	}
	id, ok = call["id"].(string)
	switch {
	case !ok || id == "":
		return "", missing(path + ".id")
	case len(id) > 40: // seen in https://github.com/microsoft/autogen/issues/6377
		return "", invalid(path+".id", "string_above_max_length", "Invalid '%s.id': string too long. Expected a string with maximum length 40, but got a string with length %d instead.", path, len(id))
	case !callID.MatchString(id):
		return "", invalid(path+".id", "invalid_value", "Invalid '%s.id': string does not match pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'.", path)
	case call["type"] != "function":
		return "", missing(path + ".type")
	}
	if f := unknownField(call, "id", "type", "function"); f != "" {
		return "", invalid(path+"."+f, "unknown_parameter", "Unknown parameter: '%s.%s'.", path, f)
	}
	return id, checkFunction(path+".function", call["function"])
}

func checkFunction(path string, v any) *Refusal {
	f, ok := v.(object)
	if !ok {
		return missing(path)
	}
	if field := unknownField(f, "name", "arguments"); field != "" {
		return invalid(path+"."+field, "unknown_parameter", "Unknown parameter: '%s.%s'.", path, field)
	}
	if _, r := checkName(path+".name", f["name"]); r != nil {
		return r
	}
	arguments, ok := f["arguments"].(string)
	if !ok {
		return wrongType(path+".arguments", "a string", f["arguments"])
	}
	var fields object
	if json.Unmarshal([]byte(arguments), &fields) != nil || fields == nil {
		return invalid(path+".arguments", "invalid_value", "Invalid '%s.arguments': expected a string that holds a JSON object.", path)
	}
	return nil
}

// answer takes a tool message.
func (c *conversation) answer(path string, m object) *Refusal {
	id, ok := m["tool_call_id"].(string)
	if !ok || id == "" {
		return missing(path + ".tool_call_id")
	}
	place := slices.Index(c.open, id)
	if place < 0 {
		return invalid(path+".role", "", "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.") //nolint:misspell // as OpenAI spells it
	}
	c.open = slices.Delete(c.open, place, place+1)
	return nil
}

// unanswered refuses calls that have no tool message when another message, or the end, comes.
func (c *conversation) unanswered() *Refusal {
	if len(c.open) == 0 {
		return nil
	}
	return invalid(fmt.Sprintf("messages.[%d].role", c.from+1), "",
		"An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. The following tool_call_ids did not have response messages: %s",
		strings.Join(c.open, ", "))
}

func checkContent(path, role string, m object) *Refusal {
	switch content := m["content"].(type) {
	case nil:
		if role == "assistant" && m["tool_calls"] != nil {
			return nil
		}
		return invalid(path, "", "Invalid value for 'content': expected a string, got null.")
	case string:
		if strings.TrimSpace(content) == "" && (role == "user" || (role == "assistant" && m["tool_calls"] == nil)) {
			return invalid(path, "invalid_value", "%s: text content blocks must contain non-whitespace text.", path)
		}
		return nil
	case []any:
		return checkParts(path, role, content)
	default:
		return wrongType(path, "one of a string or array of objects", content)
	}
}

func checkParts(path, role string, parts []any) *Refusal {
	if len(parts) == 0 {
		return invalid(path, "empty_array", "Invalid '%s': empty array. Expected an array with minimum length 1, but got an empty array instead.", path)
	}
	for i, v := range parts {
		p, ok := v.(object)
		at := fmt.Sprintf("%s[%d]", path, i)
		switch {
		case !ok:
			return wrongType(at, "an object", v)
		case p["type"] == "text":
			if text, ok := p["text"].(string); !ok || strings.TrimSpace(text) == "" {
				return invalid(at+".text", "invalid_value", "%s: text content blocks must contain non-whitespace text.", at)
			}
		case p["type"] == "image_url" && role == "user":
			if r := checkImage(at+".image_url", p["image_url"]); r != nil {
				return r
			}
		default:
			return invalid(at+".type", "invalid_value", "Invalid value: '%v'. Supported values are: 'text' and 'image_url'.", p["type"])
		}
	}
	return nil
}

// checkImage: https://platform.openai.com/docs/guides/images-vision (image input requirements)
func checkImage(path string, v any) *Refusal {
	image, ok := v.(object)
	if !ok {
		return wrongType(path, "an object", v)
	}
	if f := unknownField(image, "url", "detail"); f != "" {
		return invalid(path+"."+f, "unknown_parameter", "Unknown parameter: '%s.%s'.", path, f)
	}
	url, _ := image["url"].(string)
	if strings.HasPrefix(url, "https://") {
		return nil
	}
	head, encoded, _ := strings.Cut(url, ";base64,")
	raw, err := base64.StdEncoding.DecodeString(encoded)
	if !strings.HasPrefix(head, "data:image/") || err != nil {
		return invalid(path+".url", "invalid_base64_image", "Invalid base64 image_url.")
	}
	if found := http.DetectContentType(raw); "data:"+found != head || !slices.Contains(imageTypes, found) {
		return invalid(path+".url", "invalid_image_format", "You uploaded an unsupported image. Please make sure your image has of one the following formats: ['png', 'jpeg', 'gif', 'webp'].")
	}
	return nil
}

var imageTypes = []string{"image/png", "image/jpeg", "image/gif", "image/webp"}

func checkName(path string, v any) (string, *Refusal) {
	name, ok := v.(string)
	if !ok {
		return "", missing(path)
	}
	if !toolName.MatchString(name) {
		return "", invalid(path, "invalid_value", "Invalid '%s': string does not match pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'.", path)
	}
	return name, nil
}

func missing(path string) *Refusal {
	return invalid(path, "missing_required_parameter", "Missing required parameter: '%s'.", path)
}

func wrongType(path, want string, got any) *Refusal {
	return invalid(path, "invalid_type", "Invalid type for '%s': expected %s, but got %s instead.", path, want, typeName(got))
}

func typeName(v any) string {
	switch v.(type) {
	case string:
		return "a string"
	case float64:
		return "a number"
	case object:
		return "an object"
	case []any:
		return "an array"
	case bool:
		return "a boolean"
	}
	return "null"
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

func is[T any](v any) bool {
	_, ok := v.(T)
	return ok
}

// unknownField returns a field of o that is not among known, the first by name, or "".
func unknownField(o object, known ...string) string {
	for _, f := range slices.Sorted(maps.Keys(o)) {
		if !slices.Contains(known, f) {
			return f
		}
	}
	return ""
}

// findNUL returns the path of a string with a NUL inside, or "".
func findNUL(v any, path string) string {
	switch v := v.(type) {
	case string:
		if strings.ContainsRune(v, 0) {
			return or(path, "body")
		}
	case object:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			if p := findNUL(v[k], strings.TrimPrefix(path+"."+k, ".")); p != "" {
				return p
			}
		}
	case []any:
		for i, e := range v {
			if p := findNUL(e, fmt.Sprintf("%s[%d]", path, i)); p != "" {
				return p
			}
		}
	}
	return ""
}
