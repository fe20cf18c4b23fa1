// Testsummary reads what gotestsum wrote with --jsonfile and prints what gotestsum does not know: on
// which servers the tests ran, why tests were skipped, and the ten slowest.
//
//	go run ./e2e/testsummary [-want kafka,redis] [-flaky FILE] [-rest FILE] bin/test.json
//
// A test counts for a server when it, or a test that it is part of, recorded that it met the server
// (pipelinetest/tier). Embedded servers (kfake, miniredis, SQLite) are counted apart. A test that
// failed and passed when gotestsum ran it once more is flaky: it is listed, also in the file of
// -flaky. gotestsum has to run the whole top-level test again, because the names of subtests may be
// random (those of Watermill's suite are). A package that failed without a failed test (a leak, a panic, a build) fails the run,
// because gotestsum runs such a package again without any test and takes it for passed. What such a
// package printed last is shown. The file of
// -rest gets the argument of `go test -run` that selects the tests of which `make test-all` has more.
//
// With CI=true a test that was skipped because a server is missing is a failure, and so is a server
// in -want that no test ran on. Exit codes: 0 all passed, 1 not, 2 usage.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

func main() {
	os.Exit(run(os.Args[1:], os.Getenv, os.Stdout, os.Stderr))
}

func run(args []string, getenv func(string) string, out, errOut io.Writer) int {
	flags := flag.NewFlagSet("testsummary", flag.ContinueOnError)
	flags.SetOutput(errOut)
	want := flags.String("want", "", "servers that tests must have met when CI=true: kafka,redis,valkey,postgres,chromium")
	flaky := flags.String("flaky", "", "file for the names of the tests that passed when they ran once more")
	rest := flags.String("rest", "", "file for the pattern of the tests that have more in the rest")
	if err := flags.Parse(args); err != nil || flags.NArg() != 1 {
		fmt.Fprintln(errOut, "usage: testsummary [-want SERVERS] [-flaky FILE] [-rest FILE] JSONFILE")
		return 2
	}
	for name := range strings.SplitSeq(*want, ",") {
		if name != "" && (title(name) == "" || name == embedded) {
			fmt.Fprintf(errOut, "testsummary: -want: unknown server %q\n", name)
			return 2
		}
	}
	if getenv("CI") != "true" {
		*want = ""
	}
	s := summary{tests: map[key]*test{}, on: map[string]*tally{}, rest: map[string]bool{}}
	file, err := os.Open(flags.Arg(0))
	if err == nil {
		err = errors.Join(s.read(file), file.Close())
	}
	if err == nil && *rest != "" {
		err = os.WriteFile(*rest, []byte("^("+strings.Join(slices.Sorted(maps.Keys(s.rest)), "|")+")$"), 0o644)
	}
	if err == nil && *flaky != "" {
		err = os.WriteFile(*flaky, []byte(s.flaky()), 0o644)
	}
	if err != nil {
		fmt.Fprintf(errOut, "testsummary: %v\n", err)
		return 1
	}
	if !s.print(out, getenv("CI") == "true", strings.FieldsFunc(*want, func(r rune) bool { return r == ',' })) {
		return 1
	}
	return 0
}

// embedded is the attribute of tests on kfake, miniredis and SQLite.
const embedded = "embedded"

func servers() []string {
	return []string{"kafka", "redis", "valkey", "postgres", "chromium", embedded}
}

// title returns the row of a server in the table, or "" for a name that is none.
func title(server string) string {
	return map[string]string{
		"kafka": "on real Kafka", "redis": "on real Redis", "valkey": "on real Valkey", "postgres": "on real PostgreSQL",
		"chromium": "on real Chromium", embedded: "embedded (kfake, miniredis, SQLite)",
	}[server]
}

// missing matches the reason of a test that was skipped because the address of a server is not in
// the environment.
var missing = regexp.MustCompile(`MILLRACE_TEST_(KAFKA|REDIS|VALKEY|POSTGRES|CHROMIUM)`)

// event is a line of `go test -json` (go doc test2json).
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64 // seconds
	Key, Value                    string  // of an attribute
}

type key struct{ pkg, test string }

