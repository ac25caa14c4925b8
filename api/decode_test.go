package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
)

func limits() Limits {
	var c Config
	c.fill()
	return c.Limits
}

func TestDecodeMessageRefusesWhatIsWrongByName(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 100_001)
	many := "[" + strings.Repeat(`"a",`, 100) + `"a"]`
	tests := []struct {
		name, body, key string
		want            string // code field, in order
	}{
		{"nothing", ``, "", "invalid_json "},
		{"only spaces", `  `, "", "invalid_json "},
		{"no object", `["text"]`, "", "invalid_json "},
		{"a null", `null`, "", "invalid_json "},
		{"cut off", `{"text": "a"`, "", "invalid_json "},
		{"trailing data", `{"text": "a"} {"text": "b"}`, "", "invalid_json "},
		{"trailing comma", `{"text": "a",}`, "", "invalid_json "},
		{"a comment", `{"text": "a" /* b */}`, "", "invalid_json "},
		{"single quotes", `{'text': 'a'}`, "", "invalid_json "},
		{"a raw line break", "{\"text\": \"a\nb\"}", "", "invalid_json "},
		{"unknown member", `{"text": "a", "txet": "b"}`, "", "unknown_field txet"},
		{"another case", `{"Text": "a"}`, "", "invalid_field text, unknown_field Text"},
		{"twice", `{"text": "a", "text": "b"}`, "", "invalid_field text"},
		{"twice by escape", `{"text": "a", "\u0074ext": "b"}`, "", "invalid_field text"},
		{"number for text", `{"text": 3}`, "", "invalid_field text"},
		{"object for text", `{"text": {"a": 1}}`, "", "invalid_field text"},
		{"no text", `{}`, "", "invalid_field text"},
		{"null text", `{"text": null}`, "", "invalid_field text"},
		{"deep research, which is not there yet", `{"text": "a", "mode": "deep_research"}`, "", "invalid_field mode"},
		{"empty text", `{"text": ""}`, "", "invalid_field text"},
		{"white space", `{"text": " \n\t\u00a0\u3000"}`, "", "invalid_field text"},
		{"white space and an empty list", `{"text": " ", "attachments": []}`, "", "invalid_field text"},
		{"NUL", `{"text": "a\u0000b"}`, "", "invalid_field text"},
		{"NUL in a list", `{"text": "a", "mentions": ["b", "\u0000"]}`, "", "invalid_field mentions[1]"},
		{"invalid UTF-8", "{\"text\": \"a\xffb\"}", "", "invalid_field text"},
		{"invalid UTF-8 in a list", "{\"text\": \"a\", \"attachments\": [\"\xc3\"]}", "", "invalid_field attachments[0]"},
		{"invalid UTF-8 in a number", "{\"text\": \xff}", "", "invalid_json "},
		{"half a pair", `{"text": "\ud83d"}`, "", "invalid_field text"},
		{"half a pair before another escape", `{"text": "\ud83d\u0041"}`, "", "invalid_field text"},
		{"the other half", `{"text": "\udf88 balloon"}`, "", "invalid_field text"},
		{"text too long", `{"text": "` + long + `"}`, "", "limit_exceeded text"},
		{"too many attachments", `{"attachments": ` + many + `}`, "", "limit_exceeded attachments"},
		{"list of numbers", `{"text": "a", "attachments": [1]}`, "", "invalid_field attachments[0]"},
		{"null in a list", `{"text": "a", "attachments": [null]}`, "", "invalid_field attachments[0]"},
		{"string for a list", `{"text": "a", "mentions": "@b"}`, "", "invalid_field mentions"},
		{"empty mention", `{"text": "a", "mentions": [" "]}`, "", "invalid_field mentions[0]"},
		{"mention too long", `{"text": "a", "mentions": ["` + strings.Repeat("x", 201) + `"]}`, "", "limit_exceeded mentions[0]"},
		{"unknown mode", `{"text": "a", "mode": "fast"}`, "", "invalid_field mode"},
		{"unknown delivery", `{"text": "a", "delivery": "Steer"}`, "", "invalid_field delivery"},
		{"empty delivery", `{"text": "a", "delivery": ""}`, "", "invalid_field delivery"},
		{"key too long", `{"text": "a"}`, strings.Repeat("k", 201), "limit_exceeded Idempotency-Key"},
		{"key of broken bytes", `{"text": "a"}`, "\xff", "invalid_field Idempotency-Key"},
		{
			"several", `{"text": "` + long + `", "mode": 1, "reply_to": [], "extra": 1}`, "",
			"invalid_field reply_to, invalid_field mode, unknown_field extra, limit_exceeded text",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			_, err := decodeMessage(limits(), []byte(test.body), test.key)
			var p *Problem
			require.ErrorAs(t, err, &p)
			list := p.Errors
			if list == nil {
				list = []Mistake{{Code: p.Code, Field: p.Field, Detail: p.Detail}}
			}
			var got []string
			for _, m := range list {
				got = append(got, fmt.Sprintf("%s %s", m.Code, m.Field))
				require.NotEmpty(t, m.Detail)
				require.Less(t, len(m.Detail), 300, "it must not show the whole input")
			}
			require.Equal(t, test.want, strings.Join(got, ", "))
			require.Equal(t, statusOf[list[0].Code], p.Status)
		})
	}
}

