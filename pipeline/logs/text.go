package logs

import (
	"slices"
	"strings"
)

// OneLine returns the text of an error as one line, for what has no room for more, such as a header
// or a cell of a table. Lines are joined with semicolons, because each is often an error of its own,
// and equal neighbours are named once. Control characters other than white space stay as they are.
func OneLine(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.Join(strings.Fields(line), " "); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.ReplaceAll(strings.Join(slices.Compact(lines), "; "), ":; ", ": ")
}

// Line is a line of an error that is shown to a person, see Lines.
type Line struct {
	Depth int // 0: what failed; 1: a cause of the nearest line above it with depth 0; and so on
	Text  string
}

// Lines returns an error with each of its causes in a line of its own. What stands before joined
// errors is the line above them, so "open a: " before two joined errors is "open a:" and two lines
// of depth 1. Equal neighbours, such as the attempts of a driver, are one line. For nil it is empty.
func Lines(err error) []Line {
	if err == nil {
		return nil
	}
	return slices.Compact(linesOf(err, 0))
}

func linesOf(err error, depth int) []Line {
	text := err.Error()
	if joined := joinedIn(err); joined != nil {
		var lines []Line
		if before := strings.TrimSpace(strings.TrimSuffix(text, strings.Join(textsOf(joined), "\n"))); before != "" {
			lines = append(lines, Line{depth, before})
			depth++
		}
		for _, one := range joined {
			lines = append(lines, linesOf(one, depth)...)
		}
		return lines
	}
	var lines []Line
	for line := range strings.Lines(text) { // by a driver, in its own form
		if line = strings.Join(strings.Fields(line), " "); line == "" {
			continue
		}
		at := depth
		if len(lines) > 0 {
			at++
		}
		lines = append(lines, Line{at, line})
	}
	return lines
}

// joinedIn returns the errors that err ends with, one per line, or nil.
func joinedIn(err error) []error {
	text := err.Error()
	if !strings.Contains(text, "\n") {
		return nil
	}
	var within []error
	switch e := err.(type) { //nolint:errorlint // the tree itself is walked
	case interface{ WrappedErrors() []error }: // of clients that are older than errors.Join
		within = e.WrappedErrors()
	case interface{ Unwrap() []error }:
		within = e.Unwrap()
	case interface{ Unwrap() error }:
		within = []error{e.Unwrap()}
	}
	within = slices.DeleteFunc(slices.Clone(within), func(one error) bool { return one == nil })
	if len(within) > 1 && strings.Join(textsOf(within), "\n") == text {
		return within
	}
	for _, one := range within {
		if joined := joinedIn(one); joined != nil && strings.HasSuffix(text, strings.Join(textsOf(joined), "\n")) {
			return joined
		}
	}
	return nil
}

func textsOf(errs []error) []string {
	texts := make([]string, len(errs))
	for i, err := range errs {
		texts[i] = err.Error()
	}
	return texts
}