// test is what is known of a test or subtest after its last run.
type test struct {
	result  string // pass, fail or skip; empty while it runs
	failed  bool   // in an earlier run
	parent  bool   // has subtests, which are counted in its place
	servers []string
	waited  time.Duration // for other tests
	took    time.Duration // without waited
	reason  string        // what it logged last with its place
	open    bool          // the next line may belong to reason
}

// log takes a line that the test has printed. A further line of a message has eight spaces in front.
func (t *test) log(line string) {
	line = strings.TrimRight(line, "\n")
	if more, found := strings.CutPrefix(line, "        "); found && t.open {
		t.reason += "\n" + more
		return
	}
	t.open = false
	if _, rest, found := strings.Cut(line, ".go:"); found { // file.go:12: reason
		if _, text, found := strings.Cut(rest, ": "); found {
			t.reason, t.open = strings.TrimSpace(text), true
		}
	}
}

// tally counts tests.
type tally struct{ passed, failed, skipped int }

func (t *tally) add(result string) {
	switch result {
	case "pass":
		t.passed++
	case "skip":
		t.skipped++
	default:
		t.failed++
	}
}

type summary struct {
	tests  map[key]*test
	pkgs   int
	broken []string // packages that failed without a failed test
	rest   map[string]bool
	on     map[string]*tally
}

// printedMost is how many lines are shown of what a package printed.
const printedMost = 60

// read takes the events of all runs, in the order in which they were written.
func (s *summary) read(in io.Reader) error {
	failing := map[string]bool{}     // packages whose current run has a failed test
	printed := map[string][]string{} // by a package itself, the last lines
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil || e.Package == "" {
			continue
		}
		if e.Test != "" {
			s.testEvent(e)
			failing[e.Package] = failing[e.Package] || e.Action == "fail"
			continue
		}
		switch e.Action {
		case "start":
			failing[e.Package], printed[e.Package] = false, nil
		case "output":
			all := append(printed[e.Package], e.Output)
			printed[e.Package] = all[max(0, len(all)-printedMost):]
		case "pass", "skip", "fail":
			s.pkgs++
			if open := s.open(e.Package); e.Action == "fail" && !failing[e.Package] && open == "" {
				s.broken = append(s.broken, fmt.Sprintf("%s (no test of it failed: a leak, a panic or a build)\n%s", e.Package, strings.Join(printed[e.Package], "")))
			} else if open != "" {
				s.broken = append(s.broken, e.Package+" "+open+" (it never ended)")
			}
		}
	}
	return lines.Err()
}

// open ends the tests of a package that has ended while they ran, and returns the name of one.
func (s *summary) open(pkg string) (name string) {
	for k, t := range s.tests {
		if k.pkg == pkg && t.result == "" {
			t.result = "fail"
			name = max(name, k.test) // the innermost says most
		}
	}
	return name
}

func (s *summary) testEvent(e event) {
	k := key{e.Package, e.Test}
	t := s.tests[k]
	if t == nil {
		t = &test{}
		s.tests[k] = t
		for i := strings.LastIndexByte(e.Test, '/'); i > 0; i = strings.LastIndexByte(e.Test[:i], '/') {
			if parent := s.tests[key{e.Package, e.Test[:i]}]; parent != nil {
				parent.parent = true
			}
		}
	}
	switch e.Action {
	case "run":
		if t.result == "fail" { // it runs again, and its subtests may get other names
			t.failed, t.parent = true, false
			maps.DeleteFunc(s.tests, func(other key, _ *test) bool {
				return other.pkg == k.pkg && strings.HasPrefix(other.test, k.test+"/")
			})
		}
		*t = test{failed: t.failed, parent: t.parent}
	case "attr":
		if e.Key == tier.Attribute && title(e.Value) != "" {
			t.servers = append(t.servers, e.Value)
		}
		if e.Key == tier.RestAttribute {
			top, _, _ := strings.Cut(e.Test, "/")
			s.rest[top] = true
		}
		if d, err := time.ParseDuration(e.Value); err == nil && e.Key == tier.WaitedAttribute {
			t.waited += d
		}
	case "output":
		t.log(e.Output)
	case "pass", "fail", "skip":
		t.result, t.took = e.Action, time.Duration(e.Elapsed*float64(time.Second))-t.waited
	}
}

