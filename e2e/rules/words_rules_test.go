package rules_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The rules.
const (
	ruleWord   = "word"
	ruleStart  = "start"
	ruleLength = "sentence"
	ruleLine   = "line"
	ruleName   = "name"
)

const (
	longestSentence = 25
	longestCell     = 15
	longestLine     = 100
)

// finding is a place that breaks a rule.
type finding struct {
	class, file string
	line        int
	rule        string
	words       string
	use         string
}

func (f finding) String() string {
	return fmt.Sprintf("%s:%d: %s %s: %q: %s", f.file, f.line, f.class, f.rule, f.words, f.use)
}

// checkBlock returns the findings of a block.
func checkBlock(b *block, table []wording) []finding {
	var list []finding
	found := func(at int, rule, words, use string) {
		list = append(list, finding{class: b.class, file: b.file, line: b.line(at), rule: rule, words: words, use: use})
	}
	for _, w := range table {
		for _, at := range w.bad.FindAllStringIndex(b.text, -1) {
			words := b.text[at[0]:at[1]]
			near := words
			if w.use == "dead letter" || !strings.Contains(w.use, `"per"`) {
				near = b.text[max(0, at[0]-24):min(len(b.text), at[1]+24)]
			}
			if w.except != nil && w.except.MatchString(near) || strings.HasPrefix(b.text[at[1]:], "=") {
				continue
			}
			found(at[0], ruleWord, words, "write: "+w.use)
		}
	}
	if b.example {
		return list
	}
	for _, s := range sentences(b.text) {
		if !b.heading && badStart(b, s) {
			found(s.at, ruleStart, beginning(s.text), "begin with the component that acts")
		}
		if n := countWords(s.text); n > longestSentence && !b.cell {
			found(s.at, ruleLength, beginning(s.text), fmt.Sprintf("%d words, at most %d: make it several sentences", n, longestSentence))
		}
	}
	if n := countWords(b.text); b.cell && n > longestCell {
		found(0, ruleLength, beginning(b.text), fmt.Sprintf("%d words, at most %d in a cell: shorten it, or use a list", n, longestCell))
	}
	return list
}

type sentence struct {
	at   int
	text string
}

var (
	sentenceEnd  = regexp.MustCompile(`[.!?][)"'”*_]*\s`)
	abbreviation = regexp.MustCompile(`(?:\b(?:e\.g|i\.e|etc|vs|cf|resp|approx|no)|\.\.)\.$`)
	questionable = regexp.MustCompile(`^[("'“*_]*(?:What|Who|Whoever|Whose|Whom|Of) \S+ \S`)
	loose        = regexp.MustCompile(`(?i)^(?:what|who|whoever|whose|whom) \S+ \S`)
)

// sentences splits a text at full stops, question and exclamation marks.
func sentences(text string) []sentence {
	var list []sentence
	from := 0
	for _, end := range sentenceEnd.FindAllStringIndex(text, -1) {
		upTo := strings.TrimRightFunc(text[from:end[1]], unicode.IsSpace)
		if abbreviation.MatchString(upTo) {
			continue
		}
		list = append(list, sentence{at: from, text: upTo})
		from = end[1]
	}
	if rest := strings.TrimSpace(text[from:]); rest != "" {
		list = append(list, sentence{at: from, text: rest})
	}
	return list
}

// badStart reports whether a sentence begins with a word that hides its subject. Help texts begin
// in lower case.
func badStart(b *block, s sentence) bool {
	if strings.HasSuffix(strings.TrimRight(s.text, `)"'*_`), "?") {
		return false
	}
	if questionable.MatchString(s.text) {
		return true
	}
	return (b.class == classHelp || b.class == classMetric) && loose.MatchString(s.text)
}

func countWords(text string) int {
	n := 0
	for word := range strings.FieldsSeq(text) {
		if strings.ContainsFunc(word, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }) {
			n++
		}
	}
	return n
}

func beginning(text string) string {
	words := strings.Fields(text)
	if len(words) > 8 {
		return strings.Join(words[:8], " ") + " …"
	}
	return strings.Join(words, " ")
}

// wide returns the findings of lines over the limit in Markdown: not in tables, fenced code, and
// lines with a URL.
func wide(file, text string) []finding {
	var list []finding
	fenced := false
	for i, line := range strings.Split(text, "\n") {
		trimmed := strings.TrimSpace(line)
		if strings.HasPrefix(trimmed, "```") {
			fenced = !fenced
		}
		if fenced || strings.HasPrefix(trimmed, "|") || bareURL.MatchString(line) || linkOnly.MatchString(trimmed) {
			continue
		}
		if n := utf8.RuneCountInString(line); n > longestLine {
			list = append(list, finding{class: classReadme, file: file, line: i + 1, rule: ruleLine, words: beginning(line), use: fmt.Sprintf("%d columns, at most %d", n, longestLine)})
		}
	}
	return list
}

var linkOnly = regexp.MustCompile(`^(?:[-*] )?!?\[[^\]]*\]\([^)]*\)$`)

// wideComments returns the findings of lines over the limit that end in a comment of Go.
func wideComments(file, text string, tree *ast.File, fset *token.FileSet) []finding {
	class := classComment
	if strings.HasSuffix(file, "_test.go") {
		class = classTest
	}
	lines := strings.Split(text, "\n")
	var list []finding
	for _, group := range tree.Comments {
		for _, c := range group.List {
			if strings.HasPrefix(c.Text, "//go:") || strings.HasPrefix(c.Text, "//nolint") || strings.HasPrefix(c.Text, "/*") {
				continue
			}
			at := fset.Position(c.Pos())
			line := strings.TrimRight(lines[at.Line-1], "\r")
			before := line[:at.Column-1]
			n, code := columns(line), columns(before)
			if n > longestLine && code <= longestLine && !bareURL.MatchString(line) {
				list = append(list, finding{class: class, file: file, line: at.Line, rule: ruleLine, words: beginning(c.Text), use: fmt.Sprintf("%d columns, at most %d", n, longestLine)})
			}
		}
	}
	return list
}

func columns(line string) int {
	return utf8.RuneCountInString(line) + 3*strings.Count(line, "\t")
}
