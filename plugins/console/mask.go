package console

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// masked stands for a value that is not shown.
const masked = "[masked]"

// masks hides the values of fields with these names. The zero value hides nothing.
type masks struct {
	names []string // see simple
	count *int     // of what was hidden; nil: not counted
}

func newMasks(fields []string) masks {
	var m masks
	for _, name := range fields {
		m.names = append(m.names, simple(name))
	}
	return m
}

// simple writes a name without case and without what stands between its words, so that accessToken,
// ACCESS_TOKEN and X-Access-Token have accesstoken in them.
func simple(name string) string {
	return strings.Map(func(c rune) rune {
		if unicode.IsLetter(c) || unicode.IsDigit(c) {
			return unicode.ToLower(c)
		}
		return -1
	}, name)
}

func (m masks) hides(name string) bool {
	name = simple(name)
	return slices.ContainsFunc(m.names, func(part string) bool { return strings.Contains(name, part) })
}

// hidden counts a value, and returns what stands for it.
func (m masks) hidden() string {
	if m.count != nil {
		*m.count++
	}
	return masked
}

// payload returns a payload as it is shown, and its title. What is no JSON has no names of fields, so that
// its length is all that is shown.
func (m masks) payload(title string, b []byte) console.Fold {
	first := bytes.TrimLeft(b, " \t\r\n")
	switch {
	case len(m.names) == 0 || len(b) == 0:
		return asText(title, b)
	case len(first) > 0 && (first[0] == '{' || first[0] == '[') && json.Valid(b):
		return console.Fold{Title: title, Text: string(m.json(b, false, true))}
	}
	m.hidden()
	return console.Fold{Title: title, Text: fmt.Sprintf("%d bytes, which are hidden because only JSON has fields that can be masked", len(b))}
}

// asText returns bytes as they are if they are text, and otherwise in base64.
func asText(title string, b []byte) console.Fold {
	if utf8.Valid(b) {
		return console.Fold{Title: title, Text: string(b)}
	}
	return console.Fold{Title: title + " base64", Text: base64.StdEncoding.EncodeToString(b)}
}

// headers returns headers as lines.
func (m masks) headers(all map[string]string) string {
	var lines strings.Builder
	for _, name := range slices.Sorted(maps.Keys(all)) {
		value := all[name]
		if m.hides(name) {
			value = m.hidden()
		}
		fmt.Fprintf(&lines, "%s: %s\n", name, m.text(value))
	}
	return lines.String()
}

// json hides values in valid JSON, and leaves everything else as it is written. named says that a value
// without a name of its own belongs to a field that is shown. byName says that the names of fields count, and
// not only what texts contain.
func (m masks) json(in []byte, named, byName bool) []byte {
	w := &walker{masks: m, in: in, byName: byName}
	w.value(named)
	w.out = append(w.out, in[w.at:]...)
	return w.out
}

// walker copies JSON that is valid.
type walker struct {
	masks
	in, out []byte
	at      int
	byName  bool
}

// copyTo copies up to an index.
func (w *walker) copyTo(end int) {
	w.out = append(w.out, w.in[w.at:end]...)
	w.at = end
}

// copySpace copies white space and the characters between values.
func (w *walker) copySpace() {
	end := w.at
	for end < len(w.in) && strings.IndexByte(" \t\r\n,:", w.in[end]) >= 0 {
		end++
	}
	w.copyTo(end)
}

func (w *walker) value(named bool) {
	w.copySpace()
	switch w.in[w.at] {
	case '{', '[':
		w.group(named)
	case '"':
		end := endOf(w.in, w.at)
		var text string
		_ = json.Unmarshal(w.in[w.at:end], &text) // it is valid
		if !named {
			w.hide(end)
		} else if seen := w.text(text); seen != text {
			w.write(seen, end)
		} else {
			w.copyTo(end)
		}
	default:
		end := endOf(w.in, w.at)
		if named || string(w.in[w.at:end]) == "null" {
			w.copyTo(end)
		} else {
			w.hide(end)
		}
	}
}

// group copies an object or a list.
func (w *walker) group(named bool) {
	object := w.in[w.at] == '{'
	w.copyTo(w.at + 1)
	for {
		w.copySpace()
		if c := w.in[w.at]; c == '}' || c == ']' {
			w.copyTo(w.at + 1)
			return
		}
		if !object {
			w.value(named)
			continue
		}
		end := endOf(w.in, w.at)
		var name string
		_ = json.Unmarshal(w.in[w.at:end], &name) // it is valid
		w.copyTo(end)
		w.copySpace()
		if !w.byName || !w.hides(name) {
			w.value(true) // without a look for its end, which would read each level of what is nested again
			continue
		}
		if end = endOf(w.in, w.at); string(w.in[w.at:end]) == "null" {
			w.copyTo(end)
		} else {
			w.hide(end)
		}
	}
}

