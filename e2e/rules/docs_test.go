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

// pages returns the Markdown files of the repository, by their path from the top folder.
func pages(t *testing.T) map[string]string {
	t.Helper()
	top := root(t)
	files := filesIn(t, top, func(_, name string) bool {
		return strings.HasPrefix(name, ".") || name == "bin" || name == "testdata"
	}, func(name string) bool { return filepath.Ext(name) == ".md" })
	require.Greater(t, len(files), 20)
	return files
}

// filesIn returns the texts of the files of a folder that take names, by their path in it. It enters no folder that skip names.
func filesIn(t *testing.T, top string, skip func(path, name string) bool, take func(name string) bool) map[string]string {
	t.Helper()
	files := map[string]string{}
	require.NoError(t, filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != top && skip(path, d.Name()):
			return filepath.SkipDir
		case d.IsDir() || !take(d.Name()):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(top, path)
		files[filepath.ToSlash(rel)] = string(text)
		return err
	}))
	return files
}

// prose returns the lines of a page outside of code blocks.
func prose(page string) []string {
	var lines []string
	inside := false
	for line := range strings.Lines(page) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			inside = !inside
			continue
		}
		if !inside {
			lines = append(lines, strings.TrimRight(line, "\n"))
		}
	}
	return lines
}

// anchors returns the fragments of the headings of a page, in GitHub's form.
func anchors(page string) []string {
	dropped := regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
	var all []string
	for _, line := range prose(page) {
		if heading := strings.TrimLeft(line, "#"); len(heading) < len(line) && strings.HasPrefix(heading, " ") {
			text := dropped.ReplaceAllString(strings.ToLower(strings.TrimSpace(heading)), "")
			all = append(all, strings.ReplaceAll(text, " ", "-"))
		}
	}
	return all
}

// brokenLinks returns the relative links of the page at name whose file, folder or heading does not
// exist.
func brokenLinks(name string, files map[string]string, exists func(path string) bool) []string {
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	var broken []string
	for _, line := range prose(files[name]) {
		for _, match := range link.FindAllStringSubmatch(line, -1) {
			if strings.Contains(match[1], "://") || strings.HasPrefix(match[1], "mailto:") {
				continue
			}
			target, fragment, _ := strings.Cut(match[1], "#")
			path := name
			if target != "" {
				path = filepath.ToSlash(filepath.Join(filepath.Dir(name), target))
			}
			page, isPage := files[path]
			if !exists(path) || fragment != "" && isPage && !slices.Contains(anchors(page), fragment) {
				broken = append(broken, match[1])
			}
		}
	}
	return broken
}

// missingPaths returns the paths in backticks that begin with a folder of the repository and do not
// exist. A path with capitals, such as handlers/NAME, is a placeholder.
func missingPaths(page string, exists func(path string) bool) []string {
	path := regexp.MustCompile("`((?:pipeline|plugins|handlers|configs|wire|cmd|e2e|docs)/[a-z0-9_./*-]+)`")
	var missing []string
	for _, line := range prose(page) {
		for _, match := range path.FindAllStringSubmatch(line, -1) {
			if !exists(strings.TrimSuffix(match[1], "/")) {
				missing = append(missing, match[1])
			}
		}
	}
	return missing
}

// exists reports whether a path, which may contain *, leads to something.
func exists(t *testing.T) func(path string) bool {
	top := root(t)
	return func(path string) bool {
		found, err := filepath.Glob(filepath.Join(top, filepath.FromSlash(path)))
		return err == nil && len(found) > 0
	}
}

func TestRelativeLinksOfMarkdownResolve(t *testing.T) {
	t.Parallel()
	files := pages(t)
	for name := range files {
		for _, link := range brokenLinks(name, files, exists(t)) {
			t.Errorf("%s: the link %s leads nowhere", name, link)
		}
	}
}

func TestPathsInTheDocumentationExist(t *testing.T) {
	t.Parallel()
	for name, page := range pages(t) {
		if name != "CONTRIBUTING.md" && !strings.HasPrefix(name, "docs/") {
			continue
		}
		for _, path := range missingPaths(page, exists(t)) {
			t.Errorf("%s: %s does not exist", name, path)
		}
	}
}

