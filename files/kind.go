package files

import (
	"bytes"
	"io"
	"mime"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/gabriel-vasile/mimetype"
)

// DefaultTypes are what may be uploaded where nothing else is configured.
var DefaultTypes = []string{"image/png", "image/jpeg", "image/gif", "image/webp", "text/*", "application/json", "application/pdf"}

// sniffed is how much of a file its type is found from.
const sniffed = 8 << 10

// byName are kinds of text that content does not tell apart.
var byName = map[string]string{".md": "text/markdown", ".markdown": "text/markdown", ".csv": "text/csv"}

// Sniff finds the type of a file from how it begins. content reads as r would have; mediaType is the closest one that is
// allowed, such as text/plain for a program, and empty if none is. empty: there is nothing in it.
func Sniff(r io.Reader, name string, allowed []string) (mediaType string, content io.Reader, empty bool, err error) {
	head := make([]byte, sniffed)
	n, err := io.ReadFull(r, head)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF { //nolint:errorlint // the very values
		return "", nil, false, err
	}
	head = head[:n]
	return closest(mimetype.Detect(head), name, allowed), io.MultiReader(bytes.NewReader(head), r), n == 0, nil
}

func closest(m *mimetype.MIME, name string, allowed []string) string {
	for ; m != nil; m = m.Parent() {
		found, _, _ := mime.ParseMediaType(m.String())
		if named := byName[strings.ToLower(filepath.Ext(name))]; named != "" && found == "text/plain" && Allowed(named, allowed) {
			return named
		}
		if Allowed(found, allowed) {
			return found
		}
	}
	return ""
}

// Allowed reports whether a type is in the list, in which text/* stands for all kinds of text.
func Allowed(mediaType string, list []string) bool {
	family, _, _ := strings.Cut(mediaType, "/")
	return slices.Contains(list, mediaType) || slices.Contains(list, family+"/*")
}

const longestName = 255 // bytes, as most file systems have it

// UnfitName says what is wrong with a file's name, as the end of a sentence, or "".
func UnfitName(name string) string {
	switch {
	case strings.TrimSpace(name) == "":
		return "needs a name"
	case !utf8.ValidString(name):
		return "has a name that is not valid UTF-8"
	case len(name) > longestName:
		return "has a name of more than 255 bytes"
	case strings.ContainsAny(name, `/\`) || name == "." || name == "..":
		return "has a path for a name; send the name alone"
	case strings.ContainsFunc(name, unfitRune):
		return "has control characters in its name"
	}
	return ""
}

// unfitRune: also what turns the direction of writing round, so that exe.txt reads as txt.exe.
func unfitRune(r rune) bool {
	return unicode.IsControl(r) || '\u202a' <= r && r <= '\u202e' || '\u2066' <= r && r <= '\u2069' || r == '\u2028' || r == '\u2029'
}
