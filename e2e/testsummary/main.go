// Testsummary reads `go test -json` and says what a person wants to know: a line a package as go test prints it,
// the whole output of every test that failed, and at the end how many tests ran, and on which servers.
//
//	go test -json ./... | go run ./e2e/testsummary
//
// A test counts for a server when an element of its name is the server's: TestGroup/kafka/window_256. What ran
// on stand-ins (kfake, miniredis, sqlite) is counted apart: it proves nothing that a real server could break.
//
// With CI=true a test that was skipped because a server is missing is a failure, and so is a server in -want
// that no test ran on. Exit codes: 0 all good, 1 not, 2 usage.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

func main() {
	os.Exit(run(os.Args[1:], os.Getenv, os.Stdin, os.Stdout, os.Stderr))
}

func run(args []string, getenv func(string) string, in io.Reader, out, errOut io.Writer) int {
	flags := flag.NewFlagSet("testsummary", flag.ContinueOnError)
	flags.SetOutput(errOut)
	want := flags.String("want", "", "servers that tests must have run on when CI=true: kafka,redis,valkey,postgres")
	patience := flags.Duration("heartbeat", 30*time.Second, "how often to name what has been running for long; 0: never")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	var wanted []server
	for name := range strings.SplitSeq(*want, ",") {
		if name == "" {
			continue
		}
		s, ok := serverNamed(name)
		if !ok {
			fmt.Fprintf(errOut, "testsummary: -want: unknown server %q\n", name)
			return 2
		}
		wanted = append(wanted, s)
	}
	s := newSummary(out)
	stop := s.heartbeat(*patience)
	err := s.read(in)
	stop()
	if err != nil {
		fmt.Fprintf(errOut, "testsummary: %v\n", err)
	}
	if getenv("CI") != "true" {
		wanted = nil
	}
	if !s.finish(getenv("CI") == "true", wanted) || err != nil {
		return 1
	}
	return 0
}
