package configs

import (
	"reflect"
	"strings"
)

type field struct {
	name  string
	index []int
	typ   reflect.Type
}

// fieldsOf returns the settings of a struct type by their yaml tags, with inlined structs
// flattened. A field without a name in its tag has its own in lower case, as in YAML; "-" hides a
// field.
func fieldsOf(t reflect.Type) []field {
	var out []field
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if name == "-" || !f.IsExported() {
			continue
		}
		if strings.Contains(options, "inline") && f.Type.Kind() == reflect.Struct {
			for _, inner := range fieldsOf(f.Type) {
				inner.index = append([]int{i}, inner.index...)
				out = append(out, inner)
			}
			continue
		}
		if name == "" {
			name = strings.ToLower(f.Name)
		}
		out = append(out, field{name, []int{i}, f.Type})
	}
	return out
}

// leafPaths returns the dotted path of every setting below a struct type, sections included.
func leafPaths(t reflect.Type, path string, depth int) []string {
	var out []string
	if depth == 0 { // a type that contains itself
		return nil
	}
	for _, f := range fieldsOf(t) {
		at := joinPath(path, f.name)
		out = append(out, at)
		if inner := indirect(f.typ); inner.Kind() == reflect.Struct && !isScalar(inner) {
			out = append(out, leafPaths(inner, at, depth-1)...)
		}
	}
	return out
}

func indirect(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}
