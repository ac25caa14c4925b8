package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"bobbin/e2e/tally"
	"bobbin/internal/page"
)

// A report is all that one run of the laboratory found.
type report struct {
	results   []result
	mutations []verdict
	commit    string
	of        string // the machine
	at        time.Time
	took      time.Duration
}

// columns are those of the table, behind the part's name.
var columns = []string{
	"runs", "operations", "kills", "lost", "doubled", "reordered", "loaded after withdrawal", "tool twice", "reply twice",
}

func counts(r tally.Row) []int {
	return []int{
		r.Runs, r.Operations, r.Kills, r.Lost, r.Doubled, r.Reordered, r.LoadedAfterWithdrawal, r.ToolTwice, r.ReplyTwice,
	}
}

// table are the rows of the table, each with its name, counts and how it went, and the sum of them.
func (r report) table() (rows [][]string) {
	line := func(name string, row tally.Row, ending ...string) []string {
		cells := []string{name}
		for _, n := range counts(row) {
			cells = append(cells, thousands(n))
		}
		return append(cells, ending...)
	}
	for _, res := range r.results {
		how := "passed"
		if res.err != nil {
			how = "FAILED"
		}
		rows = append(rows, line(res.name, res.row, res.took.Round(time.Second).String(), how))
	}
	if len(rows) == 0 {
		return nil
	}
	return append(rows, line("all", r.sum(), r.took.Round(time.Second).String(), ""))
}

func (r report) sum() tally.Row {
	var all tally.Row
	for _, res := range r.results {
		all.Add(res.row)
	}
	return all
}

func (r report) head() string {
	return fmt.Sprintf("%s, commit %s, %s. It took %s.", r.at.UTC().Format("2006-01-02 15:04"), r.commit, r.of, r.took.Round(time.Second))
}

func (r report) text(verbose bool) string {
	var b bytes.Buffer
	if rows := r.table(); rows != nil {
		w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, strings.Join(slices.Concat([]string{"part"}, columns, []string{"took", ""}), "\t"))
		for _, row := range rows {
			fmt.Fprintln(w, strings.Join(row, "\t"))
		}
		_ = w.Flush() // a buffer takes everything
		b.WriteByte('\n')
	}
	for _, l := range r.lines() {
		fmt.Fprintln(&b, l)
	}
	if verbose {
		b.WriteString(r.full())
	}
	fmt.Fprintf(&b, "\n%s\n", r.head())
	return b.String()
}

// lines are what the table does not hold.
func (r report) lines() (lines []string) {
	all := r.sum()
	for _, q := range []struct {
		name  string
		times []time.Duration
	}{
		{"steer, from its accept to the model request that shows it", all.Steer},
		{"stop, to the connection's end at the provider", all.Stop},
		{"recovery, from a kill to the next work on the turn", all.Recovery},
	} {
		if len(q.times) > 0 {
			slices.Sort(q.times)
			lines = append(lines, fmt.Sprintf("%s: p50 %s, p99 %s, of %s", q.name, ms(at(q.times, 0.5)), ms(at(q.times, 0.99)), thousands(len(q.times))))
		}
	}
	if len(all.Cells) > 0 {
		names := byVisits(all.Cells)
		least, most := names[0], names[len(names)-1]
		lines = append(lines, fmt.Sprintf("race cells: %s, visited from %s times (%s) to %s times (%s)", thousands(len(names)),
			thousands(all.Cells[least]), least, thousands(all.Cells[most]), most))
	}
	for _, res := range r.results {
		for _, name := range slices.Sorted(maps.Keys(res.row.Figures)) {
			lines = append(lines, fmt.Sprintf("%s: %s: %s", res.name, name, res.row.Figures[name]))
		}
	}
	if len(r.mutations) > 0 {
		applied, caught, missed := r.mutated()
		line := fmt.Sprintf("mutations: %d applied, %d caught", applied, caught)
		if len(missed) > 0 {
			line += "; NOT caught: " + strings.Join(missed, "; ")
		}
		lines = append(lines, line)
	}
	return lines
}

