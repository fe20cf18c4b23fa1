package gateway

import "time"

// entry is the id of an entry of a stream.
type entry struct{ millis, n int64 }

func (e entry) before(other entry) bool {
	return e.millis < other.millis || e.millis == other.millis && e.n < other.n
}

// sentMost is how many of the last sent numbers are kept, to find numbers that are given again.
const sentMost = 64

// mark is what is kept of a numbered item that was sent.
type mark struct {
	seq     int64
	entry   entry
	content uint64
}

// remember keeps the mark of an item that is sent. The first content of a number counts.
func (s *sequence) remember(it item) {
	if s.sent == nil {
		s.sent = map[int64]mark{}
	}
	slot := it.seq % sentMost
	if s.sent[slot].seq < it.seq {
		s.sent[slot] = mark{it.seq, it.entry, it.content}
	}
	if s.newest.before(it.entry) {
		s.newest = it.entry
	}
}

// changed reports whether the number of an item was sent with an older entry and another content. A
// repetition has the same content.
func (s *sequence) changed(it item) bool {
	m := s.sent[it.seq%sentMost]
	return it.seq <= s.at && it.end == "" && s.end == 0 && !s.wasMissing(it.seq) &&
		m.seq == it.seq && m.entry.before(it.entry) && m.content != it.content
}

// restarted returns what to send when a page shows that numbers were given again. Redis has lost
// them, or the log of the job has expired.
func (s *sequence) restarted(p page) []step {
	if s.at < 0 || s.over || p.end > 0 || p.state == nil {
		return nil
	}
	for _, it := range p.items {
		if s.changed(it) {
			return s.restart(it.seq, *p.state)
		}
	}
	if s.changed(*p.state) {
		return s.restart(p.state.seq, *p.state)
	}
	unknown := s.sent[p.top%sentMost].seq != p.top
	if p.top < s.at && s.end == 0 && unknown && !s.newest.before(entry{1, 0}) && s.newest.before(p.state.entry) {
		return s.restart(max(p.first, 1), *p.state)
	}
	return nil
}

// restart begins again at a number.
func (s *sequence) restart(n int64, state item) []step {
	out := []step{{kind: again, from: n, to: s.at}, {kind: latest, item: state}}
	*s = sequence{at: n - 1, base: n - 1, full: s.full, dropped: s.dropped, failed: s.failed, seen: sightings{wait: s.seen.wait}}
	return out
}

// see notes that a number exists.
func (s *sequence) see(n int64, now time.Time) {
	s.top = max(s.top, n)
	s.seen.see(n, now)
}
