// Notices writes the licences of everything that is linked into binaries: the modules that their build
// information names, and Go itself.
//
//	go run ./notices -o ../dist/THIRD_PARTY_NOTICES ../dist/linux-amd64/millrace ../dist/darwin-arm64/millrace
//
// The texts are the files of the modules in Go's module cache, which it fills where a module is missing. A module
// without such a file is an error, because nobody may ship it.
//
// Exit codes: 0 done, 1 a licence is missing or a file can't be read or written, 2 usage.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, out, errOut io.Writer) int {
	flags := flag.NewFlagSet("notices", flag.ContinueOnError)
	flags.SetOutput(errOut)
	file := flags.String("o", "", "`file` to write")
	if err := flags.Parse(args); err != nil || *file == "" || flags.NArg() == 0 {
		fmt.Fprintln(errOut, "usage: notices -o FILE BINARY…")
		return 2
	}
	modules, err := linked(flags.Args())
	if err == nil {
		modules, err = locate(modules)
	}
	var text []byte
	if err == nil {
		text, err = notices(modules)
	}
	if err == nil {
		err = os.WriteFile(*file, text, 0o644) //nolint:gosec // everybody may read it
	}
	if err != nil {
		fmt.Fprintf(errOut, "notices: %v\n", err)
		return 1
	}
	fmt.Fprintf(out, "%s: %d modules\n", *file, len(modules))
	return 0
}
