package api_test

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"bobbin/api"
	"bobbin/store"
	"bobbin/store/storetest"
	"bobbin/thread"
)

func TestThreadsAreOpenedListedAndRead(t *testing.T) {
	t.Parallel()
	b := setup(t)

	opened := b.do("POST", "/v1/threads", `{"title": "Trip to Oslo"}`)
	require.Equal(t, http.StatusCreated, opened.status)
	id := text(opened.body, "id")
	require.Equal(t, "/v1/threads/"+id, opened.header.Get("Location"))

	read := b.ok("GET", "/v1/threads/"+id, "")
	require.Empty(t, cmp.Diff(opened.body, read))
	require.Equal(t, "Trip to Oslo", read["title"])
	require.Equal(t, false, read["home"])
	require.EqualValues(t, 0, read["last_event"])

	home := b.ok("GET", "/v1/threads/home", "")
	require.Equal(t, true, home["home"])
	require.Equal(t, home["id"], text(b.ok("GET", "/v1/threads/home", ""), "id"), "the home thread stays the same")

	list := b.ok("GET", "/v1/threads?limit=1", "")
	require.Equal(t, true, list["has_more"])
	require.Equal(t, home["id"], at(list, "data").([]any)[0].(map[string]any)["id"])
	list = b.ok("GET", "/v1/threads?limit=1&before="+text(home, "id"), "")
	require.Equal(t, false, list["has_more"])
	require.Equal(t, id, at(list, "data").([]any)[0].(map[string]any)["id"])
}

func TestAMessageStartsATurnAndTheNextWaitsToBeLoaded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.open()

	a := b.do("POST", "/v1/threads/"+id+"/messages", `{"text": "one"}`)
	require.Equal(t, http.StatusAccepted, a.status)
	require.Equal(t, "turn", a.body["disposition"])
	require.Equal(t, "delivered", at(a.body, "message", "state"))
	require.EqualValues(t, 1, at(a.body, "message", "parts"))
	require.Equal(t, []any{}, at(a.body, "message", "attachments"))
	require.Equal(t, []any{}, at(a.body, "message", "mentions"))
	turn := text(a.body, "turn_id")

	second := b.say(id, "two")
	third := b.say(id, "three")
	require.Equal(t, "steering", third["disposition"])
	require.Equal(t, at(second, "message", "id"), at(third, "message", "id"))
	require.Equal(t, "two\n\nthree", at(third, "message", "text"))
	require.EqualValues(t, 2, at(third, "message", "parts"))
	require.Equal(t, turn, third["turn_id"])

	th := b.ok("GET", "/v1/threads/"+id, "")
	require.Equal(t, turn, th["running_turn"])
	require.Equal(t, "two\n\nthree", at(th, "steering", "text"))
	require.Positive(t, th["last_event"])

	list := b.ok("GET", "/v1/threads/"+id+"/messages", "")
	require.Equal(t, []string{"one", "two\n\nthree"}, texts(list))
	require.Equal(t, []string{"two\n\nthree"}, texts(b.ok("GET", "/v1/threads/"+id+"/messages?limit=1", "")))
}

func texts(list map[string]any) []string {
	var out []string
	for _, m := range list["data"].([]any) {
		out = append(out, text(m.(map[string]any), "text"))
	}
	return out
}

func TestARepeatedMessageIsAnsweredWithTheOriginal(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.open()
	b.say(id, "work")
	path := "/v1/threads/" + id + "/messages"

	first := b.do("POST", path, `{"text": "more", "delivery": "steer"}`, "Idempotency-Key", "k1")
	require.Empty(t, first.header.Get("Idempotency-Replayed"))
	again := b.do("POST", path, `{"text": "more"}`, "Idempotency-Key", "k1") // the client lost the answer, and sends it plainly
	require.Equal(t, http.StatusAccepted, again.status)
	require.Equal(t, "true", again.header.Get("Idempotency-Replayed"))
	require.Empty(t, cmp.Diff(first.body, again.body))
	require.Len(t, texts(b.ok("GET", path, "")), 2)

	b.refused(422, "idempotency_key_reused", "POST", path, `{"text": "other"}`, "Idempotency-Key", "k1")
}

