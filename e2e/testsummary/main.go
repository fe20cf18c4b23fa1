// Testsummary runs `go test -json`. It prints one line per package and the output of each failed
// test. At the end it prints how many tests ran, on which servers, and the ten slowest:
//
//	go run ./e2e/testsummary [-rerun 3] -packages ./... -- -count=1 -timeout 20m
//
// A test counts for a server when it, or a test that it is part of, recorded that it met the
// server (pipelinetest/tier). Embedded servers (kfake, miniredis, SQLite) are counted apart.
//
// With -rerun N each failed test runs once more by itself, if at most N tests failed. A test that
// passes then is flaky: it is listed, also in the file of -flaky, and does not fail the run. A
// package that failed without a failed test (a leak, a panic, a build) is never run again. Nor is
// a test with a data race.
// gotestsum does not replace this program: it runs such a package again without any test, takes it
// for passed, and does not read attributes.
//
// With CI=true a test that was skipped because a server is missing is a failure. So is a server in
// -want that no test ran on. Exit codes: 0 all passed, 1 not, 2 usage.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"
)

func main() {
	os.Exit(run(os.Args[1:], os.Getenv, goTest, os.Stdout, os.Stderr))
}

// tester runs `go test -json` with these arguments and hands over what it prints.
type tester func(args []string, errOut io.Writer, read func(io.Reader) error) error

func run(args []string, getenv func(string) string, test tester, out, errOut io.Writer) int {
	flags := flag.NewFlagSet("testsummary", flag.ContinueOnError)
	flags.SetOutput(errOut)
	packages := flags.String("packages", "./...", "packages to test, separated by blanks")
	want := flags.String("want", "", "servers that tests must have met when CI=true: kafka,redis,valkey,postgres,chromium")
	rerun := flags.Int("rerun", 0, "run each failed test once more, if at most N failed")
	flaky := flags.String("flaky", "", "file for the names of the tests that passed when they ran once more")
	interval := flags.Duration("heartbeat", 30*time.Second, "how often to list the tests that are still running; 0: never")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	var wanted []server
	for name := range strings.SplitSeq(*want, ",") {
		if name == "" {
			continue
		}
		s, ok := serverNamed(name)
		if !ok || s == embedded {
			fmt.Fprintf(errOut, "testsummary: -want: unknown server %q\n", name)
			return 2
		}
		wanted = append(wanted, s)
	}
	ci := getenv("CI") == "true"
	if !ci {
		wanted = nil
	}

	s := newSummary(out)
	stop := s.heartbeat(*interval)
	err := test(append(flags.Args(), strings.Fields(*packages)...), errOut, s.read)
	s.end()
	if len(s.failed) <= *rerun && len(s.broken) == 0 {
		for i := range s.failed {
			err = errors.Join(err, s.again(&s.failed[i], flags.Args(), test, errOut))
		}
	}
	stop()
	if err == nil && *flaky != "" {
		err = os.WriteFile(*flaky, []byte(s.flakyList()), 0o644)
	}
	if err != nil {
		fmt.Fprintf(errOut, "testsummary: %v\n", err)
	}
	if !s.finish(ci, wanted) || err != nil {
		return 1
	}
	return 0
}

// goTest is the tester of the real go test. Its exit code says nothing that its events don't say.
func goTest(args []string, errOut io.Writer, read func(io.Reader) error) error {
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...) //nolint:noctx // go test has a time limit of its own
	cmd.Stderr = errOut
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("go test: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("go test: %w", err)
	}
	err = read(out)
	var exit *exec.ExitError
	if waitErr := cmd.Wait(); !errors.As(waitErr, &exit) {
		err = errors.Join(err, waitErr)
	}
	return err
}

// again runs a failed test once more by itself and notes whether it passes.
func (s *summary) again(f *failure, args []string, test tester, errOut io.Writer) error {
	fmt.Fprintf(s.out, "\nonce more: %s %s\n", f.pkg, f.test)
	second := newSummary(s.out)
	err := test(append(args[:len(args):len(args)], "-count=1", "-run="+pattern(f.test), f.pkg), errOut, second.read)
	second.end()
	f.flaky = err == nil && len(second.failed) == 0 && len(second.broken) == 0 && second.all.passed > 0
	return err
}

// pattern returns the argument of -run that selects one test.
func pattern(test string) string {
	elements := strings.Split(test, "/")
	for i, e := range elements {
		elements[i] = "^" + regexp.QuoteMeta(e) + "$"
	}
	return strings.Join(elements, "/")
}
