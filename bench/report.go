package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"text/tabwriter"
	"time"

	"bobbin/internal/page"
)

// A line is one line of the table. An empty text is shown as a dash.
type line struct {
	key               string // of its row
	name, ours, floor string
	ratio, goal       string
	verdict           verdict
}

type verdict string

const (
	met    verdict = "met"
	missed verdict = "missed"
	shown  verdict = "" // there is no goal
)

func verdictOf(ok bool) verdict {
	if ok {
		return met
	}
	return missed
}

// line is a comparison at a quantile, with the ratio that is the goal.
func (d duel) line(name string, q, goal float64) line {
	r := d.ratio(q)
	return line{
		name: fmt.Sprintf("%s, p%.0f", name, q*100), ours: ms(pool(d.ours).at(q)), floor: ms(pool(d.floor).at(q)),
		ratio: r.String(), goal: fmt.Sprintf("≤ %.1f ×", goal), verdict: verdictOf(r.mid <= goal),
	}
}

func (s spread) String() string { return fmt.Sprintf("%.2f (%.2f to %.2f)", s.mid, s.low, s.high) }

func ms(d time.Duration) string {
	switch m := float64(d) / float64(time.Millisecond); {
	case m < 10:
		return fmt.Sprintf("%.2f ms", m)
	case m < 1000:
		return fmt.Sprintf("%.0f ms", m)
	default:
		return fmt.Sprintf("%.1f s", m/1000)
	}
}

// A report is all that one run found.
type report struct {
	lines  []line
	of     machine
	commit string
	at     time.Time
	took   time.Duration
}

func (r report) text() string {
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "row\tours\tfloor\tratio\tgoal\t")
	for _, l := range r.lines {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", l.name, dash(l.ours), dash(l.floor), dash(l.ratio), dash(l.goal), l.verdict)
	}
	_ = w.Flush() // a buffer takes everything
	fmt.Fprintf(&b, "\n%s\n", r.head())
	return b.String()
}

func (r report) head() string {
	return fmt.Sprintf("%s, commit %s, %s. It took %s.", r.at.UTC().Format("2006-01-02 15:04"), r.commit, r.of, r.took.Round(time.Second))
}

func dash(s string) string {
	if s == "" {
		return "–"
	}
	return s
}

// sectionBegin is the line before the measured section of the page.
const sectionBegin = "<!-- measured: make bench writes from here -->"

// write puts the table into a page.
func (r report) write(file string) error { return page.Fill(file, sectionBegin, r.markdown()) }

func (r report) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\nMeasured %s\n\n| row | ours | floor | ratio | goal | |\n| --- | --- | --- | --- | --- | --- |\n", r.head())
	for _, l := range r.lines {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", l.name, dash(l.ours), dash(l.floor), dash(l.ratio), dash(l.goal), l.verdict)
	}
	return b.String() + "\n"
}

// A machine is what was measured on.
type machine string

func (l *lab) machine(ctx context.Context) machine {
	pgVersion := "unknown"
	if h, err := connect(ctx, l.admin); err == nil {
		defer h.Close()
		_ = h.QueryRow(ctx, `SHOW server_version`).Scan(&pgVersion) // unknown is as good
	}
	parts := []string{
		fmt.Sprintf("%d cores (%s), %s", runtime.NumCPU(), cpuModel(), kernel(ctx)), runtime.Version(),
		"Postgres " + strings.Fields(pgVersion)[0], "Temporal server " + serverVersion(ctx, l.temporal.Program()),
		"Temporal SDK " + moduleVersion("go.temporal.io/sdk"),
	}
	return machine(strings.Join(parts, ", "))
}

func cpuModel() string {
	raw, _ := os.ReadFile("/proc/cpuinfo") // elsewhere than on Linux it is not known
	for l := range strings.Lines(string(raw)) {
		if name, value, ok := strings.Cut(l, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

func kernel(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "uname", "-sr").Output()
	if err != nil {
		return runtime.GOOS
	}
	return strings.TrimSpace(string(out))
}

// serverVersion reads the version of the server's module from its program.
func serverVersion(ctx context.Context, program string) string {
	out, _ := exec.CommandContext(ctx, "go", "version", "-m", program).Output() // a program without it: unknown
	for l := range strings.Lines(string(out)) {
		if f := strings.Fields(l); len(f) >= 3 && f[1] == "go.temporal.io/server" {
			return f[2]
		}
	}
	return "unknown"
}

func moduleVersion(path string) string {
	info, _ := debug.ReadBuildInfo()
	if info == nil {
		return "unknown"
	}
	for _, m := range info.Deps {
		if m.Path == path {
			return m.Version
		}
	}
	return "unknown"
}
