package gateway

import (
	"slices"
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
	// gaps has the numbers below the event of the mark that were reported as missing.
	gaps gaps
}

// span is a range of numbers. The zero value has none.
type span struct{ from, to int64 }

// gapsKept limits the gaps of a cursor, because ids go over the wire with each event.
const gapsKept = 4

// gaps are the highest gaps that a client has received, in order. Those that are not used are zero and
// behind the others.
type gaps [gapsKept]span

// with returns the gaps with one that is not below them. The lowest one makes room for it.
func (g gaps) with(one span) gaps {
	n := slices.Index(g[:], span{})
	switch {
	case n < 0:
		copy(g[:], g[1:])
		n = gapsKept - 1
	case n > 0 && g[n-1].to >= one.from-1:
		g[n-1].to = max(g[n-1].to, one.to)
		return g
	}
	g[n] = one
	return g
}

// within returns the parts of the gaps from a number to another.
func (g gaps) within(from, to int64) (out gaps) {
	n := 0
	for _, one := range g {
		if one = (span{max(one.from, from), min(one.to, to)}); one.from <= one.to && one.to > 0 {
			out[n] = one
			n++
		}
	}
	return out
}

func (g gaps) have(n int64) bool {
	return slices.ContainsFunc(g[:], func(one span) bool { return one.from <= n && n <= one.to })
}

// last returns the highest number, or 0.
func (g gaps) last() (n int64) {
	for _, one := range g {
		n = max(n, one.to)
	}
	return n
}

// String returns ~FROM-TO, or ~NUMBER, for each gap.
func (g gaps) String() (text string) {
	for _, one := range g {
		if one.to > 0 {
			text += "~" + strconv.FormatInt(one.from, 10)
		}
		if one.to > one.from {
			text += "-" + strconv.FormatInt(one.to, 10)
		}
	}
	return text
}

// parseGaps is the reverse of String, without the first ~. The numbers must be below a number.
func parseGaps(text string, below int64) (g gaps, ok bool) {
	if strings.Count(text, "~") >= gapsKept {
		return gaps{}, false
	}
	i, last := 0, int64(0)
	for one := range strings.SplitSeq(text, "~") {
		from, to, several := strings.Cut(one, "-")
		if !several {
			to = from
		}
		var errs [2]error
		g[i].from, errs[0] = strconv.ParseInt(from, 10, 64)
		g[i].to, errs[1] = strconv.ParseInt(to, 10, 64)
		if errs[0] != nil || errs[1] != nil || g[i].from <= last || g[i].to < g[i].from || g[i].to >= below {
			return gaps{}, false
		}
		last = g[i].to
		i++
	}
	return g, true
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

// open returns the gap after the last event that the client has received.
func (c cursor) open() span {
	if c.trusted || c.mark.seq >= c.at {
		return span{}
	}
	return span{c.mark.seq + 1, c.at}
}

// missing returns all that was reported to the client as missing.
func (c cursor) missing() gaps {
	if open := c.open(); open.to > 0 {
		return c.gaps.with(open)
	}
	return c.gaps
}

// lacks reports whether a number was reported to the client as missing.
func (c cursor) lacks(n int64) bool {
	open := c.open()
	return open.from <= n && n <= open.to && n > 0 || c.gaps.have(n)
}

// after returns the cursor of the client after it has received a numbered item.
func (c cursor) after(it item) cursor {
	next := cursorAt(it)
	next.at, next.gaps = max(c.at, it.seq), c.missing()
	return next
}

// back returns the cursor of the client after the numbers from one on were taken back. known is the newest
// item before them that the log has.
func (c cursor) back(from int64, known mark) cursor {
	if open := c.open(); open.from <= from && from <= open.to { // the client keeps all its events
		c.at = from - 1
		return c
	}
	next := cursor{at: from - 1}.with(known)
	next.gaps = c.gaps.within(1, from-1)
	if open := next.open(); open.to > 0 {
		next.gaps = next.gaps.within(1, open.from-1)
	}
	return next
}

// String returns the cursor as it is in ids: NUMBER.ENTRY, or NUMBER.ENTRY.SEQ when the entry is
// that of another number, because a gap followed it. After a gap in front of all events it is
// NUMBER.0-0.0. The earlier gaps follow.
func (c cursor) String() string { return c.withoutGaps() + c.idGaps() }

// idGaps returns the gaps as they are in ids. A number alone has none.
func (c cursor) idGaps() string {
	if c.trusted || c.at == 0 {
		return ""
	}
	return c.gaps.String()
}

func (c cursor) withoutGaps() string {
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
	rest, missing, gapped := strings.Cut(rest, "~")
	id, seq, other := strings.Cut(rest, ".")
	e, ok := parseEntry(id)
	of := at
	if other {
		if of, err = strconv.ParseInt(seq, 10, 64); err != nil {
			return cursor{}, false
		}
	}
	if other && of == 0 && e == (entry{}) && !gapped {
		return cursor{at: at}, ok
	}
	c := cursor{at: at}.with(mark{seq: of, entry: e})
	if gapped && ok {
		c.gaps, ok = parseGaps(missing, of)
	}
	return c, ok && 1 <= of && of <= at
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

// firstLacked returns the lowest number of a page that was reported to the client as missing after its last
// event: it came late, or was given again. It returns 0 when there is none.
func (c cursor) firstLacked(p page) int64 {
	open := c.open()
	for _, it := range p.items {
		if open.from <= it.seq && it.seq <= open.to {
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
func rewind(from, to int64, known mark, state *item) []outgoing {
	out := []outgoing{{kind: again, from: from, to: to, item: item{seq: known.seq, entry: known.entry}}}
	if state != nil {
		out = append(out, outgoing{kind: latest, item: *state})
	}
	return out
}
