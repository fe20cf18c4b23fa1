package console

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"

	"github.com/millrace-io/millrace/pipeline/console"
)

// Bounds of the comparison of two payloads. What is nested deeper is compared as a whole.
const (
	comparedMembers = 500
	comparedDepth   = 20
	comparedName    = 100 // characters of a member's name
)

// comparison is a comparison as a table. What differs is found in the values as they are, so that two different
// values which are masked do not look the same.
func (m masks) comparison(c console.Comparison) console.Block {
	t := comparisonTable{masks: m, Table: console.Table{Columns: []console.Column{
		{Name: "field", Title: "Field"}, {Name: "compared", Title: "Compared"}, {Name: "first", Title: c.Titles[0]}, {Name: "second", Title: c.Titles[1]},
	}}}
	one, other := c.Sides[0], c.Sides[1]
	for _, name := range bothNames(namesOf(one.Fields), namesOf(other.Fields)) {
		a, b := cellNamed(one.Fields, name), cellNamed(other.Fields, name)
		t.add(name, sameCell(a, b), m.fieldCell(name, a), m.fieldCell(name, b))
	}
	for _, title := range bothNames(titlesOf(one.Folds), titlesOf(other.Folds)) {
		t.folds(title, foldNamed(one.Folds, title), foldNamed(other.Folds, title))
	}
	t.Note = fmt.Sprintf("%d of %d rows differ.", t.differ, len(t.Rows))
	if t.members > comparedMembers {
		t.Note += fmt.Sprintf(" Only the first %d members of the payloads are compared one by one.", comparedMembers)
	}
	return t.Table
}

// comparisonTable is a table that grows.
type comparisonTable struct {
	masks
	console.Table
	differ  int // rows
	members int // of payloads, also those without a row
}

func (t *comparisonTable) add(name string, same bool, a, b console.Cell) {
	compared := "same"
	if !same {
		compared = "differs"
		t.differ++
	}
	t.Rows = append(t.Rows, []console.Cell{console.Word(name), console.Word(compared), a, b})
}

// sameCell compares values rather than texts, because that of a time changes while it is read.
func sameCell(a, b console.Cell) bool {
	if a.Data == nil && b.Data == nil {
		return a.Text == b.Text
	}
	return reflect.DeepEqual(a.Data, b.Data)
}

// absent stands for what only the other side has.
func absent() console.Cell { return console.Cell{Text: "absent"} }

func (m masks) fieldCell(name string, c console.Cell) console.Cell {
	return m.stats(console.Stats{{Name: name, Cell: c}}, true)[0].Cell
}

// folds adds what is folded elsewhere.
func (t *comparisonTable) folds(title string, a, b console.Fold) {
	switch {
	case a.Headers != nil || b.Headers != nil:
		for _, name := range slices.Sorted(maps.Keys(union(a.Headers, b.Headers))) {
			one, inOne := a.Headers[name]
			other, inOther := b.Headers[name]
			t.add(title+" "+name, one == other && inOne == inOther, t.header(name, one, inOne), t.header(name, other, inOther))
		}
	case a.Payload != nil || b.Payload != nil:
		t.payloads(title, a.Payload, b.Payload)
	default:
		t.add(title, a.Text == b.Text, console.Word(t.text(a.Text)), console.Word(t.text(b.Text)))
	}
}

func (m masks) header(name, value string, there bool) console.Cell {
	switch {
	case !there:
		return absent()
	case m.hides(name):
		return console.Word(m.hidden())
	}
	return console.Word(m.text(value))
}

// payloads adds two payloads: member by member if both are JSON, because only its fields can be masked, and
// otherwise as a whole.
func (t *comparisonTable) payloads(title string, a, b []byte) {
	same := bytes.Equal(a, b) && (a == nil) == (b == nil)
	one, isJSON := decoded(a)
	other, areJSON := decoded(b)
	areJSON = areJSON && isJSON
	cell := func(payload []byte) console.Cell {
		switch {
		case payload == nil:
			return absent()
		case areJSON:
			return console.Word(fmt.Sprintf("%d bytes", len(payload)))
		}
		return console.Word(t.payload(title, payload).Text)
	}
	t.add(title, same, cell(a), cell(b))
	if areJSON && !t.inside(title+" ", 0, false, one, other) && !same {
		t.compared(title+" content", one, other, func(v any) string { return t.memberText(v, false) })
	}
}