func TestAWithdrawalReturnsTheWholeTextOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.open()
	first := b.say(id, "work")
	long := strings.Repeat("line of it \"quoted\" <b>&amp; ü 🎈\n", 160)
	waiting := text(b.say(id, long), "message", "id")

	got := b.ok("DELETE", "/v1/messages/"+waiting, "")
	require.Equal(t, long, got["text"])
	require.Equal(t, waiting, got["message_id"])
	require.Equal(t, []any{}, got["attachments"])
	b.refused(404, "already_withdrawn", "DELETE", "/v1/messages/"+waiting, "")
	b.refused(404, "already_withdrawn", "DELETE", "/v1/threads/"+id+"/steering", "")
	b.refused(409, "already_delivered", "DELETE", "/v1/messages/"+text(first, "message", "id"), "")

	b.say(id, "two")
	require.Equal(t, "two", b.ok("DELETE", "/v1/threads/"+id+"/steering", "")["text"])
	require.Equal(t, []string{"work"}, texts(b.ok("GET", "/v1/threads/"+id+"/messages", "")))
}

func TestALoadedMessageCannotBeWithdrawn(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.open()
	b.say(id, "work")
	waiting := text(b.say(id, "more"), "message", "id")
	b.work(id).take()
	b.refused(409, "already_delivered", "DELETE", "/v1/messages/"+waiting, "")
	b.refused(409, "already_delivered", "DELETE", "/v1/threads/"+id+"/steering", "")
}

func TestWithdrawingAWaitingTurnsMessageCancelsTheTurn(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.open()
	b.say(id, "work")
	a := b.ok("POST", "/v1/threads/"+id+"/messages", `{"text": "later", "delivery": "turn", "attachments": ["file_1"], "mentions": ["@calendar"]}`)
	require.Equal(t, "queued", a["disposition"])

	got := b.ok("DELETE", "/v1/messages/"+text(a, "message", "id"), "")
	require.Equal(t, []any{"file_1"}, got["attachments"])
	require.Equal(t, []any{"@calendar"}, got["mentions"])
	require.Equal(t, "cancelled", b.ok("GET", "/v1/turns/"+text(a, "turn_id"), "")["status"])
}

func TestStopReturnsTheWaitingMessageAndStartsNoTurn(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.open()
	turn := text(b.say(id, "work"), "turn_id")
	b.say(id, "and")
	b.ok("POST", "/v1/threads/"+id+"/messages", `{"text": "this", "attachments": ["file_1"], "mentions": ["@mail"]}`)

	got := b.ok("POST", "/v1/threads/"+id+"/stop", `{"scope": "conversation"}`)
	require.Equal(t, []any{turn}, got["stopped"])
	require.Equal(t, "and\n\nthis", at(got, "withdrawn", "text"))
	require.Equal(t, []any{"file_1"}, at(got, "withdrawn", "attachments"))
	require.Equal(t, []any{"@mail"}, at(got, "withdrawn", "mentions"))
	require.Equal(t, true, b.ok("GET", "/v1/threads/"+id, "")["stopping"])
	b.refused(409, "stopping", "POST", "/v1/threads/"+id+"/messages", `{"text": "x", "delivery": "steer"}`)

	b.work(id).fail() // it ends cancelled, as it was told to stop
	require.Equal(t, "cancelled", b.ok("GET", "/v1/turns/"+turn, "")["status"])
	require.Len(t, at(b.ok("GET", "/v1/threads/"+id+"/turns", ""), "data"), 1)

	again := b.do("POST", "/v1/threads/"+id+"/stop", "")
	require.JSONEq(t, `{"stopped": [], "withdrawn": null}`, again.raw)
}

