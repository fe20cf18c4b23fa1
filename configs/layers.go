package configs

import (
	"cmp"
	"encoding"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// fromEnviron returns the layer of the environment: with the prefix MILLRACE,
// MILLRACE__LOG__LEVEL=debug is log.level. Values are read like plain words of YAML. Commas
// separate the elements of a list. An empty prefix means no layer.
func fromEnviron(prefix string, environ []string) (*node, []*Error) {
	root := newSection(place{file: "environment"})
	if prefix == "" {
		return root, nil
	}
	prefix += "__"
	var errs []*Error
	// Sorted, so that of two spellings of one setting always the same one wins.
	for _, pair := range slices.Sorted(slices.Values(environ)) {
		name, value, _ := strings.Cut(pair, "=")
		rest, ok := strings.CutPrefix(name, prefix)
		if !ok {
			continue
		}
		at := place{file: "environment variable " + name}
		path := strings.Split(strings.ToLower(rest), "__")
		if slices.Contains(path, "") {
			errs = append(errs, &Error{File: at.file, Problem: "expected " + prefix + "SECTION__KEY"})
			continue
		}
		n := textNode(at, value)
		n.commas = true
		root.put(path, n)
	}
	return root, errs
}

// fromOverrides returns the layer of the program's own overrides: dotted path → value.
func fromOverrides(overrides map[string]any) (*node, []*Error) {
	at := place{file: "override"}
	root := newSection(at)
	var errs []*Error
	// Shorter paths first, so that {"a": section, "a.b": value} means both.
	paths := slices.SortedFunc(maps.Keys(overrides), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
	})
	for _, path := range paths {
		n, err := fromValue(at, reflect.ValueOf(overrides[path]))
		if err == nil && slices.Contains(strings.Split(path, "."), "") {
			err = fmt.Errorf("expected a dotted path, got %q", path)
		}
		if err != nil {
			errs = append(errs, &Error{File: at.file, Path: path, Problem: err.Error()})
			continue
		}
		root.put(strings.Split(path, "."), n)
	}
	return root, errs
}

// fromValue turns a Go value into a node: text, numbers, booleans, durations, anything that
// marshals to text, and lists and string-keyed maps of them.
func fromValue(at place, v reflect.Value) (*node, error) {
	if !v.IsValid() {
		return &node{at: at}, nil
	}
	switch x := v.Interface().(type) {
	case time.Duration:
		return typed(at, strTag, x.String()), nil
	case interface{ Reveal() string }: // a secret marshals to [redacted]
		return typed(at, strTag, x.Reveal()), nil
	case encoding.TextMarshaler:
		text, err := x.MarshalText()
		if err != nil {
			return nil, fmt.Errorf("expected a value that can be written as text: %w", err)
		}
		return typed(at, strTag, string(text)), nil
	}
	switch v.Kind() {
	case reflect.Interface, reflect.Pointer:
		return fromValue(at, v.Elem())
	case reflect.String:
		return typed(at, strTag, v.String()), nil
	case reflect.Bool:
		return typed(at, boolTag, fmt.Sprint(v)), nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return typed(at, intTag, fmt.Sprint(v)), nil
	case reflect.Float32, reflect.Float64:
		return typed(at, floatTag, fmt.Sprint(v)), nil
	case reflect.Slice, reflect.Array:
		n := &node{at: at, kind: kindList}
		for i := range v.Len() {
			item, err := fromValue(at, v.Index(i))
			if err != nil {
				return nil, err
			}
			n.items = append(n.items, item)
		}
		return n, nil
	case reflect.Map:
		if v.Type().Key().Kind() != reflect.String {
			break
		}
		n := newSection(at)
		for _, k := range slices.SortedFunc(slices.Values(v.MapKeys()), func(a, b reflect.Value) int {
			return cmp.Compare(a.String(), b.String())
		}) {
			field, err := fromValue(at, v.MapIndex(k))
			if err != nil {
				return nil, err
			}
			n.set(k.String(), field)
		}
		return n, nil
	default:
	}
	return nil, fmt.Errorf("expected a value that can be written in a settings file, got %s", v.Type())
}

func typed(at place, tag, text string) *node {
	return &node{at: at, kind: kindScalar, scalar: &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: text}}
}
