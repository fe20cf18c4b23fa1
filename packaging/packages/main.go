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
	"flag"
	"fmt"
	"io"
	"os"
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
	for _, binary := range flags.Args() {
		if err := pack(*dir, binary, out); err != nil {
			fmt.Fprintf(errOut, "packages: %s: %v\n", binary, err)
			return 1
		}
	}
	return 0
}
