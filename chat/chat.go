package chat

import (
	"context"
	"fmt"
	"io"
	"os"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/term"
)

// Config says whom to talk to and through what.
type Config struct {
	BaseURL string    // of the server, as http://127.0.0.1:8080
	Key     string    // of the owner
	Thread  string    // id; empty: the home thread
	In      io.Reader // nil: os.Stdin
	Out     io.Writer // nil: os.Stdout
}

// Run talks until the person quits (ctrl-c; the thread goes on) and returns nil then. Where In and Out are not both
// terminals it sends each line of In that is not blank as a message, writes what is answered to Out, and returns when In
// has ended and with it all turns that have one of the messages; an error says that one of them failed, was stopped or
// could not be followed. A refusal of the server is an *Error. When ctx ends, so does Run, with ctx's error.
func Run(ctx context.Context, cfg Config) error {
	if cfg.In == nil {
		cfg.In = os.Stdin
	}
	if cfg.Out == nil {
		cfg.Out = os.Stdout
	}
	if cfg.Thread == "" {
		cfg.Thread = "home"
	}
	c := &Client{BaseURL: cfg.BaseURL, Key: cfg.Key}
	if !isTerminal(cfg.In) || !isTerminal(cfg.Out) {
		return (&lines{client: c, threadID: cfg.Thread, in: cfg.In, out: cfg.Out}).run(ctx)
	}
	return runScreen(ctx, c, cfg)
}

func isTerminal(v any) bool {
	f, ok := v.(*os.File)
	return ok && term.IsTerminal(f.Fd())
}

func runScreen(ctx context.Context, c *Client, cfg Config) error {
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	s := newScreen(inner, c, cfg.Thread)
	_, err := tea.NewProgram(s, tea.WithContext(ctx), tea.WithInput(cfg.In), tea.WithOutput(cfg.Out)).Run()
	for _, text := range s.unsent() {
		fmt.Fprintf(cfg.Out, "Not known to have been sent:\n%s\n", clean(text))
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case s.err != nil:
		return s.err
	}
	return err
}