func (w *walker) hide(end int) { w.write(w.hidden(), end) }

// write writes a text in place of what is up to an index.
func (w *walker) write(text string, end int) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(text) // a text can be encoded
	w.out = append(w.out, bytes.TrimRight(b.Bytes(), "\n")...)
	w.at = end
}

// endOf returns the index behind the value of valid JSON that begins at an index.
func endOf(in []byte, at int) int {
	depth, inText := 0, false
	for i := at; i < len(in); i++ {
		switch c := in[i]; {
		case inText && c == '\\':
			i++
		case c == '"':
			if inText = !inText; !inText && depth == 0 {
				return i + 1
			}
		case inText:
		case c == '{', c == '[':
			depth++
		case c == '}', c == ']':
			if depth == 0 {
				return i // behind a number or a word
			}
			if depth--; depth == 0 {
				return i + 1
			}
		case depth == 0 && strings.IndexByte(" \t\r\n,", c) >= 0:
			return i
		}
	}
	return len(in)
}

var (
	member = regexp.MustCompile(`(\\*)"([^"\\/?=&]{1,200})\\*"\s*:\s*`)
	bearer = regexp.MustCompile(`(?i)\b(bearer|basic) +[A-Za-z0-9._~+/=-]{8,}`)
)

// text hides in a text of any origin, such as an error, what is known to be a field: a member of JSON, also in
// the middle of the text or cut off, and a parameter of an address.
func (m masks) text(text string) string {
	if len(m.names) == 0 {
		return text
	}
	if first := strings.TrimLeft(text, " \t\r\n"); first != "" && (first[0] == '{' || first[0] == '[') && json.Valid([]byte(text)) {
		return string(m.json([]byte(text), true, true))
	}
	text = m.parameters(m.members(text))
	return bearer.ReplaceAllStringFunc(text, func(found string) string {
		scheme, _, _ := strings.Cut(found, " ")
		return scheme + " " + m.hidden()
	})
}

// parameters hides the values of parameters of an address.
func (m masks) parameters(text string) string {
	var out strings.Builder
	for {
		at := strings.IndexByte(text, '=')
		if at < 0 {
			return out.String() + text
		}
		name := text[max(0, at-longestName):at]
		name = name[strings.LastIndexFunc(name, func(c rune) bool { return !inName(c) })+1:]
		out.WriteString(text[:at+1])
		if text = text[at+1:]; !m.hides(name) || strings.HasPrefix(text, masked) {
			continue
		}
		if quote := text[:min(1, len(text))]; quote == `"` || quote == "'" {
			out.WriteString(quote + m.hidden() + quote)
			_, text, _ = strings.Cut(text[1:], quote)
			continue
		}
		end := strings.IndexAny(text, " \t\r\n\f&\"',;)")
		if end < 0 {
			end = len(text)
		}
		if end > 0 {
			out.WriteString(m.hidden())
			text = text[end:]
		}
	}
}

// longestName is the longest name of a parameter, in bytes, that is looked at.
const longestName = 200

