package streams

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/plugins/redis/entry"
)

// Outcome is the result of an enqueue.
type Outcome int

// The outcomes of an enqueue.
const (
	// Added: the entry is in the stream, and the stream is on the active set.
	Added Outcome = iota
	// Full: the stream holds max_len entries that are not acknowledged, or is absent and
	// Options.Admit refused it. Nothing was added; the entry waits where it came from.
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
	fullMemory     = 100 * time.Millisecond // how long a Full result is cached
	slowMemory     = 5 * time.Second        // the same after a call that was too slow
	callTimeout    = 5 * time.Second        // one script call
	reviveAttempts = 3                      // rounds of activate, create, add for one enqueue
	entryWords     = 9                      // four fields with their values, and their number
	batchWords     = 3_800                  // under 3,999, the limit of ElastiCache Serverless
	batchBytes     = 1 << 20                // keeps one call short for the others
	batchCalls     = 16                     // concurrent calls; readers need connections too
)

// EnqueueBatch adds a prefix of es, in order, up to max_len. It returns the length of the prefix
// when Redis has it. If that is not all, out is Full. A missing stream is activated and created
// first. After an error the first added entries are in the stream. Others may be, except after
// ErrRefused, ErrForeign and ErrVanishing.
//
// After a command that took too long, the stream counts as full for 5 s: it does not delay each
// call. Safe for concurrent use, legal before the Source is opened.
func (m *Manager) EnqueueBatch(ctx context.Context, id string, es []entry.Entry) (added int, out Outcome, err error) {
	if len(es) == 0 {
		return 0, Added, nil
	}
	if err := checkID(id); err != nil {
		return 0, Full, err
	}
	if m.Full(id) {
		return 0, Full, nil
	}
	for added < len(es) {
		rest := es[added:]
		batch := rest[:batchSize(rest)]
		n, err := m.addBatch(ctx, id, batch)
		added += n
		if err != nil {
			return added, Full, fmt.Errorf("streams: enqueue %d entries to %s: %w", len(es), m.opts.Kind.Stream(id), err)
		}
		if n < len(batch) {
			return added, Full, nil
		}
	}
	return added, Added, nil
}

// Full reports whether the stream of id was full in the last 100 ms, or too slow in the last 5 s.
func (m *Manager) Full(id string) bool { return m.full.has(id) }