func TestStopReachesBackgroundTurnsIfAsked(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.open()
	turn := text(b.say(id, "work"), "turn_id")
	background, err := b.db.AddBackground(t.Context(), id, "event", "look")
	require.NoError(t, err)
	b.ok("POST", "/v1/threads/"+id+"/messages", `{"text": "later", "delivery": "turn"}`)

	got := b.ok("POST", "/v1/threads/"+id+"/stop", `{"scope": "all"}`)
	require.Len(t, got["stopped"], 3)
	require.Contains(t, got["stopped"], turn)
	require.Contains(t, got["stopped"], background.ID)
	require.Equal(t, "later", at(got, "withdrawn", "text"))
}

func TestResetArchivesTheThreadAndTheNextMessageOpensAFreshOne(t *testing.T) {
	t.Parallel()
	b := setup(t)
	home := text(b.ok("GET", "/v1/threads/home", ""), "id")
	turn := text(b.say("home", "work"), "turn_id")
	b.say("home", "more")

	got := b.ok("POST", "/v1/threads/"+home+"/reset", "")
	require.Equal(t, []any{turn}, got["stopped"])
	require.Equal(t, "more", at(got, "withdrawn", "text"))
	b.refused(409, "thread_archived", "POST", "/v1/threads/"+home+"/messages", `{"text": "late"}`)
	b.refused(409, "thread_archived", "POST", "/v1/threads/"+home+"/reset", "")
	require.Equal(t, "archived", b.ok("GET", "/v1/threads/"+home, "")["status"])

	require.Equal(t, "turn", b.say("home", "hello")["disposition"])
	require.NotEqual(t, home, b.ok("GET", "/v1/threads/home", "")["id"])
}

func TestATurnIsCancelledAndReplayed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.open()
	turn := text(b.say(id, "work"), "turn_id")
	b.refused(409, "conflict", "POST", "/v1/turns/"+turn+"/replay", "")

	b.work(id).fail()
	got := b.ok("GET", "/v1/turns/"+turn, "")
	require.Equal(t, "failed", got["status"])
	require.Equal(t, "internal", at(got, "error", "code"))
	require.Equal(t, "UTC", zone(t, got, "started_at"))
	b.refused(409, "conflict", "POST", "/v1/turns/"+turn+"/cancel", "")

	require.Equal(t, "queued", b.ok("POST", "/v1/turns/"+turn+"/replay", "{}")["status"])
	got = b.ok("POST", "/v1/turns/"+turn+"/cancel", "")
	require.Equal(t, []any{turn}, got["stopped"])
	require.Nil(t, got["withdrawn"])
}

func zone(t *testing.T, m map[string]any, name string) string {
	t.Helper()
	if s := text(m, name); strings.HasSuffix(s, "Z") {
		return "UTC"
	}
	return text(m, name)
}

func TestTurnsAndStepsComeInPages(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.open()
	turn := text(b.say(id, "work"), "turn_id")
	w := b.work(id)
	for _, line := range []string{"one", "two", "three"} {
		b.say(id, line)
		w.take()
	}
	steps := b.ok("GET", "/v1/turns/"+turn+"/steps?limit=2", "")
	require.Equal(t, true, steps["has_more"])
	require.Len(t, steps["data"], 2)
	last := steps["data"].([]any)[1].(map[string]any)
	require.EqualValues(t, 2, last["n"])
	require.Equal(t, "boundary", last["kind"])
	rest := b.ok("GET", "/v1/turns/"+turn+"/steps?limit=2&after=2", "")
	require.Equal(t, false, rest["has_more"])
	require.Len(t, rest["data"], 1)

	b.ok("POST", "/v1/threads/"+id+"/messages", `{"text": "later", "delivery": "turn", "mode": "chat"}`)
	turns := b.ok("GET", "/v1/threads/"+id+"/turns?limit=1", "")
	require.Equal(t, true, turns["has_more"])
	require.Equal(t, "chat", turns["data"].([]any)[0].(map[string]any)["mode"])
}

