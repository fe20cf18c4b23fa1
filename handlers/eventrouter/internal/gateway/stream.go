package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millrace-io/millrace/pipeline/loop"
	"github.com/millrace-io/millrace/plugins/sse"
)

// jobKey is a job in all domains.
type jobKey struct{ domain, id string }

func (k jobKey) String() string { return k.domain + "/" + k.id }

// short is the name of the job in the ids of a stream with several jobs. Two jobs of one stream
// have the same with a probability below 1e-11.
func (k jobKey) short() string {
	sum := sha256.Sum256([]byte(k.String()))
	return base64.RawURLEncoding.EncodeToString(sum[:6])
}

// stream is one client with the jobs that it watches.
type stream struct {
	g        *Gateway
	watchers []*watcher
	several  bool // more than one job, so an id has the cursors of all

	mu     sync.Mutex
	client *sse.Client
	open   int    // jobs that have not ended
	reason string // of the end of the last one
}

// watcher is the watch of one job by one client.
type watcher struct {
	stream *stream
	key    jobKey
	job    *job
	// resumed says that the client has named its cursor.
	resumed bool

	cursor cursor // the lock of the stream protects it once the watcher is attached
	ended  bool   // the same
	from   entry  // of the newest item when the watcher was attached

	page    page // read, and not yet written
	decided int64
	losses  int // of the job, before the page was read
	lives   int // of its sequence, before the cursor was compared; the same:
	moves   int
	unsure  bool       // the cursor must be compared with the page
	taken   []outgoing // take back what the client has of an earlier life, before the page
}

// newStream returns the stream of a request. Its jobs receive events of their feeds from now on:
// what comes while the logs are read is not missed.
func (g *Gateway) newStream(keys []jobKey, lastEventID string) *stream {
	s := &stream{g: g, several: len(keys) > 1, open: len(keys)}
	from := cursors(lastEventID)
	for _, key := range keys {
		w := &watcher{stream: s, key: key}
		w.cursor, w.resumed = from[key.short()]
		if c, ok := from[""]; ok && !s.several {
			w.cursor, w.resumed = c, true
		}
		w.job = g.domain(key.domain).join(key.id)
		s.watchers = append(s.watchers, w)
	}
	return s
}

// leave ends the watch of all jobs.
func (s *stream) leave() {
	for _, w := range s.watchers {
		w.job.domain.remove(w)
	}
}

// first reads the first page of each job. now skips the history of jobs without a cursor.
func (s *stream) first(ctx context.Context, now bool) error {
	for _, w := range s.watchers {
		if now && !w.resumed {
			w.cursor = cursor{at: newest, trusted: true}
		}
	}
	if err := s.readPages(ctx); err != nil {
		return err
	}
	for _, w := range s.watchers {
		if w.cursor.at == newest {
			w.cursor = cursor{at: w.page.top, trusted: w.page.top > 0}
			if w.page.state != nil {
				w.cursor = cursorAt(*w.page.state)
			}
		}
	}
	return nil
}

// newest is a cursor after which no log has events.
const newest = 1 << 53

// over reports whether the client has received the ends of all jobs.
func (s *stream) over() bool {
	return !slices.ContainsFunc(s.watchers, func(w *watcher) bool {
		return !w.resumed || w.page.end == 0 || !w.cursor.hasEnd(w.page.end)
	})
}

// begin writes the states and the backlogs, then attaches the client to its jobs.
func (s *stream) begin(ctx context.Context, c *sse.Client) error {
	s.client = c
	for _, w := range s.watchers {
		if w.page.state == nil {
			continue
		}
		state := outgoing{kind: latest, item: *w.page.state}.event(w.key, "")
		if w.cursor.at == w.page.top && !w.resumed {
			state.ID = s.id(w) // without history: a reconnect continues here
		}
		if err := c.Write(state); err != nil {
			return err
		}
	}
	for idle := 0; ; {
		progress := false
		for _, w := range s.watchers {
			before := w.cursor
			if err := w.backlog(ctx); err != nil {
				return err
			}
			progress = progress || w.cursor != before
		}
		if s.attach() {
			return nil
		}
		if progress {
			idle = 0
		} else if idle++; !loop.Sleep(ctx, reread(idle)) {
			return ctx.Err()
		}
		if err := s.readPages(ctx); err != nil {
			return err
		}
	}
}

// readPages reads the next pages of the jobs that have not ended, and compares the cursors.
func (s *stream) readPages(ctx context.Context) error {
	open := slices.DeleteFunc(slices.Clone(s.watchers), func(w *watcher) bool { return w.ended })
	for _, w := range open {
		w.noteLife()
	}
	if err := s.g.readPages(ctx, open...); err != nil {
		return err
	}
	for _, w := range open {
		if err := w.compare(ctx); err != nil {
			return err
		}
	}
	return nil
}

// readPages reads the next pages of watchers together.
func (g *Gateway) readPages(ctx context.Context, watchers ...*watcher) error {
	positions := make([]position, len(watchers))
	for i, w := range watchers {
		positions[i] = w.position()
	}
	pages, err := g.reader.pages(ctx, positions...)
	for i, p := range pages {
		watchers[i].page = p
	}
	return err
}