// addBatch adds a prefix of es in one call and returns its length, reviving the stream as often as
// reviveAttempts when it is absent.
func (m *Manager) addBatch(ctx context.Context, id string, es []entry.Entry) (added int, err error) {
	select {
	case m.enqueues <- struct{}{}:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	defer func() { <-m.enqueues }()
	if m.Full(id) { // meanwhile
		return 0, nil
	}
	began := time.Now()
	defer func() {
		switch {
		case err == nil && added < len(es):
			m.full.addStream(id, fullMemory)
		case err != nil && (ctx.Err() != nil || time.Since(began) >= m.opts.CallTimeout):
			m.full.addStream(id, slowMemory)
		}
	}()
	revived := false
	for range reviveAttempts {
		n, err := m.addEntries(ctx, id, es)
		if err != nil {
			return 0, err
		}
		if n >= 0 {
			m.opts.Metrics.enqueued(m.opts.Kind.Type, n, len(es)-n)
			if n > 0 {
				m.wake(id)
				m.announce(id)
			}
			if revived {
				if err := m.confirm(ctx, id, n); err != nil {
					return 0, err // added twice rather than stranded
				}
			}
			return n, nil
		}
		if ok, err := m.opts.Admit(ctx, id); err != nil {
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

// confirm adds a revived stream to the active set again, now that it exists. Without it an idle
// stop of another instance can strand the entry. Between activate and create here, the other
// instance deactivates the id. Its clean-up finds no stream, and reactivates nothing.
func (m *Manager) confirm(ctx context.Context, id string, added int) error {
	m.log.InfoContext(ctx, "stream revived", "stream", m.opts.Kind.Stream(id), "entries", added)
	m.opts.Metrics.revived(m.opts.Kind.Type)
	return m.activateMade(ctx, id)
}

// activateMade adds a stream that was just created to the active set.
func (m *Manager) activateMade(ctx context.Context, id string) error {
	if err := m.opts.Activations.Activate(ctx, id); err != nil {
		return fmt.Errorf("activate after create: %w", err)
	}
	m.Refresh()
	return nil
}

// wake makes this instance's reader of id, if it has one, read now. So an entry that was added here
// does not wait for the end of its poll interval.
func (m *Manager) wake(id string) {
	if sub := m.opened(); sub != nil {
		if r := sub.get(id); r != nil {
			r.reader.Wake()
		}
	}
}

// addEntries runs enqueue.lua once; -1 means absent.
func (m *Manager) addEntries(ctx context.Context, id string, es []entry.Entry) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, m.opts.CallTimeout)
	defer cancel()
	args := slices.Grow(m.args(id), 4+len(es)*entryWords)
	args = append(args, m.opts.Config().MaxLen, len(es), id, m.opts.Instance)
	for _, e := range es {
		values := e.Values()
		args = append(append(args, len(values)), values...)
	}
	keys := m.keys(id)
	if !m.isCluster() {
		keys = append(keys, m.opts.Kind.WakeKey())
	}
	n, err := m.scripts.enqueue.Run(ctx, m.opts.Client(), keys, args...).Int()
	if goredis.HasErrorPrefix(err, "CROSSSLOT") && len(keys) > 2 {
		m.wakeUps.crossSlot.Store(true)
		n, err = m.scripts.enqueue.Run(ctx, m.opts.Client(), keys[:2], args...).Int()
	}
	if err != nil {
		m.opts.Metrics.enqueueFailed(m.opts.Kind.Type, len(es))
		return 0, fmt.Errorf("add: %w", m.refusal(id, err))
	}
	return n, nil
}

// Ensure creates stream, group (at 0) and meta where they are missing. BUSYGROUP is success. A
// stream whose group was missing gets a new incarnation, and is added to the active set again. An
// idle stop that started before has removed it, and its clean-up script reactivates only a stream
// that it finds (see confirm).
func (m *Manager) Ensure(ctx context.Context, id string) error {
	if err := checkID(id); err != nil {
		return err
	}
	made, err := m.create(ctx, id)
	if err == nil && made {
		err = m.activateMade(ctx, id)
	}
	if err != nil {
		return fmt.Errorf("streams: ensure %s: %w", m.opts.Kind.Stream(id), err)
	}
	return nil
}

// create creates stream, group and meta where they are missing, and reports whether the group had
// to be made.
func (m *Manager) create(ctx context.Context, id string) (made bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, m.opts.CallTimeout)
	defer cancel()
	stream := m.opts.Kind.Stream(id)
	reply, err := m.scripts.create.Run(ctx, m.opts.Client(), []string{stream, MetaKey(stream)}, m.opts.Kind.Group(id), newToken(), m.opts.Owner()).Slice()
	if err != nil {
		return false, fmt.Errorf("create: %w", m.refusal(id, err))
	}
	made = len(reply) > 1 && reply[0] == int64(1)
	if made {
		m.log.InfoContext(ctx, "stream created", "stream", stream, "group", m.opts.Kind.Group(id))
		if incarnation, ok := reply[1].(string); ok && m.opts.Created != nil {
			if err := m.opts.Created(ctx, id, incarnation); err != nil {
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

// batchSize returns how many entries of es, a prefix, fit into one call: at least one.
func batchSize(es []entry.Entry) int {
	bytes := 0
	for i, e := range es {
		bytes += len(e.Message)
		if i > 0 && ((i+1)*entryWords > batchWords || bytes > batchBytes) {
			return i
		}
	}
	return len(es)
}
