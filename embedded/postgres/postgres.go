// Package postgres gives a program a PostgreSQL of its own with one call:
// [Start] for an application, [Shared] for tests.
//
// The server listens on a unix socket only, in a folder that no other user may
// enter, so it needs no port and no password. It ends with the program, however
// that ends; data is as safe as in any PostgreSQL.
//
// # What a folder holds
//
//	data/         the cluster; data.new/ while it is being made
//	run/          the socket (elsewhere if the path would be too long)
//	server.log    what PostgreSQL says, kept below 16 MiB
//	owner.lock    locked by the process that called Start
//	server.lock   locked by every process of the running PostgreSQL
//	binaries/     PostgreSQL itself, if it had to be downloaded
//
// # What may be killed
//
// Anything. If the program dies, the kernel tells PostgreSQL to shut down (on
// Linux; elsewhere the next Start does). PostgreSQL's own guard against a second
// server on one folder is a file with a process id, which after a kill -9 may
// name a zombie or a stranger; server.lock doesn't have that weakness, so Start
// takes it, and then removes that file and the socket's. A cluster gets the name
// data only when it is whole.
package postgres

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"bobbin/embedded/internal/process"
)

// User and Database are who the DSN logs in as, a superuser, and where.
const (
	User     = "bobbin"
	Database = "bobbin"
)

const (
	port = "5432" // names the socket file; nothing listens on it

	// maxSocketPath is what fits into a sockaddr_un: 107 bytes on Linux, 103 on
	// macOS.
	maxSocketPath = 100

	// ownerWait lets a program that was just told to stop finish.
	ownerWait = 10 * time.Second
	// fastStop bounds the shutdown that ends sessions and writes a checkpoint;
	// after it comes one that leaves the work to the next start.
	fastStop = 30 * time.Second
)

// ErrInUse is returned when another living process has started a server on the
// same folder and didn't stop within ten seconds.
var ErrInUse = errors.New("another process runs PostgreSQL in this folder")

// Config says where the cluster lives and what is special about it. Only Dir is
// required.
type Config struct {
	// Dir is the folder of the cluster, made if missing. It must be this
	// package's alone. When the process is root, PostgreSQL runs as another user;
	// if that user can't reach Dir, a folder under /var/lib/bobbin is taken
	// instead, the same one each time, and Log is told.
	Dir string

	// Log is told what takes time or is unexpected, a line a call, or nil.
	Log func(format string, args ...any)

	// Ephemeral gives up what protects data when the machine crashes, for speed:
	// no fsync, no full page writes; and it has more connections. For tests. A
	// kill -9 of PostgreSQL still loses nothing that was committed.
	Ephemeral bool

	// Settings go on top of this package's, such as "work_mem": "16MB".
	Settings map[string]string

	// BinDirs are looked at first for initdb and postgres. With BinDirsOnly
	// nothing else is looked at, installed or downloaded.
	BinDirs     []string
	BinDirsOnly bool

	// RunAs is the user that runs PostgreSQL if this process is root; ""
	// means the owner of the data, else postgres, else nobody.
	RunAs string
}

// Server is a running PostgreSQL that this process started. Its methods may be
// called concurrently.
type Server struct {
	dir, socket string
	binaries    binaries
	owner       *os.File
	process     *process.Process
}

// Start makes the cluster if need be, starts PostgreSQL on it and returns when it
// answers and [Database] exists. The server isn't bound to ctx: it runs until
// [Server.Stop] or the end of this process.
//
// Start removes the PG* variables from the environment of this process (pgx and
// libpq read them, and PGSERVICE or PGTARGETSESSIONATTRS would turn the DSN's
// meaning around). It returns an error that is [ErrInUse] or, wrapped, a
// [*VersionError] or [*NotInstalledError]; any other says which step failed and
// quotes PostgreSQL.
func Start(ctx context.Context, c Config) (*Server, error) {
	clearEnvironment()
	if c.Log == nil {
		c.Log = func(string, ...any) {}
	}
	who, err := serverUser(c)
	if err != nil {
		return nil, err
	}
	dir, err := clusterDir(c, who)
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir, socket: socketDir(dir)}
	if err := who.ownDir(s.socket); err != nil {
		return nil, err
	}
	if s.owner, err = lockOwner(ctx, c, dir); err != nil {
		return nil, err
	}
	if err := s.start(ctx, c, who); err != nil {
		s.owner.Close()
		return nil, err
	}
	return s, nil
}

// DSN is the URL of [Database] for [User]. The password is empty: the socket's
// folder keeps others out.
func (s *Server) DSN() string { return dsn(s.socket, Database) }

// Dir is the folder in use, which may not be [Config.Dir].
func (s *Server) Dir() string { return s.dir }

// Version is PostgreSQL's, such as "15.18".
func (s *Server) Version() string { return s.binaries.version }

// PID is the process id of the postmaster.
func (s *Server) PID() int { return s.process.PID() }

// Done is closed when PostgreSQL has ended, asked to or not.
func (s *Server) Done() <-chan struct{} { return s.process.Done() }

// Err says how PostgreSQL ended, with the end of its log. It is nil while it
// runs and after a clean stop.
func (s *Server) Err() error {
	if err := s.process.Err(); err != nil {
		return fmt.Errorf("postgres ended: %w\n%s", err, s.process.LogTail())
	}
	return nil
}

// Stop ends sessions, writes a checkpoint and returns when PostgreSQL has ended.
// If that takes 30 seconds, or ctx ends, it is stopped without a checkpoint,
// which loses nothing and makes the next start slower. It is safe to call twice.
func (s *Server) Stop(ctx context.Context) error {
	err := s.process.Stop(ctx, fastStop, syscall.SIGINT, syscall.SIGQUIT)
	s.owner.Close()
	if err != nil {
		return fmt.Errorf("stop postgres: %w", err)
	}
	return nil
}

