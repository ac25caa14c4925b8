package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
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

// postgresCPU is what all processes of the Postgres server have used so far, ended ones among them.
func (h *house) postgresCPU(ctx context.Context) (time.Duration, error) {
	backend, err := h.count(ctx, `SELECT pg_backend_pid()::bigint`)
	if err != nil {
		return 0, err
	}
	s, err := statOf(int(backend))
	if err != nil {
		return 0, err
	}
	postmaster := s.parent
	if s, err = statOf(postmaster); err != nil {
		return 0, err
	}
	sum := s.cpu + s.waited
	dirs, _ := filepath.Glob("/proc/[0-9]*") // the pattern is well formed
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		if s, err := statOf(pid); err == nil && s.parent == postmaster { // it may have ended meanwhile
			sum += s.cpu
		}
	}
	return sum, nil
}

// temporalCPU is what the Temporal server has used so far.
func (l *lab) temporalCPU() (time.Duration, error) {
	s, err := statOf(l.temporal.PID())
	return s.cpu, err
}
