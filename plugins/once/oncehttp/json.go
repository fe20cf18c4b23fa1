package oncehttp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace-io/millrace/internal/jsonpath"
)

// field is a value in a JSON document. Without a path it is not looked for.
type field struct {
	path   []string
	number bool // a number is accepted, too
}

// parse returns the texts of the fields of a JSON object, and an empty one for a field that is not there. An
// error means that the body is no JSON object, or that a field has another type. Names are compared exactly,
// while encoding/json ignores case.
func parse(body []byte, fields ...field) ([]string, error) {
	if names, ok := plainNames(fields); ok {
		if values, ok := parsePlain(body, names); ok {
			return values, nil
		}
	}
	return parseAny(body, fields)
}

// nowhere is a name that parsePlain never finds, because it reads only printable names.
const nowhere = "\x00"

// plainNames returns the names of fields that are all different members of the document itself.
func plainNames(fields []field) (names []string, ok bool) {
	names = make([]string, len(fields))
	for i, f := range fields {
		switch {
		case len(f.path) > 1, len(f.path) == 1 && slices.Contains(names[:i], f.path[0]):
			return nil, false
		case len(f.path) == 0:
			names[i] = nowhere
		default:
			names[i] = f.path[0]
		}
	}
	return names, true
}

// parsePlain reads an object of strings without escapes, as many APIs answer. It costs a fifth
// of parseAny, and returns the same.
func parsePlain(body []byte, names []string) (values []string, ok bool) {
	const space = " \t\r\n"
	token := func(end byte) (text []byte, ok bool) { // up to end, which it consumes
		text, body, ok = bytes.Cut(body, []byte{end})
		return text, ok
	}
	separator := func(c byte) bool {
		text, ok := token(c)
		return ok && len(bytes.Trim(text, space)) == 0
	}
	text := func() (text []byte, ok bool) {
		if !separator('"') {
			return nil, false
		}
		text, ok = token('"')
		return text, ok && !bytes.ContainsFunc(text, func(c rune) bool { return c < ' ' || c > '~' || c == '\\' })
	}
	values = make([]string, len(names))
	if !separator('{') {
		return nil, false
	}
	for {
		name, ok := text()
		if !ok || !separator(':') {
			return nil, false
		}
		value, ok := text()
		if !ok {
			return nil, false
		}
		if i := slices.Index(names, string(name)); i >= 0 {
			values[i] = string(value)
		}
		body = bytes.TrimLeft(body, space)
		if !bytes.HasPrefix(body, []byte(",")) {
			return values, separator('}') && len(bytes.Trim(body, space)) == 0
		}
		body = body[1:]
	}
}

func parseAny(body []byte, fields []field) ([]string, error) {
	values := make([]string, len(fields))
	var all map[string]json.RawMessage
	if err := json.Unmarshal(body, &all); err != nil {
		return values, err
	}
	for i, f := range fields {
		if len(f.path) == 0 {
			continue
		}
		raw, there := all[f.path[0]]
		if there {
			raw, there = jsonpath.Path(f.path[1:]).Find(raw)
		}
		if !there {
			continue
		}
		if f.number && isNumber(raw) {
			values[i] = string(raw)
			continue
		}
		if err := json.Unmarshal(raw, &values[i]); err != nil {
			return make([]string, len(fields)), fmt.Errorf("%s: %w", strings.Join(f.path, "."), err)
		}
	}
	return values, nil
}

func isNumber(raw json.RawMessage) bool {
	return raw[0] == '-' || raw[0] >= '0' && raw[0] <= '9'
}
