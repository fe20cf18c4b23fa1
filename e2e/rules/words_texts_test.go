package rules_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// The classes of texts.
const (
	classReadme     = "readme"
	classHelp       = "help"
	classMetric     = "metric"
	classLog        = "log"
	classError      = "error"
	classComment    = "comment"
	classIdentifier = "identifier"
	classTest       = "test"
)

// block is a run of sentences: a paragraph, an item of a list, a cell of a table, a string.
type block struct {
	class, file string
	text        string
	starts      []int // where each line begins in text
	lines       []int // the line in the file, for each of starts
	heading     bool
	cell        bool
	example     bool // commands and their output, not sentences
}

func (b *block) add(line int, text string) {
	text = strings.TrimSpace(text)
	if text == "" {
		return
	}
	if b.text != "" {
		b.text += " "
	}
	b.starts = append(b.starts, len(b.text))
	b.lines = append(b.lines, line)
	b.text += text
}

// line returns the line of the file that a place in the text comes from.
func (b *block) line(at int) int {
	i, found := slices.BinarySearch(b.starts, at)
	if !found {
		i--
	}
	return b.lines[max(i, 0)]
}

// blocks collects the blocks of one file.
type blocks struct {
	class, file string
	list        []block
	open        *block
}

func (bs *blocks) close() {
	if bs.open != nil && bs.open.text != "" {
		bs.list = append(bs.list, *bs.open)
	}
	bs.open = nil
}

func (bs *blocks) add(line int, text string) {
	if bs.open == nil {
		bs.open = &block{class: bs.class, file: bs.file}
	}
	bs.open.add(line, text)
}

func (bs *blocks) alone(line int, text string, set func(*block)) {
	bs.close()
	bs.add(line, text)
	if set != nil {
		set(bs.open)
	}
	bs.close()
}

var (
	inlineCode = regexp.MustCompile("``[^`]+``|`[^`]+`")
	linkTarget = regexp.MustCompile(`\]\([^)]*\)`)
	bareURL    = regexp.MustCompile(`https?://[^\s)>]+`)
	listItem   = regexp.MustCompile(`^\s*(?:[-*+•]|[0-9]+[.)]) +`)
	scriptPart = regexp.MustCompile(`^ (?:KEYS\[|ARGV\[|Repl(?:y|ies)\b|Returns\b|O\()`)
	tableRule  = regexp.MustCompile(`^[\s|:-]+$`)
)

// withoutCode replaces inline code and the targets of links, which are not words, by one word each.
func withoutCode(text string) string {
	text = inlineCode.ReplaceAllString(text, "CODE")
	text = linkTarget.ReplaceAllString(text, "]")
	return bareURL.ReplaceAllString(text, "URL")
}

// markdown returns the blocks of a Markdown file, without its fenced code.
func markdown(file, text string) []block {
	bs := blocks{class: classReadme, file: file}
	fenced, table := false, false
	for i, line := range strings.Split(text, "\n") {
		n := i + 1
		trimmed := strings.TrimSpace(line)
		if strings.HasPrefix(trimmed, "```") {
			bs.close()
			fenced = !fenced
			continue
		}
		isRow := strings.HasPrefix(trimmed, "|")
		switch {
		case fenced:
		case trimmed == "" || strings.HasPrefix(trimmed, "<!--"):
			bs.close()
		case isRow && tableRule.MatchString(trimmed):
		case isRow:
			head := !table
			for cell := range strings.SplitSeq(strings.ReplaceAll(withoutCode(trimmed), `\|`, "/"), "|") {
				bs.alone(n, cell, func(b *block) { b.cell, b.heading = true, head })
			}
		case strings.HasPrefix(trimmed, "#"):
			bs.alone(n, withoutCode(strings.TrimLeft(trimmed, "# ")), func(b *block) { b.heading = true })
		default:
			if item := listItem.FindString(line); item != "" {
				bs.close()
				line = line[len(item):]
			}
			bs.add(n, strings.TrimPrefix(withoutCode(line), "> "))
		}
		table = isRow
	}
	bs.close()
	return bs.list
}