func TestHealthListsWhatWaitsAndWhatFailed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.open()
	b.say(id, "work")
	b.work(id).fail()
	b.say(id, "again")
	b.ok("POST", "/v1/threads/"+id+"/messages", `{"text": "later", "delivery": "turn"}`)
	got := b.ok("GET", "/v1/health", "")
	require.EqualValues(t, 1, got["waiting"])
	require.EqualValues(t, 1, got["running"])
	require.Len(t, got["failed"], 1)
	require.EqualValues(t, 1, got["undriven"], "nobody drives what was claimed as it was accepted")
	require.EqualValues(t, 0, got["workers"])
	require.NotEmpty(t, got["oldest_waiting"])
}

func TestUsageShowsTheMonthAndWhatTheLimitLeaves(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.open()
	turn := text(b.say(id, "work"), "turn_id")
	got := b.ok("GET", "/v1/usage", "")
	require.Nil(t, got["limit_usd"])
	require.Nil(t, got["remaining_usd"])
	require.Equal(t, []any{}, got["models"])

	limit := 5 * thread.Dollar
	require.NoError(t, b.db.SetLimit(t.Context(), "anna", &limit))
	require.NoError(t, b.db.Settle(t.Context(), store.TurnRef{ID: turn, ThreadID: id}, store.Charge{
		Round: 1, Model: "m", Outcome: store.ChargeFailed, Estimated: true,
		Usage: thread.Usage{InputTokens: 10, CachedTokens: 4, OutputTokens: 3, ReasoningTokens: 2, Cost: 4_900_000_000},
	}))
	got = b.ok("GET", "/v1/usage?month="+time.Now().UTC().Format("2006-01"), "")
	counted := map[string]any{"input_tokens": 10.0, "cached_tokens": 4.0, "output_tokens": 3.0, "reasoning_tokens": 2.0, "cost_usd": 4.9}
	require.Equal(t, counted, b.ok("GET", "/v1/turns/"+turn, "")["usage"], "the turn's usage has the same source")
	counted["model"], counted["calls"] = "m", 1.0
	require.Equal(t, []any{counted}, got["models"])
	require.Equal(t, []any{5.0, 4.9, 0.0, 0.1}, []any{got["limit_usd"], got["spent_usd"], got["reserved_usd"], got["remaining_usd"]})
	require.Equal(t, 0.0, b.ok("GET", "/v1/usage?month=2020-02", "")["spent_usd"])
	require.Equal(t, "2020-03-01T00:00:00Z", b.ok("GET", "/v1/usage?month=2020-02", "")["resets_at"])
	require.Equal(t, []any{}, b.ok("GET", "/v1/usage", "", "Authorization", "Bearer "+bertsKey)["models"], "others see nothing of it")

	for _, month := range []string{"", "2026", "2026-13", "2026-1", "november", "2026-11-30", "0001-01", "9999-12"} {
		a := b.refused(400, "invalid_field", "GET", "/v1/usage?month="+month, "")
		require.Equal(t, "month", a.body["field"])
	}
}

func TestAtTheSpendingLimitAMessageIsRefusedAndARepeatedOneIsAnswered(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.open()
	first := b.say(id, "work", "Idempotency-Key", "k")
	none := thread.USD(0)
	require.NoError(t, b.db.SetLimit(t.Context(), "anna", &none))
	a := b.refused(402, "usage_limit", "POST", "/v1/threads/"+id+"/messages", `{"text": "more"}`)
	require.Contains(t, a.body["detail"], "the limit of this month is $0.00; $0.00 is spent, $0.00 reserved by calls under way; it starts anew on ")
	again := b.say(id, "work", "Idempotency-Key", "k")
	require.Equal(t, first["turn_id"], again["turn_id"])
	require.Len(t, b.ok("GET", "/v1/threads/"+id+"/messages", "")["data"], 1)
}

