package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// event is a line of `go test -json` (go doc test2json).
type event struct {
	Time       time.Time
	Action     string
	Package    string
	ImportPath string
	Test       string
	Output     string
	Elapsed    float64 // seconds
	Key, Value string  // of an attribute
}

// test is a test or subtest of a package.
type test struct {
	name    string
	began   time.Time
	output  strings.Builder
	paused  bool   // parallel, and waiting for its turn
	result  string // pass, fail, skip, or empty while it runs
	parent  bool   // has subtests: they are counted in its place
	servers []server
	waited  time.Duration // for other tests
	took    time.Duration // without waited
}

type pkg struct {
	name   string
	tests  map[string]*test
	order  []*test
	output []string // what belongs to no test
	done   bool
}

// failure is a test that failed and ended, so that it can run once more.
type failure struct {
	pkg, test string
	servers   []server
	flaky     bool // it passed when it ran once more
}

// timed is how long a test took.
type timed struct {
	name string
	took time.Duration
}

// skipped is a test that was skipped, with its reason.
type skipped struct{ name, reason string }

// summary collects events and prints as it goes. Its methods are safe for concurrent use.
type summary struct {
	mu     sync.Mutex
	out    io.Writer
	pkgs   map[string]*pkg
	all    tally
	on     map[server]*tally
	skips  []skipped
	failed []failure
	broken []string // packages and tests that can't run again
	slow   []timed
	now    func() time.Time
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

func newSummary(out io.Writer) *summary {
	return &summary{out: out, pkgs: map[string]*pkg{}, on: map[server]*tally{}, now: time.Now}
}

// read takes events until the end of in. A line that is no event is printed.
func (s *summary) read(in io.Reader) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			s.line(line)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read: %w", err)
		}
	}
}

func (s *summary) line(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var e event
	if !strings.HasPrefix(line, "{") || json.Unmarshal([]byte(line), &e) != nil || e.Action == "" {
		fmt.Fprint(s.out, line)
		return
	}
	switch {
	case e.Action == "build-output":
		fmt.Fprint(s.out, e.Output)
	case e.Package == "":
		return // build-fail: its package's own fail follows
	case e.Test == "":
		s.packageEvent(s.pkg(e.Package), e)
	default:
		s.testEvent(s.pkg(e.Package), e)
	}
}

func (s *summary) pkg(name string) *pkg {
	p := s.pkgs[name]
	if p == nil {
		p = &pkg{name: name, tests: map[string]*test{}}
		s.pkgs[name] = p
	}
	return p
}

func (s *summary) testEvent(p *pkg, e event) {
	t := p.tests[e.Test]
	if t == nil {
		t = &test{name: e.Test, began: e.Time}
		p.tests[e.Test] = t
		p.order = append(p.order, t)
		for i := strings.LastIndexByte(e.Test, '/'); i > 0; i = strings.LastIndexByte(e.Test[:i], '/') {
			if parent := p.tests[e.Test[:i]]; parent != nil {
				parent.parent = true
			}
		}
	}
	switch e.Action {
	case "output":
		if !strings.HasPrefix(e.Output, "=== ") { // go test's own: RUN, PAUSE, CONT, NAME
			t.output.WriteString(e.Output)
		}
	case "attr":
		if on, ok := serverNamed(e.Value); ok && e.Key == tier.Attribute {
			t.servers = append(t.servers, on)
		}
		if d, err := time.ParseDuration(e.Value); err == nil && e.Key == tier.WaitedAttribute {
			t.waited += d
		}
	case "pause":
		t.paused = true
	case "cont":
		t.paused, t.began = false, e.Time
	case "pass", "fail", "skip":
		t.result, t.took = e.Action, time.Duration(e.Elapsed*float64(time.Second))-t.waited
		if e.Action == "skip" {
			s.skips = append(s.skips, skipped{p.name + " " + t.name, reason(t.output.String())})
		}
		if e.Action == "pass" {
			t.output.Reset()
		}
	}
}

func (s *summary) packageEvent(p *pkg, e event) {
	switch e.Action {
	case "output":
		p.output = append(p.output, e.Output)
	case "pass", "skip", "fail":
		s.packageDone(p, e.Action)
	}
}

