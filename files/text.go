package files

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/text/encoding/charmap"
	"golang.org/x/text/encoding/unicode"
)

// A Reader reads texts and PDFs for the model. It is safe for concurrent use.
type Reader struct {
	MaxText int           // characters of one file; what is longer is cut
	Timeout time.Duration // for one PDF
}

// Text returns what the model reads of a file, and a note where that is nothing, or not all. What is wrong with the file is
// in the note; an error is of the source, or ctx's.
func (r Reader) Text(ctx context.Context, mediaType string, content io.Reader) (text, note string, err error) {
	raw, err := io.ReadAll(&source{ctx: ctx, r: content})
	if err != nil {
		return "", "", err
	}
	cut := false
	if mediaType == "application/pdf" {
		text, cut, note, err = readPDF(ctx, raw, r.MaxText, r.Timeout)
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return "", "", err
		}
	} else {
		text = decode(raw)
	}
	text, shorter := shorten(text, r.MaxText)
	switch {
	case note == "" && (cut || shorter):
		note = fmt.Sprintf("Only its first %d characters are here; it is longer.", utf8.RuneCountInString(text))
	case note == "" && strings.TrimSpace(text) == "":
		note = "There is no text in it."
	}
	return text, note, nil
}

// decode turns text of any common encoding into UTF-8 without NUL. A byte order mark decides; without one it is UTF-8, or
// else what Windows writes.
func decode(raw []byte) string {
	out, err := raw, error(nil)
	switch {
	case bytes.HasPrefix(raw, []byte("\xff\xfe")), bytes.HasPrefix(raw, []byte("\xfe\xff")):
		out, err = unicode.UTF16(unicode.BigEndian, unicode.ExpectBOM).NewDecoder().Bytes(raw)
	case !utf8.Valid(raw):
		out, err = charmap.Windows1252.NewDecoder().Bytes(raw)
	}
	if err != nil {
		out = raw
	}
	text := strings.TrimPrefix(strings.ToValidUTF8(string(out), "\ufffd"), "\ufeff")
	return strings.ReplaceAll(text, "\x00", "")
}

func shorten(s string, limit int) (string, bool) {
	n := 0
	for i := range s {
		if n++; n > limit {
			return s[:i], true
		}
	}
	return s, false
}
