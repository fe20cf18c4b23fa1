package main

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// server is something that tests run on.
type server string

const (
	kafka    server = "Kafka"
	redis    server = "Redis"
	valkey   server = "Valkey"
	postgres server = "PostgreSQL"
	embedded server = "embedded"
)

func realServers() []server { return []server{kafka, redis, valkey, postgres} }

// serverNamed returns the real server with the name that test names and flags use.
func serverNamed(name string) (server, bool) {
	switch name {
	case "kafka":
		return kafka, true
	case "redis":
		return redis, true
	case "valkey":
		return valkey, true
	case "postgres":
		return postgres, true
	}
	return "", false
}

// serversOf returns what a test ran on, by the elements of its name.
func serversOf(name string) []server {
	on := map[server]bool{}
	for element := range strings.SplitSeq(name, "/") {
		if s, ok := serverNamed(element); ok {
			on[s] = true
		}
		switch element {
		case "real":
			on[kafka], on[redis], on[postgres] = true, true, true
		case "kfake", "miniredis", "sqlite", "embedded":
			on[embedded] = true
		}
	}
	return slices.Sorted(maps.Keys(on))
}

// missing matches what a test says when the address of a server isn't in the environment.
var missing = regexp.MustCompile(`MILLRACE_TEST_(KAFKA|REDIS|VALKEY|POSTGRES)`)

// finish prints the table and what is wrong, and reports whether all is good. With strict, a skip
// for a missing server is wrong, and every server in want must have had a test.
func (s *summary) finish(strict bool, want []server) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range slices.SortedFunc(maps.Values(s.pkgs), func(a, b *pkg) int { return cmp.Compare(a.name, b.name) }) {
		if !p.done {
			s.packageDone(p, "fail")
			s.failed = append(s.failed, p.name+" (its result never came)")
		}
	}
	s.table()
	s.skipTable()

	wrong := slices.Clone(s.failed)
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

// skipTable names every reason to skip with its number of tests.
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
