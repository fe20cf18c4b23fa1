package configs

import (
	"encoding"
	"fmt"
	"net/url"
	"reflect"
	"strings"
	"time"

	"github.com/millrace-io/millrace/internal/sorted"
)

// Effective is the value of one setting, and where it comes from.
type Effective struct {
	Path string `json:"path"`
	// Value is the value as it would be written. That of a secret is "set" or "", and a password in
	// an address is left out.
	Value string `json:"value"`
	// Source is the file, "profile NAME", "environment variable NAME" or "override" that sets it.
	// Empty: the default of the code.
	Source string `json:"source"`
	Line   int    `json:"line,omitempty"` // of a file
}

// secretSet stands in place of a secret.
const secretSet = "set"

// Effective returns the values of all settings in target, which Decode has filled from the section at
// path, in the order of its fields.
func (d *Document) Effective(path string, target any) []Effective {
	var list []Effective
	d.effective(path, reflect.ValueOf(target), &list, maxEffective)
	return list
}

// maxEffective bounds the depth, because a type may contain itself.
const maxEffective = 12

func (d *Document) effective(path string, v reflect.Value, list *[]Effective, depth int) {
	for v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	if depth == 0 || !v.IsValid() {
		return
	}
	add := func(value string) {
		one := Effective{Path: path, Value: value}
		if n, found := d.root.find(path); found && n.kind != kindEmpty {
			one.Source, one.Line = n.at.file, n.at.line
		}
		*list = append(*list, one)
	}
	switch {
	case isSecret(v.Type()):
		if v.IsZero() {
			add("")
		} else {
			add(secretSet)
		}
	case isScalar(v.Type()):
		add(written(v))
	case v.Kind() == reflect.Struct:
		for _, f := range fieldsOf(v.Type()) {
			d.effective(joinPath(path, f.name), v.FieldByIndex(f.index), list, depth-1)
		}
	case v.Kind() == reflect.Slice && v.Len() > 0 && isScalar(v.Type().Elem()) && !isSecret(v.Type().Elem()):
		words := make([]string, v.Len())
		for i := range words {
			words[i] = written(v.Index(i))
		}
		add("[" + strings.Join(words, ", ") + "]")
	case v.Kind() == reflect.Slice && v.Len() > 0:
		for i := range v.Len() {
			d.effective(fmt.Sprintf("%s[%d]", path, i), v.Index(i), list, depth-1)
		}
	case v.Kind() == reflect.Map && v.Len() > 0:
		keys := v.MapKeys()
		sorted.By(keys, func(a, b reflect.Value) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		for _, key := range keys {
			d.effective(joinPath(path, fmt.Sprint(key)), v.MapIndex(key), list, depth-1)
		}
	case v.Kind() == reflect.Interface && !v.IsNil():
		d.effective(path, v.Elem(), list, depth)
	default:
		add("")
	}
}

// isSecret reports whether a type hides its value when it is written as text (setting.Secret): it has a
// method Reveal.
func isSecret(t reflect.Type) bool {
	m, has := t.MethodByName("Reveal")
	return has && m.Type.NumOut() == 1
}

// written returns a scalar as a settings file has it.
func written(v reflect.Value) string {
	if v.Kind() == reflect.Int64 && isDuration(v.Type()) {
		return shortDuration(time.Duration(v.Int()))
	}
	if m, ok := v.Interface().(encoding.TextMarshaler); ok {
		text, err := m.MarshalText()
		if err != nil {
			return ""
		}
		return string(text)
	}
	return withoutPassword(fmt.Sprint(v.Interface()))
}

// withoutPassword cuts the user and password out of an address such as https://user:word@host.
func withoutPassword(text string) string {
	if !strings.Contains(text, "@") {
		return text
	}
	u, err := url.Parse(text)
	if err != nil || u.User == nil {
		if strings.Contains(text, "://") {
			return secretSet // it may hold a password that can't be found
		}
		return text
	}
	u.User = url.User(u.User.Username())
	return u.String()
}
