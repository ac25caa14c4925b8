package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// tick is the unit of the times in /proc: https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
const tick = 10 * time.Millisecond

var errNoProc = errors.New("CPU times are read from /proc, which this machine does not have")

// A stat is what the kernel counts of a process.
type stat struct {
	parent      int
	cpu, waited time.Duration // of itself; of its children that have ended
}

func statOf(pid int) (s stat, err error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return s, errNoProc
	}
	fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:])) // the name before it may hold anything
	number := func(i int) time.Duration {
		n, failed := strconv.Atoi(fields[i-3]) // the third field is the first after the name
		err = errors.Join(err, failed)
		return time.Duration(n)
	}
	s.parent = int(number(4))
	s.cpu, s.waited = tick*(number(14)+number(15)), tick*(number(16)+number(17))
	return s, err
}

// cpuOf is what processes have used so far.
func cpuOf(list ...*process) (sum time.Duration, err error) {
	for _, p := range list {
		s, err := statOf(p.cmd.Process.Pid)
		if err != nil {
			return 0, err
		}
		sum += s.cpu
	}
	return sum, nil
}

// A postgresWork is what all processes of the Postgres server have used so far, ended ones among them.
type postgresWork struct{ temporal, rest time.Duration }

func (h *house) postgresCPU(ctx context.Context) (w postgresWork, err error) {
	rows, err := h.sql.Query(ctx, `SELECT pid FROM pg_stat_activity WHERE datname = 'temporal'`)
	if err != nil {
		return w, err
	}
	temporal, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		return w, err
	}
	backend, err := h.count(ctx, `SELECT pg_backend_pid()::bigint`)
	if err != nil {
		return w, err
	}
	s, err := statOf(int(backend))
	if err != nil {
		return w, err
	}
	postmaster := s.parent
	if s, err = statOf(postmaster); err != nil {
		return w, err
	}
	w.rest = s.cpu + s.waited
	dirs, _ := filepath.Glob("/proc/[0-9]*") // the pattern is well formed
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		switch s, err := statOf(pid); {
		case err != nil || s.parent != postmaster: // it may have ended meanwhile
		case slices.Contains(temporal, pid):
			w.temporal += s.cpu
		default:
			w.rest += s.cpu
		}
	}
	return w, nil
}

// temporalCPU is what the Temporal server has used so far.
func (l *lab) temporalCPU() (time.Duration, error) {
	s, err := statOf(l.temporal.PID())
	return s.cpu, err
}
