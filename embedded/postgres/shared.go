package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"bobbin/embedded/internal/process"
)

const (
	// keeperVar marks a process as the keeper and names its folder.
	keeperVar = "BOBBIN_POSTGRES_KEEPER"
	// linger is how long a shared server waits for a next user, so that the
	// packages of one `go test` run, which come one after another, find it warm.
	linger = 10 * time.Second
	// startLockFD is where the keeper finds the lock that it inherits.
	startLockFD = 3
)

// init turns the process that Shared starts into the keeper. A library can't run
// a second program otherwise than as a second copy of the one that it is in.
func init() {
	if dir := os.Getenv(keeperVar); dir != "" {
		if err := keep(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// shared is this process's use of the shared server.
var shared struct {
	sync.Mutex
	lock *os.File // held from the first call of Shared to the end of the process
}

// Shared returns the DSN of an [Config.Ephemeral] PostgreSQL that all processes
// of this user share, above all the test binaries that `go test ./...` runs side
// by side. Who comes first starts it (0.5 s, and 2 s more the very first time); it
// ends by itself ten seconds after the last process that called Shared has ended.
// Databases that tests made are gone at its next start: make one for each test
// and don't count on others. Calls after the first are cheap, and bring the server
// back if it was killed.
//
// The server belongs to a keeper, a second copy of the first caller's program that
// does nothing else (it is in a session of its own, so a Ctrl-C doesn't reach it).
// Two locked files carry the rest, and the kernel unlocks them whatever is killed:
//
//   - users.lock is held, shared, by each user for as long as it lives. The keeper
//     waits for the exclusive lock, which says that nobody is left; it keeps that
//     while it stops the server, so that new users wait, and then start anew.
//   - start.lock is held by whom looks whether the server runs, and then by the
//     keeper that it started, which lets go when the server is ready.
//
// If the keeper is killed, its PostgreSQL stops, and the next call starts both.
func Shared(ctx context.Context) (dsn string, err error) {
	clearEnvironment()
	shared.Lock()
	defer shared.Unlock()
	dir, err := sharedDir()
	if err != nil {
		return "", err
	}
	if shared.lock == nil {
		lock, err := process.WaitLock(ctx, filepath.Join(dir, "users.lock"), true)
		if err != nil {
			return "", fmt.Errorf("shared postgres: %w", err)
		}
		shared.lock = lock
	}
	starting, err := process.WaitLock(ctx, filepath.Join(dir, "start.lock"), false)
	if err != nil {
		return "", fmt.Errorf("shared postgres: %w", err)
	}
	defer func() { starting.Close() }()
	dsn = clusterDSN(dir)
	if ping(ctx, dsn) == nil {
		return dsn, nil
	}
	if err := startKeeper(dir, starting); err != nil {
		return "", fmt.Errorf("shared postgres: %w", err)
	}
	starting.Close() // the keeper has it; it is free again when the server is ready
	if starting, err = process.WaitLock(ctx, filepath.Join(dir, "start.lock"), false); err != nil {
		return "", fmt.Errorf("shared postgres: starting: %w", err)
	}
	if err := ping(ctx, dsn); err != nil {
		b, _ := os.ReadFile(filepath.Join(dir, "keeper.log")) // without it the ping's error has to do
		return "", fmt.Errorf("shared postgres: %w: %s", err, bytes.TrimSpace(b))
	}
	return dsn, nil
}

// sharedDir is the one folder of this user. The cluster is in a folder below it,
// because that one may belong to the account that runs PostgreSQL.
func sharedDir() (string, error) {
	tmp, err := filepath.EvalSymlinks(os.TempDir())
	if err != nil {
		return "", fmt.Errorf("shared postgres: %w", err)
	}
	dir := filepath.Join(tmp, "bobbin-test-"+strconv.Itoa(os.Getuid()))
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return "", fmt.Errorf("shared postgres: %w", err)
	}
	st, err := os.Lstat(dir)
	if err != nil {
		return "", fmt.Errorf("shared postgres: %w", err)
	}
	if !st.IsDir() || uidOf(st) != os.Getuid() {
		return "", fmt.Errorf("shared postgres: %s isn't a folder of ours", dir)
	}
	return dir, nil
}

func clusterDSN(dir string) string { return dsn(socketDir(filepath.Join(dir, "postgres")), Database) }

// startKeeper forks the keeper and hands it the lock.
func startKeeper(dir string, starting *os.File) error {
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("start keeper: %w", err)
	}
	log, err := os.OpenFile(filepath.Join(dir, "keeper.log"), os.O_CREATE|os.O_RDWR|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("start keeper: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(program)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), keeperVar+"="+dir)
	cmd.Stdout, cmd.Stderr = log, log // not ours: `go test` would wait for it to be closed
	cmd.ExtraFiles = []*os.File{starting}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start keeper: %w", err)
	}
	go func() { _ = cmd.Wait() }() // no zombie, if we live longer
	return nil
}

// keep is the keeper's life: start the server, wait until nobody is left, stop it.
func keep(dir string) error {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	syscall.CloseOnExec(startLockFD)
	starting := os.NewFile(startLockFD, "start.lock")
	defer starting.Close()
	s, err := startClean(ctx, Config{
		Dir:       filepath.Join(dir, "postgres"),
		Ephemeral: true,
		Log:       func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) },
	})
	if err != nil {
		return err
	}
	if s.Dir() != filepath.Join(dir, "postgres") {
		return errors.Join(fmt.Errorf("user of PostgreSQL can't enter %s; set TMPDIR", dir), s.Stop(ctx))
	}
	starting.Close() // ready
	go func() {
		<-s.Done()
		cancel()
	}()
	nobody := waitAlone(ctx, filepath.Join(dir, "users.lock"))
	if nobody != nil {
		defer nobody.Close() // after the stop: until then new users wait
	}
	return s.Stop(context.Background())
}

