// Package floor holds what Bobbin is measured against: a bare loop on Postgres, as a competent engineer writes it in a day,
// and a bare Temporal workflow. Both use Bobbin's client of the model, its tools and as many connections, so that what
// differs is the orchestration alone. They commit durably and stream.
package floor

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"bobbin/agent"
	"bobbin/llm"
	"bobbin/thread"
	"bobbin/tools"
)

// Variables that make the process of this program a floor.
const (
	KindVar  = "BOBBIN_BENCH_FLOOR" // "postgres" or "temporal"
	QueueVar = "BOBBIN_BENCH_QUEUE" // of the Temporal floor
)

// Ready is what a floor prints when it works.
const Ready = "floor ready"

// Run runs the floor that the environment names and reports whether it names one.
func Run() bool {
	kind := os.Getenv(KindVar)
	if kind == "" {
		return false
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	run := map[string]func(context.Context) error{"postgres": runPostgres, "temporal": runTemporal}[kind]
	if err := run(ctx); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return true
}

// hands is what a floor calls: the model and the tools.
type hands struct {
	model  *llm.Client
	tools  *tools.Registry
	system string
}

func newHands() (h hands, err error) {
	h.model, err = llm.New(llm.Config{
		BaseURL: os.Getenv("OPENAI_BASE_URL"), APIKey: os.Getenv("OPENAI_API_KEY"), Model: os.Getenv("BOBBIN_MODEL"),
	})
	if err != nil {
		return h, err
	}
	list, err := tools.LoadFile(os.Getenv("BOBBIN_TOOLS_FILE"), os.LookupEnv)
	if err != nil {
		return h, err
	}
	if h.tools, err = tools.New(append(list, tools.FetchURL(tools.FetchOptions{}))...); err != nil {
		return h, err
	}
	h.system = agent.Chat(h.tools.Specs(), agent.DefaultLimits).System
	return h, nil
}

func (h hands) prompt(entries []thread.Entry) thread.Prompt {
	return thread.Prompt{System: h.system, Entries: entries, Tools: h.tools.Specs()}
}

// Silent is a Temporal logger that says nothing.
type Silent struct{}

// Debug says nothing.
func (Silent) Debug(string, ...any) {}

// Info says nothing.
func (Silent) Info(string, ...any) {}

// Warn says nothing.
func (Silent) Warn(string, ...any) {}

// Error says nothing.
func (Silent) Error(string, ...any) {}
