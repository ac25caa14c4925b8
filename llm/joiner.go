package llm

import (
	"bytes"
	"encoding/json"
	"strings"
	"unicode/utf8"
)

// A joiner puts a text together from JSON strings. Providers cut where they like: in the middle of a UTF-8 sequence, or
// between the two escapes of a surrogate pair. The bodies of JSON strings, put one after the other, are the body of a JSON
// string again, so the joiner decodes what is whole and keeps the rest for the next piece.
type joiner struct {
	emit    func(string) // gets every decoded piece; may be nil
	pending []byte       // the body of a JSON string that ends in half a character
	out     strings.Builder
}

// add takes a JSON string, or an array of content parts of which it takes the texts; it reports whether there was text.
func (j *joiner) add(raw json.RawMessage) bool {
	if len(raw) > 0 && raw[0] == '[' {
		return j.addParts(raw)
	}
	if len(raw) < 3 || raw[0] != '"' { // absent, null, "", or something else
		return false
	}
	j.pending = append(j.pending, raw[1:len(raw)-1]...)
	whole := len(j.pending) - halfCharacter(j.pending)
	j.decode(j.pending[:whole])
	j.pending = append(j.pending[:0], j.pending[whole:]...)
	return true
}

func (j *joiner) addParts(raw json.RawMessage) bool {
	var parts []struct {
		Text json.RawMessage `json:"text"`
	}
	if json.Unmarshal(raw, &parts) != nil {
		return false
	}
	found := false
	for _, p := range parts {
		found = j.add(p.Text) || found
	}
	return found
}

// flush decodes what is left at the end. Half a character becomes U+FFFD.
func (j *joiner) flush() {
	j.decode(j.pending)
	j.pending = nil
}

func (j *joiner) decode(body []byte) {
	if len(body) == 0 {
		return
	}
	var s string
	quoted := bytes.Join([][]byte{{'"'}, body, {'"'}}, nil)
	if json.Unmarshal(quoted, &s) != nil {
		return // cannot be: every piece came out of valid JSON
	}
	if s = clean(s); s == "" {
		return
	}
	j.out.WriteString(s)
	if j.emit != nil {
		j.emit(s)
	}
}

func (j *joiner) String() string { return j.out.String() }

// halfCharacter returns how many bytes at the end of a JSON string's body begin a character that they do not end.
func halfCharacter(b []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(b); n++ {
		if tail := b[len(b)-n:]; utf8.RuneStart(tail[0]) {
			if !utf8.FullRune(tail) {
				return n
			}
			break
		}
	}
	const escape = len(`\ud83d`)
	if n := len(b) - escape; n >= 0 && highSurrogate(b[n:]) && !escaped(b[:n]) {
		return escape
	}
	return 0
}

// highSurrogate reports whether b starts with the escape of a pair's first half.
func highSurrogate(b []byte) bool {
	return len(b) >= 6 && b[0] == '\\' && b[1] == 'u' && (b[2] == 'd' || b[2] == 'D') && strings.IndexByte("89abAB", b[3]) >= 0
}

// lowSurrogate reports whether b starts with the escape of a pair's second half.
func lowSurrogate(b []byte) bool {
	return len(b) >= 6 && b[0] == '\\' && b[1] == 'u' && (b[2] == 'd' || b[2] == 'D') && strings.IndexByte("cdefCDEF", b[3]) >= 0
}

// escaped reports whether the character after b is escaped by a backslash at b's end.
func escaped(b []byte) bool {
	return (len(b)-len(bytes.TrimRight(b, `\`)))%2 == 1
}
