// Package tier decides which tests a run includes, and which servers they meet.
//
// The suite has two parts. `make test` runs the first: every package, on one real server of each
// kind. `make test-all` runs the rest: Valkey, the embedded variants of tests that also run on a
// real server, other topologies, the upgrade, and what takes long. The environment variable
// MILLRACE_TEST selects the part:
//
//	MILLRACE_TEST=        what `make test` runs
//	MILLRACE_TEST=rest    what `make test` leaves out: `make test-all`
//	MILLRACE_TEST=all     both
//
// A test without a call of this package belongs to both parts, so it must be quick.
//
// After a change, the rest is not run as a whole. A test of the rest runs if the change touches one
// of its areas or its package, or if the round of the check includes it: each round has another
// quarter of the rest, so that four rounds have run everything. Of a change that touches nearly
// everything the check has no areas and two quarters, so that its time is bounded. The command
// e2e/scope sets the variables from the change:
//
//	MILLRACE_AREAS=room,redis       the areas that the change touches; unset: the whole rest runs
//	MILLRACE_PACKAGES=plugins/web   the folders of the packages that it touches
//	MILLRACE_QUARTERS=2             the quarters of this round, 0 to 3
//
// Each function that hands out a server records it as an attribute of the test. The summary of a
// run counts a test for a server by that attribute.
package tier

import (
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Attribute is the key under which a test records each server that it has met.
const Attribute = "millrace.server"

// RestAttribute is the key under which a test of `make test` records that the rest has more of it.
// The check of a change runs those tests only, and not each quick test a second time.
const RestAttribute = "millrace.rest"

// WaitedAttribute is the key under which a test records how long it waited for other tests.
const WaitedAttribute = "millrace.waited"

// Default skips a test of `make test` in a run of the rest.
func Default(t testing.TB) {
	t.Helper()
	if part() == "rest" {
		t.Skip("`make test` runs it")
	}
}

// Area is a part of the product. A scenario names the areas whose changes it must follow.
type Area string

// The areas. The command e2e/scope has the folders of each.
const (
	Promotion  Area = "promotion"
	Router     Area = "router"
	Room       Area = "room"
	Kafka      Area = "kafka"
	Redis      Area = "redis"
	DeadLetter Area = "deadletter"
	Web        Area = "web"
	CLI        Area = "cli"
	Pipeline   Area = "pipeline"
)

// Rest skips a test of `make test-all` in a run of `make test`, and in a run after a change that
// does not include it. A test outside of e2e needs no areas: it runs when its package is touched.
func Rest(t testing.TB, areas ...Area) {
	t.Helper()
	RestOf(t)
	if !Selected(t.Name(), areas...) {
		t.Skip("the change does not touch it, and it is in a quarter of another round (MILLRACE_AREAS, MILLRACE_QUARTERS)")
	}
}

// RestOf is Rest for a test that selects its cases itself with Selected.
func RestOf(t testing.TB) {
	t.Helper()
	if !IsRest(t) {
		t.Skip("`make test-all` runs it (MILLRACE_TEST=all)")
	}
}

// Selected reports whether a run of the rest includes the test or case with this name.
func Selected(name string, areas ...Area) bool {
	touched, limited := os.LookupEnv("MILLRACE_AREAS")
	if !limited {
		return true
	}
	for area := range strings.SplitSeq(touched, ",") {
		if slices.Contains(areas, Area(area)) {
			return true
		}
	}
	if dir, err := os.Getwd(); err == nil { // go test runs a test in the folder of its package
		for folder := range strings.SplitSeq(os.Getenv("MILLRACE_PACKAGES"), ",") {
			if folder != "" && strings.HasSuffix(filepath.ToSlash(dir), "/"+folder) {
				return true
			}
		}
	}
	return slices.Contains(strings.Split(os.Getenv("MILLRACE_QUARTERS"), ","), strconv.Itoa(Quarter(name)))
}

// Quarter returns the quarter of the rest, 0 to 3, that a test, case or package with this name
// belongs to.
func Quarter(name string) int {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(name))
	return int(hash.Sum32() % 4)
}

// IsRest reports whether the run includes the tests of `make test-all`: for tests that do more of
// the same there.
func IsRest(t testing.TB) bool {
	t.Helper()
	if part() == "" {
		t.Attr(RestAttribute, "more")
		return false
	}
	return true
}

func part() string {
	switch p := os.Getenv("MILLRACE_TEST"); p {
	case "", "rest", "all":
		return p
	default:
		panic("MILLRACE_TEST: want rest, all or nothing, got " + p)
	}
}

// Embedded marks a test that runs on an embedded server. It belongs to `make test`. If the same test
// also runs on the real server named twin (redis, postgres), and that one is there, the embedded
// variant belongs to the rest.
func Embedded(t testing.TB, twin ...string) {
	t.Helper()
	Met(t, "embedded")
	if len(twin) > 0 && os.Getenv(variable(twin[0])) != "" {
		Rest(t)
		return
	}
	Default(t)
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
	addr := os.Getenv(variable(name))
	if addr == "" {
		t.Skipf("%s is not set: `make test` sets it to the address of a server", variable(name))
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

func variable(server string) string { return "MILLRACE_TEST_" + strings.ToUpper(server) }
