package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"bobbin/store"
	"bobbin/thread"
)

var errOwner = errors.New("want: bobbin owner list, or bobbin owner limit OWNER USD|none|default")

// runOwner lists owners, or sets a limit.
func runOwner(ctx context.Context, cfg config, args []string) error {
	list := len(args) == 1 && args[0] == "list"
	if !list && (len(args) != 3 || args[0] != "limit") {
		return errOwner
	}
	db, err := store.Open(ctx, cfg.store())
	if err != nil {
		return err
	}
	defer db.Close()
	if list {
		owners, err := db.Owners(ctx)
		if err != nil {
			return err
		}
		return writeOwners(os.Stdout, owners)
	}
	err = setLimit(ctx, db, args[1], args[2])
	if errors.Is(err, thread.ErrNotFound) {
		return fmt.Errorf("there is no owner %q; bobbin owner list shows who there is", args[1])
	}
	return err
}

func setLimit(ctx context.Context, db *store.DB, owner, limit string) error {
	switch limit {
	case "default":
		return db.ClearLimit(ctx, owner)
	case "none":
		return db.SetLimit(ctx, owner, nil)
	}
	amount, err := thread.ParseUSD(limit)
	if err != nil {
		return fmt.Errorf("limit: %w; or none, or default; got %q", err, limit)
	}
	return db.SetLimit(ctx, owner, &amount)
}

func writeOwners(w io.Writer, owners []store.Owner) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "owner\tlimit\t\tspent\treserved\tleft\t")
	for _, o := range owners {
		limit, left, whose := "none", "", "default"
		if o.Spending.Limit != nil {
			limit, left = o.Spending.Limit.String(), o.Spending.Remaining().String()
		}
		if o.OwnLimit {
			whose = "own"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%v\t%v\t%s\t\n", o.ID, limit, whose, o.Spending.Spent, o.Spending.Reserved, left)
	}
	return t.Flush()
}
