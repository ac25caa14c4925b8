package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// A process is one run of the binary, or of a floor.
type process struct {
	name string
	cmd  *exec.Cmd
	log  string
	addr string // of an API
	done chan struct{}
}

// start runs a command of the binary in the house's environment.
func (h *house) start(command string, env ...string) (*process, error) {
	return h.exec(h.binary, command, env...)
}

// floor runs one of the floors, which are a second copy of this program.
func (h *house) floor(ready *regexp.Regexp, env ...string) (*process, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p, err := h.exec(program, "floor", env...)
	if err == nil {
		_, err = p.waitLog(ready)
	}
	return p, err
}

func (h *house) exec(program, command string, env ...string) (*process, error) {
	p := &process{name: fmt.Sprintf("%s-%d", command, len(h.processes)+1), done: make(chan struct{})}
	p.log = filepath.Join(h.dir, p.name+".log")
	out, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p.cmd = exec.Command(program, command)
	p.cmd.Env = append(append(os.Environ(), h.env...), env...)
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr, p.cmd.SysProcAttr = h.dir, out, out, dieWithUs()
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	h.processes = append(h.processes, p)
	go func() {
		_ = p.cmd.Wait() // how it ended is asked for where it matters
		close(p.done)
	}()
	return p, nil
}

// waitLog waits for a line of the log and returns what the pattern's group found.
func (p *process) waitLog(pattern *regexp.Regexp) (found string, err error) {
	err = until(context.Background(), fmt.Sprintf("%s to log %s", p.name, pattern), func() (bool, error) {
		log, err := os.ReadFile(p.log)
		if err != nil {
			return false, err
		}
		if m := pattern.FindSubmatch(log); m != nil {
			found = string(m[1])
			return true, nil
		}
		select {
		case <-p.done:
			return false, fmt.Errorf("%s ended at its start: %s", p.name, p.logTail())
		default:
			return false, nil
		}
	})
	return found, err
}

// profiled makes the process write its profile, if it has one, and end; it waits for that.
func (p *process) profiled() {
	_ = p.cmd.Process.Signal(syscall.SIGUSR2) // it may have ended
	select {
	case <-p.done:
	case <-time.After(patience): // it is killed in any case
	}
}

// kill ends the process as a crash does, and waits until it is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Signal(syscall.SIGKILL)
	<-p.done
}

func (p *process) logTail() string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-10):], "\n")
}
