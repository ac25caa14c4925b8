package main

import (
	"context"
	"errors"
	"fmt"

	"bobbin/store"
)

// runKey makes a key. It is printed once and kept hashed.
func runKey(ctx context.Context, cfg config, args []string) error {
	if len(args) < 2 || args[0] != "create" {
		return errors.New("want: bobbin key create OWNER [NAME]")
	}
	name := "key"
	if len(args) > 2 {
		name = args[2]
	}
	db, err := store.Open(ctx, cfg.store())
	if err != nil {
		return err
	}
	defer db.Close()
	key, err := db.CreateKey(ctx, args[1], name)
	if err == nil {
		fmt.Println(key)
	}
	return err
}
