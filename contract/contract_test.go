package contract_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"bobbin/contract"
	"bobbin/thread"
)

// payloads are all the types that cross Temporal: inputs, signals and results.
var payloads = []any{
	contract.ThreadInput{},
	contract.BackgroundInput{},
	contract.StintInput{},
	contract.StintResult{},
	contract.ToolRef{},
	contract.EndInput{},
	contract.Ended{},
	contract.Claimed{},
	contract.Nudge{},
	contract.Progress{},
}

// texts are the fields that may hold a free string: ids of ours and names of tools, which an operator chose. A field that is
// added here must be neither what somebody said, nor an argument, nor a result, nor a secret: it is kept in histories.
var texts = []string{
	"BackgroundInput.Turn.ID", "BackgroundInput.Turn.ThreadID", "BackgroundInput.Turn.Trace",
	"Claimed.Background.ID", "Claimed.Background.ThreadID", "Claimed.Background.Trace", "Claimed.Conversation.ID", "Claimed.Conversation.ThreadID", "Claimed.Conversation.Trace",
	"Claimed.OwnerID",
	"EndInput.Turn.ID", "EndInput.Turn.ThreadID", "EndInput.Turn.Trace",
	"Ended.Next.ID", "Ended.Next.ThreadID", "Ended.Next.Trace",
	"Nudge.TurnID",
	"Progress.Tools", "Progress.TurnID",
	"StintInput.Turn.ID", "StintInput.Turn.ThreadID", "StintInput.Turn.Trace",
	"StintResult.Rounds.Tools", "StintResult.Tools.Name", "StintResult.Tools.Turn.ID", "StintResult.Tools.Turn.ThreadID", "StintResult.Tools.Turn.Trace",
	"ThreadInput.Children", "ThreadInput.Lines.TurnID", "ThreadInput.ThreadID",
	"ToolRef.Name", "ToolRef.Turn.ID", "ToolRef.Turn.ThreadID", "ToolRef.Turn.Trace",
}

// enums are the string types whose values are constants of ours.
var enums = []reflect.Type{
	reflect.TypeFor[contract.NudgeKind](), reflect.TypeFor[contract.StintOutcome](), reflect.TypeFor[thread.FailCode](),
	reflect.TypeFor[thread.Kind](), reflect.TypeFor[thread.Mode](), reflect.TypeFor[thread.Source](), reflect.TypeFor[thread.TurnStatus](),
}

func TestPayloadsHoldIdsCountersAndEnumsOnly(t *testing.T) {
	t.Parallel()
	var found []string
	for _, p := range payloads {
		typ := reflect.TypeOf(p)
		found = append(found, stringsIn(t, typ.Name(), typ)...)
	}
	slices.Sort(found)
	require.Empty(t, cmp.Diff(texts, found))
}

func TestFairnessKeysAreNeverLongerThanTheServerTakes(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("o", 64)
	require.Equal(t, "anna", contract.FairnessKey("anna"))
	require.Equal(t, long, contract.FairnessKey(long))
	require.Len(t, contract.FairnessKey(long+"1"), 64)
	require.NotEqual(t, contract.FairnessKey(long+"1"), contract.FairnessKey(long+"2"))
}

// stringsIn returns the paths of the fields of a type that could hold any text.
func stringsIn(t *testing.T, path string, typ reflect.Type) (paths []string) {
	t.Helper()
	switch typ.Kind() {
	case reflect.Pointer, reflect.Slice:
		return stringsIn(t, path, typ.Elem())
	case reflect.Struct:
		for f := range typ.Fields() {
			require.True(t, f.IsExported(), "%s.%s does not cross", path, f.Name)
			paths = append(paths, stringsIn(t, path+"."+f.Name, f.Type)...)
		}
		return paths
	case reflect.String:
		if !slices.Contains(enums, typ) {
			paths = append(paths, path)
		}
		return paths
	case reflect.Bool, reflect.Int, reflect.Int64, reflect.Float64:
		return nil
	}
	require.Fail(t, fmt.Sprintf("%s is a %v, which could hold anything", path, typ))
	return nil
}

func TestWorkflowIDsTellThreadsFromTurns(t *testing.T) {
	t.Parallel()
	require.Equal(t, "thread/x", contract.ThreadWorkflowID("x"))
	require.Equal(t, "turn/x", contract.TurnWorkflowID("x"))
}
