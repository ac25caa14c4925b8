package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	sdkpb "go.temporal.io/api/sdk/v1"
	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/protobuf/proto"

	"bobbin/contract"
	"bobbin/e2e/house"
	"bobbin/e2e/tally"
	"bobbin/llm/scripted"
	"bobbin/thread"
)

// planted is in each text that must not be found; what follows it says which text it was.
const planted = "PLANTED"

// A hunt looks for planted texts.
type hunt struct {
	*house.House
	looked int
}

// in fails the test where text holds a planted one, and says which.
func (h *hunt) in(where, text string) {
	h.T.Helper()
	h.looked++
	if i := strings.Index(text, planted); i >= 0 {
		h.T.Errorf("%s: …%s…", where, text[max(0, i-150):min(len(text), i+80)])
	}
}

func (h *hunt) inMessage(where string, m proto.Message) {
	h.T.Helper()
	raw, err := proto.Marshal(m)
	require.NoError(h.T, err)
	h.in(where, string(raw))
}

// temporal/sdk-python#1890
func TestNothingThatWasSaidIsFoundWhereItDoesNotBelong(t *testing.T) {
	t.Parallel()
	book := tally.Keep(t, "leaks")
	traces := newTraceServer(t)
	h := &hunt{House: house.Open(t, "BOBBIN_LOG_LEVEL=DEBUG", "OTEL_EXPORTER_OTLP_ENDPOINT="+traces.url, "OTEL_BSP_SCHEDULE_DELAY=50",
		"OPENAI_API_KEY="+planted+"MODELKEY", "BOBBIN_RATE_LIMIT=0", "BOBBIN_AUTH_FAILURE_LIMIT=0", "BOBBIN_HISTORY_ROLL_OVER=40")}
	secret := withPassword(t, h.DSN, planted+"PASSWORD")
	p := h.Start("migrate", "DATABASE_URL="+secret)
	require.Zero(t, p.WaitEnd(), p.LogText())
	h.API("DATABASE_URL=" + secret)
	_, operator := h.Operated("DATABASE_URL=" + secret)
	h.Ready(operator)
	require.NoError(t, h.DB.EnsureKey(t.Context(), "bert", "e2e", "bob_bert"))
	require.NoError(t, h.DB.EnsureKey(t.Context(), "anna", "e2e", "bob_"+planted+"APIKEY"))

	l := h.leave()
	h.lookInTemporal(l)
	h.lookAtProblems(l)
	h.lookAsAnother(l)
	h.Until("the turn's span", func() bool { return len(traces.named("invoke_agent bobbin")) > 0 })
	for _, at := range []string{h.URL(), operator} {
		status, text := house.Get(at + "/metrics")
		require.Equal(t, 200, status)
		h.in("the metrics", text)
		_, text = house.Get(at + "/readyz")
		h.in("whether it is ready", text)
	}
	h.failToStart(secret)
	for _, p := range h.Processes {
		p.Terminate()
		p.WaitEnd()
		h.in("the log of "+p.Name, p.LogText())
	}
	traces.mu.Lock()
	defer traces.mu.Unlock()
	require.NotEmpty(t, traces.spans)
	h.in("the traces", traces.raw.String())
	book.Add(tally.Row{Runs: 1, Operations: h.looked, Figures: map[string]string{"places looked at for what was said": fmt.Sprint(h.looked)}})
}

// A left is what was left in a house, everything with planted texts in it.
type left struct {
	*house.Chat
	turn, message, file, background string
}

