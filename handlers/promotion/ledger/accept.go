package ledger

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"time"
)

type acceptReq struct {
	*Record
	payNow bool
}

// Accepted is what became of a record. Next is Enqueue, Pay, Done, Paused or Conflict.
type Accepted struct {
	Next  Next
	Fresh bool // the payout was not known before
	State State
}

// Accept books a record and says where it goes. The record may be acked once that has happened: after
// Enqueue when the stream has answered added, or NotEnqueued was called; after Pay when Begin's answer was
// carried out; otherwise at once. With payNow (the flag is off) Accept answers Pay where it would answer Enqueue.
//
// A record whose request differs from the first one's is answered with Conflict: its dead letter is in
// the outbox. An error that wraps ErrInvalid is the record's own; after any other error Accept may be repeated.
func (l *Ledger) Accept(ctx context.Context, r Record, payNow bool) (Accepted, error) {
	if err := r.validate(); err != nil {
		return Accepted{}, err
	}
	return l.accepts.do(ctx, acceptReq{&r, payNow})
}

func (l *Ledger) acceptBatch(ctx context.Context, batch []*call[acceptReq, Accepted]) error {
	for len(batch) > 0 {
		var lost []*call[acceptReq, Accepted]
		w := wanted(batch)
		w.bodies = true // duplicates are compared with the stored request; fresh rows cost nothing
		fresh := map[Key]*stored{}
		err := l.transact(ctx, w, func(ctx context.Context, u unit, s *snapshot, c *changes) error {
			clear(fresh)
			return l.acceptIn(ctx, u, s, c, batch, fresh)
		})
		if err != nil {
			return err
		}
		for _, k := range batch {
			// Another instance made the row between our read and our insert: nothing of it was ours.
			if row, ok := fresh[k.req.Key]; ok && row.ID == 0 {
				lost = append(lost, k)
			}
		}
		batch = lost
	}
	return nil
}

// acceptIn decides a batch within a transaction. fresh receives the rows it makes.
func (l *Ledger) acceptIn(ctx context.Context, u unit, s *snapshot, c *changes,
	batch []*call[acceptReq, Accepted], fresh map[Key]*stored) error {
	book := l.newBook(s, c)
	early := false // rows are made before the commit, because something else depends on whether they were
	for _, k := range batch {
		r := k.req
		ev := event{kind: evAcceptAgain, now: s.now, promotion: s.promotions[r.Of()], payNow: r.payNow}
		row := s.rows[r.Key]
		isNew := row == nil
		if isNew {
			row = freshRow(r.Record)
			s.rows[r.Key], fresh[r.Key] = row, row
			ev.kind = evAccept
		} else {
			ev.same = l.opts.SameRequest(row.Type, row.sent(), r.request())
		}
		next, eff, d := l.policy.apply(row.Row, ev)
		row.Row = next
		if isNew {
			row.was = next
			c.inserts = append(c.inserts, row)
		}
		early = early || fresh[r.Key] != nil && (eff.settled || eff.dead != "")
		book.add(row, eff, r.Record, "")
		k.res, k.err = Accepted{Next: d.next, Fresh: isNew, State: row.State}, nil
	}
	sortInserts(c.inserts)
	if early {
		if err := u.insert(ctx, c.inserts); err != nil {
			return err
		}
		book.made(c.inserts)
		c.inserts = nil
	}
	return book.close(ctx, u)
}

func freshRow(r *Record) *stored {
	row := &stored{Row: Row{Key: r.Key, SummaryID: r.SummaryID}}
	row.payload, row.recordKey, row.origin = r.Payload, r.RecordKey, clean(r.Origin)
	if len(r.Request) > 0 && string(r.Request) != string(r.Payload) {
		row.request = r.Request
	}
	if len(r.Headers) > 0 {
		b, _ := json.Marshal(r.Headers) // a map of strings always encodes
		row.headers = string(b)
	}
	return row
}

// conflictLine is the dead letter of a record that came second.
func conflictLine(r *Record, now time.Time) outboxLine {
	return offeredLine(r, now, ClassConflict, "another request for the same payout came first")
}

// unannouncedLine is the dead letter of an entry or retry record without a row.
func unannouncedLine(r *Record, now time.Time) outboxLine {
	return offeredLine(r, now, ClassUnannounced, "no accepted record of the publish topic announced this payout")
}

// offeredLine is the dead letter of a message that is not the stored record of its payout. A class and request has one,
// however often it is offered.
func offeredLine(r *Record, now time.Time, class, text string) outboxLine {
	sum := sha256.Sum256(r.request())
	offered := freshRow(r)
	return outboxLine{kind: OutboxDead, key: r.Key, class: class, err: text,
		payload: r.Payload, headers: offered.headers, recordKey: r.RecordKey, origin: offered.origin,
		handler: clean(r.Handler), firstFailedAt: now, createdAt: now,
		dedupe: class + ":" + r.Key.String() + ":" + hex.EncodeToString(sum[:16])}
}

// NotEnqueued says that an accepted payout did not get into the stream: it was full. The feeder enqueues it
// later. Calling it too often repeats a hint and loses nothing; not calling it strands the payout until the
// stream is next drained.
func (l *Ledger) NotEnqueued(ctx context.Context, k Key) error {
	if err := k.validate(); err != nil {
		return err
	}
	_, err := l.returns.do(ctx, k)
	return err
}

func (l *Ledger) notEnqueuedBatch(ctx context.Context, batch []*call[Key, struct{}]) error {
	w := wanted(batch)
	w.promotions = nil
	return l.transact(ctx, w, func(ctx context.Context, u unit, s *snapshot, c *changes) error {
		book := l.newBook(s, c)
		for _, k := range batch {
			row := s.rows[k.req]
			if k.err = nil; row == nil {
				k.err = notFound(k.req)
				continue
			}
			row.Row, _, _ = l.policy.apply(row.Row, event{kind: evNotEnqueued, now: s.now})
		}
		return book.close(ctx, u)
	})
}
