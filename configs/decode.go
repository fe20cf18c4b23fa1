package configs

import (
	"encoding"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Decode writes the section at a dotted path over target, a pointer to a struct that holds the
// defaults. Path "" is the top level without the plugins and the profile. A section that no layer
// has leaves target unchanged. Fields are named by their yaml tags. Lists and scalars replace a
// default; sections and maps are merged into it. See Defaulter for values without a default.
//
// The error holds all mistakes, as *Error: unknown keys with a suggestion, and values of the wrong
// type. target may then be partly written and must not be used.
func (d *Document) Decode(path string, target any) error {
	v := reflect.ValueOf(target)
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
		return fmt.Errorf("decode %s: target must be a pointer to a struct, got %T", path, target)
	}
	d.claimed[path] = true
	n, found := d.root.find(path)
	if !found {
		// Something that is no section stands in the way of the path.
		if n.kind != kindSection && n.kind != kindEmpty {
			return &Error{n.at.file, n.at.line, d.above(path), "expected a section, got " + n.describe(), nil}
		}
		return nil
	}
	w := &walker{top: v.Elem().Type(), topPath: path, claimed: d.claimed, credentials: d.credentials}
	switch {
	case path == "":
		w.skip = []string{profileKey, pluginsKey}
	case isPlugin(path):
		w.skip = []string{enabledKey}
	}
	w.value(n, path, v.Elem())
	return join(w.errs)
}

// above returns the path of the nearest setting above path that is written.
func (d *Document) above(path string) string {
	for {
		i := strings.LastIndexByte(path, '.')
		if i < 0 {
			return path
		}
		path = path[:i]
		if _, found := d.root.find(path); found {
			return path
		}
	}
}

// walker writes nodes into Go values and collects what doesn't fit.
type walker struct {
	top     reflect.Type
	topPath string
	skip    []string // keys of the top section that are not the target's
	claimed map[string]bool
	// credentials is the folder of systemd's credentials; empty: there is none.
	credentials string
	errs        []*Error
}

func (w *walker) fail(n *node, path, format string, args ...any) {
	w.errs = append(w.errs, &Error{n.at.file, n.at.line, path, fmt.Sprintf(format, args...), nil})
}

func (w *walker) expected(n *node, path, what string) {
	w.fail(n, path, "expected %s, got %s", what, n.describe())
}

// value writes n into v, which is settable and holds the default.
func (w *walker) value(n *node, path string, v reflect.Value) {
	if n.kind == kindEmpty {
		return
	}
	if isScalar(v.Type()) {
		if n.kind != kindScalar {
			w.expected(n, path, expectation(v.Type()))
			return
		}
		w.scalar(n, path, v)
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			v.Set(newDefault(v.Type().Elem()))
		}
		w.value(n, path, v.Elem())
	case reflect.Struct:
		w.section(n, path, v)
	case reflect.Map:
		w.mapping(n, path, v)
	case reflect.Slice:
		w.list(n, path, v)
	case reflect.Interface:
		plain, err := n.plain()
		if err != nil {
			w.fail(n, path, "%s", err)
			return
		}
		v.Set(reflect.ValueOf(plain))
	default:
		w.fail(n, path, "can't be set: the program has a field of type %s", v.Type())
	}
}

func (w *walker) section(n *node, path string, v reflect.Value) {
	if n.kind != kindSection {
		w.expected(n, path, "a section")
		return
	}
	known := fieldsOf(v.Type())
	for _, key := range n.order {
		child, at := n.fields[key], joinPath(path, key)
		if path == w.topPath && slices.Contains(w.skip, key) {
			continue
		}
		i := slices.IndexFunc(known, func(f field) bool { return f.name == key })
		if i < 0 {
			w.fail(child, at, "unknown setting%s", w.suggest(key, path, known))
			continue
		}
		w.value(child, at, v.FieldByIndex(known[i].index))
	}
}

// suggest names a similar key of this section, or a section of the target that has the same key.
func (w *walker) suggest(key, path string, known []field) string {
	var names []string
	if path == w.topPath {
		names = append(names, w.skip...)
	}
	for _, f := range known {
		names = append(names, f.name)
	}
	if suggestion := didYouMean(key, names); suggestion != "" {
		return suggestion
	}
	if plugin := joinPath(pluginsKey, key); path == "" && w.claimed[plugin] {
		return fmt.Sprintf("; did you mean %q?", plugin)
	}
	for _, p := range leafPaths(w.top, w.topPath, 8) {
		if strings.HasSuffix(p, "."+key) && p != joinPath(path, key) {
			return fmt.Sprintf("; did you mean %q?", p)
		}
	}
	return ""
}

func (w *walker) mapping(n *node, path string, v reflect.Value) {
	t := v.Type()
	if n.kind != kindSection || t.Key().Kind() != reflect.String {
		w.expected(n, path, expectation(t))
		return
	}
	// A copy: the default may be shared with other values of the type.
	out := reflect.MakeMapWithSize(t, v.Len()+len(n.order))
	for it := v.MapRange(); it.Next(); {
		out.SetMapIndex(it.Key(), it.Value())
	}
	for _, key := range n.order {
		k := reflect.ValueOf(key).Convert(t.Key())
		element := newDefault(t.Elem()).Elem()
		if old := out.MapIndex(k); old.IsValid() {
			element.Set(old)
		}
		w.value(n.fields[key], joinPath(path, key), element)
		out.SetMapIndex(k, element)
	}
	v.Set(out)
}

