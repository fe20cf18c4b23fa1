package console

import (
	"regexp"
	"strings"

	"github.com/millrace-io/millrace/pipeline/operate"
)

// flagDryRun is the flag of the commands of all actions for a preview.
const flagDryRun = "--dry-run"

// commandOf returns the command that does the same as an action with these values, for a shell, and nothing while they
// are not complete. Values that are masked elsewhere are masked here, too. further are its last words.
func (s *server) commandOf(a action, in operate.Input, further ...string) string {
	if a.Check(in) != nil {
		return ""
	}
	words, arguments := strings.Fields(a.Name), []string(nil)
	for _, f := range a.Fields {
		shown := func(value string) string {
			if value != "" && s.masks.hides(f.Name) {
				return s.masks.hidden()
			}
			return s.masks.text(value)
		}
		for _, value := range in.List(f.Name) {
			switch {
			case f.Arguments && value != "":
				arguments = append(arguments, quoted(shown(value)))
			case f.Arguments || f.Type != operate.List && value == f.Default || f.Type == operate.Switch && value == "false" && f.Default == "":
			case f.Type == operate.Switch && value == "true":
				words = append(words, "--"+f.Name)
			case f.Type == operate.Switch:
				words = append(words, "--"+f.Name+"="+value)
			case f.Type == operate.List:
				words = append(words, "--"+f.Name, quoted(listed(shown(value))))
			default:
				words = append(words, "--"+f.Name, quoted(shown(value)))
			}
		}
	}
	words = append(words, further...)
	for _, argument := range arguments {
		if strings.HasPrefix(argument, "-") {
			words = append(words, "--") // what follows is no flag
			break
		}
	}
	return strings.Join(append(words, arguments...), " ")
}

// whyWords are the words of a command that say the reason, which may still be missing.
func whyWords(a action, why string) []string {
	switch {
	case !a.Audited:
		return nil
	case why == "":
		return []string{"--why", "REASON"}
	}
	return []string{"--why", quoted(why)}
}

// listed writes one value of a list, whose flag separates values with commas.
func listed(value string) string {
	if strings.ContainsAny(value, `,"`) {
		return `"` + strings.ReplaceAll(value, `"`, `""`) + `"`
	}
	return value
}

// plainWord is what a shell leaves as it is.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_@%+:,./-]+$`)

// quoted writes a word for a shell.
func quoted(word string) string {
	if plainWord.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
