package e2e

import (
	"bytes"
	"debug/elf"
	le "encoding/binary"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// wrongClock gives a process a clock that is ahead. Durations and timers are not changed. It
// changes the number of seconds that time.Now adds, in a copy of the binary. A preloaded library
// such as libfaketime has no effect on a Go program. To compile it with another time.Now takes all
// cores for minutes, and other tests then fail.
func (p *faultyProcess) wrongClock(ahead time.Duration) {
	p.t.Helper()
	if runtime.GOARCH != "amd64" {
		p.t.Skip("it changes a constant in machine code of amd64")
	}
	text, err := os.ReadFile(binary(p.t))
	require.NoError(p.t, err)
	now := codeOf(p.t, text, "time.Now")
	// Since 1885, where the wall clock of a time.Time begins.
	era := uint32(time.Unix(0, 0).Sub(time.Date(1885, 1, 1, 0, 0, 0, 0, time.UTC)) / time.Second)
	constant := fourBytes(era)
	require.Equal(p.t, 1, bytes.Count(now, constant), "the code of time.Now has another form in this version of Go")
	copy(now[bytes.Index(now, constant):], fourBytes(era+uint32(int32(ahead/time.Second))))
	p.program = filepath.Join(p.t.TempDir(), "millrace")
	require.NoError(p.t, os.WriteFile(p.program, text, 0o700))
}

func fourBytes(n uint32) []byte { return le.LittleEndian.AppendUint32(nil, n) }

// codeOf returns the part of an ELF file with the code of a function.
func codeOf(t *testing.T, text []byte, name string) []byte {
	t.Helper()
	f, err := elf.NewFile(bytes.NewReader(text))
	require.NoError(t, err)
	symbols, err := f.Symbols()
	require.NoError(t, err)
	i := slices.IndexFunc(symbols, func(s elf.Symbol) bool { return s.Name == name })
	require.GreaterOrEqual(t, i, 0, "the binary has no function %s", name)
	section, s := f.Sections[symbols[i].Section], symbols[i]
	start := section.Offset + s.Value - section.Addr
	return text[start : start+s.Size]
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
