package postgres

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"bobbin/embedded/internal/process"
)

// ownerVar makes the test binary a program that starts a server on the folder and
// waits to be killed; userVar one that uses the shared server.
const (
	ownerVar = "POSTGRES_TEST_OWNER"
	userVar  = "POSTGRES_TEST_USER"
)

func TestMain(m *testing.M) {
	ctx := context.Background()
	if dir := os.Getenv(ownerVar); dir != "" {
		s, err := Start(ctx, Config{Dir: dir, Ephemeral: true})
		if err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		fmt.Println(s.PID(), s.Dir())
		select {}
	}
	if os.Getenv(userVar) != "" {
		dsn, err := Shared(ctx)
		fmt.Println(dsn, err)
		select {}
	}
	os.Exit(m.Run())
}

// copyOfUs starts this test binary again, as what env says, and returns the first
// line that it writes.
func copyOfUs(t *testing.T, as *syscall.Credential, env ...string) (*exec.Cmd, string) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Dir = "/"
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + os.Getenv("TMPDIR")}, env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { kill(t, cmd) })
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	return cmd, strings.TrimSpace(line)
}

func kill(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Kill(); err != nil {
		require.ErrorIs(t, err, os.ErrProcessDone)
		return
	}
	_ = cmd.Wait() // it says: killed
}

// folder is one that the account which runs PostgreSQL can enter: the folders of
// t.TempDir are root's alone if we are root.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pgtest-")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755))
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

func start(t *testing.T, c Config) *Server {
	t.Helper()
	c.Ephemeral = true
	c.Log = t.Logf
	s, err := Start(t.Context(), c)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Stop(context.Background()) })
	return s
}

func execute(t *testing.T, s *Server, sql string) {
	t.Helper()
	conn, err := connect(t.Context(), s.DSN())
	require.NoError(t, err)
	defer conn.Close(context.Background())
	_, err = conn.Exec(t.Context(), sql)
	require.NoError(t, err)
}

func requireRows(t *testing.T, s *Server, want int) {
	t.Helper()
	conn, err := connect(t.Context(), s.DSN())
	require.NoError(t, err)
	defer conn.Close(context.Background())
	var got int
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT count(*) FROM note").Scan(&got))
	require.Equal(t, want, got)
}

const fill = "CREATE TABLE note (t text); INSERT INTO note VALUES ('kept')"

func TestStartKeepsDataAcrossRestarts(t *testing.T) {
	t.Parallel()
	c := Config{Dir: filepath.Join(folder(t), "pg"), Settings: map[string]string{"work_mem": "7MB"}}
	s := start(t, c)
	execute(t, s, fill)
	require.NoError(t, s.Stop(t.Context()))
	require.NoError(t, s.Stop(t.Context()), "a second Stop")
	<-s.Done()
	require.NoError(t, s.Err())

	s = start(t, c)
	requireRows(t, s, 1)
	conn, err := connect(t.Context(), s.DSN())
	require.NoError(t, err)
	defer conn.Close(t.Context())
	var mem string
	require.NoError(t, conn.QueryRow(t.Context(), "SHOW work_mem").Scan(&mem))
	require.Equal(t, "7MB", mem)
}

func TestStartAfterOwnerIsKilled(t *testing.T) {
	t.Parallel()
	c := Config{Dir: filepath.Join(folder(t), "pg")}
	s := start(t, c)
	execute(t, s, fill)
	require.NoError(t, s.Stop(t.Context()))

	owner, line := copyOfUs(t, nil, ownerVar+"="+c.Dir)
	require.NotContains(t, line, "error")
	kill(t, owner)
	requireRows(t, start(t, c), 1)
}

func TestStartAfterPostmasterIsKilled(t *testing.T) {
	t.Parallel()
	c := Config{Dir: filepath.Join(folder(t), "pg")}
	s := start(t, c)
	execute(t, s, fill)
	require.NoError(t, syscall.Kill(s.PID(), syscall.SIGKILL))
	<-s.Done()
	require.ErrorContains(t, s.Err(), "killed")
	require.Error(t, s.Stop(t.Context()))
	requireRows(t, start(t, c), 1)
}

