package wire_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/wire"
)

// The runbook's table of classes is the list that the plugins register, in its order and words.
func TestTheRunbookListsEveryErrorClass(t *testing.T) {
	reg, err := pipeline.NewRegistry(pipeline.Env{}, wire.New().Plugins()...)
	require.NoError(t, err)
	var table strings.Builder
	table.WriteString("| class | what happened | what to do |\n|---|---|---|\n")
	declared := map[string]bool{}
	for _, c := range reg.AllErrorClasses() {
		require.NotEmpty(t, c.Cause, c.Name)
		require.NotEmpty(t, c.Action, c.Name)
		fmt.Fprintf(&table, "| `%s` | %s | %s |\n", c.Name, c.Cause, c.Action)
		declared[c.Name] = true
	}
	runbook, err := os.ReadFile("../configs/RUNBOOK.md")
	require.NoError(t, err)
	require.Contains(t, string(runbook), table.String())
	for where, class := range classConstants(t) {
		require.True(t, declared[class], "%s: the class %q is not registered (pipeline.Registry.ErrorClasses)", where, class)
	}
}

var classConstant = regexp.MustCompile(`^[cC]lass[A-Z]`)

// classConstants returns the constants in product code that name an error class, by their place.
func classConstants(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, dir := range []string{"../pipeline", "../plugins", "../handlers"} {
		require.NoError(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			files := token.NewFileSet()
			file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				spec, ok := n.(*ast.ValueSpec)
				if !ok {
					return true
				}
				for i, name := range spec.Names {
					if classConstant.MatchString(name.Name) && i < len(spec.Values) {
						if text, ok := spec.Values[i].(*ast.BasicLit); ok && text.Kind == token.STRING {
							class, err := strconv.Unquote(text.Value)
							require.NoError(t, err)
							found[files.Position(name.Pos()).String()] = class
						}
					}
				}
				return true
			})
			return nil
		}))
	}
	require.Greater(t, len(found), 10)
	return found
}
