package gateway

import (
	"time"

	"github.com/millrace-io/millrace/plugins/sse"
)

// item is one event of a job, encoded once for all its watchers.
type item struct {
	seq   int64     // 0: transient
	end   string    // of a terminal event: the reason in `closed`; "" otherwise
	event sse.Event // with the id of a stream with one job
	entry entry
	// content is a hash of what a repetition of the event has, too.
	content uint64
	added   time.Time // when the producer added the entry, by the clock of Redis
}

// page is the result of one read of a job's log: the items after a number, in order.
type page struct {
	state *item     // the item with the highest number; nil: the job is unknown
	after int64     // it was read after this number
	begun time.Time // when the read began: what was added since then may be missing from the page
	first int64     // lower numbers were removed from the log; 0: none was
	top   int64     // the highest number of the log
	end   int64     // the number of the terminal event; 0: none yet
	items []item
	more  bool // the limit ended the page
}

type kind int

const (
	numbered kind = iota
	transient
	missing // a gap
	again   // a gap of numbers that were sent and are given again
	latest  // the state
)

// outgoing is one thing to send to the watchers of a job.
type outgoing struct {
	kind kind
	item item
	// from and to are the missing numbers of a gap.
	from, to int64
	// above is the highest number before a transient item in the feed.
	above int64
	// ends is set for the terminal item, the last step of a job.
	ends bool
}

const (
	heldMost = 64 // transient items that wait for a hole to close
	gapsMost = 32 // gaps that are kept to find late items

	movesKept = 64 // items of the feed that are kept to find one that a watcher has as missing
)

// sequence is the position of one job in this gateway, shared by its watchers. The log is the
// truth: the sequence sends the item after its position, and for anything else the log is read. It
// has no clock, no lock and no network.
type sequence struct {
	sentUpTo    int64 // all numbers up to it were sent or reported as missing; -1 before the first attach
	attachedAt  int64 // the value of sentUpTo that the first attach set: lower numbers were not decided here
	maxFromFeed int64 // the highest number that the feed has brought
	top         int64 // the highest number that was seen in feed or log
	topEntry    entry // of the item of the feed that brought top; zero: the log did
	end         int64 // the number of the terminal item; 0: unknown
	last        *item // the terminal item, once the feed has brought it
	finished    bool  // the terminal item was sent

	sent   map[int64]mark // by number modulo sentMost
	newest entry          // of the items that were sent
	token  entry          // of the newest transient item that the feed has brought

	searching bool // for the first number that is given again, or came late
	partly    bool // the search began at a number that came late, and not at the begin of the log
	searched  mark // the position of the search in the log

	lives int              // how often the search has found one: what was read before may be of an earlier life
	moves int              // how often a numbered item of the feed or a page was taken
	moved [movesKept]int64 // the numbers of the last items of the feed, by moves modulo movesKept; 0: a page
	asks  bool             // the log must be read once, because the feed brought what only the log can confirm

	full    bool // the caller has no room: items of the feed are left to the log
	dropped int  // transient items that had no room

	missingSince sightings
	failed       time.Time  // when the log was last readable; zero: it still is
	gaps         []outgoing // reported, newest last
	held         []outgoing // transient items that must not overtake the numbered ones before them
}

func newSequence(wait time.Duration) *sequence {
	return &sequence{sentUpTo: -1, missingSince: sightings{wait: wait}}
}

// limit is the highest number that can be sent.
func (s *sequence) limit() int64 {
	if s.end > 0 {
		return min(s.top, s.end)
	}
	return s.top
}

// needsLog reports whether the log must be read.
func (s *sequence) needsLog() bool {
	return s.sentUpTo >= 0 && !s.finished && (s.searching || s.asks || s.limit() > s.sentUpTo || s.end > 0)
}

// after returns the number after which a reader at cursor reads the log. The terminal item can have
// a lower number than items that were sent before the job ended.
func (s *sequence) after(cursor int64) int64 {
	if s.end > 0 && cursor >= s.end {
		return s.end - 1
	}
	return cursor
}

// next returns the number after which the log is read for the job.
func (s *sequence) next() int64 {
	if s.searching {
		return s.searched.seq
	}
	return s.after(s.sentUpTo)
}

// feed takes an item of the feed. It returns what to send, and whether the item is late: its number
// was reported as missing. The log is then read from there on, and the gap is taken back.
func (s *sequence) feed(it item, now time.Time) (out []outgoing, late bool) {
	switch {
	case s.finished || s.superseded(it):
		return nil, false
	case it.seq == 0:
		return s.transient(it), false
	}
	s.move(it.seq)
	if late = it.seq <= s.sentUpTo && it.end == "" && s.wasMissing(it.seq); late {
		s.searchLate(it.seq)
	}
	if s.unconfirmed(it) {
		s.asks = true
		return nil, late
	}
	if s.doubtful(it) {
		s.searchAll()
	}
	if it.seq > s.top {
		s.topEntry = it.entry
	}
	s.see(it.seq, now)
	s.maxFromFeed = max(s.maxFromFeed, it.seq)
	if it.end != "" && s.end == 0 {
		s.end, s.last = it.seq, &it
	}
	switch {
	case s.sentUpTo < 0 || s.full || s.searching || s.end > 0 && it.seq > s.end:
		return out, late
	case it.seq == s.sentUpTo+1 || it.seq == s.end && it.seq <= s.sentUpTo:
		s.remember(it)
		return s.note(append(out, outgoing{kind: numbered, item: it, ends: it.seq == s.end}), max(s.sentUpTo, it.seq)), false
	default:
		return out, late
	}
}