func TestStartRemovesPidFileThatNamesAStranger(t *testing.T) {
	t.Parallel()
	c := Config{Dir: filepath.Join(folder(t), "pg")}
	s := start(t, c)
	execute(t, s, fill)
	pidFile := filepath.Join(s.Dir(), "data", "postmaster.pid")
	content, err := os.ReadFile(pidFile)
	require.NoError(t, err)
	require.NoError(t, s.Stop(t.Context()))

	// A process of PostgreSQL's own user, so that it can't tell it from a postmaster.
	stranger := exec.Command("sleep", "1000")
	stranger.SysProcAttr = &syscall.SysProcAttr{}
	who, err := serverUser(c)
	require.NoError(t, err)
	stranger.SysProcAttr.Credential = who.credential()
	require.NoError(t, stranger.Start())
	defer kill(t, stranger)
	_, rest, _ := strings.Cut(string(content), "\n")
	require.NoError(t, os.WriteFile(pidFile, []byte(strconv.Itoa(stranger.Process.Pid)+"\n"+rest), 0o600))
	requireRows(t, start(t, c), 1)
	require.NoError(t, stranger.Process.Signal(syscall.Signal(0)), "the stranger lives")
}

func TestStartDiscardsHalfMadeCluster(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(folder(t), "pg")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "data.new", "base"), 0o755))
	s := start(t, Config{Dir: dir})
	execute(t, s, fill)
	require.NoDirExists(t, filepath.Join(s.Dir(), "data.new"))
}

func TestStartReturnsErrInUseWhileAnotherProcessOwnsTheFolder(t *testing.T) {
	t.Parallel()
	c := Config{Dir: filepath.Join(folder(t), "pg"), Ephemeral: true}
	_, line := copyOfUs(t, nil, ownerVar+"="+c.Dir)
	require.NotContains(t, line, "error")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond) // it would wait for ownerWait
	defer cancel()
	_, err := Start(ctx, c)
	require.ErrorIs(t, err, ErrInUse)
}

func TestStartWaitsForProcessesOfAnEarlierServer(t *testing.T) {
	t.Parallel()
	c := Config{Dir: filepath.Join(folder(t), "pg")}
	s := start(t, c)
	require.NoError(t, s.Stop(t.Context()))
	lock, err := process.TryLock(filepath.Join(s.Dir(), "server.lock"), false)
	require.NoError(t, err)
	defer lock.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = Start(ctx, c)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "orphaned")
}

func TestStartSucceedsInAFolderWithALongPath(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(folder(t), strings.Repeat("long", 30), "pg")
	s := start(t, Config{Dir: dir})
	execute(t, s, fill)
}

// fakeBinaries are programs that say they are of that version and do no more.
func fakeBinaries(t *testing.T, version string) string {
	t.Helper()
	dir := folder(t)
	for _, name := range []string{"initdb", "postgres"} {
		script := "#!/bin/sh\necho 'postgres (PostgreSQL) " + version + "'\n"
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755))
	}
	return dir
}

func TestStartReturnsVersionErrorIfDataIsOfAnotherMajorVersion(t *testing.T) {
	t.Parallel()
	c := Config{Dir: filepath.Join(folder(t), "pg")}
	s := start(t, c)
	execute(t, s, fill)
	require.NoError(t, s.Stop(t.Context()))

	other := c
	other.BinDirs, other.BinDirsOnly = []string{fakeBinaries(t, "99.1")}, true
	_, err := Start(t.Context(), other)
	var version *VersionError
	require.ErrorAs(t, err, &version)
	require.Equal(t, binaries{version: s.Version()}.major(), version.Need)
	require.ErrorContains(t, err, "99.1")
	requireRows(t, start(t, c), 1)
}

func TestStartReturnsNotInstalledErrorThatSaysWhatToDo(t *testing.T) {
	t.Parallel()
	_, err := Start(t.Context(), Config{Dir: filepath.Join(folder(t), "pg"), BinDirs: []string{folder(t)}, BinDirsOnly: true})
	var missing *NotInstalledError
	require.ErrorAs(t, err, &missing)
	require.ErrorContains(t, err, "DATABASE_URL")
}

func TestStartQuotesPostgresIfItRefusesASetting(t *testing.T) {
	t.Parallel()
	c := Config{Dir: filepath.Join(folder(t), "pg"), Settings: map[string]string{"no_such_setting": "1"}}
	_, err := Start(t.Context(), c)
	require.ErrorContains(t, err, "no_such_setting")
	c.Settings = nil
	execute(t, start(t, c), fill) // the failure left nothing in the way
}