func TestLinkRulesBite(t *testing.T) {
	t.Parallel()
	files := map[string]string{
		"docs/a.md": "# A b\n## C `d`, e\n[x](../b.md#one-two) [y](#c-d-e) [z](https://example.com)\n```\n[c](no.md)\n# No heading\n```\n",
		"b.md":      "## One two\n[x](docs/c.md) [y](docs/a.md#no-heading) [z](#two)\n",
	}
	there := func(path string) bool { return files[path] != "" }
	require.Empty(t, brokenLinks("docs/a.md", files, there))
	require.Equal(t, []string{"docs/c.md", "docs/a.md#no-heading", "#two"}, brokenLinks("b.md", files, there))
	require.Equal(t, []string{"plugins/no/x.go"},
		missingPaths("`plugins/no/x.go` `handlers/NAME/doc.go` `docs/a.md` `a/b`", there))
}

// decisionProblems returns what is wrong with the pages of docs/decisions: the index lists each
// once, with its title.
func decisionProblems(files map[string]string) []string {
	const folder, longest = "docs/decisions/", 40
	var wrong []string
	numbers := map[string]string{}
	for name, page := range files {
		base, ours := strings.CutPrefix(name, folder)
		if !ours || base == "README.md" {
			continue
		}
		number, _, _ := strings.Cut(base, "-")
		if other := numbers[number]; other != "" {
			wrong = append(wrong, fmt.Sprintf("%s and %s have one number", min(other, base), max(other, base)))
		}
		numbers[number] = base
		if !strings.HasPrefix(page, "# "+number+": ") {
			wrong = append(wrong, base+" does not begin with its number")
		}
		if strings.Count(page, "\n") >= longest {
			wrong = append(wrong, fmt.Sprintf("%s has %d lines or more", base, longest))
		}
		if strings.Count(files[folder+"README.md"], "]("+base+")") != 1 {
			wrong = append(wrong, base+" is not in the index once")
		}
	}
	slices.Sort(wrong)
	return wrong
}

func TestDecisionsAreShortAndListed(t *testing.T) {
	t.Parallel()
	require.Empty(t, decisionProblems(pages(t)))
	require.Equal(t,
		[]string{"0002-b.md and 0002-c.md have one number", "0002-b.md does not begin with its number", "0002-b.md is not in the index once"},
		decisionProblems(map[string]string{
			"docs/decisions/README.md": "[0001](0001-a.md) [0002](0002-c.md)", "docs/decisions/0001-a.md": "# 0001: a\n",
			"docs/decisions/0002-b.md": "# b\n", "docs/decisions/0002-c.md": "# 0002: c\n",
		}))
}

// identityTables returns the tables of a migration whose rows get their numbers from a sequence.
func identityTables(migration string) []string {
	var tables []string
	table := ""
	for line := range strings.Lines(migration) {
		if match := regexp.MustCompile(`(?i)(?:CREATE|ALTER) TABLE (?:IF NOT EXISTS )?(\w+)`).FindStringSubmatch(line); match != nil {
			table = match[1]
		}
		if regexp.MustCompile(`(?i)AS IDENTITY|\b(?:big)?serial\b`).MatchString(line) {
			tables = append(tables, table)
		}
	}
	return tables
}

// Logical replication copies no sequences, so who moves a database sets them by the list of this page.
func TestTheMoveByLogicalReplicationNamesEachSequence(t *testing.T) {
	t.Parallel()
	_, move, found := strings.Cut(pages(t)["docs/operating.md"], "**Move by logical replication.**")
	require.True(t, found)
	move, _, _ = strings.Cut(move, "\n\n")
	n := 0
	require.NoError(t, filepath.WalkDir(root(t), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(filepath.ToSlash(filepath.Dir(path)), "migrations/postgres") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, table := range identityTables(string(text)) {
			n++
			if !strings.Contains(move, "`"+table+"`") {
				t.Errorf("docs/operating.md, Move by logical replication: name %s, whose sequence must be set", table)
			}
		}
		return err
	}))
	require.GreaterOrEqual(t, n, 7)
	require.Equal(t, []string{"b", "c"}, identityTables("CREATE TABLE a (\n id bigint\n);\nCREATE TABLE b (\n number bigint GENERATED ALWAYS AS IDENTITY\n);\nALTER TABLE c\n ADD id bigserial;\n"))
}
