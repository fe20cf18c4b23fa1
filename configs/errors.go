package configs

import (
	"cmp"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace-io/millrace/internal/sorted"
)

// Error is one mistake in the settings.
type Error struct {
	// File is a path, "profile NAME" or "environment variable NAME". Empty: a default of the code.
	File    string `json:"file,omitempty"`
	Line    int    `json:"line,omitempty"` // from 1; 0 outside files
	Path    string `json:"path,omitempty"` // dotted, such as log.level; may be empty
	Problem string `json:"problem"`        // what was expected and what was found

	cause error
}

// Unwrap returns the error of the value's own type, such as a *setting.MissingError, or nil.
func (e *Error) Unwrap() error { return e.cause }

// Error returns "file:line: path: problem" without the parts that are unknown.
func (e *Error) Error() string {
	var b strings.Builder
	if e.File != "" {
		b.WriteString(e.File)
		if e.Line > 0 {
			b.WriteString(":" + strconv.Itoa(e.Line))
		}
		b.WriteString(": ")
	}
	if e.Path != "" {
		b.WriteString(e.Path + ": ")
	}
	b.WriteString(e.Problem)
	return b.String()
}

// Flatten returns every mistake that err holds (errors.Join, wrapped or plain), in the order of the
// files and without repetition. An error of another type becomes an Error with only a Problem.
// Flatten(nil) is empty.
func Flatten(err error) []*Error {
	var out []*Error
	seen := map[Error]bool{}
	var walk func(error)
	walk = func(err error) {
		var one *Error
		joined, many := err.(interface{ Unwrap() []error })
		switch {
		case err == nil:
			return
		case many:
			for _, e := range joined.Unwrap() {
				walk(e)
			}
			return
		case !errors.As(err, &one):
			one = &Error{Problem: err.Error()}
		}
		same := *one
		same.cause = nil // it may not be comparable
		if !seen[same] {
			seen[same] = true
			out = append(out, one)
		}
	}
	walk(err)
	files := map[string]int{} // in the order in which their first mistake was found
	for i, e := range out {
		if _, ok := files[e.File]; !ok {
			files[e.File] = i
		}
	}
	sorted.By(out, func(a, b *Error) int {
		return cmp.Or(files[a.File]-files[b.File], a.Line-b.Line)
	})
	return out
}

func join(errs []*Error) error {
	all := make([]error, len(errs))
	for i, e := range errs {
		all[i] = e
	}
	return errors.Join(all...)
}

// didYouMean returns `; did you mean "x"?` for the nearest candidate, or "" without one.
func didYouMean(word string, candidates []string) string {
	if best := Nearest(word, candidates); best != "" {
		return "; did you mean " + strconv.Quote(best) + "?"
	}
	return ""
}

// Nearest returns the candidate that is most like word, or "" if more than a third of the
// characters differ in all of them.
func Nearest(word string, candidates []string) string {
	const longestWord = 100 // the distance costs word × candidate
	if len(word) > longestWord {
		return ""
	}
	best, distance := "", min(max(1, (len(word)+1)/3), len(word)-1)+1 // at most a third, never all
	for _, c := range slices.Sorted(slices.Values(candidates)) {
		if d := edits(word, c); d < distance {
			best, distance = c, d
		}
	}
	return best
}

// edits counts the characters to insert, delete or replace between two words. Two transposed
// neighbours count once: they are the most frequent mistake on a keyboard.
func edits(word, candidate string) int {
	letters, others := []rune(word), []rune(candidate)
	least := distance(letters, others)
	for i := 1; i < len(letters) && least > 1; i++ {
		letters[i-1], letters[i] = letters[i], letters[i-1]
		least = min(least, 1+distance(letters, others))
		letters[i-1], letters[i] = letters[i], letters[i-1]
	}
	return least
}

// distance is that of Levenshtein: the characters to insert, delete or replace.
func distance(a, b []rune) int {
	row := make([]int, len(b)+1) // distances of what was read of a to each beginning of b
	for j := range row {
		row[j] = j
	}
	for i, x := range a {
		diagonal := row[0]
		row[0] = i + 1
		for j, y := range b {
			replaced := diagonal
			if x != y {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

func quoteShort(text string) string {
	if r := []rune(text); len(r) > 40 {
		text = string(r[:40]) + "…"
	}
	return strconv.Quote(text)
}