func inName(c rune) bool {
	return c == '_' || c == '.' || c == '-' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// members hides members of JSON inside of a text. A value that does not end is hidden up to the end of the text.
func (m masks) members(text string) string {
	var out strings.Builder
	for {
		found := member.FindStringSubmatchIndex(text)
		if found == nil {
			return out.String() + text
		}
		out.WriteString(text[:found[1]])
		escape, name := text[found[2]:found[3]], text[found[4]:found[5]]
		if text = text[found[1]:]; !m.hides(name) || text == "" {
			continue
		}
		quote := escape + `"`
		switch {
		case strings.HasPrefix(text, quote):
			out.WriteString(quote + m.hidden() + quote)
			text = behind(text[len(quote):], len(escape))
		case text[0] == '{' || text[0] == '[':
			out.WriteString(m.hidden())
			return out.String()
		case strings.HasPrefix(text, "null"):
		default:
			out.WriteString(m.hidden())
			if end := strings.IndexAny(text, " ,}]\t\r\n\"\\"); end >= 0 {
				text = text[end:]
			} else {
				text = ""
			}
		}
	}
}

// behind returns what follows the quote that ends a text, which has as many backslashes before it.
func behind(text string, escapes int) string {
	run := 0
	for i := range len(text) {
		switch text[i] {
		case '\\':
			run++
			continue
		case '"':
			if run == escapes {
				return text[i+1:]
			}
		}
		run = 0
	}
	return ""
}

// data hides values in what programs get. byName says that the names of fields count.
func (m masks) data(v any, byName bool) any {
	switch v := v.(type) {
	case nil, bool, int, int32, int64, float64:
		return v
	case string:
		return m.text(v)
	}
	if len(m.names) == 0 {
		return v
	}
	text, err := json.Marshal(v)
	if err != nil { // the answer will say what is wrong
		return v
	}
	return json.RawMessage(m.json(text, true, byName))
}

// cell hides what the texts of a cell contain.
func (m masks) cell(c console.Cell) console.Cell {
	c.Text, c.Data = m.text(c.Text), masks{names: m.names}.data(c.Data, false)
	lines := slices.Clone(c.Lines)
	for i, line := range lines {
		lines[i] = m.cell(line)
	}
	c.Lines = lines
	return c
}

// block returns a block without what is hidden.
func (m masks) block(b console.Block) console.Block {
	switch b := b.(type) {
	case console.Table:
		rows := make([][]console.Cell, len(b.Rows))
		for i, row := range b.Rows {
			rows[i] = make([]console.Cell, len(row))
			for c := range row {
				rows[i][c] = m.cell(row[c])
			}
		}
		b.Rows = rows
		return b
	case console.Stats:
		return m.stats(b, false)
	case console.Series:
		lines := slices.Clone(b.Lines)
		for i := range lines {
			lines[i].Name = m.text(lines[i].Name)
		}
		b.Lines = lines
		return b
	case console.Record:
		b.Fields = m.stats(b.Fields, true)
		folds := make([]console.Fold, len(b.Folds))
		for i, f := range b.Folds {
			folds[i] = m.fold(f)
		}
		b.Folds = folds
		return b
	case console.Comparison:
		return m.comparison(b)
	case console.Text:
		return console.Text(m.text(string(b)))
	case console.Checks:
		return console.Checks(m.checks(b))
	case console.Answer:
		return console.Answer(m.answer(operate.Answer(b), true))
	case console.HTML:
		b.Data = m.data(b.Data, true)
		return b
	case console.Blocks:
		all := make(console.Blocks, len(b))
		for i, one := range b {
			all[i] = m.block(one)
		}
		return all
	}
	return b
}

// stats hides values. Those of a record are fields of a thing, so that their names count.
func (m masks) stats(all console.Stats, byName bool) console.Stats {
	shown := make(console.Stats, len(all))
	for i, one := range all {
		if shown[i] = (console.Stat{Name: one.Name, Cell: m.cell(one.Cell)}); byName && one.Cell.Text != "" && m.hides(one.Name) {
			shown[i].Cell = console.Word(m.hidden())
		}
	}
	return shown
}

func (m masks) fold(f console.Fold) console.Fold {
	switch {
	case f.Headers != nil:
		return console.Fold{Title: f.Title, Text: m.headers(f.Headers)}
	case f.Payload != nil:
		return m.payload(f.Title, f.Payload)
	}
	return console.Fold{Title: f.Title, Text: m.text(f.Text)}
}

func (m masks) checks(all []operate.Check) []operate.Check {
	shown := slices.Clone(all)
	for i := range shown {
		shown[i].Name, shown[i].Text, shown[i].Remedy = m.text(shown[i].Name), m.text(shown[i].Text), m.text(shown[i].Remedy)
	}
	return shown
}

// answer hides what the texts of an answer contain, and with byName the fields of its value.
func (m masks) answer(a operate.Answer, byName bool) operate.Answer {
	a.Value, a.Checks = masks{names: m.names}.data(a.Value, byName), m.checks(a.Checks)
	texts := func(list []string) []string {
		shown := make([]string, len(list))
		for i, text := range list {
			shown[i] = m.text(text)
		}
		return shown
	}
	a.Lines, a.Notes = texts(a.Lines), texts(a.Notes)
	tables := slices.Clone(a.Tables)
	for i, t := range tables {
		tables[i].Rows = make([][]string, len(t.Rows))
		for r, row := range t.Rows {
			tables[i].Rows[r] = texts(row)
		}
	}
	a.Tables = tables
	return a
}