// What breaks a constraint or takes too long holds what people wrote.
func TestTheLogNamesWhatWentWrongAndQuotesNoRow(t *testing.T) {
	t.Parallel()
	s := start(t, Config{Dir: filepath.Join(folder(t), "pg")})
	conn, err := connect(t.Context(), s.DSN())
	require.NoError(t, err)
	defer conn.Close(context.Background())
	_, err = conn.Exec(t.Context(), "CREATE TABLE note (key text PRIMARY KEY, t text CHECK (length(t) < 13), n integer)")
	require.NoError(t, err)
	insert := "INSERT INTO note VALUES ($1, $2, length($3::text))"
	_, err = conn.Exec(t.Context(), insert, "PLANTED key", "PLANTED text", "PLANTED argument")
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), insert, "PLANTED key", "PLANTED text", "PLANTED argument")
	require.ErrorContains(t, err, "note_pkey")
	_, err = conn.Exec(t.Context(), insert, "another", "PLANTED check", "PLANTED argument")
	require.ErrorContains(t, err, "note_t_check")
	_, err = conn.Exec(t.Context(), "SET statement_timeout = '1ms'")
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), "SELECT pg_sleep(10), $1::text", "PLANTED argument")
	require.ErrorContains(t, err, "statement timeout")
	log, err := os.ReadFile(filepath.Join(s.Dir(), "server.log"))
	require.NoError(t, err)
	require.Contains(t, string(log), "note_pkey")
	require.Contains(t, string(log), "note_t_check")
	require.Contains(t, string(log), "statement timeout")
	require.NotContains(t, string(log), "PLANTED")
}

func requireRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

func TestStartAsRootMovesOutOfAFolderThatPostgresCantEnter(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	closed := folder(t)
	require.NoError(t, os.Chmod(closed, 0o700))
	var said []string
	c := Config{
		Dir: filepath.Join(closed, "pg"), Ephemeral: true,
		Log: func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) },
	}
	for range 2 { // the second time it finds the first one's data
		s, err := Start(t.Context(), c)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, os.RemoveAll(s.Dir())) })
		require.Equal(t, rootDir, filepath.Dir(s.Dir()))
		execute(t, s, "CREATE TABLE IF NOT EXISTS note (t text); INSERT INTO note VALUES ('kept')")
		require.NoError(t, s.Stop(t.Context()))
	}
	require.Contains(t, strings.Join(said, "\n"), rootDir)
	s, err := Start(t.Context(), c)
	require.NoError(t, err)
	requireRows(t, s, 2)
	require.NoError(t, s.Stop(t.Context()))
}

func TestStartAsUserWithoutPasswdEntrySaysSo(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	dir := folder(t)
	require.NoError(t, os.Chmod(dir, 0o777))
	_, line := copyOfUs(t, &syscall.Credential{Uid: 54321, Gid: 54321}, ownerVar+"="+filepath.Join(dir, "pg"))
	require.Contains(t, line, "no entry in /etc/passwd")
}

func TestStartAsOrdinaryUser(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	dir := folder(t)
	require.NoError(t, os.Chmod(dir, 0o777))
	_, line := copyOfUs(t, &syscall.Credential{Uid: 65534, Gid: 65534}, ownerVar+"="+filepath.Join(dir, "pg"))
	require.NotContains(t, line, "error")
	require.Contains(t, line, dir)
}

func TestOwnDirRefusesAFolderOfAnotherUser(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	dir := folder(t)
	require.NoError(t, os.Chown(dir, 54321, 54321))
	who := &account{uid: 12345, gid: 12345, change: true}
	require.ErrorContains(t, who.ownDir(dir), "belongs to user id 54321")
}

func TestNpmInstallBringsWorkingBinaries(t *testing.T) {
	t.Parallel()
	if os.Getenv("POSTGRES_TEST_NPM") == "" {
		t.Skip("downloads 15 MB; set POSTGRES_TEST_NPM=1 to run")
	}
	dir := folder(t)
	bin, err := npmInstall(t.Context(), Config{Log: t.Logf}, filepath.Join(dir, "binaries"))
	require.NoError(t, err)
	s := start(t, Config{Dir: filepath.Join(dir, "pg"), BinDirs: []string{bin}, BinDirsOnly: true})
	require.Equal(t, "18.4", s.Version())
	execute(t, s, "CREATE EXTENSION btree_gin")
}

