package main

import (
	"context"
	"errors"
	"os"

	"bobbin/chat"
	"bobbin/store"
)

// runChat talks to a server from the terminal. Its argument names a thread; without one it is the owner's home thread.
func runChat(ctx context.Context, cfg config, args []string) error {
	threadID := store.Home
	switch len(args) {
	case 0:
	case 1:
		threadID = args[0]
	default:
		return errors.New("want: bobbin chat [thread]")
	}
	return chat.Run(ctx, chat.Config{BaseURL: cfg.URL, Key: cfg.Key, Thread: threadID, In: os.Stdin, Out: os.Stdout})
}
