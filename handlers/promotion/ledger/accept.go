package ledger

import (
	"context"
	"encoding/json"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

type acceptRequest struct {
	*payouts.Record
	payNow, full bool
}

// AcceptOptions says where accepted payouts go. The zero value is: into their streams.
type AcceptOptions struct {
	// PayNow: Accept returns CallNow instead of Enqueue, because the stream is disabled.
	PayNow bool
	// Full reports whether the stream of a promotion is known to be full. Accept returns Overflow
	// instead of Enqueue, and NotEnqueued need not be called. Nil: no stream is.
	Full func(payouts.Promotion) bool
}

// AcceptResult is the result of Accept for one record. Next is Enqueue, Overflow, CallNow, Settled, Paused
// or Conflict.
type AcceptResult struct {
	Next  rules.Next
	Fresh bool // the payout is new
	State rules.State
	Err   error
}

// Accept stores records and returns one result per record, in their order. A record may be acked
// when its next action is done. Enqueue: after the stream has added the entry, or NotEnqueued was
// called. CallNow: after the result of Begin was carried out. Otherwise at once.
//
// A record whose request differs from the stored one gets Conflict, and its dead letter is in the
// outbox. An Err that wraps ErrInvalid is about the record itself. After any other Err Accept may
// be repeated for the record.
func (l *Ledger) Accept(ctx context.Context, records []payouts.Record, how AcceptOptions) []AcceptResult {
	batch := newBatch[acceptRequest, AcceptResult](len(records), func(i int) (payouts.Key, acceptRequest, error) {
		r := &records[i]
		return r.Key, acceptRequest{r, how.PayNow, how.Full != nil && how.Full(r.OfPromotion())}, r.Validate()
	})
	l.accepts.all(ctx, batch)
	return valuesOf(batch, func(k *batchItem[acceptRequest, AcceptResult]) AcceptResult {
		k.res.Err = k.err
		return k.res
	})
}

func (l *Ledger) acceptBatch(ctx context.Context, batch []*batchItem[acceptRequest, AcceptResult]) error {
	for len(batch) > 0 {
		var lost []*batchItem[acceptRequest, AcceptResult]
		w := readRequestOf(batch)
		w.messages = true // to compare duplicates with the stored request
		fresh := map[payouts.Key]*storedRow{}
		err := l.transact(ctx, w, func(ctx context.Context, tx transaction, read *readResult, writes *writeSet) error {
			clear(fresh)
			return l.acceptIn(ctx, tx, read, writes, batch, fresh)
		})
		if err != nil {
			return err
		}
		for _, k := range batch {
			// Another instance inserted the row between our read and our insert.
			if row, ok := fresh[k.req.Key]; ok && row.ID == 0 {
				lost = append(lost, k)
			}
		}
		batch = lost
	}
	return nil
}

// acceptIn decides a batch within a transaction. It adds the rows that it creates to fresh.
func (l *Ledger) acceptIn(ctx context.Context, tx transaction, read *readResult, writes *writeSet,
	batch []*batchItem[acceptRequest, AcceptResult], fresh map[payouts.Key]*storedRow) error {
	effects := l.newEffectSet(read, writes)
	early := false // insert before the commit, because other writes need the ids
	for _, k := range batch {
		r := k.req
		ev := rules.Event{Kind: rules.EventAcceptAgain, Now: read.now, Group: read.promotions[r.OfPromotion()], CallNow: r.payNow, StreamFull: r.full}
		row := read.rows[r.Key]
		isNew := row == nil
		if isNew {
			row = newRow(r.Record)
			read.rows[r.Key], fresh[r.Key] = row, row
			ev.Kind = rules.EventAccept
		} else {
			ev.SameRequest = l.opts.SameRequest(row.Type, row.requestToSend(), r.RequestToSend())
		}
		next, eff, d := row.Row.Apply(l.policy, ev)
		row.Row = next
		if isNew {
			row.before = next
			writes.inserts = append(writes.inserts, row)
		}
		early = early || fresh[r.Key] != nil && (eff.Settled || eff.DeadLetterClass != "")
		effects.add(row, eff, r.Record, "")
		k.res, k.err = AcceptResult{Next: d.Next, Fresh: isNew, State: row.State}, nil
	}
	sortInserts(writes.inserts)
	if early {
		if err := tx.insert(ctx, writes.inserts); err != nil {
			return err
		}
		effects.inserted(writes.inserts)
		writes.inserts = nil
	}
	return effects.writeTo(ctx, tx)
}

func newRow(r *payouts.Record) *storedRow {
	row := &storedRow{Row: payouts.Row{Key: r.Key, SummaryID: r.SummaryID}}
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

// NotEnqueued records that accepted payouts are not in the stream, because the stream was full. It
// returns one error or nil per key, in their order. The feeder enqueues the payouts later. An
// unneeded call only causes a duplicate entry. A missing call strands the payout until the stream
// is next drained.
func (l *Ledger) NotEnqueued(ctx context.Context, keys []payouts.Key) []error {
	batch := newBatch[payouts.Key, struct{}](len(keys), func(i int) (payouts.Key, payouts.Key, error) { return keys[i], keys[i], keys[i].Validate() })
	l.notEnqueued.all(ctx, batch)
	return valuesOf(batch, func(k *batchItem[payouts.Key, struct{}]) error { return k.err })
}

func (l *Ledger) notEnqueuedBatch(ctx context.Context, batch []*batchItem[payouts.Key, struct{}]) error {
	w := readRequestOf(batch)
	w.promotions = nil
	return l.transact(ctx, w, func(ctx context.Context, tx transaction, read *readResult, writes *writeSet) error {
		effects := l.newEffectSet(read, writes)
		for _, k := range batch {
			row := read.rows[k.req]
			if k.err = nil; row == nil {
				k.err = notFound(k.req)
				continue
			}
			row.Row, _, _ = row.Row.Apply(l.policy, rules.Event{Kind: rules.EventNotEnqueued, Now: read.now})
		}
		return effects.writeTo(ctx, tx)
	})
}
