package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"bobbin/activities"
	"bobbin/api"
	"bobbin/monitor"
)

var (
	described = regexp.MustCompile(`fqName: "(bobbin_[a-z_]+)", help: ".*", constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)
	constant  = regexp.MustCompile(`(\w+)="[^"]*"`)
	row       = regexp.MustCompile("(?m)^\\| `(bobbin_[a-z_]+)` \\|([^|]*)\\|")
	suffix    = regexp.MustCompile(`_(total|seconds|info)$`)
)

func TestTheTableOfMetricsIsTheRegistry(t *testing.T) {
	t.Parallel()
	r := monitor.Registry(nil, "v1")
	activities.New(activities.Config{Metrics: r})
	api.Operator(api.Config{Metrics: r})
	descs := make(chan *prometheus.Desc)
	go func() {
		r.Describe(descs)
		close(descs)
	}()
	want := map[string]string{}
	for d := range descs {
		if m := described.FindStringSubmatch(d.String()); m != nil {
			labels := constant.ReplaceAllString(m[2], "$1")
			want[m[1]] = strings.ReplaceAll(strings.Trim(labels+","+m[3], ","), ",", ", ")
		}
	}
	page, err := os.ReadFile("../../docs/operations.md")
	require.NoError(t, err)
	got := map[string]string{}
	for _, m := range row.FindAllStringSubmatch(string(page), -1) {
		got[m[1]] = strings.TrimSpace(m[2])
	}
	require.Greater(t, len(want), 20)
	require.Empty(t, cmp.Diff(want, got), "- registry, + docs/operations.md")
	for name := range want {
		require.True(t, suffix.MatchString(name) || slices.Contains(gauges, name), "%s: no unit and no _total", name)
	}
}

// gauges count things as they are now.
var gauges = []string{
	"bobbin_database_up", "bobbin_turns", "bobbin_waiting", "bobbin_outbox_due", "bobbin_workers", "bobbin_database_connections",
	"bobbin_database_connections_max", "bobbin_event_subscribers", "bobbin_worker_slots", "bobbin_worker_slots_used",
}