// noteLife notes the life of the job that the cursor will be compared with, because the next page may be of
// another one than the page before. The further pages of a backlog are not compared, so when the job
// begins again between two of them, they are read again.
func (w *watcher) noteLife() {
	d := w.job.domain
	d.mu.Lock()
	defer d.mu.Unlock()
	w.unsure = w.cursor.marked() || w.cursor.missing() != (gaps{})
	w.lives, w.moves = w.job.sequence.lives, w.job.sequence.moves
}

// outdated reports whether the numbers of the job began again since the cursor was compared, or numbers
// arrived that the client has for other events or has as missing. The caller has the lock of the domain.
func (w *watcher) outdated() bool {
	s, c := w.job.sequence, w.cursor
	return w.lives != s.lives || !w.ended && (c.ahead && w.moves != s.moves || s.brought(c.missing(), w.moves))
}

// position returns where the next page begins. It must be called before the page is read. The page
// of a cursor that is to be compared has the event of its mark, too.
func (w *watcher) position() position {
	d := w.job.domain
	d.mu.Lock()
	defer d.mu.Unlock()
	s := w.job.sequence
	w.decided, w.losses = s.decided(w.cursor.at), w.job.losses
	after := s.after(w.cursor.at)
	if w.unsure {
		after = min(after, max(0, w.cursor.mark.seq-1))
	}
	return position{w.key, after}
}

// compare compares the cursor with the page. If the log has other events under numbers that the client
// has, or has a number that was reported to it as missing, the cursor goes back to the first of them, and
// the page is read from there.
func (w *watcher) compare(ctx context.Context) error {
	if !w.unsure {
		return nil
	}
	w.unsure, w.cursor.ahead = false, false
	found, state := w.cursor.compare(w.page), w.page.state
	from, before := int64(0), mark{}
	switch {
	case found == same:
	case found == unknown && (state == nil || !w.cursor.mark.entry.before(state.entry)):
		w.cursor.ahead = true // the log has nothing that the client may not have
	default:
		var err error
		if from, before, err = w.firstOther(ctx, found == other); err != nil {
			return err
		}
		w.cursor.ahead = from == 0
	}
	if from == 0 {
		from = w.cursor.firstLacked(w.page)
	}
	late, beforeLate, err := w.firstLate(ctx)
	switch {
	case err != nil:
		return err
	case late > 0 && (from == 0 || late < from):
		from, before = late, beforeLate
	case from == 0:
		return nil
	}
	steps := rewind(from, w.cursor.at, before, state)
	_, w.cursor, _ = take(w.cursor, steps[0])
	w.taken = append(w.taken, steps...)
	return w.stream.g.readPages(ctx, w)
}

// firstOther returns the lowest number up to the cursor that the log has for another event, and the
// number before it. It returns 0 when there is none. proven says that the log has another event
// with the number of the mark: if its entry is not newer than that of the client, because a clock
// was put back, nothing that the client has can be trusted.
func (w *watcher) firstOther(ctx context.Context, proven bool) (from int64, before mark, err error) {
	c, beforeMark := w.cursor, mark{}
	newest := false // the log has a newer event with the number of the mark
	for more := true; more; {
		pages, err := w.stream.g.reader.pages(ctx, position{w.key, before.seq})
		if err != nil {
			return 0, mark{}, err
		}
		for _, it := range pages[0].items {
			if it.seq < c.mark.seq {
				beforeMark = mark{seq: it.seq, entry: it.entry}
			}
			newest = newest || it.seq == c.mark.seq && c.mark.entry.before(it.entry)
		}
		var found *item
		if found, before, more = firstNewer(pages[0], c.mark.entry, c.at, before); found != nil {
			return found.seq, before, nil
		}
	}
	switch {
	case newest:
		return c.mark.seq, beforeMark, nil
	case proven:
		return 1, mark{}, nil
	default:
		return 0, mark{}, nil
	}
}

// firstLate returns the lowest number that the log has, and that was reported to the client as missing
// before it has received later events. It returns 0 when there is none. Gaps that the log has no room for any
// more are forgotten.
func (w *watcher) firstLate(ctx context.Context) (n int64, before mark, err error) {
	before.seq = max(0, w.cursor.gaps[0].from-2)
	for more := w.cursor.gaps != (gaps{}); more; {
		pages, err := w.stream.g.reader.pages(ctx, position{w.key, before.seq})
		if err != nil {
			return 0, mark{}, err
		}
		p := pages[0]
		w.cursor.gaps = w.cursor.gaps.within(p.first, w.cursor.at)
		for _, it := range p.items {
			if it.end == "" && w.cursor.gaps.have(it.seq) {
				return it.seq, before, nil
			}
			before = mark{seq: it.seq, entry: it.entry}
		}
		more = p.more && before.seq < w.cursor.gaps.last()
	}
	return 0, mark{}, nil
}

