package tools

import (
	"encoding/json"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// A schema is an operator's or another server's, arguments are a model's: neither breaks the checker.
func FuzzCheckOfAnySchema(f *testing.F) {
	for _, s := range []string{
		`{"type":"object"}`, `{"type":"object","$ref":"#"}`, `{"type":"object","allOf":[{"$ref":"#"}]}`,
		`{"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]}`, `{"type":"object","properties":{"a":{"pattern":"(a+)+$"}}}`,
		`{"type":"object","properties":{"a":{"multipleOf":1e-400}}}`, `{"type":"object","properties":{"a":{"multipleOf":0}}}`,
		`{"type":"object","$defs":{"x":{"not":{"$ref":"#/$defs/x"}}},"properties":{"a":{"$ref":"#/$defs/x"}}}`,
		`{"type":"object","unevaluatedProperties":false,"anyOf":[{},{"properties":{"a":true}}]}`, `{"type":"object","$id":"file:///etc/passwd"}`,
		`{"type":"object","$schema":"http://json-schema.org/draft-04/schema#","properties":{"a":{"$dynamicRef":"#x"}}}`,
	} {
		f.Add(s, `{"a":"aaaaaaaaaaaaaaaaaaaaaaaa!"}`)
		f.Add(s, `{"a":1.5,"b":[null,{"a":{"a":1e300}}]}`)
	}
	f.Fuzz(func(t *testing.T, raw, arguments string) {
		s, err := compile(json.RawMessage(raw))
		if err != nil {
			require.NotEmpty(t, err.Error())
			return
		}
		understood, err := s.check(json.RawMessage(arguments))
		if err != nil {
			require.NotEmpty(t, err.Error())
			return
		}
		require.True(t, json.Valid(understood))
		require.True(t, utf8.Valid(understood))
	})
}
