// Package temporal gives a program a Temporal server and its Web UI with one
// call, [Start]. The server is a child process on loopback ports, and it ends with
// the program, however that ends.
//
// Which server that is depends on what the machine has; see [Start]. Only
// devserver, the nested module of this repository, can keep its state in a
// Postgres database; the `temporal` program keeps it in a SQLite file. A folder
// stays with what it began with, because workflows don't move.
//
// # What a folder holds
//
//	server.log        what the server says, kept below 16 MiB
//	owner.lock        locked by the process that called Start
//	server.lock       locked by the running server
//	server.pid        its process id, true while server.lock is locked
//	temporal.db       its state, if that is a SQLite file
//	state-in-postgres a mark that its state is in Postgres
package temporal

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"bobbin/embedded/internal/process"
)

const (
	ip = "127.0.0.1"

	// ownerWait lets a program that was just told to stop finish.
	ownerWait = 20 * time.Second
	// stopPatience is longer than devserver's own bound.
	stopPatience = 15 * time.Second
	// attempts bounds how often other ports are tried when one that was free is
	// taken before the server listens on it.
	attempts = 4
)

// ErrInUse is returned when another living process has started a server on the
// same folder and didn't stop within twenty seconds.
var ErrInUse = errors.New("another process runs Temporal in this folder")

// Config says what the server is for. Dir and Namespace are required.
type Config struct {
	// Dir is the server's folder, made if missing. It must be this package's alone.
	Dir string

	// PostgresDSN is the database for the server's state, in the schemas temporal
	// and temporal_visibility; a unix socket is fine. If it is "", or if the
	// server to be had can't use it, state goes to a SQLite file in Dir.
	PostgresDSN string

	// Memory keeps state nowhere. For tests.
	Memory bool

	// Namespace exists when Start returns, and has the search attributes: name →
	// Text, Keyword, Int, Double, Bool, Datetime or KeywordList.
	Namespace        string
	SearchAttributes map[string]string

	// Port and UIPort are taken if they are free; else, and if they are 0, others
	// are, and Log is told. Headless means no UI.
	Port, UIPort int
	Headless     bool

	// Settings are dynamic configuration on top of what the server has anyway,
	// each key=json.
	Settings []string

	// Program is a devserver or temporal program to use as it is; "" looks for one.
	Program string
	// SourceDir is the folder of the module devserver; "" looks for a folder
	// devserver in the working folder and those above it.
	SourceDir string
	// CacheDir keeps programs that were built or downloaded, so that all folders
	// share them; "" is bobbin in the user's cache folder.
	CacheDir string
	// NoDownload leaves out the download of a `temporal` program.
	NoDownload bool

	// Log is told what takes time or is unexpected, a line a call, or nil.
	Log func(format string, args ...any)
}

// Server is a running Temporal server that this process started. Its methods may
// be called concurrently.
type Server struct {
	port, uiPort int
	inPostgres   bool
	program      program
	owner        *os.File
	process      *process.Process
}

// Start finds a server program, runs it, and returns when the frontend answers
// and the namespace and its search attributes exist. The server isn't bound to
// ctx: it runs until [Server.Stop] or the end of this process.
//
// It takes the first of these that can be had:
//
//  1. [Config.Program]
//  2. a devserver that was built earlier from the same sources
//  3. `temporal` on PATH, or one downloaded earlier
//  4. one that the SDK downloads now; given up after five seconds without a byte
//  5. devserver, built now, which takes 5 to 10 minutes once
//
// A folder whose state is in Postgres needs devserver, so 3 and 4 are left out
// there. The error is [ErrInUse], or says what was tried, or quotes the server.
func Start(ctx context.Context, c Config) (*Server, error) {
	c, err := c.complete()
	if err != nil {
		return nil, err
	}
	owner, err := lockOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	s := &Server{owner: owner}
	if err := s.start(ctx, c); err != nil {
		owner.Close()
		return nil, err
	}
	return s, nil
}

// Address is the frontend's host:port.
func (s *Server) Address() string { return net.JoinHostPort(ip, strconv.Itoa(s.port)) }

// UIURL is the Web UI's address, or "" if it is headless.
func (s *Server) UIURL() string {
	if s.uiPort == 0 {
		return ""
	}
	return "http://" + net.JoinHostPort(ip, strconv.Itoa(s.uiPort))
}

