package main

import "syscall"

// dieWithUs makes the kernel kill a child when this process dies.
func dieWithUs() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
