package house

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"github.com/stretchr/testify/require"
)

// A Process is one run of the binary. Its signals may be sent to what has ended.
type Process struct {
	Name string        // the command and a number
	Addr string        // of an API
	Done chan struct{} // closed once it has ended

	h   *House
	cmd *exec.Cmd
	log string // file of its standard error and output
}

var listens = regexp.MustCompile(`msg="API listens" addr=(\S+)`)

// API starts an API process and waits until it listens. Requests go to the one that was started last and still lives.
func (h *House) API(env ...string) *Process {
	h.T.Helper()
	p := h.Start("api", append([]string{"BOBBIN_ADDR=127.0.0.1:0"}, env...)...)
	p.Addr = p.WaitLog(listens)
	return p
}

var runs = regexp.MustCompile(`msg="(worker runs)"`)

// Worker starts a worker process and waits until it has reached Postgres and Temporal.
func (h *House) Worker(env ...string) *Process {
	h.T.Helper()
	p := h.Start("worker", env...)
	p.WaitLog(runs)
	return p
}

// Start runs a command of the binary in the house's environment; env changes it for this process.
func (h *House) Start(command string, env ...string) *Process {
	h.T.Helper()
	h.mu.Lock()
	p := &Process{h: h, Name: fmt.Sprintf("%s-%d", command, len(h.Processes)+1), Done: make(chan struct{})}
	h.Processes = append(h.Processes, p)
	h.mu.Unlock()
	p.log = filepath.Join(h.Dir, p.Name+".log")
	out, err := os.Create(p.log)
	require.NoError(h.T, err)
	defer out.Close()
	p.cmd = exec.Command(binary(), command)
	p.cmd.Env = append(append(os.Environ(), h.env...), env...)
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr, p.cmd.SysProcAttr = h.Dir, out, out, dieWithUs()
	require.NoError(h.T, p.cmd.Start())
	go func() {
		_ = p.cmd.Wait() // how it ended is asked for where it matters
		close(p.Done)
	}()
	return p
}

// WaitLog waits for a line of the process's log and returns what the pattern's group found.
func (p *Process) WaitLog(pattern *regexp.Regexp) string {
	p.h.T.Helper()
	var found string
	p.h.Until(p.Name+" to log "+pattern.String(), func() bool {
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
		if p.Ended() {
			p.h.Fail("%s ended at its start", p.Name)
		}
		return false
	})
	return found
}

// Ended reports whether the process is gone.
func (p *Process) Ended() bool {
	select {
	case <-p.Done:
		return true
	default:
		return false
	}
}

// Signal sends a signal.
func (p *Process) Signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// Kill ends the process as a crash does, and waits until it is gone.
func (p *Process) Kill() {
	p.Signal(syscall.SIGKILL)
	<-p.Done
}

// Freeze stops the process where it stands: slow, not dead. Thaw lets it go on.
func (p *Process) Freeze() { p.Signal(syscall.SIGSTOP) }

// Thaw lets a frozen process go on.
func (p *Process) Thaw() { p.Signal(syscall.SIGCONT) }

// Terminate asks the process to end in good order, as an orchestrator does.
func (p *Process) Terminate() { p.Signal(syscall.SIGTERM) }

// WaitEnd waits until the process has ended and returns its exit code.
func (p *Process) WaitEnd() int {
	p.h.T.Helper()
	select {
	case <-p.Done:
	case <-time.After(Patience):
		p.h.Fail("%s does not end", p.Name)
	}
	return p.cmd.ProcessState.ExitCode()
}

// LogText is all that the process has written.
func (p *Process) LogText() string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// KillAll ends every process of the house as a crash does.
func (h *House) KillAll() {
	for _, p := range h.Processes {
		p.Kill()
	}
}

// Operated starts a worker that serves an operator, and returns where.
func (h *House) Operated(env ...string) (*Process, string) {
	h.T.Helper()
	w := h.Start("worker", append([]string{"BOBBIN_WORKER_ADDR=127.0.0.1:0"}, env...)...)
	return w, "http://" + w.WaitLog(regexp.MustCompile(`msg="operator listens" addr=(\S+)`))
}

// Get returns the status and the body of an address; 0 where nobody answers.
func Get(url string) (int, string) {
	resp, err := http.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(raw)
}

// Ready waits until a process says that it is.
func (h *House) Ready(url string) {
	h.T.Helper()
	h.Until(url+" to be ready", func() bool {
		status, _ := Get(url + "/readyz")
		return status == http.StatusOK
	})
}
