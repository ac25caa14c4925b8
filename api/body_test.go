package api_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"bobbin/api"
	"bobbin/store/storetest"
)

func TestABodyThatCannotBeReadIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.open()
	path := "/v1/threads/" + id + "/messages"
	a := b.refused(413, "body_too_large", "POST", path, `{"text": "`+strings.Repeat("x", 1<<20)+`"}`)
	require.EqualValues(t, 1<<20, a.body["limit"])
	for _, media := range []string{"", "text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin1", ";"} {
		b.refused(415, "unsupported_media_type", "POST", path, `{"text": "a"}`, "Content-Type", media)
	}
	b.refused(400, "invalid_json", "POST", path, "")
	b.ok("POST", path, `{"text": "a"}`, "Content-Type", "application/json; charset=UTF-8")
}

func TestSeveralMistakesAreAllNamed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	a := b.refused(400, "invalid_field", "POST", "/v1/threads/home/messages", `{"mode": "x", "more": 1}`)
	require.Len(t, a.body["errors"], 3)
	require.Equal(t, "mode", a.body["field"])
	require.Empty(t, texts(b.ok("GET", "/v1/threads/home/messages", "")))
}

func TestEveryRouteReadsItsInputStrictly(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.open()
	turn := text(b.say(id, "work"), "turn_id")
	tests := []struct{ method, path, body, code, field string }{
		{"POST", "/v1/threads", `{"titel": "x"}`, "unknown_field", "titel"},
		{"POST", "/v1/threads", `{"title": "a\u0000"}`, "invalid_field", "title"},
		{"POST", "/v1/threads", `[]`, "invalid_json", ""},
		{"POST", "/v1/threads/THREAD/stop", `{"scope": "everything"}`, "invalid_field", "scope"},
		{"POST", "/v1/threads/THREAD/stop", `{"all": true}`, "unknown_field", "all"},
		{"POST", "/v1/threads/THREAD/reset", `{"hard": true}`, "unknown_field", "hard"},
		{"POST", "/v1/turns/TURN/cancel", `{"why": ""}`, "unknown_field", "why"},
		{"POST", "/v1/turns/TURN/replay", `nope`, "invalid_json", ""},
		{"DELETE", "/v1/threads/THREAD/steering", `{"id": 1}`, "unknown_field", "id"},
		{"DELETE", "/v1/messages/MESSAGE", `{"id": 1}`, "unknown_field", "id"},
		{"GET", "/v1/threads?limit=0", "", "invalid_field", "limit"},
		{"GET", "/v1/threads?limit=501", "", "invalid_field", "limit"},
		{"GET", "/v1/threads?limit=ten", "", "invalid_field", "limit"},
		{"GET", "/v1/threads?limit=1&limit=2", "", "invalid_field", "limit"},
		{"GET", "/v1/threads?before=%00", "", "invalid_field", "before"},
		{"GET", "/v1/threads?after=x", "", "unknown_field", "after"},
		{"GET", "/v1/threads/THREAD/messages?before=%ff", "", "invalid_field", "before"},
		{"GET", "/v1/threads/THREAD/turns?before=a%27b", "", "invalid_field", "before"},
		{"GET", "/v1/turns/TURN/steps?after=-1", "", "invalid_field", "after"},
		{"GET", "/v1/turns/TURN/steps?after=99999999999", "", "invalid_field", "after"},
		{"GET", "/v1/turns/TURN/steps?before=1", "", "unknown_field", "before"},
	}
	ids := strings.NewReplacer("THREAD", id, "TURN", turn, "MESSAGE", "msg_1")
	for _, test := range tests {
		a := b.refused(400, test.code, test.method, ids.Replace(test.path), test.body)
		field, _ := a.body["field"].(string)
		require.Equal(t, test.field, field, "%s %s", test.method, test.path)
	}
	a := b.refused(422, "limit_exceeded", "POST", "/v1/threads", `{"title": "`+strings.Repeat("x", 201)+`"}`)
	require.EqualValues(t, 200, a.body["limit"])
	require.Equal(t, "active", b.ok("GET", "/v1/threads/"+id, "")["status"])
}

func TestTheLimitOfAMergedMessageIsNamed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.open()
	path := "/v1/threads/" + id + "/messages"
	b.say(id, "work")
	storetest.AddFiles(t, b.dsn, "anna", strings.Split("1 2 3 4 5 6 7 8 9 10 11", " ")...)
	b.ok("POST", path, `{"text": "a", "attachments": ["1", "2", "3", "4", "5", "6"]}`)
	a := b.refused(422, "limit_exceeded", "POST", path, `{"text": "b", "attachments": ["7", "8", "9", "10", "11"]}`)
	require.Equal(t, "attachments", a.body["field"])
	require.EqualValues(t, 10, a.body["limit"])
	require.Equal(t, "a", text(b.ok("GET", "/v1/threads/"+id, ""), "steering", "text"))
}

func TestASteerIsRefusedWhereItCannotBe(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.open()
	path := "/v1/threads/" + id + "/messages"
	b.refused(409, "no_running_turn", "POST", path, `{"text": "a", "delivery": "steer"}`)
	said := text(b.say(id, "work"), "message", "id")
	b.refused(409, "not_steerable", "POST", path, `{"text": "a", "delivery": "steer", "reply_to": "`+said+`"}`)
	require.Equal(t, "steering", b.ok("POST", path, `{"text": "a", "delivery": "steer"}`)["disposition"])
}

func TestARequestThatTakesTooLongIsUnavailable(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *api.Config) { c.Timeout = 1 })
	b.refused(503, "unavailable", "GET", "/v1/threads", "")
}
