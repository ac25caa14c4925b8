package postgres

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// rootDir is where clusters go that a root process can't keep where it was told.
const rootDir = "/var/lib/bobbin"

// account is the user that runs PostgreSQL, which refuses to run as root.
type account struct {
	uid, gid int
	change   bool // this process is root and must become the account
}

func serverUser(c Config) (*account, error) {
	if os.Geteuid() != 0 {
		return &account{uid: os.Geteuid(), gid: os.Getegid()}, nil
	}
	names := []string{c.RunAs}
	if c.RunAs == "" {
		names = []string{ownerOf(filepath.Join(c.Dir, "data")), "postgres", "nobody"}
	}
	for _, name := range names {
		u, err := user.Lookup(name)
		if err != nil || u.Uid == "0" {
			continue
		}
		uid, err1 := strconv.Atoi(u.Uid)
		gid, err2 := strconv.Atoi(u.Gid)
		if err1 == nil && err2 == nil {
			return &account{uid: uid, gid: gid, change: true}, nil
		}
	}
	return nil, fmt.Errorf("PostgreSQL doesn't run as root, and there is no user %v to run it as: "+
		"start as another user or set DATABASE_URL", names)
}

func ownerOf(path string) string {
	st, err := os.Stat(path)
	if err != nil {
		return ""
	}
	u, err := user.LookupId(strconv.Itoa(uidOf(st)))
	if err != nil {
		return ""
	}
	return u.Username
}

func uidOf(st fs.FileInfo) int { return int(st.Sys().(*syscall.Stat_t).Uid) }

func (a *account) credential() *syscall.Credential {
	if !a.change {
		return nil
	}
	return &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
}

// command prepares one of PostgreSQL's programs; it runs in dir, because the
// account may not be let into the folder that we are in.
func (a *account) command(ctx context.Context, dir, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, environment(dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: a.credential()}
	return cmd
}

// clusterDir makes the cluster's folder and returns its real path (with links
// resolved, so that one folder has one name).
func clusterDir(c Config, who *account) (string, error) {
	if c.Dir == "" {
		return "", errors.New("no folder for PostgreSQL given")
	}
	dir, err := filepath.Abs(c.Dir)
	if err != nil {
		return "", fmt.Errorf("folder for PostgreSQL: %w", err)
	}
	if barrier := who.barrier(dir); barrier != "" {
		sum := sha256.Sum256([]byte(dir))
		other := fmt.Sprintf("%s/%s-%x", rootDir, filepath.Base(dir), sum[:4])
		c.Log("PostgreSQL can't run as root, and user id %d can't enter %s: its data goes to %s", who.uid, barrier, other)
		dir = other
	}
	if err := who.ownDir(dir); err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(dir)
}

// barrier is the first parent of dir that the account may not pass, or "".
func (a *account) barrier(dir string) string {
	if !a.change {
		return ""
	}
	barrier := ""
	for p := filepath.Dir(dir); ; p = filepath.Dir(p) {
		if st, err := os.Stat(p); err == nil && uidOf(st) != a.uid && st.Mode()&0o001 == 0 {
			barrier = p
		}
		if p == filepath.Dir(p) {
			return barrier
		}
	}
}

// ownDir makes dir, for the account alone. A folder that belongs to another
// user, other than root making room for the account, is refused: it may be a trap.
func (a *account) ownDir(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return fmt.Errorf("folder for PostgreSQL: %w", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("folder for PostgreSQL: %w", err)
	}
	st, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("folder for PostgreSQL: %w", err)
	}
	switch owner := uidOf(st); {
	case !st.IsDir():
		return fmt.Errorf("folder for PostgreSQL: %s is a file", dir)
	case owner != a.uid && !(a.change && owner == 0):
		return fmt.Errorf("folder for PostgreSQL: %s belongs to user id %d; PostgreSQL runs as %d", dir, owner, a.uid)
	case owner != a.uid:
		if err := os.Chown(dir, a.uid, a.gid); err != nil {
			return fmt.Errorf("folder for PostgreSQL: %w", err)
		}
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return fmt.Errorf("folder for PostgreSQL: %w", err)
	}
	return nil
}
