package rules_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// root returns the repository's top folder.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	require.NoError(t, err)
	return dir
}

// sources returns the Go files of the project that a person wrote, by their path from the top
// folder.
func sources(t *testing.T) map[string][]byte {
	t.Helper()
	top := root(t)
	files := map[string][]byte{}
	require.NoError(t, filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && path != top && (strings.HasPrefix(name, ".") || strings.HasPrefix(name, "zz_") || name == "bin" || name == "testdata") {
			return filepath.SkipDir
		}
		if d.IsDir() || filepath.Ext(name) != ".go" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if generated(text) {
			return nil
		}
		rel, err := filepath.Rel(top, path)
		files[filepath.ToSlash(rel)] = text
		return err
	}))
	require.Greater(t, len(files), 50)
	return files
}

func generated(text []byte) bool {
	for line := range bytes.Lines(text) {
		if bytes.HasPrefix(line, []byte("// Code generated ")) {
			return true
		}
		if bytes.HasPrefix(line, []byte("package ")) {
			return false
		}
	}
	return false
}

const longest = 500

// tooLong returns what is wrong with the length of a file: past 500 lines it holds two things.
func tooLong(name string, text []byte) string {
	if n := bytes.Count(text, []byte("\n")); n > longest {
		return fmt.Sprintf("%s has %d lines, more than %d: what are the two things it holds?", name, n, longest)
	}
	return ""
}

func TestFilesHoldOneThing(t *testing.T) {
	t.Parallel()
	for name, text := range sources(t) {
		if wrong := tooLong(name, text); wrong != "" {
			t.Error(wrong)
		}
	}
	require.NotEmpty(t, tooLong("x.go", bytes.Repeat([]byte("\n"), longest+1)))
	require.Empty(t, tooLong("x.go", bytes.Repeat([]byte("\n"), longest)))
}

// sleeps returns the lines of a test file that wait by sleeping. In a bubble of testing/synctest
// sleeping moves the bubble's clock; elsewhere a sleep may stand for the work that a handler does,
// and says so.
func sleeps(text []byte) []string {
	if bytes.Contains(text, []byte("synctest.")) || bytes.Contains(text, []byte("bubble(")) {
		return nil
	}
	var wrong []string
	for line := range strings.Lines(string(text)) {
		if call := strings.Index(line, "time.Sleep("); call >= 0 && !strings.Contains(line[call:], "// the work itself") {
			wrong = append(wrong, strings.TrimSpace(line))
		}
	}
	return wrong
}

func TestNothingWaitsBySleeping(t *testing.T) {
	t.Parallel()
	for name, text := range sources(t) {
		if !strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "e2e/rules/") {
			continue // golangci-lint forbids it outside of tests
		}
		for _, line := range sleeps(text) {
			t.Errorf("%s: %s: wait for what you wait for, or use testing/synctest", name, line)
		}
	}
	require.Equal(t, []string{"time.Sleep(1)"}, sleeps([]byte("package p\n\ttime.Sleep(1)\n")))
	require.Empty(t, sleeps([]byte("package p\n\ttime.Sleep(1) // the work itself\n")))
	require.Empty(t, sleeps([]byte("package p\n\tsynctest.Test(t, f)\n\ttime.Sleep(1)\n")))
}

// readme returns what is wrong with the README of a plugin's folder. It begins with a title and one
// use, its sections have one order and say something, and its Go examples are lines of tests.
func readme(text, code string) []string {
	var wrong []string
	var sections []string
	var block []string
	inside := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "```"):
			if inside && block != nil {
				if missing := firstMissing(block, code); missing != "" {
					wrong = append(wrong, "no test has this line of an example, in its order: "+missing)
				}
			}
			inside = !inside
			block = nil
			if inside && strings.HasPrefix(line, "```go") {
				block = []string{}
			}
		case inside && block != nil:
			block = append(block, line)
		case !inside && strings.HasPrefix(line, "## "):
			sections = append(sections, strings.TrimPrefix(line, "## "))
		case !inside && strings.HasPrefix(line, "None.") && len(sections) > 0:
			wrong = append(wrong, fmt.Sprintf("section %q says nothing: leave it out", sections[len(sections)-1]))
		}
	}
	at := -1
	for _, want := range []string{"Configuration", "Metrics", "Failure behaviour", "Example"} {
		i := slices.IndexFunc(sections, func(s string) bool { return strings.HasPrefix(s, want) })
		if i < 0 {
			continue // not every folder has settings, metrics or failures of its own
		}
		if i < at {
			wrong = append(wrong, fmt.Sprintf("section %q stands too early", want))
		}
		at = i
	}
	return wrong
}

