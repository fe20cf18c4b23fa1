package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// rows has what the page shows of each number, the newest first: "3 scan" or "2–4 missing".
const rows = `[...document.querySelectorAll("#events li")].map(li => li.querySelector("b").textContent + " " + li.querySelector("span").textContent)`

// lists waits until the page shows these rows, and no others.
func (p *tab) lists(want ...string) {
	p.t.Helper()
	var got []string
	require.Eventually(p.t, func() bool {
		got = value[[]string](p, rows)
		return strings.Join(got, "\n") == strings.Join(want, "\n")
	}, 2*time.Minute, glance, "the page shows other rows than %q: %q", want, &got)
}

// A gap either says that numbers are missing, or takes numbers back that other events have now.
func pageTakesNumbersBack(t *testing.T, b *browser, jobs *jobsOf, _ *service) {
	s := startJobs(t, jobs.addr, "gaps", "MILLRACE__PLUGINS__EVENTROUTER__GAP_WAIT=1s")
	step := func(job string, numbers ...int) {
		for _, seq := range numbers {
			jobs.event(job, "stage", "scan", "seq", seq)
		}
	}
	reset := func(job string) {
		out, code := s.command("", "jobs", "reset", "scan/"+job, "--why", "test")
		require.Zero(t, code, out)
	}

	late := b.open(t, s.url+"/jobs/scan/late/watch", 1000)
	step("late", 1, 2, 4)
	late.lists("4 scan", "3 missing", "2 scan", "1 scan")
	step("late", 3)
	late.lists("4 scan", "3 scan", "2 scan", "1 scan")

	partly := b.open(t, s.url+"/jobs/scan/partly/watch", 1000)
	step("partly", 1, 6)
	partly.lists("6 scan", "2–5 missing", "1 scan")
	step("partly", 4)
	partly.lists("6 scan", "5 missing", "4 scan", "2–3 missing", "1 scan")

	again := b.open(t, s.url+"/jobs/scan/again/watch", 1000)
	step("again", 1, 2)
	again.lists("2 scan", "1 scan")
	output := func() string { return value[string](again, `document.getElementById("tokens").textContent`) }
	jobs.event("again", "stage", "token", "data", `{"text":"of the first run"}`)
	require.Eventually(t, func() bool { return strings.Contains(output(), "of the first run") }, 2*time.Minute, glance)
	reset("again")
	step("again", 1)
	again.lists("1 scan")
	require.Empty(t, output())
	require.False(t, value[bool](again, `document.getElementById("output").checkVisibility()`), "an empty output")

	both := b.open(t, s.url+"/jobs/scan/left/watch?job=scan/right", 1000)
	step("left", 1, 2)
	both.lists("2 scan/left: scan", "1 scan/left: scan")
	step("right", 1, 3)
	both.lists("3 scan/right: scan", "2 scan/right: missing", "1 scan/right: scan", "2 scan/left: scan", "1 scan/left: scan")
	reset("left")
	step("left", 1)
	both.lists("1 scan/left: scan", "3 scan/right: scan", "2 scan/right: missing", "1 scan/right: scan")
}