// startClean starts the server and drops the databases of earlier tests. Data
// that won't start, such as that of another version or, without fsync, of a
// machine that crashed, is worth nothing here and is made anew.
func startClean(ctx context.Context, c Config) (*Server, error) {
	s, err := Start(ctx, c)
	if err == nil {
		if err = dropDatabases(ctx, s); err == nil {
			return s, nil
		}
		_ = s.Stop(ctx) // the first error counts
	}
	if errors.Is(err, ErrInUse) || ctx.Err() != nil {
		return nil, err
	}
	c.Log("making the cluster anew: %v", err)
	if err := os.RemoveAll(filepath.Join(c.Dir, "data")); err != nil {
		return nil, fmt.Errorf("remove old cluster: %w", err)
	}
	return Start(ctx, c)
}

func dropDatabases(ctx context.Context, s *Server) error {
	conn, err := connect(ctx, s.DSN())
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	rows, _ := conn.Query(ctx, `
		SELECT datname
		FROM pg_database
		WHERE datname NOT IN ('postgres', 'template0', 'template1', $1)`, Database)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("list databases: %w", err)
	}
	for _, name := range names {
		quoted := pgx.Identifier{name}.Sanitize()
		if _, err := conn.Exec(ctx, "ALTER DATABASE "+quoted+" IS_TEMPLATE false"); err != nil {
			return fmt.Errorf("drop database %s: %w", name, err)
		}
		if _, err := conn.Exec(ctx, "DROP DATABASE "+quoted+" WITH (FORCE)"); err != nil {
			return fmt.Errorf("drop database %s: %w", name, err)
		}
	}
	return nil
}

// waitAlone returns the exclusive lock once nobody has held the lock for linger,
// or nil when ctx has ended.
func waitAlone(ctx context.Context, path string) *os.File {
	for {
		lock, err := process.WaitLock(ctx, path, false)
		if err != nil {
			return nil
		}
		lock.Close()
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(linger):
		}
		if lock, err := process.TryLock(path, false); err == nil {
			return lock
		}
	}
}
