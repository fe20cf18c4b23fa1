// Image packs static binaries into a container image, without a container engine and without a base
// image. It writes an OCI layout with one image for the platform of each binary:
//
//	go run ./image -o ../dist/image ../dist/linux-amd64/millrace ../dist/linux-arm64/millrace
//
// The same binaries give the same digest, because nothing in the image depends on the time or on
// the machine. Version, commit and platform are read from the build information of the binaries.
// It prints the digest, the tag and the platforms. With -root it writes the files of the image of one
// binary into a folder instead, for the Dockerfile.
//
// Exit codes: 0 done, 1 a binary is unfit or the folder can't be written, 2 usage.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/millrace-io/millrace/packaging/tag"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, out, errOut io.Writer) int {
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	flags.SetOutput(errOut)
	dir := flags.String("o", "", "`folder` of the OCI layout; one that exists is replaced")
	root := flags.String("root", "", "`folder` of the files of the image, which must not exist")
	if err := flags.Parse(args); err != nil || (*dir == "") == (*root == "") || flags.NArg() == 0 || *root != "" && flags.NArg() > 1 {
		fmt.Fprintln(errOut, "usage: image -o FOLDER BINARY… | image -root FOLDER BINARY")
		return 2
	}
	var binaries []binary
	for _, file := range flags.Args() {
		b, err := inspect(file)
		if err != nil {
			fmt.Fprintf(errOut, "image: %v\n", err)
			return 1
		}
		binaries = append(binaries, b)
	}
	if *root != "" {
		if err := writeRoot(*root, binaries[0]); err != nil {
			fmt.Fprintf(errOut, "image: %v\n", err)
			return 1
		}
		return 0
	}
	digest, err := write(*dir, binaries)
	if err != nil {
		fmt.Fprintf(errOut, "image: %v\n", err)
		return 1
	}
	var platforms []string
	for _, b := range binaries {
		platforms = append(platforms, b.os+"/"+b.arch)
	}
	fmt.Fprintf(out, "%s  %s  %s  %s\n", digest, *dir, tag.Of(binaries[0].version), strings.Join(platforms, " "))
	return 0
}
