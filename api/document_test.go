package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"
	"github.com/gin-gonic/gin"
	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"bobbin/api"
)

// What all tests of the package ask for and get is held against openapi.yaml, and at the end each operation must have
// succeeded, and have answered with each code that the document names for it.
func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 && wholeRun() {
		if missing := seen.missing(); len(missing) > 0 {
			fmt.Println("openapi.yaml names what no test saw:\n  " + strings.Join(missing, "\n  "))
			code = 1
		}
	}
	os.Exit(code)
}

func wholeRun() bool {
	for _, name := range []string{"test.run", "test.skip", "test.fuzz", "test.list", "test.bench"} {
		if flag.Lookup(name).Value.String() != "" {
			return false
		}
	}
	return true
}

// A document is openapi.yaml. Clients may ignore what they don't know; the tests may not, so every object is closed here.
type document struct {
	*openapi3.T
	router  routers.Router
	problem *jsonschema.Schema
	events  *jsonschema.Schema
}

var load = sync.OnceValues(func() (*document, error) {
	raw, err := os.ReadFile("openapi.yaml")
	if err != nil {
		return nil, err
	}
	var whole map[string]any
	if err := yaml.Unmarshal(raw, &whole); err != nil {
		return nil, err
	}
	for _, s := range whole["components"].(map[string]any)["schemas"].(map[string]any) {
		s := s.(map[string]any)
		if _, says := s["additionalProperties"]; s["type"] == "object" && !says {
			s["additionalProperties"] = false
		}
	}
	if raw, err = json.Marshal(whole); err != nil {
		return nil, err
	}
	return parse(raw)
})

func parse(raw []byte) (doc *document, err error) {
	openapi3filter.RegisterBodyDecoder("text/event-stream", openapi3filter.PlainBodyDecoder)
	doc = &document{}
	if doc.T, err = openapi3.NewLoader().LoadFromData(raw); err != nil {
		return nil, err
	}
	if doc.router, err = legacy.NewRouter(doc.T); err != nil {
		return nil, err
	}
	whole, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("openapi.json", whole); err != nil {
		return nil, err
	}
	if doc.problem, err = c.Compile("openapi.json#/components/schemas/Problem"); err != nil {
		return nil, err
	}
	doc.events, err = c.Compile("openapi.json#/components/schemas/Events")
	return doc, err
}

func spec(t testing.TB) *document {
	t.Helper()
	doc, err := load()
	require.NoError(t, err)
	return doc
}

// operations calls fn for each operation of the document, in order.
func operations(doc *document, fn func(method, path string, op *openapi3.Operation)) {
	for _, path := range slices.Sorted(maps.Keys(doc.Paths.Map())) {
		ops := doc.Paths.Value(path).Operations()
		for _, method := range slices.Sorted(maps.Keys(ops)) {
			fn(method, path, ops[method])
		}
	}
}

// codesOf returns the codes that the document names for an operation's answers of one status.
func codesOf(r *openapi3.ResponseRef) (codes []string) {
	media := r.Value.Content["application/problem+json"]
	if media == nil {
		return nil
	}
	for _, s := range append(openapi3.SchemaRefs{media.Schema}, media.Schema.Value.AllOf...) {
		if code := s.Value.Properties["code"]; code != nil && (codes == nil || len(code.Value.Enum) < len(codes)) { // not Problem's own
			codes = nil
			for _, v := range code.Value.Enum {
				codes = append(codes, v.(string))
			}
		}
	}
	return codes
}

// coverage is what was seen of each operation: "200", or a problem's code.
type coverage struct {
	mu   sync.Mutex
	seen map[string]bool
}

var seen = &coverage{seen: map[string]bool{}}

func (c *coverage) add(method, path, what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen[method+" "+path+": "+what] = true
}

// missing lists what the document names and nobody saw. That a handler fails by a fault of its own is not waited for.
func (c *coverage) missing() (list []string) {
	doc, err := load()
	if err != nil {
		return []string{err.Error()}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	operations(doc, func(method, path string, op *openapi3.Operation) {
		for status, r := range op.Responses.Map() {
			wanted := codesOf(r)
			if status < "3" {
				wanted = []string{status}
			}
			for _, what := range wanted {
				if key := method + " " + path + ": " + what; what != string(api.CodeInternal) && !c.seen[key] {
					list = append(list, key)
				}
			}
		}
	})
	slices.Sort(list)
	return list
}

// watched serves h, and holds each answer, and each request that succeeds, against the document.
func watched(t *testing.T, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent, got := &bytes.Buffer{}, &recorder{ResponseWriter: w, status: http.StatusOK}
		if r.Body != http.NoBody {
			r.Body = struct {
				io.Reader
				io.Closer
			}{io.TeeReader(r.Body, sent), r.Body}
		}
		asked := r.Clone(context.WithoutCancel(r.Context()))
		h.ServeHTTP(got, r)
		if got.status == statusClientGone {
			return
		}
		asked.Body = io.NopCloser(sent)
		if err := check(asked, got); err != nil {
			t.Errorf("openapi.yaml does not say that %s %s is answered so: %v", r.Method, r.URL.Path, err)
		}
	})
}

