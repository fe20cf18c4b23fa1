package configs

import (
	"cmp"
	"errors"
	"slices"
	"strconv"
	"strings"
)

// Error is one mistake in the settings.
type Error struct {
	// File is a path, "profile NAME" or "environment variable NAME". Empty: a default of the code.
	File    string `json:"file,omitempty"`
	Line    int    `json:"line,omitempty"` // from 1; 0 outside files
	Path    string `json:"path,omitempty"` // dotted, such as plugins.promotion.stream.max_len; may be empty
	Problem string `json:"problem"`        // what was expected and what was found
}

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
		if !seen[*one] {
			seen[*one] = true
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
	slices.SortStableFunc(out, func(a, b *Error) int {
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
