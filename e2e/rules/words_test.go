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
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var listWords = flag.String("words", os.Getenv("MILLRACE_WORDS"), "list the findings of TestWords in this folder or file, and fail on none")

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
	return list, nil
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
	for _, f := range list {
		t.Error(f)
	}
}

// show prints the findings in a folder or file, and how many there are of each class.
func show(t *testing.T, list []finding, folder string) {
	t.Helper()
	total := map[string]int{}
	for _, f := range list {
		if folder == "." || f.file == folder || strings.HasPrefix(f.file, folder+"/") {
			total[f.class+" "+f.rule]++
			fmt.Fprintln(t.Output(), f)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(total)) {
		fmt.Fprintln(t.Output(), key, total[key])
	}
}