const statusClientGone = 499

type recorder struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
}

// what came back: the status of a success, the code of a problem.
func (r *recorder) what() string {
	var p api.Problem
	if r.status < 400 || json.Unmarshal(r.body.Bytes(), &p) != nil {
		return strconv.Itoa(r.status)
	}
	return string(p.Code)
}

func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (r *recorder) Flush() { r.ResponseWriter.(http.Flusher).Flush() }

func (r *recorder) WriteHeader(status int) {
	r.status = status
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(p []byte) (int, error) {
	r.body.Write(p)
	return r.ResponseWriter.Write(p)
}

func check(asked *http.Request, got *recorder) error {
	doc, err := load()
	if err != nil {
		return err
	}
	if got.status >= 400 && got.body.Len() > 0 {
		if err := fits(doc.problem, got.body.Bytes()); err != nil {
			return err
		}
	}
	route, params, err := doc.router.FindRoute(asked)
	empty := slices.Contains(slices.Collect(maps.Values(params)), "")  // the router takes /v1/files for /v1/files/{file}
	if err != nil || empty || strings.HasSuffix(asked.URL.Path, "/") { // no operation of the document: nothing but a problem comes back
		if got.status < 400 {
			return fmt.Errorf("status %d: there is no such operation", got.status)
		}
		return nil
	}
	seen.add(asked.Method, route.Path, got.what())
	in := &openapi3filter.RequestValidationInput{
		Request: asked, PathParams: params, Route: route,
		Options: &openapi3filter.Options{
			AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, IncludeResponseStatus: true, SkipSettingDefaults: true,
		},
	}
	if got.status < 300 {
		if err := openapi3filter.ValidateRequest(context.Background(), in); err != nil {
			return fmt.Errorf("the request: %w", err)
		}
	}
	err = openapi3filter.ValidateResponse(context.Background(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: in, Status: got.status, Header: got.Header(), Options: in.Options,
		Body: io.NopCloser(bytes.NewReader(got.body.Bytes())),
	})
	if err != nil {
		return fmt.Errorf("status %d: %w", got.status, err)
	}
	if strings.HasPrefix(got.Header().Get("Content-Type"), "text/event-stream") {
		return fitEvents(doc.events, got.body.String())
	}
	return nil
}

func fits(schema *jsonschema.Schema, raw []byte) error {
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return err
	}
	return schema.Validate(v)
}

// fitEvents checks the data of each event of a stream. The last may be cut off.
func fitEvents(schema *jsonschema.Schema, s string) error {
	var name string
	for line := range strings.Lines(s) {
		field, value, _ := strings.Cut(line, ": ")
		switch {
		case field == "event":
			name = strings.TrimSuffix(value, "\n")
		case field == "data" && strings.HasSuffix(value, "\n"):
			if err := fits(schema, fmt.Appendf(nil, "{%q: %s}", name, value)); err != nil {
				return err
			}
		}
	}
	return nil
}

func TestTheDocumentIsValid(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("openapi.yaml")
	require.NoError(t, err)
	doc, err := openapi3.NewLoader().LoadFromData(raw)
	require.NoError(t, err)
	require.NoError(t, doc.Validate(t.Context(), openapi3.EnableExamplesValidation()))
}

func TestTheDocumentIsServedToAnyone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	raw, err := os.ReadFile("openapi.yaml")
	require.NoError(t, err)
	got := b.do("GET", "/v1/openapi.yaml", "", "Authorization", "")
	require.Equal(t, string(raw), got.raw)
}

var parameter = regexp.MustCompile(`:(\w+)`)

func TestTheDocumentHasEveryRouteOfTheRouterAndNoOther(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var want, got []string
	for _, r := range api.New(api.Config{Store: b.db}).(*gin.Engine).Routes() {
		want = append(want, r.Method+" "+parameter.ReplaceAllString(r.Path, "{$1}"))
	}
	operations(spec(t), func(method, path string, _ *openapi3.Operation) { got = append(got, method+" "+path) })
	slices.Sort(want)
	slices.Sort(got)
	require.Empty(t, cmp.Diff(want, got), "- router, + openapi.yaml")
}
