// Packages packs a static binary into a package for dpkg and one for rpm, without the tools of either.
// Its working folder is packaging/. It reads man/ and completions/ in the folder that -o names, and
// writes the packages there:
//
//	go run ./packages -o ../dist ../dist/linux-amd64/millrace ../dist/linux-arm64/millrace
//
// The same files give the same packages, because all times are that of the commit and nothing names
// the machine. Version, commit and platform are read from the build information of the binaries.
// It prints the names of the packages.
//
// Exit codes: 0 done, 1 a binary is unfit or a file can't be read or written, 2 usage.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"sync"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, out, errOut io.Writer) int {
	flags := flag.NewFlagSet("packages", flag.ContinueOnError)
	flags.SetOutput(errOut)
	dir := flags.String("o", "", "`folder` with man/ and completions/, which gets the packages")
	if err := flags.Parse(args); err != nil || *dir == "" || flags.NArg() == 0 {
		fmt.Fprintln(errOut, "usage: packages -o FOLDER BINARY…")
		return 2
	}
	// Most of the time is compression, which uses one processor per binary.
	lines, errs := make([]bytes.Buffer, flags.NArg()), make([]error, flags.NArg())
	var packing sync.WaitGroup
	for i, binary := range flags.Args() {
		packing.Go(func() { errs[i] = pack(*dir, binary, &lines[i]) })
	}
	packing.Wait()
	for i, binary := range flags.Args() {
		_, _ = lines[i].WriteTo(out)
		if errs[i] != nil {
			fmt.Fprintf(errOut, "packages: %s: %v\n", binary, errs[i])
			return 1
		}
	}
	return 0
}