// marked returns the blocks of the comments of a file whose comments begin with marker and end with
// the line.
func marked(file, text, marker string) []block {
	bs := blocks{class: classComment, file: file}
	for i, line := range strings.Split(text, "\n") {
		trimmed := strings.TrimSpace(line)
		comment, found := strings.CutPrefix(trimmed, marker)
		switch {
		case found:
			bs.comment(i+1, comment)
		case strings.Contains(line, " "+marker+" "):
			_, comment, _ := strings.Cut(line, " "+marker+" ")
			bs.alone(i+1, withoutCode(comment), nil)
		default:
			bs.close()
		}
	}
	bs.close()
	return bs.list
}

// comment adds a line of a comment; a blank one and an item of a list end the block before it.
func (bs *blocks) comment(line int, text string) {
	text = strings.TrimRight(text, " \t")
	switch {
	case text == "" || strings.HasPrefix(text, "\t") || strings.HasPrefix(text, "     "):
		if !strings.HasPrefix(text, "     ") || bs.open == nil {
			bs.close()
			return
		}
		bs.add(line, withoutCode(text))
	case strings.HasPrefix(text, " # "):
		bs.alone(line, withoutCode(text[3:]), func(b *block) { b.heading = true })
	default:
		if item := listItem.FindString(text); item != "" && strings.HasPrefix(item, "  ") {
			bs.close()
			text = text[len(item):]
		}
		if scriptPart.MatchString(text) {
			bs.close()
		}
		bs.add(line, withoutCode(text))
	}
}

// makefile returns the help texts of a Makefile; its other comments are in marked.
func makefile(file, text string) []block {
	var list []block
	for i, line := range strings.Split(text, "\n") {
		if _, help, found := strings.Cut(line, " ## "); found {
			list = append(list, single(classHelp, file, i+1, help))
		}
	}
	return list
}

func single(class, file string, line int, text string) block {
	b := block{class: class, file: file}
	b.add(line, withoutCode(text))
	return b
}

// described returns the texts of a YAML or JSON file that a person reads: descriptions, summaries,
// titles.
func described(file, text string) []block {
	var list []block
	var walk func(*yaml.Node)
	walk = func(n *yaml.Node) {
		for i, child := range n.Content {
			if n.Kind == yaml.MappingNode && i%2 == 0 && slices.Contains([]string{"description", "summary", "title"}, child.Value) {
				if value := n.Content[i+1]; value.Kind == yaml.ScalarNode && value.Value != "" {
					list = append(list, single(classHelp, file, value.Line, value.Value))
				}
			}
			walk(child)
		}
	}
	var doc yaml.Node
	if yaml.Unmarshal([]byte(text), &doc) == nil {
		walk(&doc)
	}
	return list
}

// goTexts returns the blocks of a Go file: its comments, and the strings that a person reads.
func goTexts(file, text string) ([]block, *ast.File, *token.FileSet, error) {
	fset := token.NewFileSet()
	tree, err := parser.ParseFile(fset, file, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, nil, nil, err
	}
	test := strings.HasSuffix(file, "_test.go")
	class := classComment
	if test {
		class = classTest
	}
	bs := blocks{class: class, file: file}
	for _, group := range tree.Comments {
		for _, c := range group.List {
			line := fset.Position(c.Pos()).Line
			if body, found := strings.CutPrefix(c.Text, "//"); found {
				if strings.HasPrefix(body, "go:") || strings.HasPrefix(body, "nolint") || strings.HasPrefix(strings.TrimSpace(body), "Output:") {
					bs.close()
					continue
				}
				bs.comment(line, body)
				continue
			}
			for i, body := range strings.Split(strings.TrimSuffix(strings.TrimPrefix(c.Text, "/*"), "*/"), "\n") {
				bs.comment(line+i, " "+body)
			}
		}
		bs.close()
	}
	list := bs.list
	ast.Inspect(tree, func(n ast.Node) bool {
		for _, s := range read(n) {
			value, ok := literal(s.at)
			if !ok || strings.TrimSpace(value) == "" {
				continue
			}
			if test {
				s.class = classTest
			}
			list = append(list, said(s.class, file, fset.Position(s.at.Pos()).Line, value, s.example)...)
		}
		return true
	})
	return list, tree, fset, nil
}

