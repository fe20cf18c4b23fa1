// Package tier decides which tests a run includes, and which servers they meet.
//
// The suite has two parts. `make test` runs the first: every package on embedded servers and on one
// real server of each kind. `make test-all` runs the rest: Valkey, other topologies, the upgrade,
// and what takes long. The environment variable MILLRACE_TEST selects the part:
//
//	MILLRACE_TEST=        what `make test` runs
//	MILLRACE_TEST=rest    what `make test` leaves out: `make test-all`
//	MILLRACE_TEST=all     both
//
// A test without a call of this package belongs to both parts, so it must be quick.
//
// Each function that hands out a server records it as an attribute of the test. The summary of a
// run counts a test for a server by that attribute.
package tier

import (
	"os"
	"strings"
	"testing"
	"time"
)

// Attribute is the key under which a test records each server that it has met.
const Attribute = "millrace.server"

// WaitedAttribute is the key under which a test records how long it waited for other tests.
const WaitedAttribute = "millrace.waited"

// Default skips a test of `make test` in a run of the rest.
func Default(t testing.TB) {
	t.Helper()
	if part() == "rest" {
		t.Skip("`make test` runs it")
	}
}

// Rest skips a test of `make test-all` in a run of `make test`.
func Rest(t testing.TB) {
	t.Helper()
	if part() == "" {
		t.Skip("`make test-all` runs it (MILLRACE_TEST=all)")
	}
}

// IsRest reports whether the run includes the tests of `make test-all`: for tests that do more of
// the same there.
func IsRest() bool { return part() != "" }

func part() string {
	switch p := os.Getenv("MILLRACE_TEST"); p {
	case "", "rest", "all":
		return p
	default:
		panic("MILLRACE_TEST: want rest, all or nothing, got " + p)
	}
}

// Embedded marks a test that runs on an embedded server. It belongs to `make test`.
func Embedded(t testing.TB) {
	t.Helper()
	Default(t)
	Met(t, "embedded")
}

// Real returns the address of a real server: kafka, redis, valkey or postgres; chromium is a
// program. A test on Valkey belongs to `make test-all`, every other one to `make test`. Without an
// address the test is skipped.
func Real(t testing.TB, name string) string {
	t.Helper()
	if name == "valkey" {
		Rest(t)
	} else {
		Default(t)
	}
	return Address(t, name)
}

// Address is Real for a test that has chosen its part of the suite itself.
func Address(t testing.TB, name string) string {
	t.Helper()
	env := "MILLRACE_TEST_" + strings.ToUpper(name)
	addr := os.Getenv(env)
	if addr == "" {
		t.Skipf("%s is not set: `make test` sets it to the address of a server", env)
	}
	Met(t, name)
	return addr
}

// Waited records that the test has waited for other tests to end. The summary of a run subtracts
// the time when it lists the slowest tests.
func Waited(t testing.TB, d time.Duration) {
	t.Helper()
	t.Attr(WaitedAttribute, d.String())
}

// Met records that the test has met a server.
func Met(t testing.TB, name string) {
	t.Helper()
	t.Attr(Attribute, name)
}