func TestIdsThatCannotBeAreNotFound(t *testing.T) {
	t.Parallel()
	b := setup(t)
	bad := []string{"nope", "%00", "a%00b", "%ff", strings.Repeat("x", 200), "a%20b", "%F0%9F%8E%88", "a%27--"}
	walk(t, func(method, path string, op *openapi3.Operation) {
		for _, id := range bad {
			if p := strings.NewReplacer("{thread}", id, "{turn}", id, "{message}", id).Replace(path); p != path {
				b.refused(404, "not_found", method, p, encode(t, example(t, op)))
			}
		}
	})
}

func TestUnknownRoutesAndMethodsAreProblems(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.refused(404, "not_found", "GET", "/v1/nothing", "")
	b.refused(404, "not_found", "GET", "/", "", "Authorization", "")
	b.refused(404, "not_found", "GET", "/v1/threads/", "")
	a := b.refused(405, "method_not_allowed", "PUT", "/v1/threads", "")
	require.ElementsMatch(t, []string{"GET", "POST"}, strings.Split(a.header.Get("Allow"), ", "))
}

func TestAKeyThatWasJustMadeWorksThoughItWasTriedBefore(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.refused(401, "unauthorized", "GET", "/v1/health", "", "Authorization", "Bearer bob_new")
	require.NoError(t, b.db.EnsureKey(t.Context(), "carl", "test", "bob_new"))
	b.ok("GET", "/v1/health", "", "Authorization", "bearer bob_new")
}

func TestTheLocalKeyIsTakenOnlyWhereThereIsOne(t *testing.T) {
	t.Parallel()
	b := setup(t)
	require.NoError(t, b.db.EnsureOwner(t.Context(), "dev"))
	b.refused(401, "unauthorized", "GET", "/v1/health", "", "Authorization", "Bearer dev")

	b.url = b.serve(b.db, func(c *api.Config) { c.LocalKey, c.LocalOwner = "dev", "dev" })
	id := text(b.ok("POST", "/v1/threads", "", "Authorization", "Bearer dev"), "id")
	b.ok("GET", "/v1/threads/"+id, "", "Authorization", "Bearer dev")
	b.refused(404, "not_found", "GET", "/v1/threads/"+id, "") // Anna's key is another's
	for _, key := range []string{"de", "dev2", "Dev", ""} {
		b.refused(401, "unauthorized", "GET", "/v1/health", "", "Authorization", "Bearer "+key)
	}
}

func TestOperatorsNeedNoKey(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *api.Config) { c.Version = "v1.2.3" })
	require.Equal(t, "v1.2.3", b.ok("GET", "/healthz", "", "Authorization", "")["version"])
	require.Equal(t, "ready", b.ok("GET", "/readyz", "", "Authorization", "")["status"])
	for _, path := range []string{"/healthz", "/readyz"} {
		require.Equal(t, 200, b.do("HEAD", path, "", "Authorization", "").status)
	}
	b.say(b.open(), "hello there")
	b.refused(404, "not_found", "GET", "/v1/turns/trn_secret", "")

	got := b.do("GET", "/metrics", "", "Authorization", "").raw
	for _, want := range []string{
		`bobbin_http_requests_total{method="POST",route="/v1/threads/:thread/messages",status="202"} 1`,
		`bobbin_http_requests_total{method="GET",route="/v1/turns/:turn",status="404"} 1`,
		`bobbin_http_request_seconds_count{method="POST",route="/v1/threads"} 1`,
		`bobbin_api_operation_seconds_count{operation="accept"} 1`,
		`bobbin_event_subscribers 0`,
	} {
		require.Contains(t, got, want)
	}
	require.NotContains(t, got, "trn_secret")
}

