//go:build !linux

package postgres

import (
	"os/exec"
	"strconv"
	"strings"
)

// worksIn reports whether the process is a postmaster of dir, going by its
// command line: this system has no /proc to ask for its folder.
func worksIn(pid int, dir string) bool {
	out, err := exec.Command("ps", "-o", "command=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && strings.Contains(string(out), "postgres") && strings.Contains(string(out), dir)
}
