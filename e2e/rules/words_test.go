package rules_test

import (
	"cmp"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// strict compares the findings with the baseline exactly: per file, class and rule, and none at all
// in the classes of zeroClasses. While it is false, only the growth of a class in a room fails.
const strict = false

// zeroClasses are the classes without a baseline once strict is true.
func zeroClasses() []string { return []string{classReadme, classHelp, classMetric, classLog} }

const baselineFile = "words_baseline.txt"

var (
	listWords   = flag.String("words", os.Getenv("MILLRACE_WORDS"), "list the findings of TestWords in this folder or file, and fail on none")
	writeCounts = flag.Bool("words-baseline", false, "write the baseline of TestWords; it may only shrink")
)

// escape is a finding that is right as it is.
type escape struct{ file, words, reason string }

func escapes() []escape {
	return []escape{}
}

// texts returns the files with texts, by their path from the top folder.
func texts(t *testing.T) map[string]string {
	t.Helper()
	top := root(t)
	files := map[string]string{}
	require.NoError(t, filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && path != top && (strings.HasPrefix(name, ".") || strings.HasPrefix(name, "zz_") || name == "bin" || name == "testdata") {
			return filepath.SkipDir
		}
		known := name == "Makefile" || slices.Contains([]string{".go", ".md", ".lua", ".sql", ".sh", ".yaml", ".yml", ".json"}, filepath.Ext(name)) || strings.HasSuffix(name, ".md.tmpl")
		if d.IsDir() || !known || strings.HasSuffix(name, ".schema.json") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(top, path)
		if filepath.Ext(name) != ".go" || !generated(text) {
			files[filepath.ToSlash(rel)] = string(text)
		}
		return err
	}))
	require.Greater(t, len(files), 50)
	return files
}

// inspect returns the findings of one file.
func inspect(file, text string, table []wording, private map[string]string) ([]finding, error) {
	var list []finding
	var parts []block
	switch filepath.Ext(file) {
	case ".go":
		of, tree, fset, err := goTexts(file, text)
		if err != nil {
			return nil, err
		}
		parts = of
		list = append(list, wideComments(file, text, tree, fset)...)
		if !strings.HasSuffix(file, "_test.go") {
			list = append(list, checkNames(file, tree, fset, private)...)
		}
	case ".md", ".tmpl":
		parts = markdown(file, text)
		list = append(list, wide(file, text)...)
	case ".lua", ".sql":
		parts = marked(file, text, "--")
	case ".json":
		parts = described(file, text)
	case ".yaml", ".yml":
		parts = append(described(file, text), marked(file, text, "#")...)
	case ".sh":
		parts = marked(file, text, "#")
	default:
		parts = append(makefile(file, text), marked(file, text, "#")...)
	}
	for i := range parts {
		list = append(list, checkBlock(&parts[i], table)...)
	}
	return slices.DeleteFunc(list, func(f finding) bool {
		return slices.ContainsFunc(escapes(), func(e escape) bool { return e.reason != "" && e.file == f.file && e.words == f.words })
	}), nil
}

// roomOf returns the folder that a file is counted in: the first two of its path.
func roomOf(file string) string {
	parts := strings.Split(file, "/")
	parts = parts[:len(parts)-1]
	if len(parts) == 0 {
		return "."
	}
	return strings.Join(parts[:min(2, len(parts))], "/")
}

// counts are findings by the key of the baseline: `room class`, or `file class rule` when strict.
type counts map[string]int

func count(list []finding) counts {
	c := counts{}
	for _, f := range list {
		if strict && slices.Contains(zeroClasses(), f.class) {
			continue
		}
		if strict {
			c[f.file+" "+f.class+" "+f.rule]++
		} else {
			c[roomOf(f.file)+" "+f.class]++
		}
	}
	return c
}

func (c counts) String() string {
	var out strings.Builder
	for _, key := range slices.Sorted(maps.Keys(c)) {
		fmt.Fprintf(&out, "%s %d\n", key, c[key])
	}
	return out.String()
}

