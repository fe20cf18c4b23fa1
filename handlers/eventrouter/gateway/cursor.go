package gateway

import (
	"strconv"
	"strings"
)

// entry is the id of an entry of a stream.
type entry struct{ millis, n int64 }

func (e entry) before(other entry) bool {
	return e.millis < other.millis || e.millis == other.millis && e.n < other.n
}

func (e entry) String() string {
	return strconv.FormatInt(e.millis, 10) + "-" + strconv.FormatInt(e.n, 10)
}

// parseEntry returns the entry with an id such as 1732662934123-0.
func parseEntry(id string) (e entry, ok bool) {
	millis, n, _ := strings.Cut(id, "-")
	var errs [2]error
	e.millis, errs[0] = strconv.ParseInt(millis, 10, 64)
	e.n, errs[1] = strconv.ParseInt(n, 10, 64)
	if errs[0] != nil || errs[1] != nil || e.millis < 0 || e.n < 0 {
		return entry{}, false
	}
	return e, true
}

// cursor is what a client has of a job: the numbers up to at. mark names the event with the highest
// of these numbers that the client has received, so that a log with another event under that number
// is recognised. The numbers above it were reported as missing, and without a mark all of them were,
// because the client has received no event yet.
type cursor struct {
	at   int64
	mark mark
	// trusted says that the client has named the number alone, so that nothing is known of its events.
	trusted bool
	// ahead says that the log had lost the event of the mark when the client came. A number up to
	// at that comes later, in a newer entry, belongs to another event.
	ahead bool
}

// cursorAt returns the cursor of a client that has just received an item.
func cursorAt(it item) cursor {
	return cursor{at: it.seq}.with(mark{seq: it.seq, entry: it.entry})
}

// with returns the cursor with a mark. An event whose entry is not known makes no mark.
func (c cursor) with(m mark) cursor {
	c.mark, c.trusted = m, false
	if !c.marked() {
		c.mark, c.trusted = mark{}, c.at > 0
	}
	return c
}

func (c cursor) marked() bool { return c.mark.entry != entry{} }

// lacks reports whether a number was reported to the client as missing, after the last event that it
// has received.
func (c cursor) lacks(n int64) bool { return !c.trusted && c.mark.seq < n && n <= c.at }

// String returns the cursor as it is in ids: NUMBER.ENTRY, or NUMBER.ENTRY.SEQ when the entry is
// that of another number, because a gap followed it. After a gap in front of all events it is
// NUMBER.0-0.0.
func (c cursor) String() string {
	text := strconv.FormatInt(c.at, 10)
	if c.trusted || c.at == 0 {
		return text
	}
	text += "." + c.mark.entry.String()
	if c.mark.seq != c.at {
		text += "." + strconv.FormatInt(c.mark.seq, 10)
	}
	return text
}

// parseCursor is the reverse of String.
func parseCursor(text string) (cursor, bool) {
	number, rest, marked := strings.Cut(text, ".")
	at, err := strconv.ParseInt(number, 10, 64)
	if err != nil || at < 0 {
		return cursor{}, false
	}
	if !marked {
		return cursor{at: at, trusted: at > 0}, true
	}
	id, seq, other := strings.Cut(rest, ".")
	e, ok := parseEntry(id)
	of := at
	if other {
		if of, err = strconv.ParseInt(seq, 10, 64); err != nil {
			return cursor{}, false
		}
	}
	if other && of == 0 && e == (entry{}) {
		return cursor{at: at}, ok
	}
	return cursor{at: at}.with(mark{seq: of, entry: e}), ok && 1 <= of && of <= at
}

// cursors returns the cursors of a Last-Event-ID by the short name of the job. A cursor without a
// name is that of the only job, with the name "". Anything that is no cursor is left out.
func cursors(id string) map[string]cursor {
	out := map[string]cursor{}
	for one := range strings.SplitSeq(id, ",") {
		name, text, named := strings.Cut(one, ":")
		if !named {
			name, text = "", one
		}
		if c, ok := parseCursor(text); ok {
			out[name] = c
		}
	}
	return out
}

// comparison is what a page of the log says about the mark of a cursor.
type comparison int

const (
	same    comparison = iota // the log has the event, or had it and cannot be compared any more
	other                     // the log has another event with its number
	unknown                   // the log lacks its number
)

// compare compares the mark with a page that was read after the number before it.
func (c cursor) compare(p page) comparison {
	if !c.marked() {
		return same
	}
	for _, it := range p.items {
		if it.seq == c.mark.seq && it.entry == c.mark.entry {
			return same
		} else if it.seq == c.mark.seq {
			return other
		}
	}
	if c.mark.seq < p.first {
		return same
	}
	return unknown
}

// firstLacked returns the lowest number of a page that was reported to the client as missing: it came
// late, or was given again. It returns 0 when there is none.
func (c cursor) firstLacked(p page) int64 {
	for _, it := range p.items {
		if c.lacks(it.seq) {
			return it.seq
		}
	}
	return 0
}

// hasEnd reports whether the client has received the terminal item of the log, which has the number
// end. The mark was compared with the log. A client that has received gaps only does not have it,
// whatever its number, because a gap never has the terminal item.
func (c cursor) hasEnd(end int64) bool {
	if c.marked() {
		return c.mark.seq == end
	}
	return c.trusted && c.at == end
}

// lateEnd reports whether an item may be a terminal one that came late. It ends the log at its number,
// so it is newer than the items before it although it takes nothing back. Number 1 has no items before
// it, so a log that ends with it is another one than that of a client with higher numbers.
func (it item) lateEnd() bool { return it.end != "" && it.seq > 1 }

// givenAgain reports whether an item has a number that the client has for another event, or that was
// reported to it as missing. A terminal item under the number of the mark is no late one.
func (c cursor) givenAgain(it item) bool {
	if it.lateEnd() && it.seq != c.mark.seq || it.seq < 1 || it.seq > c.at {
		return false
	}
	return c.lacks(it.seq) || c.ahead && c.mark.entry.before(it.entry)
}

// firstNewer looks in a page for the lowest number that is given again: its entry is newer than the
// newest one that was received. A newer entry alone is a number that came late. The terminal item
// may have a lower number than others. before is the last item in front of it, or that of an
// earlier page. more says that the next page has to be searched, too.
func firstNewer(p page, newest entry, upTo int64, before mark) (found *item, _ mark, more bool) {
	newer := func(it item) bool { return newest.before(it.entry) }
	for i, it := range p.items {
		switch {
		case it.seq > upTo:
			return nil, before, false
		case newer(it) && !it.lateEnd() && (i+1 == len(p.items) || newer(p.items[i+1])):
			return &p.items[i], before, true
		default:
			before = mark{seq: it.seq, entry: it.entry}
		}
	}
	return nil, before, p.more
}

// rewind returns what a client with the numbers up to a number receives when those from a number on
// are given again: a gap that takes them back, and the state. known is the newest number before
// them that the log has.
func rewind(from, to int64, known mark, state *item) []step {
	out := []step{{kind: again, from: from, to: to, item: item{seq: known.seq, entry: known.entry}}}
	if state != nil {
		out = append(out, step{kind: latest, item: *state})
	}
	return out
}
