//go:build !linux

package e2e

import "syscall"

func dieWithUs() *syscall.SysProcAttr { return nil }