// firstMissing returns the first line of an example that code does not have in the same order.
// Comments and white space are ignored, and code may have further lines.
func firstMissing(example []string, code string) string {
	var lines []string
	for line := range strings.Lines(code) {
		lines = append(lines, plain(line))
	}
	for _, line := range example {
		want := plain(line)
		if want == "" {
			continue
		}
		at := slices.Index(lines, want)
		if at < 0 {
			return want
		}
		lines = lines[at+1:]
	}
	return ""
}

// plain is a line of code without its comment and with single blanks.
func plain(line string) string {
	line = strings.Join(strings.Fields(line), " ")
	if strings.HasPrefix(line, "//") {
		return ""
	}
	code, _, _ := strings.Cut(line, " // ")
	return code
}

func TestPluginReadmes(t *testing.T) {
	t.Parallel()
	top := root(t)
	for _, pattern := range []string{"plugins/*", "handlers/*", "handlers/*/*", "handlers/*/internal/*"} {
		folders, err := filepath.Glob(filepath.Join(top, pattern))
		require.NoError(t, err)
		require.NotEmpty(t, folders)
		for _, folder := range folders {
			if code, err := filepath.Glob(filepath.Join(folder, "*.go")); err != nil || len(code) == 0 {
				continue // a file, or a folder of schemas
			}
			name, err := filepath.Rel(top, folder)
			require.NoError(t, err)
			text, err := os.ReadFile(filepath.Join(folder, "README.md"))
			if err != nil {
				t.Errorf("%s has no README.md", name)
				continue
			}
			tests, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
			require.NoError(t, err)
			below, err := filepath.Glob(filepath.Join(folder, "*", "*_test.go"))
			require.NoError(t, err)
			tests = append(tests, below...)
			var code strings.Builder
			for _, file := range tests {
				part, err := os.ReadFile(file)
				require.NoError(t, err)
				code.Write(part)
			}
			for _, wrong := range readme(string(text), code.String()) {
				t.Errorf("%s/README.md: %s", name, wrong)
			}
		}
	}
}

func TestReadmeRulesBite(t *testing.T) {
	t.Parallel()
	good := "# x\n## Configuration\n## Metrics\n## Failure behaviour\n## Example\n```go\na :=\tb\n```\n```sh\nls\n```\n"
	require.Empty(t, readme(good, "func Example() {\n\ta := b\n}"))
	require.Empty(t, readme(good, "a := b // why\n"))
	require.Equal(t, []string{"no test has this line of an example, in its order: a := b"}, readme(good, "func Example() {}"))
	twoLines := strings.Replace(good, "a :=\tb\n", "a := b\nc := d\n", 1)
	require.Empty(t, readme(twoLines, "a := b\nif err != nil {\n}\nc := d\n"))
	require.Equal(t, []string{"no test has this line of an example, in its order: c := d"}, readme(twoLines, "c := d\na := b\n"))
	require.Empty(t, readme(strings.Replace(good, "## Metrics\n", "", 1), "a := b"), "no metrics")
	require.Equal(t, []string{`section "Metrics" says nothing: leave it out`}, readme(strings.Replace(good, "## Metrics\n", "## Metrics\n\nNone.\n", 1), "a := b"))
	swapped := strings.Replace(good, "## Metrics\n## Failure behaviour\n", "## Failure behaviour\n## Metrics\n", 1)
	require.Equal(t, []string{`section "Failure behaviour" stands too early`}, readme(swapped, "a := b"))
}

// unlimited returns what is wrong with a file that makes an HTTP server: clients of a server that
// does not use pipeline/httpserver can hold connections for ever.
func unlimited(name string, text []byte) string {
	if strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "pipeline/httpserver/") || strings.HasPrefix(name, "pipeline/pipelinetest/") || bytes.Contains(text, []byte("httpserver.")) {
		return ""
	}
	for _, made := range []string{"http.Server{", "http.ListenAndServe", "http.Serve(", "httptest.NewServer"} {
		if bytes.Contains(text, []byte(made)) {
			return fmt.Sprintf("%s has %s without the limits of pipeline/httpserver: use httpserver.Tool", name, made)
		}
	}
	return ""
}

func TestEveryServerHasLimits(t *testing.T) {
	t.Parallel()
	for name, text := range sources(t) {
		if wrong := unlimited(name, text); wrong != "" {
			t.Error(wrong)
		}
	}
	require.NotEmpty(t, unlimited("x.go", []byte("s := &http.Server{Handler: h}")))
	require.Empty(t, unlimited("x_test.go", []byte("s := &http.Server{Handler: h}")))
}
