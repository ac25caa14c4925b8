package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"text/tabwriter"
	"time"

	"bobbin/store"
	"bobbin/thread"
)

// runKey makes, lists and revokes API keys. A new one is printed once and kept hashed.
func runKey(ctx context.Context, cfg config, args []string) error {
	k, err := readKey(args)
	if err != nil {
		return err
	}
	db, err := store.Open(ctx, cfg.store())
	if err != nil {
		return err
	}
	defer db.Close()
	return k.run(ctx, db, os.Stdout)
}

// A keyCommand is what `bobbin key` was asked to do.
type keyCommand struct {
	does             string // create, list or revoke
	owner, label, id string
}

var errKeyUsage = errors.New("want: bobbin key create --owner NAME [--name LABEL], bobbin key list [--owner NAME] or bobbin key revoke ID")

// ownerName is what an owner may be called: it stands in logs and in Temporal's search attributes.
var ownerName = regexp.MustCompile(`^[A-Za-z0-9._@+-]{1,100}$`)

const longestLabel = 200

func readKey(args []string) (keyCommand, error) {
	if len(args) == 0 {
		return keyCommand{}, errKeyUsage
	}
	k := keyCommand{does: args[0]}
	f := flag.NewFlagSet("key "+k.does, flag.ContinueOnError)
	f.SetOutput(io.Discard)
	switch k.does {
	case "create":
		f.StringVar(&k.owner, "owner", "", "")
		f.StringVar(&k.label, "name", "key", "")
	case "list":
		f.StringVar(&k.owner, "owner", "", "")
	case "revoke":
	default:
		return k, errKeyUsage
	}
	if err := f.Parse(args[1:]); err != nil {
		return k, fmt.Errorf("%w; %w", err, errKeyUsage)
	}
	if rest := f.Args(); k.does == "revoke" && len(rest) == 1 {
		k.id = rest[0]
	} else if k.does == "revoke" || len(rest) > 0 {
		return k, errKeyUsage
	}
	switch {
	case k.does == "create" && k.owner == "":
		return k, errKeyUsage
	case k.owner != "" && !ownerName.MatchString(k.owner):
		return k, errors.New("--owner: want 1 to 100 of a-z A-Z 0-9 . _ @ + -")
	case len(k.label) > longestLabel:
		return k, fmt.Errorf("--name: want at most %d bytes, got %d", longestLabel, len(k.label))
	}
	return k, nil
}

func (k keyCommand) run(ctx context.Context, db *store.DB, out io.Writer) error {
	switch k.does {
	case "create":
		key, err := db.CreateKey(ctx, k.owner, k.label)
		if err == nil {
			_, err = fmt.Fprintln(out, key)
		}
		return err
	case "revoke":
		err := db.RevokeKey(ctx, k.id)
		if errors.Is(err, thread.ErrNotFound) {
			return errors.New("there is no key with that id; bobbin key list has the ids")
		}
		return err
	}
	list, err := db.Keys(ctx, k.owner)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tOWNER\tLABEL\tCREATED\tLAST USED\tREVOKED")
	for _, key := range list {
		fmt.Fprintf(w, "%s\t%s\t%q\t%s\t%s\t%s\n", key.ID, key.Owner, key.Label, day(&key.Created), day(key.LastUsed), day(key.Revoked))
	}
	return w.Flush()
}

func day(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}
