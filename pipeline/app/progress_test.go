package app

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestProgressWritesALineEveryFewSeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := (&Host{opts: Options{Stderr: &out}}).Progress(200, "published")
		for i := range int64(70) { // 7 s
			p.Set(i + 1)
			time.Sleep(100 * time.Millisecond)
		}
		require.Equal(t, "published: 31 of 200 (15 %)\npublished: 61 of 200 (30 %)\n", out.String())
		out.Reset()
		p.Set(500)
		p.Set(-3)
		p.Set(200)
		time.Sleep(2 * progressEvery)
		p.Set(200)
		p.Done()
		p.Done()
		p.Set(1)
		require.Equal(t, "published: 200 of 200 (100 %)\n", out.String())
	})
}

func TestProgressOfNothing(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := newProgress(&out, nil, -5, "paid")
	p.Set(1)
	p.Done()
	require.Empty(t, out.String())
}

func TestProgressIsABarOnATerminal(t *testing.T) {
	t.Parallel()
	for _, done := range []int64{5, 10} {
		var out bytes.Buffer
		p := newProgress(&out, func() int { return 80 }, 10, "paid")
		p.Set(done)
		p.Done()
		require.Contains(t, out.String(), "\r\x1b[Kpaid")
		require.NotContains(t, out.String(), "of 10", "no lines in addition to the bar")
		require.NotContains(t, out.String(), "/s", "no rate in the first second")
		require.Equal(t, 1, strings.Count(out.String(), "\n"), "the cursor is left on a line of its own: %q", out.String())
		require.True(t, strings.HasSuffix(out.String(), fmt.Sprintf(" %d/10\n", done)))
	}
}

func TestProgressOnATerminalOfUnknownWidth(t *testing.T) {
	t.Parallel()
	for _, width := range []int{0, -1} {
		var out bytes.Buffer
		p := newProgress(&out, func() int { return width }, 10, "paid")
		p.Set(10)
		out.Reset()
		p.Done()
		require.Equal(t, "\r\x1b[Kpaid 100 % ["+strings.Repeat("=", barWidth)+"] 10/10\n", out.String())
	}
}

func TestProgressEstimatesNoMoreThanItsLongest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := newProgress(&out, func() int { return 120 }, math.MaxInt32, "paid")
		time.Sleep(time.Hour)
		p.Set(1)
		require.Contains(t, out.String(), ", 999h0m0s left")
	})
}

func TestProgressIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := newProgress(&out, func() int { return 80 }, 100, "paid")
	var wg sync.WaitGroup
	for i := range int64(8) {
		wg.Go(func() { p.Set(i) })
	}
	wg.Go(p.Done)
	wg.Wait()
	require.Equal(t, 1, strings.Count(out.String(), "\n"))
}

func TestProgressFitsATerminalThatIsResized(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		width := 120
		p := newProgress(&out, func() int { return width }, 1_000_000, "published")
		for i, want := range []struct {
			columns int
			line    string
		}{
			{120, "published  10 % [===                           ] 100000/1000000, 20000/s, 45s left"},
			{80, "published  20 % [=====                      ] 200000/1000000, 20000/s, 40s left"},
			{60, "published  30 % [==     ] 300000/1000000, 20000/s, 35s left"},
			{40, "published  40 % 20000/s, 30s left"},
			{30, "published  50 % 25s left"},
			{24, "published  60 % "},
			{12, "published  "},
			{1, ""},
			{120, "published  90 % [===========================   ] 900000/1000000, 20000/s, 5s left"},
		} {
			time.Sleep(5 * time.Second)
			width = want.columns
			out.Reset()
			p.Set(int64(i+1) * 100_000)
			require.Equal(t, "\r\x1b[K"+want.line, out.String())
			require.Less(t, len(want.line), want.columns)
		}
	})
}