func TestUnpackRefusesATarballWithAnotherSum(t *testing.T) {
	t.Parallel()
	f := filepath.Join(t.TempDir(), "x.tgz")
	require.NoError(t, os.WriteFile(f, []byte("something else"), 0o600))
	require.ErrorContains(t, unpack(f, "abc", t.TempDir()), "sha512")
}

func TestNumberOrdersVersionsOfPaths(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]int{
		"/usr/lib/postgresql/9/bin": 9, "/usr/lib/postgresql/17/bin": 17, "/opt/homebrew/opt/postgresql@16/bin": 16, "/none": 0,
	} {
		require.Equal(t, want, number(path), path)
	}
}

func TestSharedAnswersAtEachCall(t *testing.T) {
	t.Parallel()
	for range 2 {
		dsn, err := Shared(t.Context())
		require.NoError(t, err)
		require.NoError(t, ping(t.Context(), dsn))
	}
}

// sharedFolder gives the copies of us a shared server that is not the one which
// other packages' tests use now.
func sharedFolder(t *testing.T) (env string, users string) {
	t.Helper()
	dir := folder(t)
	require.NoError(t, os.Chmod(dir, 0o777))
	t.Cleanup(func() { // the keeper ends within its linger; only then may the folder go
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		lock, err := process.WaitLock(ctx, filepath.Join(sharedPath(dir), "postgres", "owner.lock"), false)
		require.NoError(t, err)
		lock.Close()
	})
	return "TMPDIR=" + dir, sharedPath(dir)
}

func sharedPath(tmp string) string {
	return filepath.Join(tmp, "bobbin-test-"+strconv.Itoa(os.Getuid()))
}

func TestSharedIsOneServerForAllProcessesAndEndsAfterTheLast(t *testing.T) {
	t.Parallel()
	tmp, dir := sharedFolder(t)
	type user struct {
		cmd  *exec.Cmd
		line string
	}
	users := make(chan user)
	const n = 4
	for range n {
		go func() {
			cmd, line := copyOfUs(t, nil, userVar+"=1", tmp)
			users <- user{cmd, line}
		}()
	}
	var lines []string
	for range n {
		u := <-users
		lines = append(lines, u.line)
		defer kill(t, u.cmd)
	}
	for _, line := range lines {
		require.Equal(t, clusterDSN(dir)+" <nil>", line)
	}
	require.NoError(t, ping(t.Context(), clusterDSN(dir)))
	require.ErrorIs(t, tryOwner(dir), process.ErrLocked, "one keeper owns it")
}

func tryOwner(dir string) error {
	f, err := process.TryLock(filepath.Join(dir, "postgres", "owner.lock"), false)
	if err == nil {
		f.Close()
	}
	return err
}

func TestSharedComesBackAfterKeeperAndServerAreKilled(t *testing.T) {
	t.Parallel()
	tmp, dir := sharedFolder(t)
	_, line := copyOfUs(t, nil, userVar+"=1", tmp)
	require.Contains(t, line, "<nil>")
	for _, pid := range []int{keeperPID(t, dir), postmasterPID(t, dir)} {
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	}
	_, line = copyOfUs(t, nil, userVar+"=1", tmp)
	require.Equal(t, clusterDSN(dir)+" <nil>", line)
	require.NoError(t, ping(t.Context(), clusterDSN(dir)))
}

func postmasterPID(t *testing.T, dir string) int {
	t.Helper()
	f, err := os.Open(filepath.Join(dir, "postgres", "data", "postmaster.pid"))
	require.NoError(t, err)
	defer f.Close()
	var pid int
	_, err = fmt.Fscan(f, &pid)
	require.NoError(t, err)
	return pid
}

func keeperPID(t *testing.T, dir string) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", postmasterPID(t, dir)))
	require.NoError(t, err)
	_, after, ok := strings.Cut(string(status), "PPid:")
	require.True(t, ok)
	var pid int
	_, err = fmt.Sscan(after, &pid)
	require.NoError(t, err)
	return pid
}

func TestSharedMakesABrokenClusterAnew(t *testing.T) {
	t.Parallel()
	tmp, dir := sharedFolder(t)
	data := filepath.Join(dir, "postgres", "data")
	require.NoError(t, os.MkdirAll(data, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(data, "PG_VERSION"), []byte("15\n"), 0o644))
	_, line := copyOfUs(t, nil, userVar+"=1", tmp)
	require.Equal(t, clusterDSN(dir)+" <nil>", line)
}
