package postgres

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	readyPoll = 20 * time.Millisecond
	pingLimit = 5 * time.Second

	cannotConnectNow = "57P03" // starting up, or in recovery
	duplicateName    = "42P04"
)

// makeCluster runs initdb under another name, so that a kill leaves nothing
// that looks whole. initdb inherits the server's lock: a next start waits for one
// that outlived its parent.
func makeCluster(ctx context.Context, c Config, who *account, b binaries, dir, data string, lock *os.File) error {
	c.Log("making a PostgreSQL %s cluster in %s", b.version, data)
	half := data + ".new"
	if err := os.RemoveAll(half); err != nil {
		return fmt.Errorf("remove half-made cluster: %w", err)
	}
	args := []string{
		"-D", half, "-U", User, "--encoding=UTF8", "--locale=C", "--auth-local=trust",
		"--auth-host=reject", "--data-checksums", "--no-instructions",
	}
	if c.Ephemeral {
		args = append(args, "--no-sync")
	}
	cmd := who.command(ctx, dir, filepath.Join(b.dir, "initdb"), args...)
	cmd.ExtraFiles = []*os.File{lock}
	if out, err := cmd.CombinedOutput(); err != nil {
		return initdbError(err, string(out))
	}
	if err := os.Rename(half, data); err != nil {
		return fmt.Errorf("name the new cluster: %w", err)
	}
	return nil
}

func initdbError(err error, out string) error {
	if strings.Contains(out, "could not look up effective user ID") {
		return fmt.Errorf("initdb: user id %d has no entry in /etc/passwd, which PostgreSQL needs; "+
			"run as a user that has one, or set DATABASE_URL: %w", os.Geteuid(), err)
	}
	return fmt.Errorf("initdb: %w\n%s", err, out)
}

// waitReady returns when the server accepts sessions and Database exists, or
// when it has ended or refuses us.
func (s *Server) waitReady(ctx context.Context) error {
	for {
		err := s.makeDatabase(ctx)
		if err == nil {
			return nil
		}
		if pg := (*pgconn.PgError)(nil); errors.As(err, &pg) && pg.Code != cannotConnectNow {
			return err
		}
		select {
		case <-s.Done():
			return fmt.Errorf("postgres ended at start (%v):\n%s", s.process.Err(), s.process.LogTail())
		case <-ctx.Done():
			return fmt.Errorf("postgres isn't ready: %w (%w)", ctx.Err(), err)
		case <-time.After(readyPoll):
		}
	}
}

func (s *Server) makeDatabase(ctx context.Context) error {
	if ping(ctx, dsn(s.socket, Database)) == nil {
		return nil
	}
	conn, err := connect(ctx, dsn(s.socket, "postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, "CREATE DATABASE "+Database)
	if pg := (*pgconn.PgError)(nil); errors.As(err, &pg) && pg.Code == duplicateName {
		return nil
	}
	if err != nil {
		return fmt.Errorf("create database %s: %w", Database, err)
	}
	return nil
}

func ping(ctx context.Context, dsn string) error {
	conn, err := connect(ctx, dsn)
	if err != nil {
		return err
	}
	return conn.Close(context.WithoutCancel(ctx))
}

func connect(ctx context.Context, dsn string) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, pingLimit)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return conn, nil
}

// stopOrphan asks the postmaster of data to shut down, if the pid in its file is
// still a process that works in data. Where that can't be told it does nothing
// and PostgreSQL's own tools must: the caller's error says what still runs.
func stopOrphan(data string) {
	b, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	if err != nil {
		return
	}
	var pid int
	if _, err := fmt.Sscan(string(b), &pid); err != nil || pid <= 1 || !worksIn(pid, data) {
		return
	}
	_ = syscall.Kill(pid, syscall.SIGINT) // it may just have ended
}
