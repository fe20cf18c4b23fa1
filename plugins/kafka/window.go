package kafka

import "time"

// window is the records of one partition between the first unacknowledged and the last one read, in
// offset order. It says up to which offset every record is done, which is what a Kafka commit
// states. Offsets may have gaps (compaction, transactions). Not safe for concurrent use; its claim
// locks it.
type window struct {
	ring  []*record
	head  int
	count int
	acked int       // how many in the ring are acknowledged, held back by the head
	since time.Time // when the head became the head
}

func newWindow(size int) window { return window{ring: make([]*record, size)} }

func (w *window) full() bool { return w.count == len(w.ring) }

// add appends a record, whose offset is above all others'. The window must not be full.
func (w *window) add(r *record, now time.Time) {
	if w.count == 0 {
		w.since = now
	}
	w.ring[(w.head+w.count)%len(w.ring)] = r
	w.count++
}

// ack notes that r is done. It returns the offset to mark, which is the next one to read, and how
// many records that mark newly covers. That is zero when an earlier record holds r back.
func (w *window) ack(r *record, now time.Time) (next int64, covered int) {
	if r.acked {
		return 0, 0
	}
	r.acked = true
	w.acked++
	for w.count > 0 && w.ring[w.head].acked {
		next = w.ring[w.head].offset + 1
		w.ring[w.head] = nil
		w.head = (w.head + 1) % len(w.ring)
		w.count--
		w.acked--
		covered++
		w.since = now
	}
	return next, covered
}

// first returns the record that holds back all others, or nil when nothing is in flight.
func (w *window) first() *record {
	if w.count == 0 {
		return nil
	}
	return w.ring[w.head]
}

// ackedOffsets returns the offsets that are acknowledged and not covered by a mark, ascending.
func (w *window) ackedOffsets() []int64 {
	var offsets []int64
	for i := range w.count {
		if r := w.ring[(w.head+i)%len(w.ring)]; r.acked {
			offsets = append(offsets, r.offset)
		}
	}
	return offsets
}
