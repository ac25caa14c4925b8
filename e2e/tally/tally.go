// Package tally is how the parts of the laboratory say what they did. A part is one or more tests, of any package, that
// count what they try and what went wrong:
//
//	book := tally.Keep(t, "races")
//	for range tally.Pick(20, 2000) {
//		…
//		book.Add(tally.Row{Runs: 1, Operations: n})
//	}
//
// In `make test` a part is short: fixed choices, a few seconds. In `make lab` it is long, and its row goes into the table.
// A test that chooses at random logs a line with SEED=number in it, which the laboratory repeats if the test fails.
package tally

import (
	"encoding/json"
	"maps"
	"os"
	"sync"
	"testing"
	"time"
)

// LongVar asks for the long form, whatever its value; FolderVar names the folder, which exists, for the rows.
const (
	LongVar   = "BOBBIN_LAB"
	FolderVar = "BOBBIN_LAB_DIR"
)

// Long reports whether the laboratory runs the tests.
func Long() bool { return os.Getenv(LongVar) != "" }

// Pick chooses by the form that is asked for.
func Pick(short, long int) int {
	if Long() {
		return long
	}
	return short
}

// A Row is what one part of the laboratory did and found, or a piece of that. Its zero value is nothing done.
type Row struct {
	Part string // the same for all pieces

	Runs       int // histories that began afresh and were judged at their end
	Operations int // what clients did in them
	Kills      int // processes that were killed

	// What must not be, and is counted all the same: 0 each, or the laboratory fails.
	Lost                  int // accepted and not withdrawn, and in no model input and no queue
	Doubled               int // in a conversation more than once
	Reordered             int // before what was accepted earlier
	LoadedAfterWithdrawal int // shown to the model although the person had it back
	ToolTwice             int // a side effect that happened again
	ReplyTwice            int // a second answer of a turn

	Cells   map[string]int    `json:",omitempty"` // visits of each cell of the race table, by its name
	Figures map[string]string `json:",omitempty"` // anything else that is worth a line, by what it is

	Steer    []time.Duration `json:",omitempty"` // each steer, from its accept to the model request that shows it
	Stop     []time.Duration `json:",omitempty"` // each stop, to the connection's end at the provider
	Recovery []time.Duration `json:",omitempty"` // each kill, to the next sign of work on the turn
}

// Wrong is the number of all that must not be.
func (r Row) Wrong() int {
	return r.Lost + r.Doubled + r.Reordered + r.LoadedAfterWithdrawal + r.ToolTwice + r.ReplyTwice
}

// Add adds a piece to the row. Of two figures with one name the later stays.
func (r *Row) Add(piece Row) {
	r.Runs += piece.Runs
	r.Operations += piece.Operations
	r.Kills += piece.Kills
	r.Lost += piece.Lost
	r.Doubled += piece.Doubled
	r.Reordered += piece.Reordered
	r.LoadedAfterWithdrawal += piece.LoadedAfterWithdrawal
	r.ToolTwice += piece.ToolTwice
	r.ReplyTwice += piece.ReplyTwice
	r.Steer = append(r.Steer, piece.Steer...)
	r.Stop = append(r.Stop, piece.Stop...)
	r.Recovery = append(r.Recovery, piece.Recovery...)
	if r.Cells == nil && piece.Cells != nil {
		r.Cells = map[string]int{}
	}
	for cell, visits := range piece.Cells {
		r.Cells[cell] += visits
	}
	if r.Figures == nil && piece.Figures != nil {
		r.Figures = map[string]string{}
	}
	maps.Copy(r.Figures, piece.Figures)
}

// A Book keeps a row while a test runs. Any goroutine may add to it.
type Book struct {
	mu  sync.Mutex
	row Row
}

// Keep opens a book for a part. When the test ends, failed or not, what it holds is logged, and written as a file into the
// laboratory's folder if there is one.
func Keep(t testing.TB, part string) *Book {
	t.Helper()
	b := &Book{row: Row{Part: part}}
	t.Cleanup(func() {
		t.Helper()
		b.mu.Lock()
		defer b.mu.Unlock()
		if err := b.row.write(); err != nil {
			t.Errorf("the row of %s: %v", part, err)
		}
		t.Logf("%s: %d runs, %d operations, %d kills, %d wrong", part, b.row.Runs, b.row.Operations, b.row.Kills, b.row.Wrong())
	})
	return b
}

// Add adds a piece to the row.
func (b *Book) Add(piece Row) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.row.Add(piece)
}

func (r Row) write() error {
	dir := os.Getenv(FolderVar)
	if dir == "" {
		return nil
	}
	raw, err := json.Marshal(r)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, r.Part+"-*.json")
	if err != nil {
		return err
	}
	if _, err := f.Write(raw); err != nil {
		_ = f.Close() // the write's error says more
		return err
	}
	return f.Close()
}
