package configs

import (
	"encoding"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Schema returns a JSON Schema (2020-12) of the settings file. sections has the structs that Decode
// fills: dotted path → pointer to the struct with its defaults, "" for the top level. name is that
// of the binary, and profiles are the names of its profiles. The same arguments give the same text.
func Schema(name string, profiles []string, sections map[string]any) ([]byte, error) {
	root := object()
	for _, path := range slices.Sorted(maps.Keys(sections)) {
		v := reflect.ValueOf(sections[path])
		if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
			return nil, fmt.Errorf("schema of %q: expected a pointer to a struct, got %T", path, sections[path])
		}
		at := root
		if path != "" {
			for step := range strings.SplitSeq(path, ".") {
				if at = at.section(step); at == nil {
					return nil, fmt.Errorf("schema: %s is described twice", path)
				}
			}
		}
		if err := at.add(v.Elem(), path, maxSchemaDepth); err != nil {
			return nil, err
		}
		if isPlugin(path) {
			at.properties()[enabledKey] = schema{
				"description": "false: the plugin is not registered and opens no connection.", "type": []string{"boolean", "null"}, "default": enabledByDefault(v.Interface()),
			}
		}
	}
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["title"] = name + " settings"
	root.properties()[profileKey] = schema{
		"description": "The built-in profile this file is laid over.",
		"enum":        append(slices.Clone(profiles), ""),
	}
	out, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("schema: %w", err)
	}
	return append(out, '\n'), nil
}

// maxSchemaDepth ends the schema of a type that contains itself.
const maxSchemaDepth = 16

type schema map[string]any

func object() schema {
	return schema{"type": []string{"object", "null"}, "additionalProperties": false, "properties": schema{}}
}

func (s schema) properties() schema {
	p, _ := s["properties"].(schema)
	return p
}

// section returns the object below s with this name, or a new one; nil if a scalar has the name.
func (s schema) section(name string) schema {
	if inner, ok := s.properties()[name].(schema); ok {
		if inner.properties() == nil {
			return nil
		}
		return inner
	}
	inner := object()
	s.properties()[name] = inner
	return inner
}

// add puts the fields of a struct into s.
func (s schema) add(v reflect.Value, path string, depth int) error {
	for _, f := range fieldsOf(v.Type()) {
		at := joinPath(path, f.name)
		if _, taken := s.properties()[f.name]; taken {
			return fmt.Errorf("schema: %s is described twice", at)
		}
		inner, err := describeType(f.typ, v.FieldByIndex(f.index), at, depth-1)
		if err != nil {
			return err
		}
		s.properties()[f.name] = inner
	}
	return nil
}

// describeType returns the schema of a type; v is its default, or invalid when there is none.
func describeType(t reflect.Type, v reflect.Value, path string, depth int) (schema, error) {
	if depth == 0 {
		return schema{}, nil
	}
	if isScalar(t) {
		return describeScalar(t, v), nil
	}
	switch t.Kind() {
	case reflect.Pointer:
		inner := newDefault(t.Elem()).Elem()
		if v.IsValid() && !v.IsNil() {
			inner = v.Elem()
		}
		return describeType(t.Elem(), inner, path, depth)
	case reflect.Struct:
		if !v.IsValid() {
			v = newDefault(t).Elem()
		}
		s := object()
		return s, s.add(v, path, depth)
	case reflect.Slice:
		items, err := describeType(t.Elem(), reflect.Value{}, path+"[]", depth-1)
		s := schema{"type": []string{"array", "null"}, "items": items}
		if v.IsValid() && v.Len() > 0 && isScalar(t.Elem()) {
			var list []any
			for i := range v.Len() {
				if value, ok := defaultOf(v.Index(i)); ok {
					list = append(list, value)
				}
			}
			s["default"] = list
		}
		return s, err
	case reflect.Map:
		values, err := describeType(t.Elem(), reflect.Value{}, path+".*", depth-1)
		return schema{"type": []string{"object", "null"}, "additionalProperties": values}, err
	case reflect.Interface:
		return schema{}, nil
	default:
		return nil, fmt.Errorf("schema: %s has type %s, which can't be set", path, t)
	}
}

// describeScalar mirrors what the walker accepts for t.
func describeScalar(t reflect.Type, v reflect.Value) schema {
	var s schema
	switch {
	case isDuration(t):
		s = schema{
			"type": []string{"string", "integer", "null"}, "minimum": 0, "maximum": 0,
			"pattern": `^[-+]?(0|([0-9]*\.?[0-9]+(ns|us|µs|ms|s|m|h))+)$`,
		}
	case readsText(t), t.Kind() == reflect.String:
		s = schema{"type": []string{"string", "number", "boolean", "null"}}
	case t.Kind() == reflect.Bool:
		s = schema{"type": []string{"boolean", "null"}}
	case t.Kind() == reflect.Float32, t.Kind() == reflect.Float64:
		s = schema{"type": []string{"number", "null"}}
	case strings.HasPrefix(t.Kind().String(), "uint"):
		s = schema{"type": []string{"integer", "null"}, "minimum": 0}
	default:
		s = schema{"type": []string{"integer", "null"}}
	}
	if v.IsValid() && !v.IsZero() {
		if value, ok := defaultOf(v); ok {
			s["default"] = value
		}
	}
	return s
}

// defaultOf returns a default in the form of a settings file. ok is false for a secret, and for a
// type that can't write the text that it reads.
func defaultOf(v reflect.Value) (value any, ok bool) {
	switch x := v.Interface().(type) {
	case time.Duration:
		return shortDuration(x), true
	case interface{ Reveal() string }:
		return nil, false
	case encoding.TextMarshaler:
		text, err := x.MarshalText()
		return string(text), err == nil
	default:
		return x, !readsText(v.Type())
	}
}

// shortDuration writes 5m where time.Duration writes 5m0s.
func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
