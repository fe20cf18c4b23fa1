package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const clockSetting = "MILLRACE_FAULT_CLOCK"

// clockBinary builds the service with a changed time.Now: it adds the seconds of clockSetting.
// Durations and timers are not changed. A preloaded library such as libfaketime has no effect on a
// Go program.
func clockBinary(t *testing.T) string {
	t.Helper()
	root, err := exec.Command("go", "env", "GOROOT").Output()
	require.NoError(t, err)
	original := filepath.Join(strings.TrimSpace(string(root)), "src", "time", "time.go")
	text, err := os.ReadFile(original)
	require.NoError(t, err)
	const imports, now = "\nimport (\n", "\tsec, nsec, mono := runtimeNow()\n"
	changed := strings.Replace(string(text), imports, imports+"\t\"strconv\"\n\t\"syscall\"\n", 1)
	changed = strings.Replace(changed, now, now+"\tsec += ahead\n", 1) + `
var ahead = func() int64 {
	text, _ := syscall.Getenv("` + clockSetting + `")
	seconds, _ := strconv.ParseInt(text, 10, 64)
	return seconds
}()
`
	file, overlay := filepath.Join(t.TempDir(), "time.go"), filepath.Join(t.TempDir(), "overlay.json")
	require.NoError(t, os.WriteFile(file, []byte(changed), 0o600))
	list, err := json.Marshal(map[string]map[string]string{"Replace": {original: file}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(overlay, list, 0o600))
	return clockBuild.get(t, "millrace-clock", "-overlay", overlay)
}

// wrongClock gives a process a clock that is ahead.
func (p *faultyProcess) wrongClock(ahead time.Duration) {
	p.program, p.env = clockBinary(p.t), []string{fmt.Sprint(clockSetting, "=", ahead.Seconds())}
}

// clocksOff lets two users pass another room. The clocks of the first broker and of the first
// dispatcher are wrong. Users see the time of Redis, and the shop has the right clock.
func (r *roomRun) clocksOff() {
	for i, p := range []*faultyProcess{r.brokers[0], r.dispatchers[0]} {
		resp, err := http.Get(p.ops + "/readyz")
		require.NoError(r.t, err)
		_ = resp.Body.Close()
		date, err := http.ParseTime(resp.Header.Get("Date"))
		require.NoError(r.t, err)
		require.InDelta(r.t, r.c.clocks[i].Minutes(), time.Until(date).Minutes(), 2, "the clock of %s", p.name)
	}
	s := &roomStory{t: r.t, event: "clocks", roomFleet: &roomFleet{redis: r.redis.Client}}
	for _, p := range r.processes() {
		s.processes, s.operations = append(s.processes, p.roomProcess), append(s.operations, p.ops)
	}
	for _, b := range r.brokers {
		s.brokers = append(s.brokers, b.url)
	}
	begin := s.redis.Time(r.t.Context()).Val().UnixMilli()
	ann, ben := s.openForTwo(`,"capacity":2,"concurrency":1`)
	for i, g := range []*roomGuest{ann, ben} {
		entry := g.promoted()
		end := s.redis.Time(r.t.Context()).Val().UnixMilli()
		require.GreaterOrEqual(r.t, entry.Now, begin, g.name)
		require.LessOrEqual(r.t, entry.Now, end, g.name)
		require.LessOrEqual(r.t, entry.Until-entry.Now, r.times.token.Milliseconds(), g.name)
		for _, e := range g.all("position") {
			require.GreaterOrEqual(r.t, e.AsOf, begin, g.name)
			require.LessOrEqual(r.t, e.AsOf, end, g.name)
		}
		_, err := s.gate(1-i).Check(r.t.Context(), s.event, entry.Token)
		require.NoError(r.t, err)
		again := s.tab(g.name, 1-i, g.cursor()).promoted()
		require.Equal(r.t, []any{entry.JTI, entry.Until}, []any{again.JTI, again.Until}, g.name)
		s.buys(1-i, entry.Token, "session")
		g.closed("sold")
	}
	s.change("close", "")
}
