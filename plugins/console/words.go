package console

import (
	"regexp"
	"slices"
	"strings"

	"github.com/millrace-io/millrace/pipeline/operate"
)

// A flag in a text, and the end of a clause, which is also the end of a command in it.
var (
	flagWord  = regexp.MustCompile(`--([a-z][a-z0-9-]*)`)
	clauseEnd = regexp.MustCompile(`[;.:(),]\s|[(]`)
)

// words returns a text about the action as a form and a program know its fields: by their names. Plugins write their
// texts for the command, whose fields are flags. The flags of a command that the text tells to run stay.
func (a action) words(text string) string {
	var b strings.Builder
	for text != "" {
		clause := text
		if end := clauseEnd.FindStringIndex(text); end != nil {
			clause = text[:end[1]]
		}
		text = text[len(clause):]
		if !strings.Contains(clause, "millrace ") && !strings.Contains(clause, a.Name+" ") {
			clause = flagWord.ReplaceAllStringFunc(clause, func(flag string) string {
				if name := strings.TrimPrefix(flag, "--"); hasField(a, name) {
					return name
				}
				return flag
			})
		}
		b.WriteString(clause)
	}
	return b.String()
}

// answer returns an answer of the action in these words. Its value is for programs, and its tables are data.
func (a action) answer(said operate.Answer) operate.Answer {
	all := func(list []string) []string {
		list = slices.Clone(list)
		for i := range list {
			list[i] = a.words(list[i])
		}
		return list
	}
	said.Lines, said.Notes, said.Checks = all(said.Lines), all(said.Notes), slices.Clone(said.Checks)
	for i, c := range said.Checks {
		said.Checks[i].Text, said.Checks[i].Remedy = a.words(c.Text), a.words(c.Remedy)
	}
	return said
}

// problem is what is said of an error of the action, with secrets masked.
func (s *server) problem(a action, err error) string { return s.masks.text(a.words(err.Error())) }