// mutated counts the mutations that could be tried and those that were caught, and names the others.
func (r report) mutated() (applied, caught int, missed []string) {
	for _, v := range r.mutations {
		if v.err != nil {
			continue
		}
		applied++
		if v.caught() {
			caught++
		} else {
			missed = append(missed, v.name)
		}
	}
	return applied, caught, missed
}

// full lists each race cell and each mutation.
func (r report) full() string {
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	cells := r.sum().Cells
	for _, name := range byVisits(cells) {
		fmt.Fprintf(w, "%s\t%s\n", name, thousands(cells[name]))
	}
	for _, v := range r.mutations {
		fmt.Fprintf(w, "%s\t%s\t%s\n", v.name, v.outcome(), v.took.Round(time.Second))
	}
	_ = w.Flush() // a buffer takes everything
	if b.Len() == 0 {
		return ""
	}
	return "\n" + b.String()
}

func (v verdict) outcome() string {
	switch {
	case v.err != nil:
		return "not tried: " + v.err.Error()
	case !v.caught():
		return "NOT caught"
	}
	return strings.Join(v.by, ", ")
}

// The sections of the two pages begin with these lines.
const (
	sectionBegin = "<!-- laboratory: make lab writes from here -->"
	summaryBegin = "<!-- laboratory, in a sentence: make lab writes from here -->"
)

// write puts the report into the pages that are named.
func (r report) write(docs, readme string) error {
	var err error
	if docs != "" {
		err = page.Fill(docs, sectionBegin, r.markdown())
	}
	if readme != "" {
		err = errors.Join(err, page.Fill(readme, summaryBegin, r.summary()))
	}
	return err
}

func (r report) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\nExamined %s\n\n", r.head())
	if rows := r.table(); rows != nil {
		header := slices.Concat([]string{"part"}, columns, []string{"took", ""})
		fmt.Fprintf(&b, "| %s |\n|%s\n", strings.Join(header, " | "), strings.Repeat(" --- |", len(header)))
		for _, row := range rows {
			fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
		}
		b.WriteByte('\n')
	}
	for _, l := range r.lines() {
		fmt.Fprintf(&b, "- %s\n", l)
	}
	if len(r.mutations) > 0 {
		b.WriteString("\n| broken on purpose | caught by |\n| --- | --- |\n")
		for _, v := range r.mutations {
			fmt.Fprintf(&b, "| %s | %s |\n", v.name, v.outcome())
		}
	}
	return b.String() + "\n"
}

// summary is the report in a sentence.
func (r report) summary() string {
	all := r.sum()
	applied, caught, _ := r.mutated()
	state := "passed"
	if r.err() != nil {
		state = "FAILED"
	}
	return fmt.Sprintf("The laboratory %s (commit %s, %s): %s runs with %s operations and %s kills; lost %d, doubled %d, reordered %d, "+
		"loaded after withdrawal %d, side effects run twice %d, replies sent twice %d. Of %d ways to break the engine its tests catch %d.\n",
		state, r.commit, r.at.UTC().Format(time.DateOnly), thousands(all.Runs), thousands(all.Operations), thousands(all.Kills),
		all.Lost, all.Doubled, all.Reordered, all.LoadedAfterWithdrawal, all.ToolTwice, all.ReplyTwice, applied, caught)
}

// err says what is wrong; nil: all parts passed, and all mutations were caught.
func (r report) err() error {
	var all []error
	for _, res := range r.results {
		if res.err != nil {
			all = append(all, fmt.Errorf("%s: %w", res.name, res.err))
		}
	}
	for _, v := range r.mutations {
		if !v.caught() {
			all = append(all, fmt.Errorf("%s: %s", v.name, v.outcome()))
		}
	}
	return errors.Join(all...)
}

// byVisits are the names of cells, those that were visited least first.
func byVisits(cells map[string]int) []string {
	return slices.SortedFunc(maps.Keys(cells), func(a, b string) int {
		return cmp.Or(cmp.Compare(cells[a], cells[b]), cmp.Compare(a, b))
	})
}

// at is a quantile of what is sorted and not empty.
func at(sorted []time.Duration, q float64) time.Duration {
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

func ms(d time.Duration) string {
	switch {
	case d < 10*time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	}
	return d.Round(10 * time.Millisecond).String()
}

// thousands writes a number with commas.
func thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