// start runs with the owner's lock held.
func (s *Server) start(ctx context.Context, c Config, who *account) error {
	data := filepath.Join(s.dir, "data")
	running, err := lockServer(ctx, c, s.dir, data)
	if err != nil {
		return err
	}
	defer running.Close() // the server has its own copy by then
	if err := s.removeStale(data); err != nil {
		return err
	}
	if s.binaries, err = findBinaries(ctx, c, who, s.dir, majorOf(data)); err != nil {
		return err
	}
	if majorOf(data) == "" {
		if err := makeCluster(ctx, c, who, s.binaries, s.dir, data, running); err != nil {
			return err
		}
	}
	s.process, err = process.Start(process.Options{
		Path:        filepath.Join(s.binaries.dir, "postgres"),
		Args:        serverArgs(c, data, s.socket),
		Env:         environment(s.dir),
		Dir:         s.dir,
		LogFile:     filepath.Join(s.dir, "server.log"),
		Credential:  who.credential(),
		DeathSignal: syscall.SIGINT,
		Lock:        running,
	})
	if err != nil {
		return err
	}
	if err := s.waitReady(ctx); err != nil {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), fastStop)
		defer cancel()
		_ = s.process.Stop(stop, fastStop, syscall.SIGINT, syscall.SIGQUIT) // the first error counts
		return err
	}
	return nil
}

// lockOwner makes this process the only one that starts a server in dir.
func lockOwner(ctx context.Context, c Config, dir string) (*os.File, error) {
	path := filepath.Join(dir, "owner.lock")
	f, err := process.TryLock(path, false)
	if !errors.Is(err, process.ErrLocked) {
		return f, err
	}
	c.Log("waiting for another process to stop its PostgreSQL in %s", dir)
	wait, cancel := context.WithTimeout(ctx, ownerWait)
	defer cancel()
	f, err = process.WaitLock(wait, path, false)
	if errors.Is(err, process.ErrLocked) {
		return nil, fmt.Errorf("%w: %s", ErrInUse, dir)
	}
	return f, err
}

// lockServer returns once no process of an earlier server is left. We are the
// owner, so an earlier server is an orphan: told to stop by the kernel on Linux,
// by us elsewhere.
func lockServer(ctx context.Context, c Config, dir, data string) (*os.File, error) {
	path := filepath.Join(dir, "server.lock")
	f, err := process.TryLock(path, false)
	if !errors.Is(err, process.ErrLocked) {
		return f, err
	}
	c.Log("waiting for the PostgreSQL of a process that was killed to end")
	stopOrphan(data)
	f, err = process.WaitLock(ctx, path, false)
	if err != nil {
		return nil, fmt.Errorf("an orphaned PostgreSQL still runs in %s: %w", data, err)
	}
	return f, nil
}

// removeStale removes what names a process id of an earlier server. It is safe
// because server.lock is ours: nobody writes to data.
func (s *Server) removeStale(data string) error {
	name := filepath.Join(s.socket, ".s.PGSQL."+port)
	for _, f := range []string{filepath.Join(data, "postmaster.pid"), name, name + ".lock"} {
		if err := os.Remove(f); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove what a killed server left: %w", err)
		}
	}
	return nil
}

// majorOf is the major version that made the cluster, or "" if there is none.
func majorOf(data string) string {
	b, err := os.ReadFile(filepath.Join(data, "PG_VERSION"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func serverArgs(c Config, data, socket string) []string {
	settings := map[string]string{
		"listen_addresses":        "",
		"unix_socket_directories": socket,
		"unix_socket_permissions": "0700",
		"max_connections":         "200",
		"log_line_prefix":         "%m [%p] %q%a ",
		"log_error_verbosity":     "terse", // the detail of a broken constraint is the whole row, with what was said in it
	}
	if c.Ephemeral {
		settings["fsync"] = "off"
		settings["full_page_writes"] = "off"
		settings["max_connections"] = "600"
		settings["max_wal_size"] = "4GB" // few checkpoints
	}
	for name, value := range c.Settings {
		settings[name] = value
	}
	args := []string{"-D", data, "-p", port}
	for name, value := range settings {
		args = append(args, "-c", name+"="+value)
	}
	return args
}

// socketDir is run in dir, or a short name derived from dir if that is too long.
func socketDir(dir string) string {
	short := filepath.Join(dir, "run")
	if len(short)+len("/.s.PGSQL.")+len(port) <= maxSocketPath {
		return short
	}
	sum := sha256.Sum256([]byte(dir))
	return fmt.Sprintf("/tmp/bobbin-%d-%x", os.Getuid(), sum[:6])
}

func dsn(socket, database string) string {
	u := url.URL{Scheme: "postgres", User: url.User(User), Path: "/" + database}
	u.RawQuery = url.Values{"host": {socket}, "port": {port}, "sslmode": {"disable"}}.Encode()
	return u.String()
}

// clearEnvironment removes what clients read behind a DSN's back.
func clearEnvironment() {
	for _, pair := range os.Environ() {
		if name, _, _ := strings.Cut(pair, "="); strings.HasPrefix(name, "PG") {
			os.Unsetenv(name)
		}
	}
}

// environment is all that PostgreSQL's programs get to see.
func environment(dir string) []string {
	return []string{"PATH=/usr/bin:/bin", "LC_ALL=C", "TZ=UTC", "HOME=" + dir}
}
