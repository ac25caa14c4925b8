//go:build !linux

package process

import "syscall"

// setDeathSignal does nothing: this system doesn't tell a child that its parent
// died. The next start stops the orphan.
func setDeathSignal(*syscall.SysProcAttr, syscall.Signal) {}
