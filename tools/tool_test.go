package tools

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"bobbin/thread"
)

// echo returns a tool that answers with its arguments.
func echo(name string) Tool {
	return Tool{
		Name:        name,
		Description: "Say it again.",
		Parameters: json.RawMessage(`{"type":"object","properties":{"say":{"type":"string"},"times":{"type":"integer","minimum":1,"maximum":3}},
			"required":["say"],"additionalProperties":false}`),
		Run: func(_ context.Context, c Call) (string, error) { return string(c.Arguments), nil },
	}
}

func with(t Tool, change func(*Tool)) Tool {
	change(&t)
	return t
}

func registry(t *testing.T, tools ...Tool) *Registry {
	t.Helper()
	r, err := New(tools...)
	require.NoError(t, err)
	return r
}

func call(arguments string) Call {
	return Call{Key: "turn/1/0", ThreadID: "thread", TurnID: "turn", Arguments: json.RawMessage(arguments)}
}

func TestOnlyAToolThatIsNeitherReadOnlyNorIdempotentHasSideEffects(t *testing.T) {
	t.Parallel()
	require.True(t, Tool{}.SideEffects())
	require.False(t, Tool{ReadOnly: true}.SideEffects())
	require.False(t, Tool{Idempotent: true}.SideEffects())
}

func TestNewListsEverythingThatIsWrong(t *testing.T) {
	t.Parallel()
	_, err := New(
		echo("fine"),
		echo("fine"),
		Tool{Name: "sp ace", Approval: "maybe", Timeout: -time.Second, ResultLimit: -1, Parameters: json.RawMessage(`{"type":"array"}`)},
		with(echo("far"), func(t *Tool) {
			t.Parameters = json.RawMessage(`{"type":"object","properties":{"a":{"$ref":"file:///etc/passwd"}}}`)
		}),
		with(echo("slow"), func(t *Tool) { t.Timeout = 2 * time.Hour; t.ResultLimit = 2 << 20 }),
	)
	require.Error(t, err)
	for _, want := range []string{
		`tool 2 ("fine"): name: another tool has it`,
		`tool 3 ("sp ace"): name: want 1 to 64 of a-z A-Z 0-9 _ -, got "sp ace"`,
		`tool 3 ("sp ace"): description: want`,
		`tool 3 ("sp ace"): approval: want never or ask, got "maybe"`,
		`tool 3 ("sp ace"): timeout: want`,
		`tool 3 ("sp ace"): result_limit: want`,
		`tool 3 ("sp ace"): run: want a function`,
		`tool 3 ("sp ace"): parameters: want a JSON Schema whose "type" is "object"`,
		`tool 4 ("far"): parameters: not a usable JSON Schema`,
		`references must stay inside the schema`,
		`tool 5 ("slow"): timeout: want more than 0s and at most 1h0m0s, got 2h0m0s`,
		`tool 5 ("slow"): result_limit: want 1 to 1048576 bytes, got 2097152`,
	} {
		require.ErrorContains(t, err, want)
	}
}

func TestNewRefusesSchemasThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	for name, schema := range map[string]string{
		"not JSON":             `{]`,
		"more than one value":  `{"type":"object"} {}`,
		"not an object":        `true`,
		"no type":              `{"properties":{}}`,
		"several types":        `{"type":["object","null"]}`,
		"a type of no kind":    `{"type":"object","properties":{"a":{"type":"text"}}}`,
		"a reference to a web": `{"type":"object","$ref":"https://example.com/schema.json"}`,
		"a strange metaschema": `{"$schema":"https://example.com/schema.json","type":"object"}`,
		"a broken pattern":     `{"type":"object","properties":{"a":{"pattern":"("}}}`,
		"a number too great":   `{"type":"object","properties":{"a":{"maximum":1e999999999}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := New(with(echo("tool"), func(t *Tool) { t.Parameters = json.RawMessage(schema) }))
			require.ErrorContains(t, err, `tool 1 ("tool"): parameters: `)
		})
	}
}

func TestLookupFillsInTheDefaults(t *testing.T) {
	t.Parallel()
	got, ok := registry(t, Tool{Name: "bare", Description: "d", Run: echo("").Run}).Lookup("bare")
	require.True(t, ok)
	got.Run = nil
	want := Tool{
		Name: "bare", Description: "d", Parameters: noArguments, Approval: ApprovalNever,
		Timeout: DefaultTimeout, ResultLimit: DefaultResultLimit,
	}
	require.Empty(t, cmp.Diff(want, got))
	_, ok = registry(t).Lookup("bare")
	require.False(t, ok)
}

func TestSpecsAreInTheOrderOfNames(t *testing.T) {
	t.Parallel()
	specs := registry(t, echo("b"), echo("a"), echo("C")).Specs()
	var names []string
	for _, s := range specs {
		names = append(names, s.Name)
	}
	require.Equal(t, []string{"C", "a", "b"}, names)
	a := echo("a")
	require.Empty(t, cmp.Diff(thread.ToolSpec{Name: "a", Description: a.Description, Parameters: a.Parameters}, specs[1]))
}
