package tools

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// readable makes text fit for the model and for Postgres, whose text holds no NUL
// (https://www.postgresql.org/docs/current/datatype-character.html): NUL and invalid UTF-8 become U+FFFD, and what is
// longer than limit bytes is cut, with a note that comes on top. It needs memory for a few times limit, however long
// text is.
func readable(text string, limit int) string {
	text, long := cut(text, limit)
	text = strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
	text, grown := cut(text, limit) // a replacement is longer than what it replaces
	if long || grown {
		text += fmt.Sprintf("\n\n[The result was cut here because it is longer than %d bytes. Ask for less, or for a part of it.]", limit)
	}
	return text
}

// cut returns the first limit bytes of text at most, without a broken character at the end, and whether it cut.
func cut(text string, limit int) (string, bool) {
	if len(text) <= limit {
		return text, false
	}
	end := limit
	for end > 0 && limit-end < utf8.UTFMax && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end], true
}
