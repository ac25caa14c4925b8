package postgres

import (
	"fmt"
	"os"
)

// worksIn reports whether the process has dir as its folder, as each process of
// PostgreSQL has its data's.
func worksIn(pid int, dir string) bool {
	cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
	return err == nil && cwd == dir
}