// transient sends an item without a number. While numbers are missing, items wait, because they
// must not overtake the numbered ones that were before them in the feed. An item that is not newer
// than the last one is left out. A router that stood still has added it after the next owner of the
// shard.
func (s *sequence) transient(it item) []outgoing {
	if it.entry != (entry{}) {
		if !s.token.before(it.entry) {
			return nil
		}
		s.token = it.entry
	}
	one := outgoing{kind: transient, item: it, above: s.maxFromFeed}
	switch {
	case s.sentUpTo < 0:
		return nil
	case s.sentUpTo >= one.above && !s.full && !s.searching:
		return []outgoing{one}
	case (s.sentUpTo < one.above || s.searching) && len(s.held) < heldMost:
		s.held = append(s.held, one)
	default:
		s.dropped++
	}
	return nil
}

// note sets the position. It returns the steps with the transient items that have waited, each in
// front of the first step that follows it in the feed.
func (s *sequence) note(steps []outgoing, at int64) (out []outgoing) {
	s.sentUpTo = at
	for _, one := range steps {
		switch one.kind {
		case numbered:
			out = s.release(out, one.item.seq)
		case missing:
			out = s.release(out, one.from)
			s.gaps = append(s.gaps[max(0, len(s.gaps)+1-gapsMost):], one)
		case transient, again, latest:
		}
		out = append(out, one)
		s.finished = s.finished || one.ends
	}
	if s.finished {
		return out
	}
	return s.release(out, at+1)
}

// release appends the transient items that were before a number in the feed.
func (s *sequence) release(out []outgoing, number int64) []outgoing {
	for len(s.held) > 0 && s.held[0].above < number {
		out = append(out, s.held[0])
		s.held = s.held[1:]
	}
	return out
}

func (s *sequence) wasMissing(n int64) bool {
	for _, gap := range s.gaps {
		if gap.from <= n && n <= gap.to {
			return true
		}
	}
	return false
}

// unreadable notes that a read of the log failed that began at a time. The wait for missing numbers
// stops until the next page.
func (s *sequence) unreadable(begin time.Time) {
	if s.failed.IsZero() {
		s.failed = begin
	}
}

// page takes a page of the log after s.next(), and returns what to send.
func (s *sequence) page(p page, now time.Time) []outgoing {
	s.move(0)
	if s.sentUpTo < 0 || s.finished {
		return nil
	}
	if s.doubts(p) {
		if p.after != s.searched.seq {
			return nil // it was read before the search began
		}
		out := s.search(p)
		s.see(p.top, now)
		return out
	}
	s.asks = false
	out, at := s.readPage(s.sentUpTo, 0, p, now)
	return s.note(out, at)
}

// decided returns the number up to which a reader at cursor need not wait for what the log lacks.
// It must be taken before the log is read: the log then had all numbers that were not reported.
func (s *sequence) decided(cursor int64) int64 {
	if s.sentUpTo >= 0 && cursor >= s.attachedAt {
		return s.sentUpTo
	}
	return 0
}

// readPage returns what a reader at cursor receives from a page of the log, and its next cursor. A
// number that the log lacks is reported as missing in three cases. It was removed from the log, it
// was missing for gap_wait when the read of the page began, or it is not above decided.
func (s *sequence) readPage(cursor, decided int64, p page, now time.Time) (out []outgoing, next int64) {
	if !s.failed.IsZero() {
		s.missingSince.extend(s.failed, now)
		s.failed = time.Time{}
	}
	s.forgetOlder(p)
	s.see(p.top, now)
	if p.end > 0 && p.end != s.end {
		s.end, s.last = p.end, nil
	}
	if p.begun.IsZero() {
		p.begun = now
	}
	lost := max(decided, s.missingSince.overdue(p.begun), p.first-1)
	skip := func(to int64) bool {
		if upTo := min(to, lost); upTo > cursor {
			out = append(out, outgoing{kind: missing, from: cursor + 1, to: upTo})
			if p.state != nil {
				out = append(out, outgoing{kind: latest, item: *p.state})
			}
			cursor = upTo
		}
		return cursor >= to
	}
	send := func(it item) {
		cursor = max(cursor, it.seq)
		s.remember(it)
		out = append(out, outgoing{kind: numbered, item: it, ends: it.seq == s.end})
	}
	for _, it := range p.items {
		switch {
		case it.seq == s.end && skip(it.seq-1):
			send(it)
			return out, cursor
		case it.seq <= cursor:
		case s.end > 0 && it.seq >= s.end || !skip(it.seq-1):
			return out, cursor
		default:
			send(it)
		}
	}
	switch {
	case p.more:
	case s.end == 0:
		skip(lost)
	case skip(s.end-1) && s.last != nil:
		send(*s.last) // the log has lost it
	}
	return out, cursor
}