// packageDone prints and counts a package: go test's own line, and of a package that failed all
// output that may say why.
func (s *summary) packageDone(p *pkg, result string) {
	p.done = true
	explained := false
	for _, t := range p.order {
		died := t.result == "" // it was running when the process ended
		if died {
			t.result = "fail"
		}
		if !t.parent {
			s.slow = append(s.slow, timed{p.name + " " + t.name, t.took})
		}
		if t.result != "fail" {
			if !t.parent {
				s.add(t.result, p.serversOf(t))
			}
			continue
		}
		explained = true
		fmt.Fprint(s.out, t.output.String())
		switch {
		case s.childFailed(p, t):
		case died:
			s.broken = append(s.broken, p.name+" "+t.name+" (it never ended)")
			s.add(t.result, p.serversOf(t))
		case strings.Contains(t.output.String(), "race detected"):
			s.broken = append(s.broken, p.name+" "+t.name+" (a data race)")
			s.add(t.result, p.serversOf(t))
		default:
			s.failed = append(s.failed, failure{pkg: p.name, test: t.name, servers: p.serversOf(t)})
		}
	}
	if result == "fail" && !explained {
		s.broken = append(s.broken, p.name)
	}
	for _, line := range p.output {
		if result == "fail" || goTestLine(line) {
			fmt.Fprint(s.out, line)
		}
	}
	p.tests, p.order, p.output = nil, nil, nil
}

// end closes the packages whose results never came.
func (s *summary) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range slices.SortedFunc(maps.Values(s.pkgs), func(a, b *pkg) int { return cmp.Compare(a.name, b.name) }) {
		if !p.done {
			s.broken = append(s.broken, p.name+" (its result never came)")
			s.packageDone(p, "pass") // its tests say more
		}
	}
}

// serversOf returns the servers that the test, or a test that it is part of, has met.
func (p *pkg) serversOf(t *test) []server {
	on := slices.Clone(t.servers)
	for i := strings.LastIndexByte(t.name, '/'); i > 0; i = strings.LastIndexByte(t.name[:i], '/') {
		if parent := p.tests[t.name[:i]]; parent != nil {
			on = append(on, parent.servers...)
		}
	}
	slices.Sort(on)
	return slices.Compact(on)
}

func (s *summary) add(result string, servers []server) {
	s.all.add(result)
	for _, on := range servers {
		if s.on[on] == nil {
			s.on[on] = &tally{}
		}
		s.on[on].add(result)
	}
}

// childFailed reports whether a subtest of t failed: then that is the failure, and t isn't one
// more.
func (s *summary) childFailed(p *pkg, t *test) bool {
	return slices.ContainsFunc(p.order, func(c *test) bool {
		return strings.HasPrefix(c.name, t.name+"/") && (c.result == "fail" || c.result == "")
	})
}

// goTestLine reports whether line is go test's result of a package.
func goTestLine(line string) bool {
	return strings.HasPrefix(line, "ok  \t") || strings.HasPrefix(line, "?   \t") || strings.HasPrefix(line, "FAIL\t")
}

// reason returns why a test was skipped, without the place and go test's own lines. The reason is
// the last line with a place: the test may have logged others before.
func reason(output string) string {
	first, last := "no reason given", ""
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "--- ") {
			continue
		}
		if _, rest, found := strings.Cut(line, ".go:"); found { // file.go:12: reason
			if _, text, found := strings.Cut(rest, ": "); found {
				last = text
			}
		}
		if first == "no reason given" {
			first = line
		}
	}
	return cmp.Or(last, first)
}

// heartbeat names the tests that run whenever nothing was printed for a while, until stop.
func (s *summary) heartbeat(every time.Duration) (stop func()) {
	if every <= 0 {
		return func() {}
	}
	quit, done := make(chan struct{}), make(chan struct{})
	tick := time.NewTicker(every)
	go func() {
		defer close(done)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
				s.printRunning(every)
			}
		}
	}()
	return func() { close(quit); <-done }
}

// printRunning prints the tests without running subtests that began longer ago than since.
func (s *summary) printRunning(since time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pkgs {
		if p.done {
			continue
		}
		for _, t := range p.order {
			took := s.now().Sub(t.began)
			busy := slices.ContainsFunc(p.order, func(c *test) bool { return c.result == "" && strings.HasPrefix(c.name, t.name+"/") })
			if t.result == "" && !t.paused && took > since && !busy {
				fmt.Fprintf(s.out, "...  \t%s %s has been running for %s\n", p.name, t.name, took.Round(time.Second))
			}
		}
	}
}