// leave does whatever takes a text.
func (h *hunt) leave() left {
	t := h.T
	t.Helper()
	look := h.Tools.Gate(planted + "LOOK")
	long := scripted.Rounds(
		scripted.Reply{Reasoning: planted + "THOUGHT", Calls: []scripted.Call{
			{Name: "look", Arguments: `{"key": "` + planted + `LOOK"}`}, {Name: "charge", Arguments: `{"key": "` + planted + `CHARGE"}`},
		}},
		scripted.Reply{Calls: []scripted.Call{{Name: planted + "TOOL", Arguments: `{"key": "` + planted + `UNKNOWN"}`}}},
		scripted.Reply{Calls: []scripted.Call{{Name: "look", Arguments: `{"key": 7, "` + planted + `FIELD": "` + planted + `VALUE"}`}}},
		scripted.Reply{Calls: []scripted.Call{{Name: "fetch_url", Arguments: `{"url": "http://127.0.0.1:1/` + planted + `URL"}`}}},
		scripted.Reply{Text: planted + "ANSWER", Reasoning: planted + "THOUGHT"},
		scripted.Reply{Status: 400, ErrorCode: planted + " CODE", ErrorMessage: planted + "PROVIDER"},
	)
	c := h.Chat(func(r scripted.Request) scripted.Reply {
		switch {
		case r.Mentions(planted + "TASK"):
			return scripted.Say(planted + "REPORT")
		case r.Mentions(planted + "STOPPED"):
			return scripted.Reply{Text: planted + "HALF", Fault: scripted.Hang, After: 1}
		case r.Mentions(planted + "REFUSED"):
			return scripted.Reply{Status: 400, ErrorCode: planted + " CODE", ErrorMessage: planted + "PROVIDER"}
		}
		return long(r)
	})
	f, status := tryUpload(h.House, house.APIKey, planted+"NAME.txt", planted+"CONTENT")
	require.Equal(t, http.StatusCreated, status)
	l := left{Chat: c, file: f.ID}
	mention := func(b map[string]any, _ *[]string) { b["mentions"] = []string{planted + "MENTION"} }
	withKey := func(_ map[string]any, headers *[]string) {
		*headers = append(*headers, "Authorization", "Bearer bob_"+planted+"APIKEY")
	}
	first := c.Start(planted+"WORDS", house.Files(f.ID), mention, house.Key(planted+"KEY"), withKey)
	l.turn, l.message = first.TurnID, first.Message.ID
	h.Arrives(look)
	c.Send(planted+"LINE", house.Key(planted+"LINEKEY"))
	_, err := c.TrySend(planted+"OTHER", house.Key(planted+"KEY"))
	house.RequireProblem(t, err, 422, "idempotency_key_reused")
	h.lookInside(c.WorkflowID())
	look.Release()
	c.Answered(first.TurnID)

	b, err := h.DB.AddBackground(h.Ctx(), c.ID, thread.SourceEvent, c.Marker+" "+planted+"TASK")
	require.NoError(t, err)
	c.Answered(b.ID)
	l.background = b.ID
	stopped := c.Send(planted + "STOPPED")
	c.AwaitNamed(thread.EventAnswerDelta, stopped.TurnID)
	c.Send(planted + "BACK")
	var out house.Stopped
	require.NoError(t, h.Call("POST", "/v1/threads/"+c.ID+"/stop", map[string]any{}, &out, "Idempotency-Key", planted+"STOPKEY"))
	require.NotNil(t, out.Withdrawn)
	c.Ended(stopped.TurnID)
	refused := h.Chat(func(scripted.Request) scripted.Reply {
		return scripted.Reply{Status: 400, ErrorCode: planted + " CODE", ErrorMessage: planted + "PROVIDER"}
	})
	failed := refused.Start(planted + "REFUSED")
	require.Equal(t, thread.EventTurnFailed, refused.Ended(failed.TurnID).Name)
	var titled thread.Thread
	require.NoError(t, h.Call("POST", "/v1/threads", map[string]any{"title": planted + "TITLE"}, &titled))
	return l
}

// lookInside asks a workflow that runs what it shows of itself.
func (h *hunt) lookInside(workflowID string) {
	h.T.Helper()
	value, err := h.Temporal.QueryWorkflow(h.Ctx(), workflowID, "", "__temporal_workflow_metadata")
	require.NoError(h.T, err)
	var m sdkpb.WorkflowMetadata
	require.NoError(h.T, value.Get(&m))
	require.NotEmpty(h.T, m.CurrentDetails)
	h.inMessage("the current details of "+workflowID, &m)
}

// lookInTemporal looks at everything that the server keeps of all workflows.
func (h *hunt) lookInTemporal(l left) {
	h.T.Helper()
	h.lookInside(l.WorkflowID())
	ids := map[string]bool{l.WorkflowID(): true, contract.TurnWorkflowID(l.background): true}
	h.Until("all workflows to be listed", func() bool {
		list, err := h.Temporal.ListWorkflow(h.Ctx(), &workflowservice.ListWorkflowExecutionsRequest{})
		require.NoError(h.T, err)
		for _, w := range list.Executions {
			h.inMessage("a line of the list of workflows", w) // memo and search attributes
			ids[w.Execution.WorkflowId] = true
		}
		return len(list.Executions) >= 3
	})
	for id := range ids {
		described, err := h.Temporal.DescribeWorkflowExecution(h.Ctx(), id, "")
		require.NoError(h.T, err)
		h.inMessage("the description of "+id, described)
		for _, run := range h.WorkflowRuns(id) {
			for _, e := range run.Events {
				h.inMessage("the history of "+id, e)
			}
		}
	}
}

