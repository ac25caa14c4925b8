package tools

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
)

func TestParseReadsEveryField(t *testing.T) {
	t.Parallel()
	const file = `
- name: book_room
  description: |
    Book a meeting room.
  url: https://rooms.example.com/book
  method: PATCH
  headers:
    Authorization: Bearer ${TOKEN}
  parameters:
    type: object
    properties:
      people: {type: integer, minimum: 1, maximum: 12}
      share: {type: number, multipleOf: 0.5}
    required: [people]
  read_only: false
  idempotent: true
  approval: ask
  timeout: 1m30s
  result_limit: 4096
- {name: ping, description: Say pong., url: 'http://localhost:9/ping'}
`
	got, err := Parse(strings.NewReader(file), environment)
	require.NoError(t, err)
	for i := range got {
		require.NotNil(t, got[i].Run)
		got[i].Run = nil
	}
	require.Empty(t, cmp.Diff([]Tool{
		{
			Name: "book_room", Description: "Book a meeting room.",
			Parameters: json.RawMessage(`{"properties":{"people":{"maximum":12,"minimum":1,"type":"integer"},"share":{"multipleOf":0.5,"type":"number"}},"required":["people"],"type":"object"}`),
			Idempotent: true, Approval: ApprovalAsk, Timeout: 90 * time.Second, ResultLimit: 4096,
		},
		{
			Name: "ping", Description: "Say pong.", Parameters: noArguments,
			Approval: ApprovalNever, Timeout: DefaultTimeout, ResultLimit: DefaultResultLimit,
		},
	}, got))
}

func TestParseNamesEveryMistake(t *testing.T) {
	t.Parallel()
	const file = `
- name: fine
  description: d
  url: https://example.com
- name: fine
  description: 7
  url: ftp://example.com
  method: GET
  read_only: "yes"
  idempotent: 1
  approval: perhaps
  timeout: soon
  result_limit: -1
  parameters: {type: array}
  retries: 3
  "hea ders": {}
  headers:
    Authorization: Bearer ${MISSING} and s3cr3t
    X-Empty: ${EMPTY}
    X-Open: ${TOKEN
    X-Odd: ${TO KEN}
    X-Lines: ${LINES}
    X-Number: 5
    Host: example.com
    idempotency-key: k
    "no header": x
- just text
- name: no url
- {name: user, description: d, url: 'https://user:s3cr3t@example.com', headers: [a]}
- {name: hash, description: d, url: 'https://example.com#a', timeout: 2h, parameters: {type: object, maximum: .nan}}
`
	_, err := Parse(strings.NewReader(file), environment)
	require.Error(t, err)
	want := `tool 2 ("fine"): description: want text; put it in quotes
tool 2 ("fine"): read_only: want true or false
tool 2 ("fine"): idempotent: want true or false
tool 2 ("fine"): timeout: want a time such as 30s or 2m, more than 0s and at most 1h0m0s
tool 2 ("fine"): result_limit: want a number of bytes, 1 to 1048576
tool 2 ("fine"): method: want POST, PUT or PATCH
tool 2 ("fine"): url: want http:// or https:// and a host
tool 2 ("fine"): headers: "Authorization": the environment variable MISSING is not set or empty
tool 2 ("fine"): headers: "Host" is written by Bobbin
tool 2 ("fine"): headers: "X-Empty": the environment variable EMPTY is not set or empty
tool 2 ("fine"): headers: "X-Lines": want a value of one line, also after its variables are put in
tool 2 ("fine"): headers: "X-Number": want text; put it in quotes
tool 2 ("fine"): headers: "X-Odd": want ${NAME} with the name of an environment variable
tool 2 ("fine"): headers: "X-Open": want ${NAME} with the name of an environment variable
tool 2 ("fine"): headers: "idempotency-key" is written by Bobbin
tool 2 ("fine"): headers: "no header" is not a header's name
tool 2 ("fine"): "hea ders": there is no such field
tool 2 ("fine"): "retries": there is no such field
tool 2 ("fine"): approval: want never or ask, got "perhaps"
tool 2 ("fine"): parameters: want a JSON Schema whose "type" is "object"
tool 2 ("fine"): name: another tool has it
tool 3: want a mapping of fields
tool 4 ("no url"): url: want the address to call
tool 4 ("no url"): name: want 1 to 64 of a-z A-Z 0-9 _ -, got "no url"
tool 4 ("no url"): description: want some text that tells the model what the tool does
tool 5 ("user"): url: want no user or password in it; use a header
tool 5 ("user"): headers: want a mapping of names to texts
tool 6 ("hash"): parameters: want what JSON can express: json: unsupported value: NaN
tool 6 ("hash"): timeout: want a time such as 30s or 2m, more than 0s and at most 1h0m0s
tool 6 ("hash"): url: want no fragment (#) in it: it would not be sent`
	require.Empty(t, cmp.Diff(want, err.Error()))
	require.NotContains(t, err.Error(), "s3cr3t")
}

func TestParseRefusesWhatIsNoListOfTools(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ file, want string }{
		"nothing":            {"", "want a YAML list of tools"},
		"a comment":          {"# tools\n", "want a YAML list of tools"},
		"a mapping":          {"tools: []", "want a YAML list of tools"},
		"two documents":      {"[]\n---\n[]", "want one YAML document, not several"},
		"a field twice":      {"- name: a\n  name: s3cr3t\n", "not valid YAML: line 2, column 3: a field stands there for the second time"},
		"a tab":              {"- a: s3cr3t\n\t- b", "not valid YAML: line 2, column 1: what stands there cannot be read"},
		"an unknown alias":   {"- *s3cr3t", "not valid YAML: line 1"},
		"more than it needs": {strings.Repeat("#", maxFile+1), "want at most 1048576 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Parse(strings.NewReader(c.file), environment)
			require.ErrorContains(t, err, c.want)
			require.NotContains(t, err.Error(), "s3cr3t")
		})
	}
}

func TestParseTakesAnEmptyList(t *testing.T) {
	t.Parallel()
	got, err := Parse(strings.NewReader("[]"), environment)
	require.NoError(t, err)
	require.Empty(t, got)
}

func TestLoadFileNamesTheFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tools.yaml")
	_, err := LoadFile(path, environment)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, path)

	require.NoError(t, os.WriteFile(path, []byte("{}"), 0o600))
	_, err = LoadFile(path, environment)
	require.ErrorContains(t, err, path)

	require.NoError(t, os.WriteFile(path, []byte("- {name: a, description: d, url: 'http://a'}"), 0o600))
	got, err := LoadFile(path, environment)
	require.NoError(t, err)
	require.Len(t, got, 1)
}

func FuzzParseReturnsOnlyToolsThatNewTakes(f *testing.F) {
	f.Add("- {name: a, description: d, url: 'http://a'}")
	f.Add("- name: a\n  headers: {A: '${TOKEN}', B: ${\n  timeout: 1s\n  result_limit: 1\n")
	f.Add("- &a [*a]")
	f.Add("- {parameters: {type: object, properties: {a: {$ref: '#'}}}}")
	f.Add("- !!binary x\n- 0_\n- 0::\n- {{},<<}\n")
	f.Fuzz(func(t *testing.T, file string) {
		tools, err := Parse(strings.NewReader(file), environment)
		if err != nil {
			require.NotContains(t, err.Error(), secret)
			return
		}
		_, err = New(tools...)
		require.NoError(t, err)
	})
}
