// Api lists what the main module exports, and who outside of the package uses each name:
//
//	go run ./e2e/api > docs/api.txt
//
// A name is a constant, a variable, a function, a type or a method that another module can import. Fields
// and the methods of interfaces belong to their type. The file shows one user per name, so that a reviewer
// sees in a diff which names a change adds to the API, and which of them nobody needs.
//
// Exit codes: 0 done, 1 the packages can't be loaded.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/tools/go/packages"
)

func main() {
	if err := run(context.Background(), ".", []string{"./...", "./e2e/..."}, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "api: %v\n", err)
		os.Exit(1)
	}
}

// run writes the list of the module that top lies in. The patterns name its packages and their users.
func run(ctx context.Context, top string, patterns []string, out io.Writer) error {
	config := &packages.Config{
		Context: ctx, Dir: top, Tests: true,
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedImports | packages.NeedTypes |
			packages.NeedSyntax | packages.NeedTypesInfo | packages.NeedModule | packages.NeedForTest,
	}
	loaded, err := packages.Load(config, append(patterns, known()...)...)
	if err != nil {
		return fmt.Errorf("load %v: %w", patterns, err)
	}
	var broken error
	for _, p := range loaded {
		for _, wrong := range p.Errors {
			broken = errors.Join(broken, fmt.Errorf("%s: %w", p.ID, wrong))
		}
	}
	if broken != nil {
		return broken
	}
	l := newList(loaded)
	for _, p := range loaded {
		l.readUses(p)
	}
	l.addImplementations(loaded)
	l.addImplied()
	return l.write(out)
}

// known are packages whose interfaces a library may look for by reflection, without an import of ours.
func known() []string {
	return []string{"database/sql/driver", "encoding", "encoding/json", "flag", "fmt"}
}
