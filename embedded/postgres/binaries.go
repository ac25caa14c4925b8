package postgres

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// binaries is a folder with initdb and postgres in it.
type binaries struct {
	dir     string
	version string // "15.18"
}

func (b binaries) major() string { return strings.SplitN(b.version, ".", 2)[0] }

// VersionError says that the data was made by a major version of PostgreSQL that
// isn't here. PostgreSQL can't read another major version's data.
type VersionError struct {
	Dir   string   // of the data
	Need  string   // the major version, "15"
	Found []string // what is here instead
}

// Error says what to do.
func (e *VersionError) Error() string {
	return fmt.Sprintf("the data in %s was made by PostgreSQL %s, and here is only %s: install PostgreSQL %s, "+
		"or set DATABASE_URL, or move that folder away to begin anew", e.Dir, e.Need, strings.Join(e.Found, ", "), e.Need)
}

// NotInstalledError says that there is no PostgreSQL and that none could be had.
type NotInstalledError struct {
	Tried []error // why each way to get one failed
}

// Error says what to do.
func (e *NotInstalledError) Error() string {
	var b strings.Builder
	b.WriteString("there is no PostgreSQL on this machine: install it (Debian: apt-get install postgresql; " +
		"macOS: brew install postgresql@17), or set DATABASE_URL")
	for _, err := range e.Tried {
		fmt.Fprintf(&b, "\n  tried: %v", err)
	}
	return b.String()
}

// findBinaries goes from quick to slow: named folders, installed ones, one that
// was downloaded earlier, then what the machine's package clients bring. A
// cluster that exists needs its major version; "" takes any.
func findBinaries(ctx context.Context, c Config, who *account, dir, major string) (binaries, error) {
	downloaded := filepath.Join(dir, "binaries")
	dirs := slices.Clone(c.BinDirs)
	if !c.BinDirsOnly {
		dirs = append(append(dirs, installed()...), filepath.Join(downloaded, "bin"))
	}
	found := usable(ctx, who, dir, dirs)
	if b, ok := pick(found, major); ok {
		return b, nil
	}
	var tried []error
	if !c.BinDirsOnly {
		for _, install := range []func(context.Context, Config, string) (string, error){aptInstall, npmInstall} {
			bin, err := install(ctx, c, downloaded)
			if err != nil {
				tried = append(tried, err)
				continue
			}
			more := usable(ctx, who, dir, append([]string{bin}, installed()...))
			if b, ok := pick(more, major); ok {
				return b, nil
			}
			found = append(found, more...)
		}
	}
	if len(found) > 0 {
		return binaries{}, &VersionError{Dir: dir, Need: major, Found: describe(found)}
	}
	return binaries{}, &NotInstalledError{Tried: tried}
}

// installed lists the folders where packages put PostgreSQL, newest first.
func installed() []string {
	var dirs []string
	if path, err := exec.LookPath("postgres"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil { // initdb is beside the real file
			dirs = append(dirs, filepath.Dir(path))
		}
	}
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin", // Debian
		"/usr/pgsql-*/bin",          // RPMs of the project
		"/usr/lib/postgresql*/bin",  // Alpine, SUSE
		"/usr/local/pgsql/bin",      // from source
		"/opt/homebrew/opt/postgresql*/bin",
		"/usr/local/opt/postgresql*/bin",
		"/Applications/Postgres.app/Contents/Versions/*/bin",
	} {
		matches, err := filepath.Glob(pattern)
		if err != nil {
			continue // the patterns are ours and well formed
		}
		slices.SortFunc(matches, func(a, b string) int { return cmp.Compare(number(b), number(a)) })
		dirs = append(dirs, matches...)
	}
	return dirs
}

// number is the first number in a path, or 0.
func number(path string) int {
	from := strings.IndexAny(path, "0123456789")
	if from < 0 {
		return 0
	}
	digits := path[from:]
	if end := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
		digits = digits[:end]
	}
	n, err := strconv.Atoi(digits)
	if err != nil {
		return 0
	}
	return n
}

// usable keeps the folders whose postgres runs for the account and has initdb
// beside it.
func usable(ctx context.Context, who *account, dir string, dirs []string) []binaries {
	var found []binaries
	for _, d := range dirs {
		if slices.ContainsFunc(found, func(b binaries) bool { return b.dir == d }) {
			continue
		}
		if _, err := os.Stat(filepath.Join(d, "initdb")); err != nil {
			continue
		}
		out, err := who.command(ctx, dir, filepath.Join(d, "postgres"), "--version").Output()
		words := strings.Fields(string(out)) // "postgres (PostgreSQL) 15.18 (Debian …)"
		if err == nil && len(words) > 2 {
			found = append(found, binaries{dir: d, version: words[2]})
		}
	}
	return found
}

func pick(found []binaries, major string) (binaries, bool) {
	for _, b := range found {
		if major == "" || b.major() == major {
			return b, true
		}
	}
	return binaries{}, false
}

func describe(found []binaries) []string {
	var list []string
	for _, b := range found {
		list = append(list, b.version+" ("+b.dir+")")
	}
	return slices.Compact(list)
}