func parseCounts(text string) (counts, error) {
	c := counts{}
	for line := range strings.Lines(text) {
		at := strings.LastIndex(strings.TrimSpace(line), " ")
		if at < 0 {
			return nil, fmt.Errorf("a line without a count: %q", line)
		}
		n, err := strconv.Atoi(strings.TrimSpace(line)[at+1:])
		if err != nil {
			return nil, err
		}
		c[line[:at]] = n
	}
	return c, nil
}

// grown returns the keys of which there are more findings than the baseline has. A room that the
// baseline doesn't have has moved there: it may have any number until the baseline is written.
func (c counts) grown(baseline counts) []string {
	var keys []string
	for _, key := range slices.Sorted(maps.Keys(c)) {
		folder, _, _ := strings.Cut(key, " ")
		if c[key] > baseline[key] && (strict || baseline.has(folder)) {
			keys = append(keys, key)
		}
	}
	return keys
}

// moved reports whether texts have only moved: no class has more findings in all than the baseline.
func (c counts) moved(baseline counts, grown []string) bool {
	for _, key := range grown {
		folder, class := strings.Fields(key)[0], strings.Fields(key)[1]
		if c.total(class) > baseline.total(class) || strict && baseline.has(folder) {
			return false
		}
	}
	return true
}

func (c counts) total(class string) int {
	n := 0
	for key, of := range c {
		if strings.Fields(key)[1] == class {
			n += of
		}
	}
	return n
}

// with returns c with the counts that other has of keys.
func (c counts) with(other counts, keys []string) counts {
	c = maps.Clone(c)
	for _, key := range keys {
		c[key] = other[key]
	}
	return c
}

func (c counts) has(folder string) bool {
	for key := range c {
		if strings.HasPrefix(key, folder+" ") {
			return true
		}
	}
	return false
}

func TestWords(t *testing.T) {
	t.Parallel()
	table, private := wordings(), privateWords()
	var list []finding
	for file, text := range texts(t) {
		of, err := inspect(file, text, table, private)
		require.NoError(t, err)
		list = append(list, of...)
	}
	slices.SortFunc(list, func(a, b finding) int {
		return cmp.Or(cmp.Compare(a.class, b.class), cmp.Compare(a.file, b.file), cmp.Compare(a.line, b.line), cmp.Compare(a.words, b.words))
	})
	if *listWords != "" {
		show(t, list, strings.TrimSuffix(filepath.ToSlash(filepath.Clean(*listWords)), "/"))
		return
	}
	now := count(list)
	text, err := os.ReadFile(baselineFile)
	if err != nil && !os.IsNotExist(err) {
		require.NoError(t, err)
	}
	first := err != nil
	baseline, err := parseCounts(string(text))
	require.NoError(t, err)
	grown := now.grown(baseline)
	if *writeCounts && (first || now.moved(baseline, grown)) {
		if !first && !strict {
			// Other lines stay, so that branches do not conflict.
			now = baseline.with(now, grown)
		}
		require.NoError(t, os.WriteFile(baselineFile, []byte(now.String()), 0o600))
		return
	}
	for _, key := range grown {
		t.Errorf("%s: %d findings, the baseline has %d: go test ./e2e/rules -run '^TestWords$' -v -words %s", key, now[key], baseline[key], strings.Fields(key)[0])
	}
	if !strict {
		return
	}
	for _, f := range list {
		if slices.Contains(zeroClasses(), f.class) {
			t.Error(f)
		} else if slices.Contains(grown, f.file+" "+f.class+" "+f.rule) {
			t.Error(f)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(baseline)) {
		if now[key] < baseline[key] {
			t.Errorf("%s: %d findings, the baseline has %d and only shrinks: make words-baseline", key, now[key], baseline[key])
		}
	}
}

// show prints the findings in a folder or file, and how many there are of each class.
func show(t *testing.T, list []finding, folder string) {
	t.Helper()
	total := counts{}
	for _, f := range list {
		if folder == "." || f.file == folder || strings.HasPrefix(f.file, folder+"/") {
			total[f.class+" "+f.rule]++
			fmt.Fprintln(t.Output(), f)
		}
	}
	fmt.Fprintf(t.Output(), "\n%s", total)
}
