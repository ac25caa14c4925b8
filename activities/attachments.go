package activities

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"go.temporal.io/sdk/activity"

	"bobbin/agent"
	"bobbin/store"
	"bobbin/thread"
)

// Blobs is where the content of files is.
type Blobs interface {
	Open(ctx context.Context, id string, size int64) (io.ReadSeekCloser, error)
}

// Pictures says which pictures the model is shown; others are only named.
type Pictures struct {
	Shown bool  // the model sees
	Most  int   // the newest of a session
	Bytes int64 // of one
}

// What the model is told of a file that it is not shown.
const (
	noteBlind    = "This picture is not shown: the model cannot see pictures."
	noteOlder    = "This picture is not shown any more: newer ones are."
	noteLarge    = "This picture is too large to be shown; at most %d bytes are."
	noteAway     = "This file could not be read now. Say so if you need it; do not guess what is in it."
	noteGone     = "The content of this file is gone."
	noteNotThere = "This file is not read here."
)

// prepare reads the files that the session's messages brought, as far as they were not read before: texts and PDFs once,
// the newest pictures each time. A store that is away is waited for where the turn starts; then the turn goes on without.
func (s *stint) prepare(ctx context.Context, w *store.Work) error {
	until := time.Now().Add(s.FilePatience)
	if w.Turn.Rounds > 0 { // it waited before
		until = time.Now()
	}
	left := s.Pictures.Most
	for i := range slices.Backward(w.Session.Entries) {
		attached := w.Session.Entries[i].Files
		for j := range slices.Backward(attached) {
			f := &attached[j]
			switch {
			case s.Files == nil:
				f.Note = noteNotThere
				continue
			case f.Read:
				continue
			case !f.IsImage():
			case !s.Pictures.Shown:
				f.Note = noteBlind
				continue
			case f.Size > s.Pictures.Bytes:
				f.Note = fmt.Sprintf(noteLarge, s.Pictures.Bytes)
				continue
			case left <= 0:
				f.Note = noteOlder
				continue
			default:
				left--
			}
			if err := s.fetch(ctx, f, until); err != nil {
				return err
			}
		}
	}
	return nil
}

// fetch reads one file, trying again until a time while the store or Postgres is away. The error is the cause of ctx's end.
func (s *stint) fetch(ctx context.Context, f *thread.Attached, until time.Time) error {
	for n := 0; ; n++ {
		err := s.fetchOnce(ctx, f)
		wait := agent.Backoff(n, 0)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, thread.ErrNotFound):
			f.Note = noteGone
			return nil
		case !errors.Is(err, thread.ErrUnavailable), time.Now().Add(wait).After(until):
			activity.GetLogger(ctx).Warn("file not read, the turn goes on without it", "turn", s.turn.ID, "file", f.ID, "error", err)
			f.Note = noteAway
			return nil
		}
		if err := s.wait(ctx, wait); err != nil {
			return err
		}
	}
}

func (s *stint) fetchOnce(ctx context.Context, f *thread.Attached) error {
	limited, cancel := context.WithTimeoutCause(ctx, s.FilePatience+s.Reader.Timeout, thread.ErrUnavailable)
	defer cancel()
	content, err := s.Files.Open(limited, f.ID, f.Size)
	if err == nil {
		defer content.Close()
		if f.IsImage() {
			f.Image, err = io.ReadAll(content)
		} else {
			err = s.readText(limited, f, content)
		}
	}
	if err != nil && limited.Err() != nil {
		err = context.Cause(limited)
	}
	return err
}

func (s *stint) readText(ctx context.Context, f *thread.Attached, content io.Reader) error {
	text, note, err := s.Reader.Text(ctx, f.Type, content)
	if err != nil {
		return err
	}
	if err := s.Store.KeepText(ctx, f.ID, text, note); err != nil {
		return err
	}
	f.Read, f.Text, f.Note = true, text, note
	return nil
}