func TestWithoutPostgresTheServerSaysSoAndWhenToComeBack(t *testing.T) {
	t.Parallel()
	l := &log{}
	b := setup(t, func(c *api.Config) {
		c.Log = slog.New(slog.NewJSONHandler(l, &slog.HandlerOptions{Level: slog.LevelWarn}))
	})
	b.ok("GET", "/v1/threads", "") // its key is known from now on
	b.db.Close()
	a := b.refused(503, "unavailable", "GET", "/readyz", "")
	require.Equal(t, []any{"postgres does not answer"}, a.body["missing"])
	require.Equal(t, 503, b.do("HEAD", "/readyz", "").status)
	asked := 0
	walk(t, func(method, path string, op *openapi3.Operation) {
		if op.OperationID == "uploadFile" { // it has a form, and a test of its own
			return
		}
		asked++
		path = strings.NewReplacer("{", "", "}", "").Replace(path)
		a := b.refused(503, "unavailable", method, path, encode(t, example(t, op)))
		require.Equal(t, "1", a.header.Get("Retry-After"))
		require.NotContains(t, a.raw, "closed pool")
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	require.Equal(t, asked, strings.Count(l.buf.String(), `"level":"WARN","msg":"request not served"`))
}

func TestReadyNamesEverythingThatIsMissing(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *api.Config) {
		c.Ready = func(ctx context.Context) error {
			return errors.Join(errors.New("temporal does not answer"), errors.New("no worker"))
		}
	})
	a := b.refused(503, "unavailable", "GET", "/readyz", "")
	require.Equal(t, []any{"temporal does not answer", "no worker"}, a.body["missing"])
}

// A schema that is ahead is what the old version sees in the middle of a rolling deploy: it must serve on.
func TestReadyWantsASchemaThatIsNotOlder(t *testing.T) {
	t.Parallel()
	b := setup(t)
	conn, err := sql.Open("pgx", b.dsn)
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	_, err = conn.ExecContext(t.Context(), `INSERT INTO goose_db_version (version_id, is_applied) VALUES (9999, true)`)
	require.NoError(t, err)
	notes := b.ok("GET", "/readyz", "")["notes"].([]any)
	require.Contains(t, notes[0], "9999")
	_, err = conn.ExecContext(t.Context(), `DELETE FROM goose_db_version WHERE version_id > 0`)
	require.NoError(t, err)
	a := b.refused(503, "unavailable", "GET", "/readyz", "")
	require.Contains(t, a.body["missing"].([]any)[0], "run bobbin migrate")
	_, err = conn.ExecContext(t.Context(), `DROP TABLE goose_db_version`)
	require.NoError(t, err)
	a = b.refused(503, "unavailable", "GET", "/readyz", "")
	require.Equal(t, []any{"the database has no schema: run bobbin migrate"}, a.body["missing"])
}

func TestAnOperatorsHandlerHasNoAPI(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := httptest.NewServer(api.Operator(api.Config{Store: b.db, Log: slog.New(slog.DiscardHandler)}))
	defer s.Close()
	b.url = s.URL
	for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
		require.Equal(t, 200, b.do("GET", path, "", "Authorization", "").status, path)
	}
	b.refused(404, "not_found", "GET", "/v1/health", "")
}

func TestAPanicIsAProblemWithoutItsText(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *api.Config) { c.Ready = func(context.Context) error { panic("what Anna said") } })
	a := b.refused(500, "internal", "GET", "/readyz", "")
	require.NotContains(t, a.raw, "Anna")
	require.Equal(t, a.header.Get("X-Request-Id"), a.body["request_id"])
}

func TestAMessageIsStoredThoughItsSenderGoesAway(t *testing.T) {
	t.Parallel()
	arrived, hold := make(chan struct{}), make(chan struct{})
	b := setup(t)
	db := storetest.Open(t, b.dsn, func(c *store.Config) {
		c.Point = func(context.Context, store.Point) { close(arrived); <-hold }
	})
	url := b.serve(db)
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error)
	go func() {
		req, _ := http.NewRequestWithContext(ctx, "POST", url+"/v1/threads/home/messages", strings.NewReader(`{"text": "bye"}`))
		req.Header.Set("Authorization", "Bearer "+annasKey)
		req.Header.Set("Content-Type", "application/json")
		_, err := http.DefaultClient.Do(req)
		gone <- err
	}()
	<-arrived
	cancel()
	require.ErrorIs(t, <-gone, context.Canceled)
	s := b.stream("home", "?after=0")
	close(hold)
	require.Equal(t, "message.created", s.next().name)
}
