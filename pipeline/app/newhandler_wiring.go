package app

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// wiringFile has the provider sets of the service, in the repository of the framework.
const wiringFile = "wire/sets.go"

// insertion is text that is added to a source file.
type insertion struct {
	at   token.Pos
	text string
}

// wire returns the text of wiringFile with the handler in it: its import, its provider, and its
// place in newService.
func (d handler) wire(text []byte) ([]byte, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, wiringFile, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var adds []insertion
	taken := false
	add := func(after token.Pos, text string) { adds = append(adds, insertion{after, text}) }
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Ident:
			taken = taken || n.Name == d.Package
		case *ast.GenDecl:
			if n.Tok == token.IMPORT {
				add(n.Specs[len(n.Specs)-1].End(), fmt.Sprintf("\n\t%q", d.Import))
			}
			if value, ok := n.Specs[0].(*ast.ValueSpec); ok && value.Names[0].Name == "Handlers" {
				add(value.Values[0].End()-1, ", provide"+d.Exported())
				add(n.End(), fmt.Sprintf("\n\nfunc provide%s(topics *kafka.Plugin, dead *deadletter.Plugin) *%[2]s.Plugin {\n\treturn %[2]s.New(topics, dead)\n}", d.Exported(), d.Package))
			}
		case *ast.FuncDecl:
			if n.Name.Name == "newService" {
				add(n.Type.Params.List[len(n.Type.Params.List)-1].End(), fmt.Sprintf(", %[1]s *%[1]s.Plugin", d.Package))
			}
		case *ast.CompositeLit:
			if _, list := n.Type.(*ast.ArrayType); list {
				add(n.Elts[len(n.Elts)-1].End(), ", "+d.Package)
			}
		}
		return true
	})
	if taken {
		return nil, fmt.Errorf("%s has another %s: choose another NAME", wiringFile, d.Package)
	}
	if len(adds) != 5 {
		return nil, errors.New(wiringFile + " needs one import block, the set Handlers, and newService with one list of plugins")
	}
	slices.SortFunc(adds, func(a, b insertion) int { return cmp.Compare(b.at, a.at) })
	for _, a := range adds {
		text = slices.Insert(text, fset.Position(a.at).Offset, []byte(a.text)...)
	}
	return format.Source(text)
}

// applyWiring writes wiringFile and generates the files that follow from it.
func (h *Host) applyWiring(ctx context.Context, root string, text []byte, d handler) error {
	if err := os.WriteFile(filepath.Join(root, wiringFile), text, 0o644); err != nil { //nolint:gosec // source code
		return fmt.Errorf("new handler: %w", err)
	}
	fmt.Fprintf(h.o.Stdout, "changed %s\nrunning make wire schema reference\n", wiringFile)
	cmd := exec.CommandContext(ctx, "make", "-C", root, "wire", "schema", "reference")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make wire schema reference: %w\n%s", err, bytes.TrimSpace(out))
	}
	_, err := fmt.Fprintf(h.o.Stdout, `
The binary has the routes %[1]s and %[1]s.retry. Next:

	go test ./handlers/%[1]s
	go run ./cmd/millrace topology
`, d.Name)
	return err
}