// backlog writes the page, and further pages while there are more.
func (w *watcher) backlog(ctx context.Context) error {
	for !w.ended {
		steps := w.steps()
		for _, one := range w.taken {
			if err := w.stream.client.Write(w.event(one)); err != nil {
				return err
			}
		}
		w.taken = nil
		var events []sse.Event
		for _, one := range steps {
			out, next, send := take(w.cursor, one)
			w.cursor = next
			if send {
				events = append(events, w.event(out))
			}
		}
		if err := w.stream.client.Write(events...); err != nil {
			return err
		}
		if n := len(steps); n > 0 && steps[n-1].ends {
			w.endJob(steps[n-1])
		}
		if !w.page.more || len(steps) == 0 {
			return nil
		}
		if err := w.stream.g.readPages(ctx, w); err != nil {
			return err
		}
	}
	return nil
}

// steps returns what follows from the page.
func (w *watcher) steps() []outgoing {
	d := w.job.domain
	d.mu.Lock()
	defer d.mu.Unlock()
	if w.lives != w.job.sequence.lives {
		return nil // the page is of an earlier life, so it is read again
	}
	if !w.job.follows(w.page) {
		return nil
	}
	if w.job.sequence.doubts(w.page) {
		w.decided = 0
		w.job.search()
	}
	steps, _ := w.job.sequence.readPage(w.cursor.at, w.decided, w.page, time.Now())
	return steps
}

// event returns what is sent for a step after the cursor was set.
func (w *watcher) event(one outgoing) sse.Event {
	id := one.item.event.ID
	if w.stream.several || one.kind != numbered || !one.ends && w.cursor.gaps != (gaps{}) {
		id = w.stream.id(w)
	}
	return one.event(w.key, id)
}

// endJob notes that the job has ended. The stream is closed after the last one.
func (w *watcher) endJob(one outgoing) {
	if w.ended {
		return
	}
	w.ended = true
	w.stream.open--
	w.stream.reason = one.item.end
}

// reopen is the reverse of endJob, for a job that was reset while the stream is open for others.
func (w *watcher) reopen() {
	if w.ended {
		w.ended = false
		w.stream.open++
	}
}

// attach connects all watchers with their jobs at once, or none of them. It returns false when one
// of them must read its log first. When all jobs have ended, it closes the stream.
func (s *stream) attach() bool {
	for _, d := range s.g.domains { // always in this order
		d.mu.Lock()
	}
	defer func() {
		for _, d := range s.g.domains {
			d.mu.Unlock()
		}
	}()
	for _, w := range s.watchers {
		if !w.attachable() {
			return false
		}
	}
	if s.open == 0 {
		s.client.Close(s.reason)
		return true
	}
	for _, w := range s.watchers {
		j := w.job
		if w.page.state != nil {
			w.from = w.page.state.entry
		}
		w.page = page{} // a stream can stay open for hours
		j.watchers[w] = struct{}{}
		if !w.ended {
			j.sequence.misses(w.cursor.missing())
		}
		switch {
		case w.ended: // it waits for a reset
		case j.losses != w.losses:
			j.catchUp(readLost)
		case j.sequence.needsLog() && j.retry == nil:
			j.catchUp(readHole)
		}
	}
	return true
}

// attachable connects the job of a watcher with its cursor. It returns false when the watcher must
// read its log first.
func (w *watcher) attachable() bool {
	if w.outdated() {
		w.reopen()
		return false
	}
	return w.ended || w.job.sequence.attach(w.cursor.at, w.page)
}

// id returns the id of an event for a watcher, which carries the cursors of all jobs. Where there are too many
// jobs for the gaps of all, the first ones have theirs.
func (s *stream) id(of *watcher) string {
	if !s.several {
		return of.cursor.String()
	}
	parts, size := make([]string, len(s.watchers)), len(s.watchers)
	for i, w := range s.watchers {
		parts[i] = w.key.short() + ":" + w.cursor.withoutGaps()
		size += len(parts[i])
	}
	for i, w := range s.watchers {
		if gaps := w.cursor.idGaps(); size+len(gaps) <= maxIDBytes {
			parts[i] += gaps
			size += len(gaps)
		}
	}
	return strings.Join(parts, ",")
}

// send sends a step of the job to the client. shared has its event for clients that watch one job.
func (w *watcher) send(one outgoing, shared *encoded) {
	s := w.stream
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.ended {
		if one.kind != again || one.from > 1 || s.open == 0 {
			return
		}
		w.reopen()
	}
	if one.kind == numbered && w.cursor.givenAgain(one.item) {
		for _, back := range rewind(one.item.seq, w.cursor.at, mark{}, nil) {
			_, w.cursor, _ = take(w.cursor, back)
			s.client.Send(w.event(back))
		}
	}
	out, next, send := take(w.cursor, one)
	w.cursor = next
	switch {
	case !send:
	case one.kind == transient && one.item.entry.before(w.from): // the client may have it already
	case one.kind == latest:
		s.client.Latest(w.key.String(), shared.first)
	case one.kind == transient:
		s.client.Send(shared.first)
	case !s.several && one.kind == numbered:
		s.client.Send(shared.with(w.event(out)))
	default:
		s.client.Send(w.event(out))
	}
	if one.ends {
		w.endJob(one)
		if s.open == 0 {
			s.client.Close(s.reason)
		}
	}
}
