package llm

import (
	"encoding/json"
	"strings"

	"bobbin/thread"
)

// A callTable assembles tool calls from their deltas. By the protocol the first delta of a call brings its id and name,
// and index says which call a delta belongs to. Providers differ: some leave the index out, some send 0 for every call
// (https://github.com/ollama/ollama/issues/15457), send the id late, a new id with every delta, or the name with every delta.
type callTable struct {
	calls   []*callParts
	byIndex map[int]*callParts // the newest call with that index
}

type callParts struct {
	id, name  string
	arguments joiner
}

// add takes the delta that stands at place in its chunk.
func (t *callTable) add(d callDelta, place int) {
	c := t.find(d, place)
	if c == nil {
		c = &callParts{}
		t.calls = append(t.calls, c)
		if d.Index != nil {
			if t.byIndex == nil {
				t.byIndex = map[int]*callParts{}
			}
			t.byIndex[*d.Index] = c
		}
	}
	c.take(d)
}

// find returns the call that d goes on with, or nil if it begins one.
func (t *callTable) find(d callDelta, place int) *callParts {
	if d.Index != nil {
		if c := t.byIndex[*d.Index]; c != nil && !c.endedBy(d) {
			return c
		}
		return nil
	}
	if c := t.byID(d.ID); c != nil {
		return c
	}
	if len(t.calls) == 0 {
		return nil
	}
	last := t.calls[len(t.calls)-1]
	if last.endedBy(d) || (place > 0 && d.Function.Name != "") {
		return nil
	}
	return last
}

func (t *callTable) byID(id string) *callParts {
	for _, c := range t.calls {
		if id != "" && c.id == id {
			return c
		}
	}
	return nil
}

// endedBy reports whether d begins another call although its index does not say so. Only a delta with a name begins one.
func (c *callParts) endedBy(d callDelta) bool {
	switch name := d.Function.Name; {
	case name == "" || c.name == "":
		return false
	case d.ID != "" && c.id != "" && d.ID != c.id:
		return true
	case d.ID != "" && d.ID == c.id:
		return false
	case d.Index == nil && !strings.HasPrefix(name, c.name):
		return true
	default:
		return len(d.Function.Arguments) > 2 && json.Valid([]byte(c.arguments.String()))
	}
}

func (c *callParts) take(d callDelta) {
	if c.id == "" {
		c.id = d.ID
	}
	switch name := d.Function.Name; {
	case strings.HasPrefix(name, c.name): // the first, the same again, or the name so far
		c.name = name
	case c.arguments.String() == "":
		c.name += name
	}
	args := d.Function.Arguments
	if len(args) > 0 && args[0] == '{' { // an object where a string that holds one belongs
		args, _ = json.Marshal(string(args))
	}
	c.arguments.add(args)
}

func (t *callTable) asked() []thread.Asked {
	var asked []thread.Asked
	for _, c := range t.calls {
		c.arguments.flush()
		asked = append(asked, thread.Asked{ID: c.id, Name: c.name, Arguments: c.arguments.String()})
	}
	return asked
}
