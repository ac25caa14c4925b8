package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"bobbin/thread"
)

// A Folder keeps files in one folder. Any number of processes may share it.
type Folder struct {
	dir string
}

// NewFolder makes the folder if it is not there.
func NewFolder(dir string) (*Folder, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("files: %w", err)
	}
	f := &Folder{dir}
	return f, f.Check(context.Background())
}

// Check returns nil if files can be written.
func (f *Folder) Check(context.Context) error {
	probe, err := os.CreateTemp(f.dir, "check-*")
	if err != nil {
		return fmt.Errorf("files: the folder cannot be written: %w", err)
	}
	_ = probe.Close()
	return os.Remove(probe.Name())
}

// Put writes a file's content. It is there whole and for good when Put returns nil, and else not at all.
func (f *Folder) Put(ctx context.Context, id string, content io.Reader) (err error) {
	part, err := os.OpenFile(f.part(id), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("files: put: %w", unavailable(err))
	}
	defer func() {
		if _ = part.Close(); err != nil {
			_ = os.Remove(f.part(id))
		}
	}()
	if _, err := fill(ctx, part, content); err != nil {
		return err
	}
	if err := part.Sync(); err != nil {
		return fmt.Errorf("files: put: %w", unavailable(err))
	}
	if err := os.Rename(f.part(id), f.path(id)); err != nil {
		return fmt.Errorf("files: put: %w", unavailable(err))
	}
	return f.sync()
}

// sync makes a rename last through a loss of power.
func (f *Folder) sync() error {
	dir, err := os.Open(f.dir)
	if err != nil {
		return fmt.Errorf("files: put: %w", unavailable(err))
	}
	defer dir.Close()
	_ = dir.Sync() // some file systems have no such thing
	return nil
}

// Open returns a file's content, which the caller closes. ErrNotFound: it is not there.
func (f *Folder) Open(_ context.Context, id string, _ int64) (io.ReadSeekCloser, error) {
	file, err := os.Open(f.path(id))
	if err != nil {
		return nil, fmt.Errorf("files: open: %w", unavailable(err))
	}
	return file, nil
}

// Delete removes a file's content, and what an upload that broke off left of it. It may be gone already.
func (f *Folder) Delete(_ context.Context, id string) error {
	for _, path := range []string{f.part(id), f.path(id)} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("files: delete: %w", unavailable(err))
		}
	}
	return nil
}

func (f *Folder) path(id string) string { return filepath.Join(f.dir, filepath.Base(id)) }
func (f *Folder) part(id string) string { return f.path(id) + ".part" }

func unavailable(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return thread.ErrNotFound
	}
	return fmt.Errorf("%w: %w", thread.ErrUnavailable, err)
}

// fill writes content to a file, until ctx ends. What goes wrong with content is returned as it is.
func fill(ctx context.Context, file *os.File, content io.Reader) (int64, error) {
	from := &source{ctx: ctx, r: content}
	n, err := io.Copy(file, from)
	if err != nil && from.err == nil {
		err = fmt.Errorf("files: put: %w: %w", thread.ErrUnavailable, err)
	}
	return n, err
}

// A source reads until ctx ends, and keeps the error that it met.
type source struct {
	ctx context.Context
	r   io.Reader
	err error
}

func (s *source) Read(p []byte) (n int, err error) {
	if err = s.ctx.Err(); err == nil {
		n, err = s.r.Read(p)
	}
	if err != nil && err != io.EOF { //nolint:errorlint // the very value
		s.err = err
	}
	return n, err
}
