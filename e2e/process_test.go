package e2e

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"syscall"
	"time"

	"github.com/stretchr/testify/require"
)

// A process is one run of the binary. Its signals may be sent to what has ended.
type process struct {
	h    *house
	name string
	cmd  *exec.Cmd
	log  string        // file of its standard error and output
	addr string        // of an API
	done chan struct{} // closed once it has ended

	endOnce sync.Once
}

var listens = regexp.MustCompile(`msg="API listens" addr=(\S+)`)

// api starts an API process and waits until it listens. Requests go to the one that was started last and still lives.
func (h *house) api(env ...string) *process {
	h.t.Helper()
	p := h.start("api", append([]string{"BOBBIN_ADDR=127.0.0.1:0"}, env...)...)
	p.addr = p.waitLog(listens)
	return p
}

var runs = regexp.MustCompile(`msg="(worker runs)"`)

// worker starts a worker process and waits until it has reached Postgres and Temporal.
func (h *house) worker(env ...string) *process {
	h.t.Helper()
	p := h.start("worker", env...)
	p.waitLog(runs)
	return p
}

// start runs a command of the binary in the house's environment; env changes it for this process.
func (h *house) start(command string, env ...string) *process {
	h.t.Helper()
	h.mu.Lock()
	p := &process{h: h, name: fmt.Sprintf("%s-%d", command, len(h.processes)+1), done: make(chan struct{})}
	h.processes = append(h.processes, p)
	h.mu.Unlock()
	p.log = filepath.Join(h.dir, p.name+".log")
	out, err := os.Create(p.log)
	require.NoError(h.t, err)
	defer out.Close()
	p.cmd = exec.Command(binary(), command)
	p.cmd.Env = append(append(os.Environ(), h.env...), env...)
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr, p.cmd.SysProcAttr = h.dir, out, out, dieWithUs()
	require.NoError(h.t, p.cmd.Start())
	go func() {
		_ = p.cmd.Wait() // how it ended is asked for where it matters
		close(p.done)
	}()
	return p
}

// waitLog waits for a line of the process's log and returns what the pattern's group found.
func (p *process) waitLog(pattern *regexp.Regexp) string {
	p.h.t.Helper()
	var found string
	p.h.until(p.name+" to log "+pattern.String(), func() bool {
		f, err := os.Open(p.log)
		if err != nil {
			return false
		}
		defer f.Close()
		for s := bufio.NewScanner(f); s.Scan(); {
			if m := pattern.FindStringSubmatch(s.Text()); m != nil {
				found = m[1]
				return true
			}
		}
		if p.ended() {
			p.h.fail("%s ended at its start", p.name)
		}
		return false
	})
	return found
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// kill ends the process as a crash does, and waits until it is gone.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.done
}

// freeze stops the process where it stands: slow, not dead. thaw lets it go on.
func (p *process) freeze() { p.signal(syscall.SIGSTOP) }
func (p *process) thaw()   { p.signal(syscall.SIGCONT) }

// terminate asks the process to end in good order, as an orchestrator does.
func (p *process) terminate() { p.signal(syscall.SIGTERM) }

// waitEnd waits until the process has ended and returns its exit code.
func (p *process) waitEnd() int {
	p.h.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		p.h.fail("%s does not end", p.name)
	}
	return p.cmd.ProcessState.ExitCode()
}

func (p *process) logText() string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(b)
}