// lookAtProblems sends what is wrong in every way, each with a text that the answer must not repeat.
func (h *hunt) lookAtProblems(l left) {
	h.T.Helper()
	messages, x := "/v1/threads/"+l.ID+"/messages", planted+"BAD"
	long := strings.Repeat(x+" ", 30_000)
	for _, q := range []struct {
		method, path, body string
		headers            []string
	}{
		{"POST", messages, `{"text": "` + x, nil},
		{"POST", messages, x, nil},
		{"POST", messages, `["` + x + `"]`, nil},
		{"POST", messages, `{"text": "a"} ` + x, nil},
		{"POST", messages, `{"text": ["` + x + `"]}`, nil},
		{"POST", messages, `{"text": "` + long + `"}`, nil},
		{"POST", messages, `{"text": "` + strings.Repeat(long, 12) + `"}`, nil},
		{"POST", messages, `{"text": "` + x + `\u0000"}`, nil},
		{"POST", messages, `{"txt": "` + x + `"}`, nil},
		{"POST", messages, `{"text": "a", "delivery": "` + x + `"}`, nil},
		{"POST", messages, `{"text": "a", "mode": "` + x + `"}`, nil},
		{"POST", messages, `{"text": "a", "reply_to": "` + x + `"}`, nil},
		{"POST", messages, `{"text": "a", "attachments": ["` + x + `"]}`, nil},
		{"POST", messages, `{"text": "a", "attachments": "` + x + `"}`, nil},
		{"POST", messages, `{"text": "a", "attachments": ["` + strings.Repeat(x+`", "`, 20) + `"]}`, nil},
		{"POST", messages, `{"text": "a", "mentions": ["` + long + `"]}`, nil},
		{"POST", messages, `{"text": "a", "mentions": {"a": "` + x + `"}}`, nil},
		{"POST", messages, `{"text": "a"}`, []string{"Idempotency-Key", strings.Repeat(x, 40)}},
		{"POST", messages, `{"text": "a"}`, []string{"Content-Type", "text/" + x}},
		{"POST", messages, `{"text": "a"}`, []string{"Authorization", "Bearer bob_" + x}},
		{"POST", messages, `{"text": "a"}`, []string{"Authorization", "Basic " + x}},
		{"POST", "/v1/threads", `{"title": "` + long + `"}`, nil},
		{"POST", "/v1/threads/" + l.ID + "/stop", `{"scope": "` + x + `"}`, nil},
		{"POST", "/v1/threads/" + x + "/messages", `{"text": "` + x + `"}`, nil},
		{"GET", "/v1/threads/" + x, "", nil},
		{"GET", "/v1/threads/" + x + "/events", "", nil},
		{"GET", "/v1/threads/" + l.ID + "/events?after=" + x, "", nil},
		{"GET", "/v1/threads/" + l.ID + "/events", "", []string{"Last-Event-ID", x}},
		{"GET", messages + "?limit=" + x, "", nil},
		{"GET", messages + "?before=" + x, "", nil},
		{"GET", "/v1/usage?from=" + x, "", nil},
		{"GET", "/v1/usage?month=" + x, "", nil},
		{"GET", "/v1/turns/" + x, "", nil},
		{"GET", "/v1/files/" + x + "/content", "", nil},
		{"DELETE", "/v1/messages/" + x, "", nil},
		{"DELETE", "/v1/messages/" + l.message, "", nil},
		{"DELETE", "/v1/threads/" + l.ID + "/steering", "", nil},
		{"POST", "/v1/turns/" + l.turn + "/replay", "", nil},
		{"POST", "/v1/turns/" + l.turn + "/cancel", `{"` + planted + `": 1`, nil},
		{"DELETE", "/v1/files/" + l.file, "", nil},
		{"POST", "/v1/files", x, []string{"Content-Type", "multipart/form-data; boundary=" + x}},
		{"GET", "/" + x, "", nil},
		{x, messages, "", nil},
	} {
		status, text := h.ask(q.method, q.path, q.body, q.headers...)
		require.GreaterOrEqual(h.T, status, 400, "%s %s %.60s: %.200s", q.method, q.path, q.body, text)
		require.Less(h.T, status, 500, "%s %s %.60s", q.method, q.path, q.body)
		h.in(fmt.Sprintf("the answer to %s %s %.60s", q.method, q.path, q.body), text)
	}
	_, status := tryUpload(h.House, house.APIKey, x+"/../"+strings.Repeat("x", 300), x)
	require.GreaterOrEqual(h.T, status, 400)
}