func TestDecodeMessageKeepsTheTextAsItIs(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		" a ", "\n\nx\n", "ü 🎈 \u200d \ufffd", `\ud83d is how it is written`, "\x01\x7f", strings.Repeat("🎈", 100_000), `"<script>"`,
	} {
		raw, err := json.Marshal(map[string]any{"text": text, "attachments": nil, "mode": nil})
		require.NoError(t, err)
		in, err := decodeMessage(limits(), raw, "k")
		require.NoError(t, err)
		require.Empty(t, cmp.Diff(text, in.Text))
	}
	in, err := decodeMessage(limits(), []byte(`{"text": "\ud83c\udf88 \\ud83c \/"}`), "")
	require.NoError(t, err)
	require.Equal(t, `🎈 \ud83c /`, in.Text)
}

func TestDecodeMessageTakesAttachmentsWithoutText(t *testing.T) {
	t.Parallel()
	in, err := decodeMessage(limits(), []byte(`{"attachments": ["file_1", "file_2"], "delivery": "interrupt", "mode": "chat", "reply_to": "msg_1"}`), "")
	require.NoError(t, err)
	require.Equal(t, []string{"file_1", "file_2"}, in.Attachments)
	require.EqualValues(t, "interrupt", in.Delivery)
	require.EqualValues(t, "chat", in.Mode)
	require.Equal(t, "msg_1", in.ReplyTo)
}

// Whatever comes in, it is either refused with a problem, or holds only what Postgres can keep.
func FuzzDecodeMessage(f *testing.F) {
	for _, s := range []string{
		`{"text": "hello"}`, `{"text": "a\u0000"}`, "{\"text\": \"\xff\"}", `{"text": "\ud83d"}`, `{"text": "\\ud83d"}`, `{"text": "a", "text": 1}`,
		`{"attachments": ["a", "b"], "mentions": [null]}`, `{"text": "\"\\\u0041\ud83c\udf88"}`, `[]`, `{"mode": "chat"}`, `{"\xff": 1}`,
	} {
		f.Add([]byte(s), "key")
	}
	lim := limits()
	lim.Text, lim.Attachments, lim.Mentions = 50, 3, 3
	f.Fuzz(func(t *testing.T, body []byte, key string) {
		in, err := decodeMessage(lim, body, key)
		if err != nil {
			var p *Problem
			require.True(t, errors.As(err, &p))
			raw, err := json.Marshal(p)
			require.NoError(t, err)
			require.True(t, utf8.Valid(raw))
			require.NotZero(t, p.Status)
			return
		}
		for _, s := range append(append([]string{in.Text, in.ReplyTo, in.Key}, in.Attachments...), in.Mentions...) {
			require.True(t, utf8.ValidString(s))
			require.NotContains(t, s, "\x00")
		}
		require.LessOrEqual(t, utf8.RuneCountInString(in.Text), lim.Text)
		require.LessOrEqual(t, len(in.Attachments), lim.Attachments)
		require.True(t, strings.TrimSpace(in.Text) != "" || len(in.Attachments) > 0)
		var loose struct{ Text string }
		if json.Unmarshal(body, &loose) == nil {
			require.Equal(t, loose.Text, in.Text)
		}
	})
}
