package poll

import (
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// readFor lets a read of n entries take a millisecond, and its entries last for the given time. It
// returns the COUNT of the next read.
func (d *demand) readFor(n, bytes int, lasted time.Duration) int {
	entries := make([]goredis.XMessage, n)
	for i := range entries {
		entries[i].Values = map[string]any{"message": strings.Repeat("x", bytes)}
	}
	at := time.Unix(0, 0)
	d.noteRead(entries, at, at.Add(time.Millisecond))
	return d.next(at.Add(time.Millisecond + lasted))
}

func newDemand(least int) *demand { return &demand{lowest: least, count: least} }

func TestCountGrowsWhileFullReadsLastShortly(t *testing.T) {
	d := newDemand(10)
	var counts []int
	for range 6 {
		counts = append(counts, d.readFor(d.count, 200, time.Millisecond))
	}
	require.Equal(t, []int{20, 40, 80, 160, 256, 256}, counts)
	ahead, _ := d.ahead()
	require.Equal(t, 128, ahead)
	require.Equal(t, 256, d.readFor(256, 200, 20*time.Millisecond), "between the limits it stays")
}

func TestCountShrinksWhenEntriesLast(t *testing.T) {
	d := newDemand(10)
	d.count = 256
	var counts []int
	for range 6 {
		counts = append(counts, d.readFor(d.count, 200, 200*time.Millisecond))
	}
	require.Equal(t, []int{128, 64, 32, 16, 10, 10}, counts)
	ahead, _ := d.ahead()
	require.Zero(t, ahead, "a slow reader reads nothing ahead")
}

func TestCountShrinksAfterAReadThatIsNotFull(t *testing.T) {
	d := newDemand(10)
	d.count = 256
	require.Equal(t, 128, d.readFor(255, 200, 0))
	require.Equal(t, 64, d.readFor(0, 0, 0))
}

func TestCountOfLargeEntriesDoesNotGrow(t *testing.T) {
	d := newDemand(10)
	require.Equal(t, 10, d.readFor(10, 100_000, 0))
	require.Equal(t, 20, d.readFor(10, 50_000, 0))
	require.Equal(t, 20, d.readFor(20, 50_000, 0))
}

func TestALargerBatchSizeIsTheLargestCount(t *testing.T) {
	d := newDemand(1000)
	require.Equal(t, 1000, d.readFor(1000, 10, 0))
	require.Equal(t, 1000, d.readFor(0, 0, 0))
}

func TestCountShrinksWhenEntriesBecomeLarge(t *testing.T) {
	d := newDemand(10)
	d.count = 256
	require.Equal(t, 10, d.readFor(256, 100_000, time.Millisecond), "10 of them are a MiB")
	d.count = 256
	require.Equal(t, 16, d.readFor(20, 50_000, time.Millisecond), "also after a read that is not full")
}
