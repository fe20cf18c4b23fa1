package poll

import (
	"time"

	goredis "github.com/redis/go-redis/v9"
)

const (
	// maxCount is the largest COUNT of a read, unless BatchSize is larger.
	maxCount = 256
	// maxReadBytes is the expected size of the largest read, unless BatchSize entries are larger.
	maxReadBytes = 1 << 20
	// quickRead and slowRead are how long the entries of a read last: COUNT grows below the first
	// and shrinks above the second. So a reader keeps little from the other instances.
	quickRead, slowRead = 10 * time.Millisecond, 50 * time.Millisecond
)

// demand is the COUNT of the next read. It doubles while entries are handled as fast as they are
// read, and halves when they are not.
type demand struct {
	lowest, count int
	asked         int  // the COUNT that was sent, which large entries make smaller; 0: none was
	full          bool // the last read returned as many entries as it could
	arrived       time.Time
	took          time.Duration
	bytes         int // mean size of an entry
}

// noteRead records a read that was sent at sent.
func (d *demand) noteRead(entries []goredis.XMessage, sent, now time.Time) {
	d.arrived, d.took = now, now.Sub(sent)
	if d.full = len(entries) >= d.count || d.asked > 0 && len(entries) >= d.asked; !d.full {
		d.shrink()
	}
	if len(entries) == 0 {
		return
	}
	d.bytes = 0
	for _, e := range entries {
		d.bytes += bytesOf(e)
	}
	d.bytes /= len(entries)
	for d.count > d.lowest && d.count*d.bytes > maxReadBytes {
		d.shrink()
	}
}

// next returns the COUNT of a read at now, when there is room for more entries.
func (d *demand) next(now time.Time) int {
	lasted := now.Sub(d.arrived)
	switch {
	case !d.full:
	case lasted > d.slow():
		d.shrink()
	case lasted < max(quickRead, 4*d.took) && 2*d.count*d.bytes <= maxReadBytes:
		d.count = min(2*d.count, max(maxCount, d.lowest))
	}
	return d.count
}

func (d *demand) shrink() { d.count = max(d.count/2, d.lowest) }

// slow is how long the entries of a read may last.
func (d *demand) slow() time.Duration { return max(slowRead, 20*d.took) }

// ahead returns how many entries are buffered when the next read is sent before end. It is 0 when
// entries are handled slowly: another instance may be idle.
func (d *demand) ahead() (entries int, end time.Time) {
	if d.count > d.lowest {
		entries = d.count / 2
	}
	return entries, d.arrived.Add(d.slow())
}
