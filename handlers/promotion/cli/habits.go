package cli

import (
	"bytes"
	"slices"
	"strings"
)

// headerHabit says which habit of Excel and other programs made this wrong header of a campaign file,
// and what to do. It is empty if none is known.
func headerHabit(fields []string) string {
	line := strings.Join(fields, ",")
	lower := func(s []string) []string {
		s = slices.Clone(s)
		for i := range s {
			s[i] = strings.ToLower(strings.TrimSpace(s[i]))
		}
		return s
	}
	switch {
	case strings.HasPrefix(strings.ToLower(line), "sep="):
		return `the line "sep=" is for Excel alone: delete it`
	case strings.Contains(line, "\r"):
		return "lines end with a carriage return alone, as in the format CSV (Macintosh): save it as CSV UTF-8"
	case len(fields) == 1 && strings.Contains(line, ";"):
		return "its fields are separated by semicolons, as Excel does where the comma is the decimal sign: separate them by commas"
	case len(fields) == 1 && strings.Contains(line, "\t"):
		return "its fields are separated by tabs: separate them by commas"
	case strings.HasSuffix(line, ",") && slices.Equal(trimmed(fields), csvColumns(fields...)):
		return "empty columns follow it, as Excel keeps columns whose cells were emptied: delete them"
	case slices.Equal(lower(fields), lower(csvColumns(sameColumns(fields)...))):
		return "the names of columns are without blanks, and upper and lower case count"
	}
	return ""
}

// sameColumns returns the columns that the fields name, without regard to case and blanks.
func sameColumns(fields []string) (columns []string) {
	for _, column := range strings.Split(csvHeader(), ",") {
		if slices.ContainsFunc(fields, func(f string) bool { return strings.EqualFold(strings.TrimSpace(f), column) }) {
			columns = append(columns, column)
		}
	}
	return columns
}

// trimmed returns the fields without the empty ones at the end.
func trimmed(fields []string) []string {
	for len(fields) > 0 && fields[len(fields)-1] == "" {
		fields = fields[:len(fields)-1]
	}
	return fields
}

// lineHabit is headerHabit for a line of a target.
func lineHabit(fields []string) string {
	switch {
	case len(trimmed(fields)) == 0:
		return "the line is empty, as Excel keeps rows whose cells were emptied: delete it"
	case strings.HasPrefix(fields[0], "\x1a"):
		return "it begins with Ctrl-Z, an end-of-file sign of DOS: delete the line"
	case slices.ContainsFunc(fields, func(f string) bool { return f != strings.TrimSpace(f) }):
		return "a field has blanks around it: delete them"
	}
	return ""
}

// utf16Habit reports whether a file that begins with start is in UTF-16.
func utf16Habit(start []byte) bool {
	return bytes.HasPrefix(start, []byte("\xff\xfe")) || bytes.HasPrefix(start, []byte("\xfe\xff")) || bytes.IndexByte(start, 0) >= 0
}

// withHabit adds a habit to the text of an error.
func withHabit(habit string) string {
	if habit == "" {
		return ""
	}
	return " (" + habit + ")"
}
