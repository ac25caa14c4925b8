// Package process runs a server as a child that can't outlive its parent and
// can't be started twice on the same folder, whatever is killed and when.
//
// Three things carry that. The child is told by the kernel when its parent dies
// (Linux only). It has a process group of its own, so that a Ctrl-C at the
// terminal reaches the parent alone, which then stops it in order. And it
// inherits an open, locked file ([Options.Lock]): the lock is free only when the
// child and everything that it forked are gone, so who holds it may clear away
// what a killed server left behind without asking whose process id that was.
package process

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// Options describe a child. Path, Dir and LogFile are required.
type Options struct {
	Path string
	Args []string // without the program's name
	Env  []string // the whole environment; nothing is inherited
	Dir  string   // the folder it runs in

	// LogFile is appended to with the child's output and kept below about
	// MaxLog bytes (0 means 16 MiB) while the parent lives; see [Process.LogTail].
	LogFile string
	MaxLog  int64

	// Credential is the user to run as; nil keeps the parent's.
	Credential *syscall.Credential
	// DeathSignal is sent to the child when its parent dies. Linux only.
	DeathSignal syscall.Signal
	// Lock is a locked file that the child inherits, or nil. The caller may
	// close its own copy once Start has returned.
	Lock *os.File
}

// Process is a running child. Its methods may be called concurrently.
type Process struct {
	cmd  *exec.Cmd
	log  *logFile
	done chan struct{}
	err  error // of Wait; readable once done is closed
}

// Start runs the child and returns when it has been forked. It isn't bound to a
// context: only Stop, or the parent's death, ends it.
func Start(o Options) (*Process, error) {
	log, err := openLog(o.LogFile, o.MaxLog)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(o.Path, o.Args...)
	cmd.Env, cmd.Dir = o.Env, o.Dir
	cmd.Stdout, cmd.Stderr = log.file, log.file
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: o.Credential}
	setDeathSignal(cmd.SysProcAttr, o.DeathSignal)
	if o.Lock != nil {
		cmd.ExtraFiles = []*os.File{o.Lock}
	}
	p := &Process{cmd: cmd, log: log, done: make(chan struct{})}
	started := make(chan error)
	go p.run(started)
	if err := <-started; err != nil {
		log.close()
		return nil, fmt.Errorf("start %s: %w", o.Path, err)
	}
	go log.bound(p.done)
	return p, nil
}

// run forks and waits on one thread that it keeps to the end: the kernel sends
// the death signal when the thread that forked ends, not the whole process.
func (p *Process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	p.err = p.cmd.Wait()
	close(p.done)
}

// PID is the child's process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the child has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err says how the child ended: nil for exit status 0. It is nil before that.
func (p *Process) Err() error {
	select {
	case <-p.done:
		return p.err
	default:
		return nil
	}
}

// LogTail is the end of what this child has written, at most 4 KiB.
func (p *Process) LogTail() string { return p.log.tail() }

// Stop sends the first signal and waits, then the next one, and so on, and at last
// SIGKILL; it returns how the child ended. Each wait is at most patience; ctx can
// cut only the first one short. It is safe to call twice.
func (p *Process) Stop(ctx context.Context, patience time.Duration, signals ...syscall.Signal) error {
	for _, sig := range append(signals, syscall.SIGKILL) {
		_ = p.cmd.Process.Signal(sig) // it fails only if the child has ended, which done says
		wait, cancel := context.WithTimeout(ctx, patience)
		select {
		case <-p.done:
			cancel()
			return p.err
		case <-wait.Done():
			cancel()
		}
		ctx = context.WithoutCancel(ctx)
	}
	return fmt.Errorf("%s (process %d) doesn't end, even by SIGKILL", p.cmd.Path, p.PID())
}