// InPostgres reports whether the server's state is in [Config.PostgresDSN].
func (s *Server) InPostgres() bool { return s.inPostgres }

// Program is the path of the server's program.
func (s *Server) Program() string { return s.program.path }

// PID is the server's process id.
func (s *Server) PID() int { return s.process.PID() }

// Done is closed when the server has ended, asked to or not.
func (s *Server) Done() <-chan struct{} { return s.process.Done() }

// Err says how the server ended, with the end of its log. It is nil while it runs
// and after a clean stop.
func (s *Server) Err() error {
	if err := s.process.Err(); err != nil {
		return fmt.Errorf("temporal ended: %w\n%s", err, s.process.LogTail())
	}
	return nil
}

// Stop ends the server in order, which takes about 1.5 s, and kills it if that
// takes 15 seconds or ctx ends; either way no state is lost. Stop workers first:
// the server waits for their polls. It is safe to call twice.
func (s *Server) Stop(ctx context.Context) error {
	err := s.process.Stop(ctx, stopPatience, syscall.SIGTERM)
	s.owner.Close()
	if err != nil {
		return fmt.Errorf("stop temporal: %w", err)
	}
	return nil
}

// complete checks the configuration and fills in what was left out.
func (c Config) complete() (Config, error) {
	if c.Dir == "" || c.Namespace == "" {
		return c, errors.New("temporal: a folder and a namespace are needed")
	}
	if c.Memory && c.PostgresDSN != "" {
		return c, errors.New("temporal: state can't be in memory and in Postgres")
	}
	if c.Log == nil {
		c.Log = func(string, ...any) {}
	}
	dir, err := filepath.Abs(c.Dir)
	if err != nil {
		return c, fmt.Errorf("folder for Temporal: %w", err)
	}
	c.Dir = dir
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return c, fmt.Errorf("folder for Temporal: %w", err)
	}
	if c.CacheDir == "" {
		cache, err := os.UserCacheDir()
		if err != nil { // no home
			cache = c.Dir
		}
		c.CacheDir = filepath.Join(cache, "bobbin")
	}
	if err := os.MkdirAll(c.CacheDir, 0o755); err != nil {
		return c, fmt.Errorf("folder for programs: %w", err)
	}
	if c.SourceDir == "" {
		c.SourceDir = findSource()
	}
	return c, nil
}

// start runs with the owner's lock held.
func (s *Server) start(ctx context.Context, c Config) error {
	running, err := lockServer(ctx, c)
	if err != nil {
		return err
	}
	defer running.Close() // the server has its own copy by then
	if s.program, err = findProgram(ctx, c); err != nil {
		return err
	}
	if s.inPostgres, err = chooseStore(c, s.program); err != nil {
		return err
	}
	for attempt := 1; ; attempt++ {
		err := s.run(ctx, c, running)
		if err == nil || attempt == attempts || !errors.Is(err, errPortTaken) {
			return err
		}
	}
}

// run starts the process on ports that are free now, and waits until it is ready.
func (s *Server) run(ctx context.Context, c Config, lock *os.File) error {
	if err := s.choosePorts(c); err != nil {
		return err
	}
	var err error
	s.process, err = process.Start(process.Options{
		Path:        s.program.path,
		Args:        s.args(c),
		Env:         environment(c, s.inPostgres),
		Dir:         c.Dir,
		LogFile:     filepath.Join(c.Dir, "server.log"),
		DeathSignal: syscall.SIGTERM,
		Lock:        lock,
	})
	if err != nil {
		return err
	}
	pid := []byte(strconv.Itoa(s.process.PID()))
	if err = os.WriteFile(filepath.Join(c.Dir, "server.pid"), pid, 0o600); err == nil {
		err = s.waitReady(ctx, c)
	}
	if err != nil {
		_ = s.process.Stop(context.WithoutCancel(ctx), stopPatience, syscall.SIGTERM) // the first error counts
		return err
	}
	return nil
}

