package main

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

// server is something that tests run on.
type server string

const (
	kafka    server = "Kafka"
	redis    server = "Redis"
	valkey   server = "Valkey"
	postgres server = "PostgreSQL"
	chromium server = "Chromium"
	embedded server = "embedded"
)

func realServers() []server { return []server{kafka, redis, valkey, postgres, chromium} }

// serverNamed returns the server with the name that attributes and flags use.
func serverNamed(name string) (s server, ok bool) {
	s, ok = map[string]server{"kafka": kafka, "redis": redis, "valkey": valkey, "postgres": postgres, "chromium": chromium, "embedded": embedded}[name]
	return s, ok
}

// missing matches the reason of a test that was skipped because the address of a server isn't in
// the environment.
var missing = regexp.MustCompile(`MILLRACE_TEST_(KAFKA|REDIS|VALKEY|POSTGRES|CHROMIUM)`)

// finish prints the tables and what is wrong, and reports whether all tests passed. With strict, a
// skip for a missing server is wrong, and every server in want must have had a test.
func (s *summary) finish(strict bool, want []server) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	wrong := slices.Clone(s.broken)
	for _, f := range s.failed {
		if f.flaky {
			s.add("pass", f.servers)
			continue
		}
		s.add("fail", f.servers)
		wrong = append(wrong, f.pkg+" "+f.test)
	}
	s.table()
	s.skipTable()
	s.slowTable()
	if list := s.flakyList(); list != "" {
		fmt.Fprintf(s.out, "\nflaky: they failed, and passed when they ran once more; repair them first\n%s", list)
	}

	if len(s.pkgs) == 0 {
		wrong = append(wrong, "no package was tested")
	}
	if strict {
		for _, skip := range s.skips {
			if missing.MatchString(skip.reason) {
				wrong = append(wrong, skip.name+" was skipped, and in CI no server may be missing: "+skip.reason)
			}
		}
		for _, on := range want {
			if t := s.on[on]; t == nil || t.passed+t.failed == 0 {
				wrong = append(wrong, "no test ran on real "+string(on))
			}
		}
	}
	if len(wrong) == 0 {
		return true
	}
	fmt.Fprintf(s.out, "\nFAILED:\n")
	for _, what := range wrong {
		fmt.Fprintf(s.out, "  %s\n", what)
	}
	return false
}

func (s *summary) table() {
	row := func(what string, t tally) {
		fmt.Fprintf(s.out, "%-38s %7d %7d %7d %7d\n", what, t.passed+t.failed, t.passed, t.failed, t.skipped)
	}
	fmt.Fprintf(s.out, "\n%-38s %7s %7s %7s %7s\n", "tests", "ran", "passed", "failed", "skipped")
	row("all", s.all)
	for _, on := range append(realServers(), embedded) {
		t := s.on[on]
		if t == nil {
			t = &tally{}
		}
		if on == embedded {
			row("embedded (kfake, miniredis, SQLite)", *t)
			continue
		}
		row("on real "+string(on), *t)
	}
}

// skipTable prints the number of tests per reason to skip.
func (s *summary) skipTable() {
	if len(s.skips) == 0 {
		return
	}
	count := map[string]int{}
	for _, skip := range s.skips {
		count[skip.reason]++
	}
	fmt.Fprintf(s.out, "\nskipped\n")
	for _, reason := range slices.Sorted(maps.Keys(count)) {
		fmt.Fprintf(s.out, "%7d  %s\n", count[reason], reason)
	}
}

// slowTable prints the ten tests that took longest.
func (s *summary) slowTable() {
	if len(s.slow) == 0 {
		return
	}
	slices.SortStableFunc(s.slow, func(a, b timed) int { return cmp.Compare(b.took, a.took) })
	fmt.Fprintf(s.out, "\nslowest\n")
	for _, t := range s.slow[:min(10, len(s.slow))] {
		fmt.Fprintf(s.out, "%7.1fs %s\n", t.took.Round(100*time.Millisecond).Seconds(), t.name)
	}
}

// flakyList is one line per test that passed when it ran once more.
func (s *summary) flakyList() string {
	var b strings.Builder
	for _, f := range s.failed {
		if f.flaky {
			fmt.Fprintf(&b, "  %s %s\n", f.pkg, f.test)
		}
	}
	return b.String()
}