// leaves calls do for each test without subtests, in the order of the names.
func (s *summary) leaves(do func(k key, t *test)) {
	for _, k := range slices.SortedFunc(maps.Keys(s.tests), func(a, b key) int {
		return cmp.Or(cmp.Compare(a.pkg, b.pkg), cmp.Compare(a.test, b.test))
	}) {
		if t := s.tests[k]; !t.parent {
			do(k, t)
		}
	}
}

// met returns the servers that the test, or a test that it is part of, has met.
func (s *summary) met(k key) []string {
	var on []string
	for name := k.test; ; {
		if t := s.tests[key{k.pkg, name}]; t != nil {
			on = append(on, t.servers...)
		}
		i := strings.LastIndexByte(name, '/')
		if i < 0 {
			break
		}
		name = name[:i]
	}
	slices.Sort(on)
	return slices.Compact(on)
}

// flaky is a line per test that failed and passed when it ran once more.
func (s *summary) flaky() string {
	var again []string
	for k, t := range s.tests {
		if t.failed && t.result == "pass" {
			again = append(again, fmt.Sprintf("  %s %s\n", k.pkg, k.test))
		}
	}
	slices.Sort(again)
	return strings.Join(again, "")
}

// missingServer says that tests were skipped, and why. The lines of a log are in the list of the skips.
func missingServer(tests []string, reason string) string {
	reason, _, _ = strings.Cut(reason, "\n")
	were := "1 test was"
	if len(tests) > 1 {
		were = fmt.Sprintf("%d tests were", len(tests))
	}
	return fmt.Sprintf("in CI no server may be missing, and %s skipped, such as %s: %s", were, tests[0], reason)
}

// print prints the tables and what is wrong, and reports whether all tests passed.
func (s *summary) print(out io.Writer, strict bool, want []string) bool {
	var all tally
	var slow []key
	skips := map[string][]string{} // names of tests, by the reason
	wrong := slices.Clone(s.broken)
	s.leaves(func(k key, t *test) {
		all.add(t.result)
		for _, on := range s.met(k) {
			if s.on[on] == nil {
				s.on[on] = &tally{}
			}
			s.on[on].add(t.result)
		}
		slow = append(slow, k)
		switch t.result {
		case "skip":
			reason := cmp.Or(t.reason, "no reason given")
			skips[reason] = append(skips[reason], k.pkg+" "+k.test)
		case "fail":
			wrong = append(wrong, k.pkg+" "+k.test)
		}
	})
	row := func(what string, t tally) {
		fmt.Fprintf(out, "%-38s %7d %7d %7d %7d\n", what, t.passed+t.failed, t.passed, t.failed, t.skipped)
	}
	fmt.Fprintf(out, "\n%-38s %7s %7s %7s %7s\n", "tests", "ran", "passed", "failed", "skipped")
	row("all", all)
	for _, on := range servers() {
		t := cmp.Or(s.on[on], &tally{})
		row(title(on), *t)
		if slices.Contains(want, on) && t.passed+t.failed == 0 {
			wrong = append(wrong, "no test ran "+title(on))
		}
	}
	if len(skips) > 0 {
		fmt.Fprintln(out, "\nskipped")
	}
	for _, reason := range slices.Sorted(maps.Keys(skips)) {
		fmt.Fprintf(out, "%7d  %s\n", len(skips[reason]), strings.ReplaceAll(reason, "\n", "\n         "))
		if strict && missing.MatchString(reason) {
			wrong = append(wrong, missingServer(skips[reason], reason))
		}
	}
	slices.SortStableFunc(slow, func(a, b key) int { return cmp.Compare(s.tests[b].took, s.tests[a].took) })
	fmt.Fprintln(out, "\nslowest")
	for _, k := range slow[:min(10, len(slow))] {
		fmt.Fprintf(out, "%7.1fs %s %s\n", s.tests[k].took.Seconds(), k.pkg, k.test)
	}
	if list := s.flaky(); list != "" {
		fmt.Fprintf(out, "\nflaky: they failed, and passed when they ran once more; repair them first\n%s", list)
	}
	if s.pkgs == 0 {
		wrong = append(wrong, "no package was tested")
	}
	for i, what := range wrong {
		if i == 0 {
			fmt.Fprintln(out, "\nFAILED:")
		}
		fmt.Fprintf(out, "  %s\n", what)
	}
	return len(wrong) == 0
}