// attach begins the live part of a watcher at cursor, after a page. It returns false when the watcher
// must read the log first.
func (s *sequence) attach(cursor int64, p page) bool {
	if s.finished {
		return false
	}
	if s.sentUpTo < 0 {
		// A cursor can be higher than all numbers: from before a failover, or made up. So can those of
		// the feed, when Redis has lost them and the gateway reads of them later.
		s.sentUpTo = min(cursor, p.top)
		s.attachedAt = s.sentUpTo
		// The feed may be behind the log, and other watchers may have read less: no number up to
		// the state is given again.
		if p.state != nil {
			s.remember(*p.state)
		}
	}
	return cursor >= s.sentUpTo
}

// misses adds what a watcher has as missing, so that it is found when it comes late. The log of the watcher
// has none of it.
func (s *sequence) misses(g gaps) {
	for _, one := range g.within(1, s.sentUpTo) {
		if one.to > 0 && len(s.gaps) < gapsMost && !(s.wasMissing(one.from) && s.wasMissing(one.to)) {
			s.gaps = append(s.gaps, outgoing{kind: missing, from: one.from, to: one.to})
		}
	}
}

// move notes that an item of the feed or a page was taken.
func (s *sequence) move(n int64) {
	s.moves++
	s.moved[s.moves%movesKept] = n
}

// brought reports whether one of some numbers may have come since there were that many moves.
func (s *sequence) brought(g gaps, moves int) bool {
	if g == (gaps{}) {
		return false
	}
	for n := moves + 1; n <= s.moves; n++ {
		if number := s.moved[n%movesKept]; number == 0 || g.have(number) || s.moves-moves > movesKept {
			return true
		}
	}
	return false
}

// due returns the time at which the next missing number is reported.
func (s *sequence) due() (time.Time, bool) { return s.missingSince.due(s.sentUpTo + 1) }

// take returns what a watcher at cursor receives of a step of its job, and its next cursor.
func take(c cursor, one outgoing) (_ outgoing, next cursor, send bool) {
	next = c
	switch one.kind {
	case numbered:
		// A terminal item always arrives, also when the cursor is higher than its number.
		if send = c.at < one.item.seq || one.ends && !c.hasEnd(one.item.seq); send {
			next = c.after(one.item)
		}
		return one, next, send
	case missing:
		one.from = max(one.from, c.at+1)
		next.at = max(c.at, one.to)
		return one, next, one.from <= one.to
	case again:
		if one.from > c.at {
			return one, c, false
		}
		one.to = max(one.to, c.at)
		return one, c.back(one.from, mark{seq: one.item.seq, entry: one.item.entry}), true
	default:
		return one, c, true
	}
}

// sightings are the times at which numbers were first seen to exist. The zero value has none.
type sightings struct {
	wait   time.Duration
	old    int64 // the highest number that was seen at least wait ago
	recent []sighting
}

type sighting struct {
	n  int64
	at time.Time
}

// sightingsPerWait limits the memory. Numbers seen within wait/sightingsPerWait share the time of
// the first, so that no gap is reported later than wait.
const sightingsPerWait = 32

func (s *sightings) see(n int64, now time.Time) {
	last := len(s.recent) - 1
	switch {
	case n <= s.old || last >= 0 && n <= s.recent[last].n:
	case s.wait == 0:
		s.old = n
	case last >= 0 && now.Sub(s.recent[last].at) < s.wait/sightingsPerWait:
		s.recent[last].n = n
	default:
		s.recent = append(s.recent, sighting{n, now})
	}
}

// forget forgets the numbers above n.
func (s *sightings) forget(n int64) {
	s.old = min(s.old, n)
	for i := range s.recent {
		if s.recent[i].n >= n {
			s.recent[i].n = n
			s.recent = s.recent[:i+1]
			return
		}
	}
}

// extend moves the sightings on by the time for which the log was not readable.
func (s *sightings) extend(from, to time.Time) {
	for i, one := range s.recent {
		if one.at.Before(from) {
			s.recent[i].at = one.at.Add(to.Sub(from))
		} else {
			s.recent[i].at = to
		}
	}
}

// overdue returns the number up to which the wait is over.
func (s *sightings) overdue(now time.Time) int64 {
	for len(s.recent) > 0 && now.Sub(s.recent[0].at) >= s.wait {
		s.old = s.recent[0].n
		s.recent = s.recent[1:]
	}
	return s.old
}

// due returns the time at which the wait for n is over. It returns false when it is over already,
// or when no number from n on was seen.
func (s *sightings) due(n int64) (time.Time, bool) {
	for _, one := range s.recent {
		if one.n >= n && n > s.old {
			return one.at.Add(s.wait), true
		}
	}
	return time.Time{}, false
}
