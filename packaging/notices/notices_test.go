package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func call(args ...string) (code int, out, errOut string) {
	var o, e bytes.Buffer
	code = run(args, &o, &e)
	return code, o.String(), e.String()
}

// program returns the other program of this module, which links modules of others.
func program(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "image")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", file, "../image").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return file
}

func TestNoticesHaveTheLicenceOfEachLinkedModule(t *testing.T) {
	t.Parallel()
	self := program(t)
	modules, err := linked([]string{self, self})
	require.NoError(t, err)
	require.Greater(t, len(modules), 3)
	file := filepath.Join(t.TempDir(), "NOTICES")
	code, out, errOut := call("-o", file, self, self)
	require.Zero(t, code, errOut)
	require.Contains(t, out, " modules\n")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	for _, m := range modules {
		require.Equal(t, 1, strings.Count(string(text), "\n"+m.path+" "+m.version+": LICENSE\n"), m.path)
	}
	require.Contains(t, string(text), "\ngithub.com/google/go-containerregistry v")
	require.Contains(t, string(text), "TERMS AND CONDITIONS FOR USE, REPRODUCTION, AND DISTRIBUTION", "the text of the Apache License")
	require.Regexp(t, `\ngithub.com/klauspost/compress v\S+: [a-z].*/LICENSE\n`, string(text), "code that it has copied")
	require.Contains(t, string(text), "\nstd "+runtime.Version()+": LICENSE\n")
	again := filepath.Join(t.TempDir(), "NOTICES")
	code, _, errOut = call("-o", again, self)
	require.Zero(t, code, errOut)
	second, err := os.ReadFile(again)
	require.NoError(t, err)
	require.Equal(t, string(text), string(second))
}

func TestAModuleWithoutALicenceIsRefused(t *testing.T) {
	t.Parallel()
	module := func(files ...string) linkedModule {
		dir := t.TempDir()
		for _, name := range files {
			require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("text of "+name+"\n"), 0o600))
		}
		return linkedModule{path: "example.com/" + strings.Join(append([]string{"with"}, files...), "-"), version: "v1.0.0", dir: dir}
	}
	for _, files := range [][]string{{"LICENSE"}, {"LICENCE.md"}, {"COPYING"}, {"UNLICENSE"}, {"LICENSE-APACHE-2.0.txt", "NOTICE"}, {"LICENSE", "internal/copied/LICENSE"}} {
		text, err := notices([]linkedModule{module(files...)})
		require.NoError(t, err, files)
		for _, name := range files {
			require.Contains(t, string(text), "\ntext of "+name+"\n")
		}
	}
	for _, files := range [][]string{nil, {"README.md"}, {"license.go"}, {"NOTICE"}, {"COPYRIGHT", "PATENTS"}, {"internal/copied/LICENSE"}} {
		bad := module(files...)
		_, err := notices([]linkedModule{module("LICENSE"), bad})
		require.ErrorContains(t, err, "no licence file in the top folder of "+bad.path+" v1.0.0: ")
	}
}

func TestNoticesSayWhatIsWrong(t *testing.T) {
	t.Parallel()
	code, _, errOut := call("-o", filepath.Join(t.TempDir(), "x"), "notices_test.go")
	require.Equal(t, 1, code)
	require.Contains(t, errOut, "notices_test.go: read build information")
	code, _, errOut = call("-o", "x")
	require.Equal(t, 2, code)
	require.Contains(t, errOut, "usage: notices -o FILE BINARY…")
}
