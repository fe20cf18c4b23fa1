package configs

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

type place struct {
	file string
	line int
}

type kind int

const (
	kindEmpty   kind = iota // `key:` without a value: changes nothing
	kindScalar              // one word or number
	kindList                // a sequence
	kindSection             // keys and values
)

func (k kind) String() string {
	return [...]string{"nothing", "a value", "a list", "a section"}[k]
}

// node is one value of the merged settings, with the place of the layer that won.
type node struct {
	at   place
	kind kind
	// implied: a section that nobody wrote, only values below it, such as by variables. at is then that
	// of the last one, which says nothing about the other settings of the section.
	implied bool
	scalar  *yaml.Node       // of a scalar: text and tag, read by the rules of YAML
	commas  bool             // of a scalar: where a list is expected, commas separate its elements
	items   []*node          // of a list
	fields  map[string]*node // of a section
	order   []string         // of a section: its keys as written, for stable reports
}

func newSection(at place) *node {
	return &node{at: at, kind: kindSection, fields: map[string]*node{}}
}

// textNode returns a scalar that is read like a plain word of YAML, but is never null.
func textNode(at place, text string) *node {
	s := &yaml.Node{Kind: yaml.ScalarNode, Value: text}
	if text == "" || s.ShortTag() == nullTag {
		s.Tag = strTag
	}
	return &node{at: at, kind: kindScalar, scalar: s}
}

// set adds a field, or replaces it in its old position of the order.
func (n *node) set(key string, value *node) {
	if _, ok := n.fields[key]; !ok {
		n.order = append(n.order, key)
	}
	n.fields[key] = value
}

// merge lays over on top of n and returns the result; over wins. Neither is shared afterwards.
func merge(n, over *node) *node {
	switch {
	case n == nil || n.kind == kindEmpty:
		return over
	case over.kind == kindEmpty:
		return n
	case n.kind != kindSection || over.kind != kindSection:
		return over
	}
	out := newSection(over.at)
	out.implied = n.implied && over.implied
	if over.at.line == 0 && n.at.line > 0 || over.implied && !n.implied {
		out.at = n.at // a person looks for a section in a file, not in one variable that adds to it
	}
	out.order = slices.Clone(n.order)
	for k, v := range n.fields {
		out.fields[k] = v
	}
	for _, k := range over.order {
		out.set(k, merge(out.fields[k], over.fields[k]))
	}
	return out
}

// put sets the value at a path below n. It makes missing sections and replaces a scalar in the
// path.
func (n *node) put(path []string, value *node) {
	for _, key := range path[:len(path)-1] {
		next := n.fields[key]
		if next == nil || next.kind != kindSection {
			next = newSection(value.at)
			next.implied = true
			n.set(key, next)
		}
		n = next
	}
	n.set(path[len(path)-1], value)
}

// find returns the node at a dotted path and whether it was found; when it was not, the nearest
// section above it that was written. Elements of lists are written as name[0].
func (n *node) find(path string) (*node, bool) {
	for path != "" {
		var step string
		step, path, _ = strings.Cut(path, ".")
		name, indexes, _ := strings.Cut(step, "[")
		next := n.fields[name]
		if next == nil {
			return n, false
		}
		n = next
		for indexes != "" {
			var index string
			index, indexes, _ = strings.Cut(strings.TrimPrefix(indexes, "["), "]")
			i, err := strconv.Atoi(index)
			if err != nil || i < 0 || i >= len(n.items) {
				return n, false
			}
			n = n.items[i]
		}
	}
	return n, true
}

// plain returns what n holds as maps, slices and YAML's basic types.
func (n *node) plain() (any, error) {
	switch n.kind {
	case kindSection:
		m := make(map[string]any, len(n.fields))
		for k, f := range n.fields {
			v, err := f.plain()
			if err != nil {
				return nil, err
			}
			m[k] = v
		}
		return m, nil
	case kindList:
		list := make([]any, len(n.items))
		for i, item := range n.items {
			v, err := item.plain()
			if err != nil {
				return nil, err
			}
			list[i] = v
		}
		return list, nil
	case kindScalar:
		var v any
		if err := n.scalar.Decode(&v); err != nil {
			return nil, fmt.Errorf("expected a value, got %s: %w", n.describe(), err)
		}
		return v, nil
	default:
		return nil, nil
	}
}

// describe names n for "expected …, got …", shortened.
func (n *node) describe() string {
	if n.kind != kindScalar {
		return n.kind.String()
	}
	text := n.scalar.Value
	if r := []rune(text); len(r) > 40 {
		text = string(r[:40]) + "…"
	}
	switch n.scalar.ShortTag() {
	case secretTag:
		return "a secret"
	case strTag:
		return strconv.Quote(text)
	}
	return text
}

// The short tags that YAML resolves scalars to.
const (
	nullTag  = "!!null"
	strTag   = "!!str"
	boolTag  = "!!bool"
	intTag   = "!!int"
	floatTag = "!!float"
	mergeTag = "!!merge"

	secretTag = "!secret" // our own: a text that no error shows
)
