package configs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// Aliases let a few lines of YAML stand for millions of nodes; no honest file comes near these.
const (
	maxNodes = 100_000
	maxDepth = 64
)

type parser struct {
	file  string
	nodes int
	errs  []*Error
}

// parse reads one YAML document whose root is a section. An empty document is an empty section.
func parse(file string, data []byte) (*node, []*Error) {
	p := &parser{file: file}
	root := newSection(place{file: file})
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return root, nil
	case err != nil:
		return root, []*Error{yamlError(file, data, err)}
	}
	var second yaml.Node
	if err := dec.Decode(&second); err == nil {
		p.fail(second.Line, "", "expected one YAML document, got another one")
	} else if !errors.Is(err, io.EOF) {
		return root, []*Error{yamlError(file, data, err)}
	}
	n := p.node(doc.Content[0], "", 0)
	switch n.kind {
	case kindSection:
		root = n
	case kindEmpty:
	default:
		p.fail(doc.Content[0].Line, "", "expected a section of keys and values, got "+n.describe())
	}
	return root, p.errs
}

func (p *parser) fail(line int, path, problem string) {
	p.errs = append(p.errs, &Error{File: p.file, Line: line, Path: path, Problem: problem})
}

func (p *parser) node(y *yaml.Node, path string, depth int) *node {
	n := &node{at: place{p.file, y.Line}}
	if p.nodes++; p.nodes == maxNodes {
		p.fail(y.Line, path, "too many values")
	}
	if depth == maxDepth {
		p.fail(y.Line, path, "nested too deeply")
	}
	if p.nodes >= maxNodes || depth >= maxDepth {
		return n
	}
	switch y.Kind {
	case yaml.AliasNode:
		alias := p.node(y.Alias, path, depth+1)
		alias.at.line = y.Line // a mistake is fixed where the alias is used
		return alias
	case yaml.SequenceNode:
		n.kind = kindList
		for i, item := range y.Content {
			n.items = append(n.items, p.node(item, path+"["+strconv.Itoa(i)+"]", depth+1))
		}
	case yaml.MappingNode:
		n.kind, n.fields = kindSection, make(map[string]*node, len(y.Content)/2)
		for i := 0; i+1 < len(y.Content); i += 2 {
			p.field(n, y.Content[i], y.Content[i+1], path, depth)
		}
	default:
		if y.ShortTag() != nullTag {
			n.kind, n.scalar = kindScalar, y
		}
	}
	return n
}

func (p *parser) field(n *node, key, value *yaml.Node, path string, depth int) {
	at := joinPath(path, key.Value)
	first, double := n.fields[key.Value]
	switch {
	case key.Kind != yaml.ScalarNode:
		p.fail(key.Line, path, "expected a word as key")
	case key.ShortTag() == mergeTag:
		p.fail(key.Line, at, "merge keys are not supported: write the settings out")
	case double:
		p.fail(key.Line, at, fmt.Sprintf("set twice, first in line %d", first.at.line))
	default:
		v := p.node(value, at, depth+1)
		if v.kind != kindScalar {
			v.at.line = key.Line // where a person looks for a section or a list
		}
		n.set(key.Value, v)
	}
}

func joinPath(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// The errors of package yaml have their line only in the text. Those of its parser count from 0.
var (
	yamlLine     = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)
	yamlFromZero = regexp.MustCompile(`^did not find expected (<|key$|node content$|'-' indicator$|',' or )`)
)

func yamlError(file string, data []byte, err error) *Error {
	text, line := err.Error(), 0
	if m := yamlLine.FindStringSubmatch(text); m != nil {
		line, _ = strconv.Atoi(m[1]) // no line: 0
		text = text[len(m[0]):]
	}
	if yamlFromZero.MatchString(text) {
		line++
	}
	line = min(line, 1+bytes.Count(bytes.TrimRight(data, "\n"), []byte("\n")))
	return &Error{File: file, Line: line, Problem: "not valid YAML: " + text}
}
