package main

import (
	"context"
	"errors"
)

func runChat(context.Context, config, []string) error { return errors.New("not yet") }