func (s *Server) args(c Config) []string {
	args := []string{"server", "start-dev", "--ip", ip, "--port", strconv.Itoa(s.port), "--namespace", c.Namespace, "--log-level", "error"}
	if s.uiPort == 0 {
		args = append(args, "--headless")
	} else {
		args = append(args, "--ui-port", strconv.Itoa(s.uiPort))
	}
	if !c.Memory && !s.inPostgres {
		args = append(args, "--db-filename", filepath.Join(c.Dir, "temporal.db"))
	}
	for name, kind := range c.SearchAttributes {
		args = append(args, "--search-attribute", name+"="+kind)
	}
	settings := c.Settings
	if s.program.devserver {
		args = append(args, "--stop-with-parent")
	} else {
		settings = append(slices.Clone(stockSettings), settings...)
	}
	for _, setting := range settings {
		args = append(args, "--dynamic-config-value", setting)
	}
	return args
}

// stockSettings give the `temporal` program what devserver has by default; the
// reasons are in devserver/settings.go.
var stockSettings = []string{
	"history.transferProcessorMaxPollRPS=1000",
	"history.timerProcessorMaxPollRPS=1000",
	"history.outboundProcessorMaxPollRPS=1000",
	"history.visibilityProcessorMaxPollRPS=200",
	"matching.numTaskqueueReadPartitions=1",
	"matching.numTaskqueueWritePartitions=1",
	"matching.enableFairness=true",
	"system.enableCancelActivityWorkerCommand=true",
	"frontend.WorkerCommandsEnabled=true",
	"history.enableSignalWithStartFromWorkflow=true",
	"frontend.enableServerVersionCheck=false",
}

// environment is all that the server gets to see: none of our secrets, and none of
// the PG* and TEMPORAL_* variables that it would read. The DSN may hold a
// password, so it is no argument, which everybody on the machine can read.
func environment(c Config, inPostgres bool) []string {
	var env []string
	for _, name := range []string{"PATH", "HOME", "TMPDIR"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	if inPostgres {
		env = append(env, "DEVSERVER_POSTGRES="+c.PostgresDSN)
	}
	return env
}

// chooseStore decides where state goes and marks the folder. What is there
// already wins.
func chooseStore(c Config, p program) (inPostgres bool, err error) {
	if c.Memory {
		return false, nil
	}
	if _, err := os.Stat(filepath.Join(c.Dir, "temporal.db")); err == nil {
		if c.PostgresDSN != "" {
			c.Log("Temporal goes on with its state in %s, not in Postgres", filepath.Join(c.Dir, "temporal.db"))
		}
		return false, nil
	}
	if c.PostgresDSN == "" || !p.devserver {
		return false, nil
	}
	if err := os.WriteFile(markPath(c), nil, 0o600); err != nil {
		return false, fmt.Errorf("mark folder of Temporal: %w", err)
	}
	return true, nil
}

func markPath(c Config) string { return filepath.Join(c.Dir, "state-in-postgres") }

// lockOwner makes this process the only one that starts a server in the folder.
func lockOwner(ctx context.Context, c Config) (*os.File, error) {
	path := filepath.Join(c.Dir, "owner.lock")
	f, err := process.TryLock(path, false)
	if !errors.Is(err, process.ErrLocked) {
		return f, err
	}
	c.Log("waiting for another process to stop its Temporal in %s", c.Dir)
	wait, cancel := context.WithTimeout(ctx, ownerWait)
	defer cancel()
	f, err = process.WaitLock(wait, path, false)
	if errors.Is(err, process.ErrLocked) {
		return nil, fmt.Errorf("%w: %s", ErrInUse, c.Dir)
	}
	return f, err
}

// lockServer returns once an earlier server is gone. We are the owner, so it is
// an orphan; the file with its process id speaks true, because the process that
// it names holds the lock.
func lockServer(ctx context.Context, c Config) (*os.File, error) {
	path := filepath.Join(c.Dir, "server.lock")
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL, syscall.SIGKILL} {
		f, err := process.TryLock(path, false)
		if !errors.Is(err, process.ErrLocked) {
			return f, err
		}
		c.Log("waiting for the Temporal server of a process that was killed to end")
		if pid := readPID(c); pid > 1 {
			_ = syscall.Kill(pid, sig) // it may just have ended
		}
		wait, cancel := context.WithTimeout(ctx, stopPatience)
		f, err = process.WaitLock(wait, path, false)
		cancel()
		if err == nil || ctx.Err() != nil {
			return f, err
		}
	}
	return nil, fmt.Errorf("an orphaned Temporal server (process %d) doesn't end", readPID(c))
}

func readPID(c Config) int {
	b, err := os.ReadFile(filepath.Join(c.Dir, "server.pid"))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return 0
	}
	return pid
}
