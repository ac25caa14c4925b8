package main

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"bobbin/api"
	"bobbin/files"
	"bobbin/thread"
)

// fileStore is a folder or a bucket.
type fileStore interface {
	api.Blobs
	Check(ctx context.Context) error
}

// openFiles opens the configured file store. One that does not answer is no error: it may be there later.
func openFiles(ctx context.Context, cfg config) (fileStore, error) {
	if cfg.FilesBucket == "" {
		dir := cfg.FilesDir
		if dir == "" {
			dir = filepath.Join(cfg.DataDir, "files")
		}
		return files.NewFolder(dir)
	}
	bucket := files.NewBucket(files.BucketConfig{
		Bucket: cfg.FilesBucket, Endpoint: cfg.FilesEndpoint, Region: cfg.FilesRegion, AccessKey: cfg.FilesAccessKey, SecretKey: cfg.FilesSecretKey,
		PathStyle: cfg.FilesPathStyle,
	})
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	err := bucket.Check(ctx)
	if errors.Is(err, thread.ErrUnavailable) {
		slog.Warn("the file store does not answer", "bucket", cfg.FilesBucket, "error", err)
		err = nil
	}
	return bucket, err
}

const (
	sweepFilesEvery = 10 * time.Minute
	sweepFilesBatch = 100
)

// sweep is the part of an API process that removes what uploads and deletions left, until ctx ends. What broke off is left
// alone for twice as long as it may take.
func (p plant) sweep(ctx context.Context) error {
	tick := time.NewTicker(sweepFilesEvery)
	defer tick.Stop()
	for {
		n, err := api.SweepFiles(ctx, p.db, p.files, 2*p.cfg.TransferTimeout+time.Hour, sweepFilesBatch)
		switch {
		case err != nil && ctx.Err() == nil:
			slog.Warn("files not swept", "error", err)
		case n > 0:
			slog.Info("what uploads left was removed", "files", n)
		}
		if n == sweepFilesBatch {
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// keepsFiles is a need of API and worker.
func (p plant) keepsFiles(ctx context.Context) error {
	if err := p.files.Check(ctx); err != nil {
		slog.Warn("not ready", "error", err)
		return errors.New("the file store does not answer")
	}
	return nil
}

// seeing are parts of the names of models that are shown pictures, where BOBBIN_MODEL_VISION does not say.
var seeing = []string{
	"gpt-4o", "gpt-4.1", "gpt-4-turbo", "gpt-5", "o3", "o4-mini", "claude", "gemini", "pixtral", "llava", "gemma-3", "llama-4", "-vl", "vision", "scripted",
}

func (c config) sees() bool {
	if c.Vision != "auto" {
		return c.Vision == "true"
	}
	model := strings.ToLower(c.Model)
	return slices.ContainsFunc(seeing, func(part string) bool { return strings.Contains(model, part) })
}
