package gateway

import (
	"slices"
	"time"
)

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

// doubtful reports whether the number of an item may be given again. The position is not below it,
// and its entry is newer. A repetition of an item that was sent has the same content.
func (s *sequence) doubtful(it item) bool {
	m := s.sent[it.seq%sentMost]
	switch {
	case it.seq > s.sentUpTo || s.end > 0 || s.wasMissing(it.seq):
		return false
	case m.seq == it.seq:
		return m.entry.before(it.entry) && m.content != it.content
	default:
		return s.newest != entry{} && s.newest.before(it.entry)
	}
}

// superseded reports whether the feed brings an item too late: Redis had lost it, and another item with its
// number was sent.
func (s *sequence) superseded(it item) bool {
	m := s.sent[it.seq%sentMost]
	return it.seq > 0 && m.seq == it.seq && it.seq <= s.sentUpTo && it.entry.before(m.entry)
}

// unconfirmed reports whether the feed brings an item that may be of an earlier history: its entry is older
// than that of an item that was sent, although its number is higher, or it ends the job. The feed of this
// gateway may be behind a loss of the log. If the item is of this history, because its router was slow, the
// log has it.
func (s *sequence) unconfirmed(it item) bool {
	return it.entry != (entry{}) && it.entry.before(s.newest) && (it.seq > s.sentUpTo || it.end != "")
}

// forgetOlder forgets what only the feed has brought, and what is of an earlier history: the page lacks it,
// and has a newer event. The log is asked again, because the page may be older than the feed.
func (s *sequence) forgetOlder(p page) {
	if p.state == nil || s.sentUpTo > p.top {
		return
	}
	older := func(e entry) bool { return e != (entry{}) && e.before(p.state.entry) }
	if s.end > 0 && p.end == 0 && s.last != nil && older(s.last.entry) {
		s.end, s.last, s.asks = 0, nil, true
	}
	if p.top < s.top && older(s.topEntry) {
		s.top, s.topEntry, s.asks = p.top, entry{}, true
		s.maxFromFeed = min(s.maxFromFeed, p.top)
		for i := range s.held {
			s.held[i].above = min(s.held[i].above, p.top)
		}
		s.missingSince.forget(p.top)
	}
}

// doubts reports whether a page shows that numbers may be given again, and begins the search for
// them. Redis has lost them, or the log of the job has expired.
func (s *sequence) doubts(p page) bool {
	if s.sentUpTo < 0 || s.finished || p.state == nil || s.end > 0 {
		return s.searching
	}
	behind := p.top < s.sentUpTo && s.newest != entry{} && s.newest.before(p.state.entry)
	if behind || s.doubtful(*p.state) || slices.ContainsFunc(p.items, s.doubtful) {
		s.searchAll()
	}
	return s.searching
}

// searchAll begins the search at the begin of the log.
func (s *sequence) searchAll() {
	if !s.searching || s.partly {
		s.searching, s.partly, s.searched = true, false, mark{}
	}
}

// search takes a page of the search for the lowest number of the log that is given again, or that came
// after it was reported as missing. Until its end nothing is sent.
func (s *sequence) search(p page) []outgoing {
	found, before, more := firstNewer(p, s.newest, s.sentUpTo, s.searched)
	late, beforeLate := s.firstLate(p)
	switch {
	case found != nil && s.partly: // it need not be the first one
		s.searchAll()
		return nil
	case late > 0 && (found == nil || late < found.seq):
		return s.resume(late, beforeLate, p.state)
	case found != nil:
		return s.restart(found.seq, before, p.state)
	case more:
		s.searched = before
		return nil
	default:
		s.searching, s.partly, s.searched = false, false, mark{}
		return s.note(nil, s.sentUpTo)
	}
}

// searchLate begins the search at a number that came late, in front of the number before it. A search that is
// under way goes back to it.
func (s *sequence) searchLate(n int64) {
	if from := max(0, n-2); !s.searching || from < s.searched.seq {
		s.searching, s.partly, s.searched = true, s.partly || !s.searching, mark{seq: from}
	}
}

// searchMissing begins the search for what came late, because the news of it may have been missed.
func (s *sequence) searchMissing() {
	for _, gap := range s.gaps {
		if gap.from <= gap.to && gap.from <= s.sentUpTo {
			s.searchLate(gap.from)
		}
	}
}

// firstLate returns the lowest number of a page that was reported as missing, and the item before it. It
// returns 0 when there is none.
func (s *sequence) firstLate(p page) (n int64, before mark) {
	before = s.searched
	for _, it := range p.items {
		if it.seq <= s.sentUpTo && it.end == "" && s.wasMissing(it.seq) {
			return it.seq, before
		}
		before = mark{seq: it.seq, entry: it.entry}
	}
	return 0, mark{}
}

// resume goes back to a number that came late, in the same life of the job. The numbers above it are sent
// again, and nobody waits a second time for those that are still missing.
func (s *sequence) resume(n int64, before mark, state *item) []outgoing {
	out := rewind(n, s.sentUpTo, before, state)
	s.searching, s.partly, s.searched = false, false, mark{}
	s.sentUpTo, s.attachedAt = n-1, min(s.attachedAt, n-1)
	for i := range s.gaps {
		s.gaps[i].to = min(s.gaps[i].to, n-1) // one that is empty has no number
	}
	s.lives++
	return out
}

// restart begins again at a number. before is the last one in front of it that the log has.
func (s *sequence) restart(n int64, before mark, state *item) []outgoing {
	out := rewind(n, s.sentUpTo, before, state)
	s.renew(n - 1)
	return out
}

// reset begins again at 1, because an operator has deleted the log. It returns what takes back all that
// the watchers have, also from those that have received the end and stay for other jobs.
func (s *sequence) reset(watched bool) []outgoing {
	if !watched {
		s.renew(-1)
		return nil
	}
	out := rewind(1, max(1, s.sentUpTo), mark{}, nil)
	s.renew(0)
	return out
}

// begunAgain reports whether a page is of a log that began after the end of the job: it was reset, and the
// news of it have not arrived or were missed, or its state has expired. The end itself may come again.
func (s *sequence) begunAgain(p page) bool {
	if !s.finished || p.state == nil {
		return s.finished
	}
	m := s.sent[p.state.seq%sentMost]
	repeated := p.end == s.end && m.seq == p.end && m.content == p.state.content
	return !repeated && s.newest.before(p.state.entry)
}

// renew forgets all but the position.
func (s *sequence) renew(at int64) {
	*s = sequence{
		sentUpTo: at, attachedAt: at, full: s.full, dropped: s.dropped, failed: s.failed, missingSince: sightings{wait: s.missingSince.wait},
		lives: s.lives + 1, moves: s.moves, moved: s.moved,
	}
}

// see notes that a number exists.
func (s *sequence) see(n int64, now time.Time) {
	s.top = max(s.top, n)
	s.missingSince.see(n, now)
}
