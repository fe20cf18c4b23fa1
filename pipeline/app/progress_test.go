package app

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestProgressWritesALineEveryFewSeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := (&Host{o: Options{Stderr: &out}}).Progress(200, "published")
		for range 70 { // 7 s
			p.Add(1)
			time.Sleep(100 * time.Millisecond)
		}
		require.Equal(t, "published: 31 of 200 (15 %)\npublished: 61 of 200 (30 %)\n", out.String())
		out.Reset()
		p.Set(500)
		p.Set(-3)
		p.Set(200)
		p.Done()
		p.Done()
		p.Add(1)
		require.Equal(t, "published: 200 of 200 (100 %)\n", out.String())
	})
}

func TestProgressOfNothing(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := newProgress(&out, false, -5, "paid")
	p.Add(1)
	p.Done()
	require.Equal(t, "paid: 0 of 0 (100 %)\n", out.String())
}

func TestProgressIsABarOnATerminal(t *testing.T) {
	t.Parallel()
	for _, done := range []int64{5, 10} {
		var out bytes.Buffer
		p := newProgress(&out, true, 10, "paid")
		p.Set(done)
		p.Done()
		require.Contains(t, out.String(), "\rpaid")
		require.NotContains(t, out.String(), "of 10", "no lines beside the bar")
		require.NotContains(t, out.String(), "it/", "the label says what is counted")
		require.Equal(t, 1, strings.Count(out.String(), "\n"), "the cursor is left on a line of its own: %q", out.String())
		require.True(t, strings.HasSuffix(out.String(), "\n"))
	}
}
