package tools

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"golang.org/x/text/language"
	"golang.org/x/text/message"
)

const (
	// maxMistakes is how many mistakes in its arguments the model is told of at once.
	maxMistakes = 10
	// maxMistakeBytes is how much of one mistake is shown: the rest repeats what the model itself wrote.
	maxMistakeBytes = 300
	// maxExponent bounds the numbers in arguments and schemas. A float64 ends at 308, and the library computes in
	// fractions: it takes long over greater exponents and breaks at a million.
	maxExponent = 400
)

var english = message.NewPrinter(language.English)

// A schema checks the arguments of one tool. It may be used concurrently.
type schema struct{ compiled *jsonschema.Schema }

// compile reads a JSON Schema of type object. It loads nothing from elsewhere.
func compile(raw json.RawMessage) (s *schema, err error) {
	defer func() {
		if recover() != nil {
			s, err = nil, errors.New("not a usable JSON Schema")
		}
	}()
	doc, err := decode(raw)
	if err != nil {
		return nil, fmt.Errorf("not JSON: %w", err)
	}
	if object, ok := doc.(map[string]any); !ok || object["type"] != "object" {
		return nil, errors.New(`want a JSON Schema whose "type" is "object"`)
	}
	const self = "bobbin:/parameters"
	c := jsonschema.NewCompiler()
	c.UseLoader(nothing{})
	if err := c.AddResource(self, doc); err != nil {
		return nil, fmt.Errorf("not a usable JSON Schema: %w", err)
	}
	compiled, err := c.Compile(self)
	if err != nil {
		return nil, fmt.Errorf("not a usable JSON Schema: %w", err)
	}
	return &schema{compiled}, nil
}

// nothing loads no schema: a reference to a file or an address would be read from this machine.
type nothing struct{}

func (nothing) Load(string) (any, error) {
	return nil, errors.New("references must stay inside the schema")
}

// check returns the arguments as they were understood, written anew: with each key once, no other reader can understand
// them otherwise. Its error says in words for the model what is wrong.
func (s *schema) check(arguments json.RawMessage) (understood json.RawMessage, err error) {
	defer func() {
		if recover() != nil {
			err = errors.New("the arguments could not be checked. Write simpler ones and call the tool again")
		}
	}()
	doc, err := decode(arguments)
	if err != nil {
		return nil, fmt.Errorf("the arguments are not valid JSON (%w). Write one JSON object and call the tool again", err)
	}
	err = s.compiled.Validate(doc)
	var invalid *jsonschema.ValidationError
	if errors.As(err, &invalid) {
		return nil, fmt.Errorf("the arguments do not fit the tool's schema: %s. Correct them and call the tool again", mistakes(invalid))
	}
	if err != nil {
		return nil, err
	}
	return json.Marshal(doc)
}

// mistakes lists the innermost causes, each with its place.
func mistakes(err *jsonschema.ValidationError) string {
	var found []string
	var walk func(*jsonschema.ValidationError)
	walk = func(e *jsonschema.ValidationError) {
		if len(found) > maxMistakes {
			return
		}
		if len(e.Causes) == 0 {
			text, _ := cut(e.ErrorKind.LocalizedString(english), maxMistakeBytes)
			place, _ := cut(strings.Join(e.InstanceLocation, "/"), maxMistakeBytes)
			found = append(found, "at /"+place+": "+text)
		}
		for _, cause := range e.Causes {
			walk(cause)
		}
	}
	walk(err)
	if len(found) > maxMistakes {
		found[maxMistakes] = "and more"
	}
	return strings.Join(found, "; ")
}

// decode reads one JSON value and refuses numbers that cannot be computed with.
func decode(raw []byte) (any, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	return doc, checkNumbers(doc)
}

func checkNumbers(doc any) error {
	switch v := doc.(type) {
	case json.Number:
		return checkNumber(v.String())
	case []any:
		for _, item := range v {
			if err := checkNumbers(item); err != nil {
				return err
			}
		}
	case map[string]any:
		for _, item := range v {
			if err := checkNumbers(item); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkNumber(n string) error {
	f, err := strconv.ParseFloat(n, 64)
	exponent := 0
	if i := strings.IndexAny(n, "eE"); i >= 0 && err == nil {
		exponent, err = strconv.Atoi(n[i+1:])
	}
	if err != nil || math.IsInf(f, 0) || exponent < -maxExponent || exponent > maxExponent {
		return fmt.Errorf("the number %.40s is out of range", n)
	}
	return nil
}
