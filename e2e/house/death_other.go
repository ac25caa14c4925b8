//go:build !linux

package house

import "syscall"

func dieWithUs() *syscall.SysProcAttr { return nil }
