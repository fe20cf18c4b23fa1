package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/millrace-io/millrace/pipeline"
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
	open   int // jobs that have not ended
}

// watcher is the watch of one job by one client.
type watcher struct {
	stream *stream
	key    jobKey
	job    *job
	// resumed says that the client has named its cursor.
	resumed bool

	cursor int64 // the lock of the stream protects it once the watcher is attached
	ended  bool  // the same
	from   entry // of the newest item when the watcher was attached

	page    page // read, and not yet written
	decided int64
	losses  int // of the job, before the page was read
}

// cursors returns the cursors of a Last-Event-ID by the short name of the job. A number alone is
// the cursor of the only job, with the name "". Anything that is no number is left out.
func cursors(id string) map[string]int64 {
	out := map[string]int64{}
	for one := range strings.SplitSeq(id, ",") {
		name, number, named := strings.Cut(one, ":")
		if !named {
			name, number = "", one
		}
		if n, err := strconv.ParseInt(number, 10, 64); err == nil && n >= 0 {
			out[name] = n
		}
	}
	return out
}

// newStream returns the stream of a request. Its jobs receive events of their feeds from now on:
// what comes while the logs are read is not missed.
func (g *Gateway) newStream(keys []jobKey, lastEventID string) *stream {
	s := &stream{g: g, several: len(keys) > 1, open: len(keys)}
	from := cursors(lastEventID)
	for _, key := range keys {
		w := &watcher{stream: s, key: key}
		w.cursor, w.resumed = from[key.short()]
		if n, ok := from[""]; ok && !s.several {
			w.cursor, w.resumed = n, true
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
			w.cursor = newest
		}
	}
	if err := s.g.readPages(ctx, s.watchers...); err != nil {
		return err
	}
	for _, w := range s.watchers {
		if w.cursor == newest {
			w.cursor = w.page.top
		}
	}
	return nil
}

// newest is a cursor after which no log has events.
const newest = 1 << 53

// over reports whether the client has received the ends of all jobs.
func (s *stream) over() bool {
	return !slices.ContainsFunc(s.watchers, func(w *watcher) bool {
		return !w.resumed || w.page.end == 0 || w.cursor < w.page.end
	})
}

// begin writes the states and the backlogs, then attaches the client to its jobs.
func (s *stream) begin(ctx context.Context, c *sse.Client) error {
	s.client = c
	for _, w := range s.watchers {
		if w.page.state == nil {
			continue
		}
		id := ""
		if w.cursor == w.page.top && !w.resumed {
			id = s.id(w) // without history: a reconnect continues here
		}
		state := step{kind: latest, item: *w.page.state}.event(w.key, id)
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
			progress = progress || w.cursor > before
		}
		if s.attach() {
			return nil
		}
		if progress {
			idle = 0
		} else if idle++; !pipeline.Sleep(ctx, reread(idle)) {
			return ctx.Err()
		}
		open := slices.DeleteFunc(slices.Clone(s.watchers), func(w *watcher) bool { return w.ended })
		if err := s.g.readPages(ctx, open...); err != nil {
			return err
		}
	}
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

// position returns where the next page begins. It must be called before the page is read.
func (w *watcher) position() position {
	d := w.job.domain
	d.mu.Lock()
	defer d.mu.Unlock()
	w.decided, w.losses = w.job.sequence.decided(w.cursor), w.job.losses
	return position{w.key, w.job.sequence.after(w.cursor)}
}

// backlog writes the page, and further pages while there are more.
func (w *watcher) backlog(ctx context.Context) error {
	for !w.ended {
		steps := w.steps()
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
			w.end(steps[n-1])
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
func (w *watcher) steps() []step {
	d := w.job.domain
	d.mu.Lock()
	defer d.mu.Unlock()
	if w.job.sequence.doubts(w.page) {
		w.decided = 0
		w.job.search()
	}
	steps, _ := w.job.sequence.read(w.cursor, w.decided, w.page, time.Now())
	return steps
}

// event returns what is sent for a step after the cursor was set.
func (w *watcher) event(one step) sse.Event {
	id := ""
	if w.stream.several && one.kind != latest {
		id = w.stream.id(w)
	}
	return one.event(w.key, id)
}

// end notes that the job has ended. The last one closes the stream.
func (w *watcher) end(one step) {
	if w.ended {
		return
	}
	w.ended = true
	if w.stream.open--; w.stream.open == 0 {
		w.stream.client.Close(one.item.end)
	}
}

// attach connects all watchers with their jobs at once, or none of them. It returns false when one
// of them must read its log first.
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
		if !w.ended && !w.job.sequence.attach(w.cursor, w.page.state) {
			return false
		}
	}
	for _, w := range s.watchers {
		j := w.job
		if w.page.state != nil {
			w.from = w.page.state.entry
		}
		w.page = page{} // a stream can stay open for hours
		if w.ended {
			continue
		}
		j.watchers[w] = struct{}{}
		switch {
		case j.losses != w.losses:
			j.catchUp(readLost)
		case j.sequence.behind() && j.retry == nil:
			j.catchUp(readHole)
		}
	}
	return true
}

// id returns the id of an event for a watcher, which carries the cursors of all jobs.
func (s *stream) id(of *watcher) string {
	if !s.several {
		return strconv.FormatInt(of.cursor, 10)
	}
	var b strings.Builder
	for i, w := range s.watchers {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(w.key.short())
		b.WriteByte(':')
		b.WriteString(strconv.FormatInt(w.cursor, 10))
	}
	return b.String()
}

// send sends a step of the job to the client. shared is its event for clients that watch one job.
func (w *watcher) send(one step, shared sse.Event) {
	s := w.stream
	s.mu.Lock()
	defer s.mu.Unlock()
	out, next, send := take(w.cursor, one)
	w.cursor = next
	switch {
	case !send:
	case one.kind == transient && one.item.entry.before(w.from): // the client may have it already
	case one.kind == latest:
		s.client.Latest(w.key.String(), shared)
	case one.kind == transient || !s.several && out.from == one.from:
		s.client.Send(shared)
	default:
		s.client.Send(w.event(out))
	}
	if one.ends {
		w.end(one)
	}
}
