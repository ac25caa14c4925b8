package tools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
)

func TestRunGivesTheToolArgumentsAsTheyWereChecked(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ arguments, want string }{
		"as they are":                     {`{"say":"hi","times":2}`, `{"say":"hi","times":2}`},
		"a key that stands twice, once":   {`{"say":"a","say":"b"}`, `{"say":"b"}`},
		"numbers keep all their digits":   {`{"say":"a","times":2.000000000000000000000}`, `{"say":"a","times":2.000000000000000000000}`},
		"invalid UTF-8 is replaced":       {"{\"say\":\"a\xff\"}", "{\"say\":\"a\uFFFD\"}"},
		"white space around them is fine": {" {\"say\":\"a\"}\n", `{"say":"a"}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := registry(t, echo("echo")).Run(t.Context(), "echo", call(c.arguments))
			require.NoError(t, err)
			require.Empty(t, cmp.Diff(Result{Text: c.want}, got))
		})
	}
}

func TestRunTakesNoArgumentsForAnEmptyObject(t *testing.T) {
	t.Parallel()
	r := registry(t, with(echo("echo"), func(t *Tool) { t.Parameters = nil }))
	for _, arguments := range []string{"", " ", "{}"} {
		got, err := r.Run(t.Context(), "echo", call(arguments))
		require.NoError(t, err)
		require.Empty(t, cmp.Diff(Result{Text: "{}"}, got))
	}
}

func TestRunTellsTheModelWhatIsWrongWithItsCall(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ tool, arguments, want string }{
		"an unknown tool":    {"ecko", `{}`, `There is no tool named "ecko". Use one of: echo.`},
		"not JSON":           {"echo", `{"say":`, "the arguments are not valid JSON"},
		"two values":         {"echo", `{} {}`, "the arguments are not valid JSON"},
		"not an object":      {"echo", `[1]`, "at /: got array, want object"},
		"null":               {"echo", `null`, "at /: got null, want object"},
		"something missing":  {"echo", `{}`, "at /: missing property 'say'"},
		"something too much": {"echo", `{"say":"a","loud":1}`, "additional properties 'loud' not allowed"},
		"a wrong type":       {"echo", `{"say":1}`, "at /say: got number, want string"},
		"two mistakes":       {"echo", `{"say":1,"times":9}`, "at /times: maximum: got 9, want 3"},
		"a giant exponent":   {"echo", `{"say":"a","times":1e999999999}`, "the number 1e999999999 is out of range"},
		"a tiny exponent":    {"echo", `{"say":"a","times":1e-999999999}`, "the number 1e-999999999 is out of range"},
		"too deep":           {"echo", strings.Repeat("[", 20_000), "the arguments are not valid JSON"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := registry(t, echo("echo")).Run(t.Context(), c.tool, call(c.arguments))
			require.NoError(t, err)
			require.True(t, got.Failed)
			require.Contains(t, got.Text, c.want)
		})
	}
}

func TestRunListsFewMistakesShortly(t *testing.T) {
	t.Parallel()
	tool := with(echo("echo"), func(t *Tool) {
		t.Parameters = json.RawMessage(`{"type":"object","additionalProperties":{"const":"x"}}`)
	})
	arguments := map[string]string{}
	for i := range 100 {
		arguments[fmt.Sprint(i)+strings.Repeat("ü", 10_000)] = "no"
	}
	raw, err := json.Marshal(arguments)
	require.NoError(t, err)
	got, err := registry(t, tool).Run(t.Context(), "echo", call(string(raw)))
	require.NoError(t, err)
	require.Less(t, len(got.Text), 8<<10)
	require.Contains(t, got.Text, "; and more")
	require.True(t, utf8.ValidString(got.Text))
}

func TestRunTurnsAToolsErrorIntoAResult(t *testing.T) {
	t.Parallel()
	tool := with(echo("echo"), func(t *Tool) {
		t.Run = func(context.Context, Call) (string, error) {
			return "half", errors.New("the printer\x00is out of paper")
		}
	})
	got, err := registry(t, tool).Run(t.Context(), "echo", call(`{"say":"a"}`))
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(Result{Text: "echo failed: the printer\uFFFDis out of paper", Failed: true}, got))
}

func TestRunSurvivesAToolThatBreaksOff(t *testing.T) {
	t.Parallel()
	for name, run := range map[string]func(context.Context, Call) (string, error){
		"a panic":           func(context.Context, Call) (string, error) { panic("key-123") },
		"a nil map":         func(context.Context, Call) (string, error) { var m map[string]int; m["a"]++; return "", nil },
		"a goroutine's end": func(context.Context, Call) (string, error) { runtime.Goexit(); return "", nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := registry(t, with(echo("writes"), func(t *Tool) { t.Run = run }), with(echo("reads"), func(t *Tool) { t.Run, t.ReadOnly = run, true }))
			got, err := r.Run(t.Context(), "writes", call(`{"say":"a"}`))
			require.NoError(t, err)
			require.Empty(t, cmp.Diff(Result{
				Text:   "writes broke off with an internal error. It may or may not have taken effect: find out before you do it again.",
				Failed: true,
			}, got))
			got, err = r.Run(t.Context(), "reads", call(`{"say":"a"}`))
			require.NoError(t, err)
			require.Empty(t, cmp.Diff(Result{Text: "reads broke off with an internal error. Go on without it.", Failed: true}, got))
		})
	}
}

func TestRunEndsAToolAtItsTimeLimit(t *testing.T) {
	t.Parallel()
	const want = "slow was ended after its time limit of 1m0s. Ask for less at once, or go on without it."
	for name, run := range map[string]func(context.Context) (string, error){
		"that watches its context":     func(ctx context.Context) (string, error) { <-ctx.Done(); return "", ctx.Err() },
		"that fails in its own words":  func(ctx context.Context) (string, error) { <-ctx.Done(); return "", errors.New("gone") },
		"that does not watch anything": func(context.Context) (string, error) { time.Sleep(time.Hour); return "late", nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				tool := with(echo("slow"), func(t *Tool) {
					t.Timeout, t.ReadOnly = time.Minute, true
					t.Run = func(ctx context.Context, _ Call) (string, error) { return run(ctx) }
				})
				start := time.Now()
				got, err := registry(t, tool).Run(t.Context(), "slow", call(`{"say":"a"}`))
				require.NoError(t, err)
				require.Empty(t, cmp.Diff(Result{Text: want, Failed: true}, got))
				require.LessOrEqual(t, time.Since(start), time.Minute+grace)
				time.Sleep(time.Hour) // lets the stubborn one end with the bubble
			})
		})
	}
}

func TestRunReturnsTheCauseWhenTheTurnIsStopped(t *testing.T) {
	t.Parallel()
	errStopped := errors.New("stopped")

	t.Run("before the tool begins, which then does not", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errStopped)
		tool := with(echo("tool"), func(t *Tool) { t.Run = func(context.Context, Call) (string, error) { panic("it ran") } })
		got, err := registry(t, tool).Run(ctx, "tool", call(`{"say":"a"}`))
		require.ErrorIs(t, err, errStopped)
		require.Empty(t, cmp.Diff(Result{}, got))
	})

	for name, run := range map[string]func(context.Context) (string, error){
		"while it works":                 func(ctx context.Context) (string, error) { <-ctx.Done(); return "", errors.New("aborted") },
		"while it works without looking": func(context.Context) (string, error) { time.Sleep(time.Hour); return "", nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				time.AfterFunc(time.Second, func() { cancel(errStopped) })
				tool := with(echo("tool"), func(t *Tool) {
					t.Run = func(ctx context.Context, _ Call) (string, error) { return run(ctx) }
				})
				start := time.Now()
				got, err := registry(t, tool).Run(ctx, "tool", call(`{"say":"a"}`))
				require.ErrorIs(t, err, errStopped)
				require.Empty(t, cmp.Diff(Result{}, got))
				require.LessOrEqual(t, time.Since(start), time.Second+grace)
				time.Sleep(time.Hour)
			})
		})
	}

	t.Run("unless the tool still brings its result", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancelCause(t.Context())
		tool := with(echo("tool"), func(t *Tool) {
			t.Run = func(context.Context, Call) (string, error) { cancel(errStopped); return "sent", nil }
		})
		got, err := registry(t, tool).Run(ctx, "tool", call(`{"say":"a"}`))
		require.NoError(t, err)
		require.Empty(t, cmp.Diff(Result{Text: "sent"}, got))
	})
}

func TestRunMakesResultsReadable(t *testing.T) {
	t.Parallel()
	const note = "\n\n[The result was cut here because it is longer than 10 bytes. Ask for less, or for a part of it.]"
	for name, c := range map[string]struct{ text, want string }{
		"nothing":                             {"", "(echo succeeded and returned nothing)"},
		"exactly the limit":                   {"0123456789", "0123456789"},
		"one byte more":                       {"0123456789a", "0123456789" + note},
		"a character across the limit":        {"012345678ü", "012345678" + note},
		"NUL":                                 {"a\x00b", "a\uFFFDb"},
		"invalid UTF-8":                       {"a\xff\xfeb", "a\uFFFDb"},
		"replacements that pass the limit":    {"\x00\x00\x00\x00\x00", "\uFFFD\uFFFD\uFFFD" + note},
		"nothing but continuation bytes":      {strings.Repeat("\x80", 20), "\uFFFD" + note},
		"a great result, without great costs": {strings.Repeat("é", 3<<20), "ééééé" + note},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tool := with(echo("echo"), func(t *Tool) {
				t.ResultLimit = 10
				t.Run = func(context.Context, Call) (string, error) { return c.text, nil }
			})
			got, err := registry(t, tool).Run(t.Context(), "echo", call(`{"say":"a"}`))
			require.NoError(t, err)
			require.Empty(t, cmp.Diff(Result{Text: c.want}, got))
		})
	}
}

func TestRunMayBeCalledConcurrently(t *testing.T) {
	t.Parallel()
	r := registry(t, echo("echo"))
	for range 20 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			_, err := r.Run(t.Context(), "echo", call(`{"say":"a","times":3}`))
			require.NoError(t, err)
		})
	}
}

func TestDemoWorkTakesItsTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		got, err := registry(t, DemoWork()).Run(t.Context(), "demo_work", call(`{"task":"Read the mail","seconds":120}`))
		require.NoError(t, err)
		require.Empty(t, cmp.Diff(Result{Text: "Done after 120 s: Read the mail. Nothing unusual was found."}, got))
		require.Equal(t, 2*time.Minute, time.Since(start))
	})
}

func TestDemoWorkEndsWithItsTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := registry(t, DemoWork()).Run(ctx, "demo_work", call(`{"task":"Read the mail","seconds":60}`))
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

func TestDemoWorkRefusesMoreThanTwoMinutes(t *testing.T) {
	t.Parallel()
	got, err := registry(t, DemoWork()).Run(t.Context(), "demo_work", call(`{"task":"x","seconds":121}`))
	require.NoError(t, err)
	require.True(t, got.Failed)
	require.Contains(t, got.Text, "at /seconds: maximum: got 121, want 120")
}

func FuzzRunNeverBreaks(f *testing.F) {
	for _, seed := range []string{`{"say":"a"}`, `{}`, `[`, ``, `{"say":"\u0000","times":1e400}`, `{"say":"\ud800"}`, "\xff", `{"times":-0}`} {
		f.Add(seed)
	}
	r, err := New(echo("echo"))
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, arguments string) {
		got, err := r.Run(t.Context(), "echo", call(arguments))
		require.NoError(t, err)
		require.NotEmpty(t, got.Text)
		require.True(t, utf8.ValidString(got.Text))
		require.NotContains(t, got.Text, "\x00")
		require.NotContains(t, got.Text, "could not be checked")
		if !got.Failed {
			var in struct {
				Say   *string `json:"say"`
				Times json.Number
			}
			require.NoError(t, json.Unmarshal([]byte(got.Text), &in))
			require.NotNil(t, in.Say)
		}
	})
}