// decoded returns an object or a list, with all digits of its numbers.
func decoded(payload []byte) (v any, ok bool) {
	d := json.NewDecoder(bytes.NewReader(payload))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return nil, false
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) { // more than one value
		return nil, false
	}
	switch v.(type) {
	case map[string]any, []any:
		return v, true
	}
	return nil, false
}

// missing is a member that only the other payload has.
type missing struct{}

// member adds the rows of a member at a path. named says that it belongs to a field that is shown.
func (t *comparisonTable) member(path string, depth int, named bool, a, b any) {
	if depth < comparedDepth && t.inside(path, depth, named, a, b) {
		return
	}
	t.compared(path, a, b, func(v any) string { return t.memberText(v, named) })
}

// inside adds the rows of what is in two objects or lists. It returns false for anything else, and for empty ones.
func (t *comparisonTable) inside(path string, depth int, named bool, a, b any) bool {
	one, isObject := a.(map[string]any)
	other, areObjects := b.(map[string]any)
	if isObject && areObjects {
		names := slices.Sorted(maps.Keys(union(one, other)))
		for _, name := range names {
			at := path + cut(name, comparedName)
			if depth > 0 {
				at = path + "." + cut(name, comparedName)
			}
			t.field(at, depth+1, name, valueOf(one, name), valueOf(other, name))
		}
		return len(names) > 0
	}
	list, isList := a.([]any)
	others, areLists := b.([]any)
	if !isList || !areLists {
		return false
	}
	for i := range max(len(list), len(others)) {
		t.member(fmt.Sprintf("%s[%d]", path, i), depth+1, named, itemOf(list, i), itemOf(others, i))
	}
	return len(list)+len(others) > 0
}

// field adds the rows of a member of an object, whose name may say that it is masked.
func (t *comparisonTable) field(path string, depth int, name string, a, b any) {
	if !t.hides(name) {
		t.member(path, depth, true, a, b)
		return
	}
	t.compared(path, a, b, func(any) string { return t.hidden() })
}

// compared adds the row of a member. text writes a value that is neither absent nor null.
func (t *comparisonTable) compared(path string, a, b any, text func(any) string) {
	if t.members++; t.members > comparedMembers {
		return
	}
	cell := func(v any) console.Cell {
		switch v.(type) {
		case missing:
			return absent()
		case nil:
			return console.Word("null")
		}
		return console.Word(text(v))
	}
	t.add(path, reflect.DeepEqual(a, b), cell(a), cell(b))
}

// memberText is a member as JSON.
func (m masks) memberText(v any, named bool) string {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	_ = e.Encode(v) // it was decoded from JSON
	return string(m.json(bytes.TrimSpace(text.Bytes()), named || len(m.names) == 0, true))
}

func valueOf(object map[string]any, name string) any {
	if v, there := object[name]; there {
		return v
	}
	return missing{}
}

func itemOf(list []any, i int) any {
	if i < len(list) {
		return list[i]
	}
	return missing{}
}

func union[V any](a, b map[string]V) map[string]V {
	all := maps.Clone(a)
	if all == nil {
		all = map[string]V{}
	}
	maps.Copy(all, b)
	return all
}

// bothNames returns the names of one list, and then those that only the other one has.
func bothNames(one, other []string) []string {
	names := slices.Clone(one)
	for _, name := range other {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

func namesOf(all console.Stats) []string {
	names := make([]string, len(all))
	for i, one := range all {
		names[i] = one.Name
	}
	return names
}

func titlesOf(all []console.Fold) []string {
	titles := make([]string, len(all))
	for i, one := range all {
		titles[i] = one.Title
	}
	return titles
}

func cellNamed(all console.Stats, name string) console.Cell {
	i := slices.IndexFunc(all, func(s console.Stat) bool { return s.Name == name })
	if i < 0 {
		return absent()
	}
	return all[i].Cell
}

func foldNamed(all []console.Fold, title string) console.Fold {
	i := slices.IndexFunc(all, func(f console.Fold) bool { return f.Title == title })
	if i < 0 {
		return console.Fold{Title: title}
	}
	return all[i]
}
