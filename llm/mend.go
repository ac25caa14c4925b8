package llm

import (
	"encoding/json"
	"strconv"
	"strings"

	"bobbin/thread"
)

// maxID is the longest id of a call that OpenAI takes back: "string too long. Expected a string with maximum length 40",
// seen in https://github.com/microsoft/autogen/issues/6377.
const maxID = 40

// maxName is the longest name of a tool: https://platform.openai.com/docs/api-reference/chat/create (tools, function, name).
const maxName = 64

// Mend makes a reply fit to be stored and to be sent back later. It is pure, and mending twice changes nothing more.
//
//   - Texts, names, ids and arguments are valid UTF-8 without NUL, which Postgres refuses in text; arguments also without
//     \u0000 and lone surrogates as escapes, which it refuses in jsonb.
//   - Ids hold letters, digits, - and _, at most 40 of them, and are unique in the reply; a missing one becomes call_N,
//     N being the call's place.
//   - Names are trimmed; a missing one becomes "unnamed". A name that is no tool's stays, for the loop to answer.
//   - Missing arguments become {}. Arguments that are not valid JSON stay, for the loop to answer.
//   - Finish is one of the four of package thread, and tool_calls exactly if there are calls that were not cut short.
func Mend(r thread.Reply) thread.Reply {
	r.Text, r.Reasoning, r.Model = clean(r.Text), clean(r.Reasoning), clean(r.Model)
	var ids idSet
	calls := make([]thread.Asked, 0, len(r.Calls))
	for i, c := range r.Calls {
		calls = append(calls, mendCall(c, i, &ids))
	}
	if r.Calls = calls; len(calls) == 0 {
		r.Calls = nil
	}
	r.Finish = mendFinish(r.Finish, len(calls) > 0)
	return r
}

func mendCall(c thread.Asked, place int, ids *idSet) thread.Asked {
	id := cleanID(c.ID)
	if id == "" {
		id = "call_" + strconv.Itoa(place)
	}
	name := strings.TrimSpace(clean(c.Name))
	if name == "" {
		name = "unnamed"
	}
	arguments := strings.TrimSpace(cleanEscapes(clean(c.Arguments)))
	if arguments == "" || arguments == "null" {
		arguments = "{}"
	}
	return thread.Asked{ID: ids.unique(id), Name: name, Arguments: arguments}
}

func mendFinish(f thread.Finish, calls bool) thread.Finish {
	switch f {
	case thread.FinishFiltered, thread.FinishLength:
		return f
	case "max_tokens", "model_length":
		return thread.FinishLength
	}
	if calls {
		return thread.FinishCalls
	}
	return thread.FinishStop
}

// clean removes what is not UTF-8, and NUL.
func clean(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, ""), "\x00", "")
}

// cleanEscapes removes \u0000 from JSON and turns lone surrogates into \ufffd, without touching anything else: numbers,
// order and spaces stay as the model wrote them.
func cleanEscapes(s string) string {
	if !strings.Contains(s, `\u`) {
		return s
	}
	b, out := []byte(s), make([]byte, 0, len(s))
	for len(b) > 0 {
		n := 1
		switch {
		case b[0] != '\\' || len(b) < 2:
		case strings.HasPrefix(string(b[:min(6, len(b))]), `\u0000`):
			b = b[6:]
			continue
		case highSurrogate(b) && lowSurrogate(b[6:]):
			n = 12
		case highSurrogate(b), lowSurrogate(b):
			out, b = append(out, `\ufffd`...), b[6:]
			continue
		default:
			n = 2 // the escaped character is passed over, so that \\u0000 is left alone
		}
		out, b = append(out, b[:n]...), b[n:]
	}
	return string(out)
}

// isObject reports whether s is a JSON object.
func isObject(s string) bool {
	return strings.HasPrefix(strings.TrimSpace(s), "{") && json.Valid([]byte(s))
}

// cleanID keeps what every provider takes in an id.
func cleanID(id string) string {
	id = strings.Map(func(c rune) rune {
		if nameRune(c) {
			return c
		}
		return -1
	}, id)
	return id[:min(len(id), maxID)]
}

// cleanName turns any name into one that fits ^[a-zA-Z0-9_-]{1,64}$.
func cleanName(name string) string {
	name = strings.Map(func(c rune) rune {
		if nameRune(c) {
			return c
		}
		return '_'
	}, strings.TrimSpace(name))
	if name == "" {
		return "unnamed"
	}
	return name[:min(len(name), maxName)]
}

func nameRune(c rune) bool {
	return c == '_' || c == '-' || ('0' <= c && c <= '9') || ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z')
}

// An idSet makes names unique by a suffix. What it answers depends on what it was asked before and on nothing else.
type idSet struct{ taken map[string]int }

func (s *idSet) unique(id string) string { return s.uniqueWithin(id, maxID) }

func (s *idSet) uniqueWithin(id string, limit int) string {
	if s.taken == nil {
		s.taken = map[string]int{}
	}
	base := id
	for s.taken[id] > 0 {
		suffix := "_" + strconv.Itoa(s.taken[base]+1)
		s.taken[base]++
		id = base[:min(len(base), limit-len(suffix))] + suffix
	}
	s.taken[id]++
	return id
}
