package process

import (
	"fmt"
	"io"
	"os"
	"time"
)

const (
	// defaultMaxLog is enough to see why a server failed. A Temporal server whose
	// database restarts writes megabytes of errors in seconds.
	defaultMaxLog = 16 << 20
	tailSize      = 4 << 10
	boundEvery    = time.Second
)

// logFile is a file that a child appends to. The child has the file itself, not
// a pipe to us, so it can still write after our death.
type logFile struct {
	file  *os.File
	start int64 // where this child's output begins
	max   int64
}

func openLog(path string, maxSize int64) (*logFile, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	if maxSize == 0 {
		maxSize = defaultMaxLog
	}
	l := &logFile{file: f, max: maxSize}
	l.shorten()
	l.start, err = f.Seek(0, io.SeekEnd)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("size of log: %w", err)
	}
	return l, nil
}

// bound keeps the file short until the child has ended, then closes it.
func (l *logFile) bound(done <-chan struct{}) {
	tick := time.NewTicker(boundEvery)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return // left open: tail still reads it
		case <-tick.C:
			l.shorten()
		}
	}
}

// shorten empties the file when it is over its bound. The child appends, so
// its next line starts the file anew. The lines lost are the oldest.
func (l *logFile) shorten() {
	if st, err := l.file.Stat(); err != nil || st.Size() <= l.max {
		return
	}
	last := l.tail()
	if l.file.Truncate(0) == nil {
		fmt.Fprintf(l.file, "%s\n(the log was over %d bytes; what came before these lines is gone)\n", last, l.max)
	}
}

func (l *logFile) tail() string {
	st, err := l.file.Stat()
	if err != nil {
		return ""
	}
	from := max(l.start, st.Size()-tailSize)
	if from > st.Size() { // shortened since
		from = max(0, st.Size()-tailSize)
	}
	b, err := io.ReadAll(io.NewSectionReader(l.file, from, st.Size()-from))
	if err != nil {
		return ""
	}
	return string(b)
}

func (l *logFile) close() { l.file.Close() }