// said returns the blocks of a string: its paragraphs, or its lines when they are examples.
func said(class, file string, line int, text string, example bool) []block {
	bs := blocks{class: class, file: file}
	for i, part := range strings.Split(text, "\n") {
		at := line
		if strings.Contains(text, "\n") {
			at += i
		}
		switch {
		case example:
			if _, comment, found := strings.Cut(part, "#"); found {
				bs.alone(at, comment, func(b *block) { b.example = true })
			}
		case strings.TrimSpace(part) == "":
			bs.close()
		case strings.HasPrefix(part, "  "), strings.HasPrefix(part, "\t"):
			bs.alone(at, withoutCode(part), nil)
		default:
			bs.add(at, withoutCode(part))
		}
	}
	bs.close()
	return bs.list
}

// shown is a string that a person reads.
type shown struct {
	class   string
	at      ast.Expr
	example bool
}

var (
	flagCall   = regexp.MustCompile(`^(?:Bool|String|U?[Ii]nt(?:8|16|32|64)?|Float64|Duration|Count|Text|String(?:Slice|Array)|DurationSlice|IntSlice)?(?:Var)?P?F?$`)
	logCall    = regexp.MustCompile(`^(?:Debug|Info|Warn|Error)(Context)?$`)
	metricCall = regexp.MustCompile(`^(?:counter|gauge|histogram|desc|summary)(?:Vec|Func)?$`)
	metricName = regexp.MustCompile(`^[a-z0-9_]+$`)
)

// read returns the strings in a node, not below it, that a person reads.
func read(n ast.Node) []shown {
	switch n := n.(type) {
	case *ast.KeyValueExpr:
		if key, ok := n.Key.(*ast.Ident); ok {
			switch key.Name {
			case "Short", "Long":
				return []shown{{class: classHelp, at: n.Value}}
			case "Example":
				return []shown{{class: classHelp, at: n.Value, example: true}}
			case "Help":
				return []shown{{class: classMetric, at: n.Value}}
			}
		}
	case *ast.CallExpr:
		return readCall(n)
	}
	return nil
}

func readCall(call *ast.CallExpr) []shown {
	name, of := called(call)
	arg := func(class string, i int) []shown {
		if i < len(call.Args) {
			return []shown{{class: class, at: call.Args[i]}}
		}
		return nil
	}
	switch {
	case of == "errors" && name == "New", of == "fmt" && name == "Errorf", name == "errorf":
		return arg(classError, 0)
	case name == "NewDesc":
		return arg(classMetric, 1)
	case of == "" && metricCall.MatchString(name) && len(call.Args) >= 2:
		if first, ok := literal(call.Args[0]); ok && metricName.MatchString(first) {
			return arg(classMetric, 1)
		}
	case of != "" && logCall.MatchString(name):
		if strings.HasSuffix(name, "Context") {
			return arg(classLog, 1)
		}
		return arg(classLog, 0)
	case name == "LogAttrs" || name == "Log":
		return arg(classLog, 2)
	case of != "" && len(call.Args) >= 3 && name != "" && flagCall.MatchString(name):
		return arg(classHelp, len(call.Args)-1)
	}
	return nil
}

// called returns the name of what is called, and the last name of what it is called on.
func called(call *ast.CallExpr) (name, of string) {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name, ""
	case *ast.SelectorExpr:
		switch x := f.X.(type) {
		case *ast.Ident:
			return f.Sel.Name, x.Name
		case *ast.SelectorExpr:
			return f.Sel.Name, x.Sel.Name
		default:
			return f.Sel.Name, "?"
		}
	}
	return "", ""
}

// literal returns the value of a string in the source; parts of it that are not literals become one
// word.
func literal(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind != token.STRING {
			return "", false
		}
		value, err := strconv.Unquote(e.Value)
		return value, err == nil
	case *ast.ParenExpr:
		return literal(e.X)
	case *ast.CallExpr:
		if name, of := called(e); of == "fmt" && name == "Sprintf" && len(e.Args) > 0 {
			return literal(e.Args[0])
		}
	case *ast.BinaryExpr:
		left, okLeft := literal(e.X)
		right, okRight := literal(e.Y)
		if e.Op != token.ADD || !okLeft && !okRight {
			return "", false
		}
		if !okLeft {
			left = "CODE"
		}
		if !okRight {
			right = "CODE"
		}
		return left + right, true
	}
	return "", false
}
