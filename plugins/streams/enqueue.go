package streams

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/millrace-io/millrace/plugins/redispoll"
)

// Outcome is what became of an entry that was to be added to a stream.
type Outcome int

// The outcomes of an enqueue.
const (
	// Added: the entry is in the stream, and the stream is on the active set.
	Added Outcome = iota
	// Full: the stream holds max_len entries that are not acknowledged, or is absent and Options.Admit refused it. Nothing
	// was added; the entry waits where it came from.
	Full
)

// String returns added or full.
func (o Outcome) String() string {
	if o == Full {
		return "full"
	}
	return "added"
}

// ErrVanishing is returned when a stream kept disappearing while something was to be added to it.
// Nothing was added; try again later.
var ErrVanishing = errors.New("stream disappears as fast as it is created")

const (
	fullMemory     = 100 * time.Millisecond // how long a Full is believed without asking
	callTimeout    = 5 * time.Second        // one script call that serves many callers
	reviveAttempts = 3                      // rounds of activate, create, add for one enqueue
	entryWords     = 9                      // four fields with their values, and their number
	batchWords     = 3_800                  // ElastiCache Serverless takes 3,999 arguments a command
	batchBytes     = 1 << 20                // keeps one call short for everybody else
	batchCalls     = 16                     // enqueue calls under way at once, so that readers find connections
)

// Enqueue adds one entry to the stream of id and returns when Redis has it. Concurrent calls for one
// stream share a script call. A stream that is absent is put on the active set and created first, so
// the caller sees Added, Full or an error; after an error the entry may be in the stream or not, but
// after ErrRefused, ErrForeign and ErrVanishing it is not.
// Safe for concurrent use, legal before the Source is opened.
func (m *Manager) Enqueue(ctx context.Context, id int64, e redispoll.Entry) (Outcome, error) {
	added, err := m.lanes.do(ctx, id, e, m.addBatch)
	if err != nil {
		return Full, fmt.Errorf("streams: enqueue to %s: %w", m.kind.Stream(id), err)
	}
	if !added {
		return Full, nil
	}
	return Added, nil
}

// EnqueueBatch adds a prefix of es, in order, up to max_len, and returns its length; out is Full
// when that is not all. After an error the first added entries are in the stream, others may be.
// Safe for concurrent use, legal before the Source is opened.
func (m *Manager) EnqueueBatch(ctx context.Context, id int64, es []redispoll.Entry) (added int, out Outcome, err error) {
	if len(es) == 0 {
		return 0, Added, nil
	}
	if m.lanes.isFull(id) {
		return 0, Full, nil
	}
	for added < len(es) {
		rest := es[added:]
		batch := rest[:batchSize(len(rest), func(i int) *redispoll.Entry { return &rest[i] })]
		n, err := m.addBatch(ctx, id, batch)
		added += n
		if err != nil {
			return added, Full, fmt.Errorf("streams: enqueue %d entries to %s: %w", len(es), m.kind.Stream(id), err)
		}
		if n < len(batch) {
			m.lanes.setFull(id)
			return added, Full, nil
		}
	}
	return added, Added, nil
}

// addBatch adds a prefix of es in one call and returns its length, reviving the stream as often as
// reviveAttempts when it is absent.
func (m *Manager) addBatch(ctx context.Context, id int64, es []redispoll.Entry) (int, error) {
	select {
	case m.enqueues <- struct{}{}:
		defer func() { <-m.enqueues }()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	revived := false
	for range reviveAttempts {
		n, err := m.add(ctx, id, es)
		if err != nil {
			return 0, err
		}
		if n >= 0 {
			m.metrics.enqueued(m.kind.Type, n, len(es)-n)
			if n > 0 {
				m.wake(id)
			}
			if revived {
				return n, m.confirm(ctx, id, n)
			}
			return n, nil
		}
		if ok, err := m.admit(ctx, id); err != nil {
			return 0, fmt.Errorf("activate: %w", err)
		} else if !ok {
			return 0, nil
		}
		if _, err := m.create(ctx, id); err != nil {
			return 0, err
		}
		revived = true
	}
	return 0, ErrVanishing
}

// confirm puts a revived stream on the active set once more, now that it exists. Without it an idle
// stop of another instance strands the entry: activate (here), deactivate (there), its clean-up
// script finds the stream absent and puts nothing back, create and add (here).
func (m *Manager) confirm(ctx context.Context, id int64, added int) error {
	m.log.InfoContext(ctx, "stream revived", "stream", m.kind.Stream(id), "entries", added)
	m.metrics.revived(m.kind.Type)
	return m.activateMade(ctx, id)
}

// activateMade puts a stream that was made just now on the active set.
func (m *Manager) activateMade(ctx context.Context, id int64) error {
	if err := m.activations.Activate(ctx, id); err != nil {
		return fmt.Errorf("activate after create: %w", err)
	}
	m.Hint()
	return nil
}

// wake has this instance's reader of id, if there is one, read now: what was added here need not wait
// for the end of its poll interval.
func (m *Manager) wake(id int64) {
	if sub := m.opened(); sub != nil {
		if r := sub.get(id); r != nil {
			r.reader.Wake()
		}
	}
}

// add runs enqueue.lua once; -1 means absent.
func (m *Manager) add(ctx context.Context, id int64, es []redispoll.Entry) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	args := slices.Grow(m.args(id), 2+len(es)*entryWords)
	args = append(args, m.config().MaxLen, len(es))
	for _, e := range es {
		values := e.Values()
		args = append(append(args, len(values)), values...)
	}
	n, err := m.scripts.enqueue.Run(ctx, m.client(), m.keys(id), args...).Int()
	if err != nil {
		m.metrics.enqueueFailed(m.kind.Type, len(es))
		return 0, fmt.Errorf("add: %w", m.refusal(id, err))
	}
	return n, nil
}

// Ensure creates stream, group (at 0) and meta where they are missing. BUSYGROUP is success.
// A stream whose group had to be made gets a new incarnation, and is put on the active set once more: an idle stop that
// began before took it off, and its clean-up script puts back only what it finds (see confirm).
func (m *Manager) Ensure(ctx context.Context, id int64) error {
	made, err := m.create(ctx, id)
	if err == nil && made {
		err = m.activateMade(ctx, id)
	}
	if err != nil {
		return fmt.Errorf("streams: ensure %s: %w", m.kind.Stream(id), err)
	}
	return nil
}

// create creates stream, group and meta where they are missing, and reports whether the group had to be made.
func (m *Manager) create(ctx context.Context, id int64) (made bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	stream := m.kind.Stream(id)
	reply, err := m.scripts.create.Run(ctx, m.client(), []string{stream, MetaKey(stream)}, m.kind.Group(id), newToken(), m.owner()).Slice()
	if err != nil {
		return false, fmt.Errorf("create: %w", m.refusal(id, err))
	}
	made = len(reply) > 1 && reply[0] == int64(1)
	if made {
		m.log.InfoContext(ctx, "stream created", "stream", stream, "group", m.kind.Group(id))
		if incarnation, ok := reply[1].(string); ok && m.created != nil {
			if err := m.created(ctx, id, incarnation); err != nil {
				return true, fmt.Errorf("create: record the incarnation: %w", err)
			}
		}
	}
	return made, nil
}

func newToken() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return hex.EncodeToString(b[:])
}

// batchSize returns how many of n entries fit into one call, at least one.
func batchSize(n int, at func(int) *redispoll.Entry) int {
	bytes := 0
	for i := range n {
		bytes += len(at(i).Message)
		if i > 0 && ((i+1)*entryWords > batchWords || bytes > batchBytes) {
			return i
		}
	}
	return n
}