// lookAsAnother reads every address with the key of somebody else.
func (h *hunt) lookAsAnother(l left) {
	h.T.Helper()
	status, document := h.ask("GET", "/v1/openapi.yaml", "")
	require.Equal(h.T, 200, status)
	ids := strings.NewReplacer("{thread}", l.ID, "{turn}", l.turn, "{message}", l.message, "{file}", l.file)
	paths := 0
	for line := range strings.Lines(document) {
		path, ok := strings.CutPrefix(strings.TrimRight(line, ":\n"), "  /v1/")
		if !ok {
			continue
		}
		paths++
		full := "/v1/" + ids.Replace(path)
		for _, method := range []string{"GET", "POST", "DELETE"} {
			body := ""
			if method == "POST" && strings.HasSuffix(path, "/messages") {
				body = `{"text": "mine"}`
			}
			status, text := h.ask(method, full, body, "Authorization", "Bearer bob_bert")
			if strings.Contains(path, "{") {
				require.Contains(h.T, []int{404, 405}, status, "%s %s: %s", method, path, text)
			}
			h.in("what another is answered to "+method+" "+path, text)
		}
	}
	require.Greater(h.T, paths, 12, "the document's addresses")
	_, content := h.ask("GET", "/v1/files/"+l.file+"/content", "")
	require.Equal(h.T, planted+"CONTENT", content, "nothing of it was touched")
	_, own := h.ask("GET", "/v1/threads/"+l.ID+"/messages", "")
	require.Contains(h.T, own, planted+"WORDS", "who wrote it reads it")
}

// failToStart starts processes that cannot reach what they need, or cannot read their configuration.
func (h *hunt) failToStart(secret string) {
	h.T.Helper()
	wrong := strings.Replace(secret, h.SQL.Config().ConnConfig.Database, "no_such_database", 1)
	for _, env := range [][]string{
		{"DATABASE_URL=" + wrong}, {"DATABASE_URL=postgres://bobbin:" + planted + "PASSWORD@[::1/bobbin"},
		{"DATABASE_URL=" + secret, "OPENAI_BASE_URL=" + planted + "MODELKEY"},
		{"DATABASE_URL=" + secret, "BOBBIN_FILES_BUCKET=b", "BOBBIN_FILES_ACCESS_KEY=" + planted + "ACCESS", "BOBBIN_FILES_SECRET_KEY=" + planted + "SECRET", "BOBBIN_FILES_ENDPOINT=nowhere"},
	} {
		p := h.Start("worker", env...)
		require.NotZero(h.T, p.WaitEnd(), "%s", p.LogText())
	}
}

// ask makes one request, by default with the owner's key, and returns all that is answered, headers included.
func (h *hunt) ask(method, path, body string, headers ...string) (status int, text string) {
	h.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), house.Patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, h.URL()+path, strings.NewReader(body))
	require.NoError(h.T, err)
	req.Header.Set("Authorization", "Bearer "+house.APIKey)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for pair := range slices.Chunk(headers, 2) {
		req.Header.Set(pair[0], pair[1])
	}
	resp, err := http.DefaultClient.Do(req)
	require.NoError(h.T, err, "%s %s", method, path)
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	require.NoError(h.T, err)
	if resp.StatusCode < 400 {
		return resp.StatusCode, string(raw)
	}
	return resp.StatusCode, fmt.Sprint(resp.Header) + string(raw)
}

// withPassword puts a password, which the test's Postgres does not ask for, into a connection string.
func withPassword(t *testing.T, dsn, password string) string {
	t.Helper()
	if !strings.HasPrefix(dsn, "postgres") {
		return dsn + " password=" + password
	}
	u, err := url.Parse(dsn)
	require.NoError(t, err)
	if _, set := u.User.Password(); set || os.Getenv("BOBBIN_TEST_DATABASE_URL") != "" {
		return dsn // the server asks for its own
	}
	u.User = url.UserPassword(u.User.Username(), password)
	return u.String()
}
