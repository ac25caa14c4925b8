package house

import "syscall"

// dieWithUs makes the kernel kill a child when the test process dies, a time-out's panic included.
func dieWithUs() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
