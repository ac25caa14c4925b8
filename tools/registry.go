package tools

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"bobbin/thread"
)

// grace is how long a call may go on after its context has ended. A tool that watches its context needs microseconds;
// one that has just finished can still hand over its result; any other is left behind.
const grace = 250 * time.Millisecond

// A Registry holds the tools of an agent. It does not change and may be used concurrently.
type Registry struct {
	tools map[string]checked
	names []string // sorted
}

type checked struct {
	Tool
	schema *schema
}

// New returns a registry of the tools, whose schemas it compiles. Its error lists everything that is wrong with them.
func New(tools ...Tool) (*Registry, error) {
	r := &Registry{tools: make(map[string]checked, len(tools))}
	var errs []error
	for i, t := range tools {
		t = t.withDefaults()
		s, wrong := t.check()
		if _, twice := r.tools[t.Name]; twice {
			wrong = append(wrong, errors.New("name: another tool has it"))
		}
		errs = append(errs, labelled(label(i, t.Name), wrong))
		r.tools[t.Name] = checked{t, s}
	}
	r.names = slices.Sorted(maps.Keys(r.tools))
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return r, nil
}

// Specs returns what the model is told of the tools, ordered by name, so that a provider's prompt cache holds.
func (r *Registry) Specs() []thread.ToolSpec {
	specs := make([]thread.ToolSpec, 0, len(r.names))
	for _, name := range r.names {
		t := r.tools[name]
		specs = append(specs, thread.ToolSpec{Name: t.Name, Description: t.Description, Parameters: bytes.Clone(t.Parameters)})
	}
	return specs
}

// Lookup returns the tool with that name, its defaults filled in.
func (r *Registry) Lookup(name string) (Tool, bool) {
	t, ok := r.tools[name]
	return t.Tool, ok
}

// A Result is what the model reads of a call: valid UTF-8 without NUL, never empty, and no longer than the tool's
// limit and a note.
type Result struct {
	Text   string
	Failed bool
}

// Run checks the arguments and runs the tool within its time limit. Every failure is a Result that says what to do.
// The error is the cause of ctx's end if that came first and the tool brought no result; a tool with side effects may
// have had them.
func (r *Registry) Run(ctx context.Context, name string, c Call) (Result, error) {
	if ctx.Err() != nil {
		return Result{}, context.Cause(ctx)
	}
	t, ok := r.tools[name]
	if !ok {
		return failed(DefaultResultLimit, "There is no tool named %.80q. %s", name, r.offer()), nil
	}
	if len(bytes.TrimSpace(c.Arguments)) == 0 {
		c.Arguments = json.RawMessage("{}")
	}
	arguments, err := t.schema.check(c.Arguments)
	if err != nil {
		return failed(t.ResultLimit, "%s did not run: %v.", name, err), nil
	}
	c.Arguments = arguments
	return t.run(ctx, c)
}

func (r *Registry) offer() string {
	if len(r.names) == 0 {
		return "There are no tools: answer without."
	}
	return "Use one of: " + strings.Join(r.names, ", ") + "."
}

func failed(limit int, format string, args ...any) Result {
	return Result{Text: readable(fmt.Sprintf(format, args...), limit), Failed: true}
}

func (t checked) run(ctx context.Context, c Call) (Result, error) {
	limited, cancel := context.WithTimeout(ctx, t.Timeout)
	defer cancel()
	ended := make(chan outcome, 1)
	go t.call(limited, c, ended)

	o, ok := await(limited, ended)
	switch {
	case ok && o.err == nil:
		return t.succeeded(o.text), nil
	case ctx.Err() != nil:
		return Result{}, context.Cause(ctx)
	case !ok || limited.Err() != nil:
		return failed(t.ResultLimit, "%s was ended after its time limit of %v. %s", t.Name, t.Timeout, t.uncertain("Ask for less at once, or go on without it.")), nil
	case errors.Is(o.err, errBroke):
		return failed(t.ResultLimit, "%s broke off with an internal error. %s", t.Name, t.uncertain("Go on without it.")), nil
	default:
		return failed(t.ResultLimit, "%s failed: %v", t.Name, o.err), nil
	}
}

func (t checked) succeeded(text string) Result {
	if text == "" {
		return Result{Text: "(" + t.Name + " succeeded and returned nothing)"}
	}
	return Result{Text: readable(text, t.ResultLimit)}
}

// uncertain says what to do after a call that did not come to its end.
func (t checked) uncertain(advice string) string {
	if t.SideEffects() {
		return "It may or may not have taken effect: find out before you do it again."
	}
	return advice
}

type outcome struct {
	text string
	err  error
}

// await returns the outcome of a call, or false if there is none soon after ctx has ended.
func await(ctx context.Context, ended <-chan outcome) (outcome, bool) {
	select {
	case o := <-ended:
		return o, true
	case <-ctx.Done():
	}
	late := time.NewTimer(grace)
	defer late.Stop()
	select {
	case o := <-ended:
		return o, true
	case <-late.C:
		return outcome{}, false
	}
}

var errBroke = errors.New("the tool broke off")

// call runs the tool and always sends an outcome, also after a panic or runtime.Goexit.
func (t checked) call(ctx context.Context, c Call, ended chan<- outcome) {
	o := outcome{err: errBroke}
	defer func() {
		if p := recover(); p != nil {
			slog.ErrorContext(ctx, "tool panicked", "tool", t.Name, "call", c.Key, "panic", describe(p), "stack", string(debug.Stack()))
		}
		ended <- o
	}()
	text, err := t.Run(ctx, c)
	o = outcome{text, err}
}

// describe tells a panic without its value, which may hold what was said; the runtime's own hold none.
func describe(p any) string {
	if err, ok := p.(runtime.Error); ok {
		return err.Error()
	}
	return fmt.Sprintf("%T", p)
}
