package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"bobbin/worker"
)

// runDeploy lists the builds, or chooses the one that gets the work.
func runDeploy(ctx context.Context, cfg config, args []string) error {
	if len(args) != 0 && (len(args) != 2 || args[0] != "set-current" || args[1] == "") {
		return errors.New("want: bobbin deploy, or bobbin deploy set-current BUILD")
	}
	temporal, err := dialTemporal(ctx, cfg)
	if err != nil {
		return err
	}
	defer temporal.Close()
	if len(args) == 2 {
		return worker.SetCurrent(ctx, temporal, args[1])
	}
	builds, err := worker.Builds(ctx, temporal)
	if err != nil {
		return fmt.Errorf("%w (BOBBIN_WORKER_VERSIONING is on, and a worker has run?)", err)
	}
	for _, b := range builds {
		state := "not current"
		switch {
		case b.Current:
			state = "current"
		case b.Left:
			state = "not needed any more"
		}
		fmt.Printf("%-40s %-20s since %s\n", b.ID, state, b.Since.UTC().Format(time.RFC3339))
	}
	return nil
}
