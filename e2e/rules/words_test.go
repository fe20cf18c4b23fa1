package rules_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// wording is a term that the repository's texts avoid, and what they say instead.
type wording struct {
	bad *regexp.Regexp
	use string
}

// wordings returns the terms that have another name in the glossary, and literary words. The rest of
// the rules in CONTRIBUTING.md needs a reader.
func wordings() []wording {
	var list []wording
	for _, row := range [][2]string{
		{`in hand`, "in flight"},
		{`crews?`, "worker pool"},
		{`keepers?`, "control loop"},
		{`ghosts?`, "deleted pending entries"},
		{`killpoints?`, "failpoint"},
		{`moneysim|moneyapi`, "money simulator"},
		{`ripens?|ripened|ripe`, "due"},
		{`exactly-once`, "what is promised for this far side (docs/promises.md)"},
		{`for ever|anew|lest|whence|hence|thereby|herein|thereof|therein|whilst|amongst`, "a plain word"},
		{`mend|mends|mended|mending`, "repair, fix"},
		{`(?:held|hold|holds|holding) up`, "delay"},
		{`§|facts? [0-9]+|seeds? 0[0-9]+`, "the reason itself, or a link into the repository"},
	} {
		list = append(list, wording{regexp.MustCompile(`(?i)(?:^|\W)(` + row[0] + `)(?:\W|$)`), row[1]})
	}
	return list
}

// said returns what a line of a file says to a reader: the prose of Markdown without its code, and
// the comments of everything else.
func said(name, line string) string {
	if filepath.Ext(name) == ".md" {
		return codeOfMarkdown.ReplaceAllString(line, "")
	}
	marker := map[string]string{".go": "//", ".lua": "--", ".sql": "--"}[filepath.Ext(name)]
	if marker == "" {
		marker = "#"
	}
	_, comment, _ := strings.Cut(line, marker)
	return comment
}

var codeOfMarkdown = regexp.MustCompile("`[^`]*`|\\]\\([^)]*\\)")

// words returns the findings in one file.
func words(table []wording, name, text string) []string {
	var list []string
	fenced := false
	for i, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
		}
		comment := said(name, line)
		if comment == "" || fenced && filepath.Ext(name) == ".md" {
			continue
		}
		for _, w := range table {
			if found := w.bad.FindStringSubmatch(comment); found != nil {
				list = append(list, fmt.Sprintf("%s:%d: %q: write: %s", name, i+1, found[1], w.use))
			}
		}
	}
	return list
}

func TestWords(t *testing.T) {
	t.Parallel()
	table, top := wordings(), root(t)
	require.NoError(t, filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && path != top && (strings.HasPrefix(name, ".") || slices.Contains([]string{"bin", "testdata", "rules", "zz_deps"}, name)) {
			return filepath.SkipDir
		}
		if d.IsDir() || name != "Makefile" && !slices.Contains([]string{".go", ".md", ".lua", ".sql", ".sh", ".yaml", ".yml"}, filepath.Ext(name)) {
			return nil
		}
		text, err := os.ReadFile(path)
		rel, _ := filepath.Rel(top, path)
		for _, finding := range words(table, filepath.ToSlash(rel), string(text)) {
			t.Error(finding)
		}
		return err
	}))
	require.Equal(t, []string{`x.md:2: "in hand": write: in flight`}, words(table, "x.md", "A line.\nThe entries in hand are few."))
	require.Empty(t, words(table, "x.md", "`hence` [a link](hence.md)\n```\nhence\n```\nThe cache knows what clients ask for, and gives up."))
	require.Equal(t, []string{`x.go:1: "Hence": write: a plain word`}, words(table, "x.go", "var hence int // Hence a name."))
	require.Len(t, words(table, "x.lua", "-- § 3\n-- fact 12"), 2)
}
