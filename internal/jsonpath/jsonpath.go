// Package jsonpath finds a value in a JSON document by a dotted path such as order.lines.0.id, in which a
// number is the position of an element in an array. A member whose name contains a dot has no path.
package jsonpath

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Path names a value: the members and elements that lead to it, from the outside. The empty path is the
// document itself.
type Path []string

// Parse reads a dotted path. The empty text is an error, because a setting that is not written means
// something else in each place.
func Parse(text string) (Path, error) {
	p := Path(strings.Split(text, "."))
	if slices.Contains(p, "") {
		return nil, fmt.Errorf("must be a path such as order.id, in which each part has a character, got %q", text)
	}
	return p, nil
}

// String returns the text that Parse reads.
func (p Path) String() string { return strings.Join(p, ".") }

// Find returns the value in a valid JSON document, as it is written there. It is absent if a part of the
// path is missing, or leads into a value without parts. Names are compared exactly, and of two members with
// one name the last one counts, as in encoding/json.
func (p Path) Find(document json.RawMessage) (value json.RawMessage, found bool) {
	value, found = bytes.TrimSpace(document), len(bytes.TrimSpace(document)) > 0
	for _, name := range p {
		if !found {
			return nil, false
		}
		value, found = member(value, name)
	}
	return value, found
}

// member returns a member of an object or an element of an array, if there is one.
func member(raw json.RawMessage, name string) (json.RawMessage, bool) {
	if raw[0] == '[' {
		var list []json.RawMessage
		i, err := strconv.Atoi(name)
		if err != nil || json.Unmarshal(raw, &list) != nil || i < 0 || i >= len(list) {
			return nil, false
		}
		return list[i], true
	}
	var object map[string]json.RawMessage
	if json.Unmarshal(raw, &object) != nil {
		return nil, false
	}
	found, there := object[name]
	return found, there
}