func (w *walker) list(n *node, path string, v reflect.Value) {
	items := n.items
	switch {
	case n.kind == kindList:
	case n.kind == kindScalar && n.commas:
		for part := range strings.SplitSeq(n.scalar.Value, ",") {
			if part = strings.TrimSpace(part); part != "" {
				items = append(items, textNode(n.at, part))
			}
		}
	default:
		w.expected(n, path, expectation(v.Type()))
		return
	}
	// A new array: elements of the default must not show through.
	out := reflect.MakeSlice(v.Type(), len(items), len(items))
	for i, item := range items {
		out.Index(i).Set(newDefault(v.Type().Elem()).Elem())
		at := fmt.Sprintf("%s[%d]", path, i)
		if item.kind == kindEmpty {
			w.expected(item, at, expectation(v.Type().Elem()))
			continue
		}
		w.value(item, at, out.Index(i))
	}
	v.Set(out)
}

// Defaulter is implemented by settings that exist only if a layer has them: behind a nil pointer,
// in a list or in a map. SetDefaults is called before they are decoded.
type Defaulter interface{ SetDefaults() }

func newDefault(t reflect.Type) reflect.Value {
	v := reflect.New(t)
	if d, ok := v.Interface().(Defaulter); ok {
		d.SetDefaults()
	}
	return v
}

func isDuration(t reflect.Type) bool { return t == reflect.TypeFor[time.Duration]() }

func isLevel(t reflect.Type) bool { return t == reflect.TypeFor[slog.Level]() }

// readsText reports whether a value of type t reads itself from text.
func readsText(t reflect.Type) bool {
	return reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

// isScalar reports whether t is written as one word or number.
func isScalar(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.String, reflect.Bool, reflect.Float32, reflect.Float64,
		reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return true
	default:
		return t.Kind() != reflect.Pointer && readsText(t)
	}
}

// expectation says in plain words what a value of type t looks like.
func expectation(t reflect.Type) string {
	switch {
	case isDuration(t):
		return "a duration such as 5s or 100ms"
	case isLevel(t):
		return "debug, info, warn or error"
	case readsText(t):
		return "a text"
	}
	switch t.Kind() {
	case reflect.String:
		return "a text"
	case reflect.Bool:
		return "true or false"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Slice:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "a section"
	case reflect.Pointer:
		return expectation(t.Elem())
	case reflect.Uint, reflect.Uint64:
		return "a whole number, not negative"
	case reflect.Uint8, reflect.Uint16, reflect.Uint32:
		return fmt.Sprintf("a whole number from 0 to %d", uint64(1)<<t.Bits()-1)
	case reflect.Int8, reflect.Int16, reflect.Int32:
		return fmt.Sprintf("a whole number from -%d to %d", int64(1)<<(t.Bits()-1), int64(1)<<(t.Bits()-1)-1)
	default:
		return "a whole number"
	}
}

func (w *walker) scalar(n *node, path string, v reflect.Value) {
	text, tag := n.scalar.Value, n.scalar.ShortTag()
	fits := false
	switch {
	case isLevel(v.Type()):
		level := slog.LevelInfo
		if fits = level.UnmarshalText([]byte(text)) == nil; fits {
			v.Set(reflect.ValueOf(level))
		}
	case readsText(v.Type()):
		resolved, err := w.resolve(text)
		if err == nil {
			err = v.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(resolved))
		}
		if err != nil {
			// Never with the value: it may be a secret.
			w.fail(n, path, "%s", err)
			w.errs[len(w.errs)-1].cause = err
		}
		return
	case isDuration(v.Type()):
		d, err := time.ParseDuration(text)
		if fits = err == nil; fits {
			v.SetInt(int64(d))
		}
	case v.Kind() == reflect.String:
		resolved, err := w.resolve(text)
		if err != nil {
			w.fail(n, path, "%s", err)
			return
		}
		fits = true
		v.SetString(resolved)
	case v.Kind() == reflect.Bool:
		var b bool
		if fits = tag == boolTag && n.scalar.Decode(&b) == nil; fits {
			v.SetBool(b)
		}
	case v.CanFloat():
		var f float64
		if fits = (tag == floatTag || tag == intTag) && n.scalar.Decode(&f) == nil && !v.OverflowFloat(f); fits {
			v.SetFloat(f)
		}
	case v.CanInt():
		var i int64
		if fits = tag == intTag && n.scalar.Decode(&i) == nil && !v.OverflowInt(i); fits {
			v.SetInt(i)
		}
	case v.CanUint():
		var u uint64
		if fits = tag == intTag && n.scalar.Decode(&u) == nil && !v.OverflowUint(u); fits {
			v.SetUint(u)
		}
	}
	if !fits {
		w.expected(n, path, expectation(v.Type()))
	}
}
