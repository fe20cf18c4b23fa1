package configs

import (
	"cmp"
	"encoding"
	"fmt"
	"io/fs"
	"maps"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// fromEnviron returns the layer of the environment: with the prefix MILLRACE,
// MILLRACE__LOG__LEVEL=debug is log.level. Values are read like plain words of YAML. Commas
// separate the elements of a list. An empty prefix means no layer.
func fromEnviron(prefix string, environ []string) (*node, []*Error) {
	root := newSection(place{file: "environment"})
	root.implied = true
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

// takeCase gives the keys of variables, which are in lower case, the case that they have in the layers below: a map may
// have a key such as ShopA.
func (n *node) takeCase(path string, below *node) (errs []*Error) {
	for i, key := range n.order {
		value, at := n.fields[key], joinPath(path, key)
		if below.fields[key] == nil {
			like := slices.DeleteFunc(slices.Clone(below.order), func(other string) bool { return !strings.EqualFold(other, key) })
			if len(like) > 1 {
				errs = append(errs, &Error{File: value.at.file, Path: at, Problem: "is one of " + strings.Join(like, ", ") + ", which only their case tells apart: set it in a file"})
			}
			if len(like) != 1 {
				continue
			}
			delete(n.fields, key)
			key = like[0]
			n.order[i], n.fields[key] = key, value
		}
		errs = append(errs, value.takeCase(at, below.fields[key])...)
	}
	return errs
}

// fromOverrides returns the layer of the program's own overrides: dotted path → value.
func fromOverrides(overrides map[string]any) (*node, []*Error) {
	at := place{file: "override"}
	root := newSection(at)
	root.implied = true
	var errs []*Error
	// Shorter paths first, so that {"a": section, "a.b": value} means both.
	paths := slices.SortedFunc(maps.Keys(overrides), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
	})
	for _, path := range paths {
		n, err := fromValue(at, overrides[path])
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

// fromValue turns a Go value into a node, as YAML writes it.
func fromValue(at place, v any) (n *node, err error) {
	defer func() {
		if wrong := recover(); wrong != nil { // such as a channel
			err = fmt.Errorf("expected a value that can be written in a settings file: %v", wrong)
		}
	}()
	var y yaml.Node
	if err := y.Encode(revealed(v)); err != nil {
		return nil, fmt.Errorf("expected a value that can be written in a settings file: %w", err)
	}
	p := &parser{file: at.file}
	return p.node(&y, "", 0), nil
}

// revealed returns v with the texts of its secrets, also of those in lists and maps. A secret
// itself marshals to [redacted].
func revealed(v any) any {
	if secret, ok := v.(interface{ Reveal() string }); ok {
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: secretTag, Value: secret.Reveal()}
	}
	if _, ok := v.(encoding.TextMarshaler); ok {
		return v
	}
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.Slice:
		list := make([]any, r.Len())
		for i := range list {
			list[i] = revealed(r.Index(i).Interface())
		}
		return list
	case reflect.Map:
		entries := make(map[any]any, r.Len())
		for key, value := range r.Seq2() {
			entries[key.Interface()] = revealed(value.Interface())
		}
		return entries
	}
	return v
}

const profileSuffix = ".yaml"

// Profiles returns the names of the profiles in files, sorted. Nil has none.
func Profiles(files fs.FS) []string {
	names := []string{}
	if files == nil {
		return names
	}
	// It fails only for a malformed pattern.
	found, _ := fs.Glob(files, "*"+profileSuffix)
	for _, file := range found {
		names = append(names, strings.TrimSuffix(file, profileSuffix))
	}
	return names
}

// profileFile is what a built-in profile is called where a file's name is expected.
func profileFile(name string) string { return "profile " + name }

func readProfile(files fs.FS, name string, named place) (*node, []*Error) {
	known := Profiles(files)
	if !slices.Contains(known, name) {
		suggestion := didYouMean(name, known)
		switch {
		case len(known) == 0:
			suggestion = "; there are none"
		case suggestion == "":
			suggestion = "; there are " + strings.Join(known, ", ")
		}
		return newSection(named), []*Error{{named.file, named.line, profileKey, "no profile has the name " + quoteShort(name) + suggestion, nil}}
	}
	at := profileFile(name)
	data, err := fs.ReadFile(files, name+profileSuffix)
	if err != nil {
		return newSection(place{file: at}), []*Error{{File: at, Problem: err.Error()}}
	}
	root, errs := parse(at, data)
	root.at.file = at
	return root, errs
}
