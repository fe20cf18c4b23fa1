package promotion

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/plugins/kafka"
)

// Reconciliation is what `campaign reconcile --json` prints: three books, held against each other a target at a time.
type Reconciliation struct {
	Type      ledger.Type `json:"type"`
	Promotion int64       `json:"promotion"`
	Books
	Balanced bool `json:"balanced"`
	// Targets is how many there are in all books together; Buckets how many of them are in each bucket, and Examples the
	// lowest of them. A target is in "matched", or in every other bucket that holds for it.
	Targets  int64              `json:"targets"`
	Buckets  map[bucket]int64   `json:"buckets"`
	Examples map[bucket][]int64 `json:"examples"`
	Kafka    *Offered           `json:"kafka"`     // null: not read
	MoneyAPI bool               `json:"money_api"` // its book was read; without it nothing balances

	unannounced bool // plugins.promotion.accept_unannounced: payouts need no record
}

// Offered is what Kafka's publish topic holds.
type Offered struct {
	Topic       string `json:"topic"`
	Read        int64  `json:"read"`        // records in the topic
	Records     int64  `json:"records"`     // of this promotion
	Undecodable int64  `json:"undecodable"` // that no promotion can be told of
	// Complete: retention has removed nothing, so that the topic holds everything that was ever offered.
	Complete bool `json:"complete"`
}

// examples is how many targets of a bucket are named.
const examples = 5

// notAnnounced counts the payouts that no record announced, as far as that is known: what Kafka's retention may have removed
// explains an absent record, and so does the setting that accepts payouts without one.
func (r *Reconciliation) notAnnounced() int64 {
	if r.Kafka == nil || !r.Kafka.Complete || r.unannounced {
		return 0
	}
	return r.Buckets[bucketNotOffered]
}

// settledWell reports whether nothing is left to do: what Kafka offers was accepted, all is settled, and the books balance,
// as far as they were read.
func (r *Reconciliation) settledWell() error {
	lost, open := r.Buckets[bucketNotAccepted], r.Buckets[bucketPending]+r.Unknown
	switch {
	case r.notAnnounced() > 0:
		return fmt.Errorf("payouts are in the ledger that no record of %s announced: %s. The books DON'T balance", r.Kafka.Topic, thousands(r.notAnnounced()))
	case r.MoneyAPI && !r.Balanced:
		return errors.New("the books DON'T balance")
	case r.MoneyAPI && lost > 0:
		return fmt.Errorf("the two books about money balance, but targets that Kafka offers are not in the ledger: %s", thousands(lost))
	case lost > 0:
		return fmt.Errorf("targets that Kafka offers are not in the ledger: %s", thousands(lost))
	case open > 0:
		return fmt.Errorf("payouts are not settled, or UNKNOWN: %s", thousands(open))
	}
	return nil
}

// verdict is what people read last: it claims no more than was read.
func (r *Reconciliation) verdict() string {
	switch err := r.settledWell(); {
	case err != nil:
		return upper(err.Error()) + "."
	case !r.MoneyAPI && !r.Kafka.Complete:
		return "All that Kafka still holds is in the ledger and settled; the Money API's book was not read."
	case !r.MoneyAPI:
		return "All that Kafka offers is in the ledger and settled; the Money API's book was not read."
	case r.Kafka == nil:
		return "The two books about money balance; what Kafka offers was not read."
	case !r.Kafka.Complete:
		return "The books balance: nothing that Kafka still holds is lost, nothing paid twice."
	}
	return "The books balance: nothing lost, nothing paid twice."
}

// comparison is one reconciliation under way.
type comparison struct {
	strategy  strategy
	promotion int64
	asOf      time.Time // the ledger's clock before any other book was read
	result    Reconciliation
	lag       time.Duration                // how long before asOf a record may have been published and not be in the ledger yet
	each      func(joined, []bucket) error // may be nil
}

// reconcile compares the books of one type of a promotion. offers or charges may be nil: that book is left out. each is
// called for every target, in order; it may be nil. Records younger than lag before the start count as pending. Memory does not grow with the promotion.
// The error is ledger.ErrNotFound when no book has anything of it: what was never accepted may still be offered, or charged.
func (e *engine) reconcile(ctx context.Context, s strategy, promotion int64, offers scanner, lag time.Duration, charges iter.Seq2[charge, error],
	each func(joined, []bucket) error) (Reconciliation, error) {
	id := ledger.Promotion{Type: ledger.Type(s.kind), ID: promotion}
	fail := func(err error) (Reconciliation, error) {
		return Reconciliation{}, fmt.Errorf("reconcile %s: %w", id, err)
	}
	status, unknown := e.ledger.Status(ctx, id)
	if unknown != nil && !errors.Is(unknown, ledger.ErrNotFound) {
		return Reconciliation{}, unknown
	}
	c := comparison{strategy: s, promotion: promotion, lag: lag, each: each}
	c.result = Reconciliation{Type: id.Type, Promotion: promotion, unannounced: e.config.AcceptUnannounced, Books: Books{Dead: status.Dead, Conflict: status.Conflict}}
	var err error
	if c.asOf, err = e.ledger.Now(ctx); err != nil {
		return fail(err)
	}
	rows := func(fn func(ledger.Entry) error) error { return e.ledger.Books(ctx, id, fn) }
	if err := c.run(ctx, offers, charges, rows); err != nil {
		return fail(err)
	}
	if c.result.Targets == 0 {
		return c.result, unknown
	}
	return c.result, nil
}

// scanner reads a whole topic: kafka.Plugin.Scan.
type scanner func(ctx context.Context, topic string, each func(kafka.Scanned) error) (kafka.Scan, error)

func (c *comparison) run(ctx context.Context, offers scanner, charges iter.Seq2[charge, error], rows func(func(ledger.Entry) error) error) (err error) {
	var offered, charged sorter
	defer func() { err = errors.Join(err, offered.close(), charged.close()) }()
	// The topic comes last: it takes longest, and a Money API without a book is found out before.
	if charges != nil {
		if err := c.readCharges(charges, &charged); err != nil {
			return err
		}
	}
	if offers != nil {
		if err := c.readOffers(ctx, offers, &offered); err != nil {
			return err
		}
	}
	inOrder, err := offered.sorted()
	if err != nil {
		return err
	}
	chargesInOrder, err := charged.sorted()
	if err != nil {
		return err
	}
	r := &c.result
	r.Buckets, r.Examples = map[bucket]int64{}, map[bucket][]int64{}
	for _, b := range allBuckets() {
		r.Buckets[b.bucket] = 0
	}
	canonical := func(fn func(ledger.Entry) error) error {
		return rows(func(e ledger.Entry) error {
			e.Request = c.strategy.canonical(e.Request)
			return fn(e)
		})
	}
	if err := join(inOrder, chargesInOrder, canonical, c.target); err != nil {
		return err
	}
	r.Balanced = r.MoneyAPI && r.Balance() && r.notAnnounced() == 0
	return nil
}

// readCharges sorts the Money API's book.
func (c *comparison) readCharges(charges iter.Seq2[charge, error], into *sorter) error {
	for line, err := range charges {
		if err != nil {
			return fmt.Errorf("read the Money API's book: %w", err)
		}
		if err := into.add(statement{target: line.target, value: line.value, what: line.what, times: int64(line.executions)}); err != nil {
			return err
		}
	}
	c.result.MoneyAPI = true
	return nil
}

// readOffers sorts the records of the promotion that Kafka's publish topic holds.
func (c *comparison) readOffers(ctx context.Context, offers scanner, into *sorter) error {
	o := &Offered{Topic: c.strategy.publishTopic()}
	scan, err := offers(ctx, o.Topic, func(r kafka.Scanned) error {
		offer, err := c.strategy.decode(r.Value)
		if err != nil {
			o.Undecodable++
			return nil //nolint:nilerr // counted and told
		}
		if offer.promotion != c.promotion {
			return nil
		}
		o.Records++
		return into.add(statement{target: offer.target, value: offer.value, what: whatRequest(offer.request), times: 1, place: placeOf(r.Partition, r.Offset, r.Time.After(c.asOf.Add(-c.lag)))})
	})
	if err != nil {
		return fmt.Errorf("read what Kafka offers (--no-kafka leaves it out): %w", err)
	}
	o.Read, o.Complete = scan.Records, scan.Beginning
	c.result.Kafka = o
	return nil
}

// A place is a partition and an offset in one number. That of a record which may be on its way into the ledger has a bit
// more, so that it comes after all others.
const (
	offsetBits = 44
	youngPlace = 1 << 62
)

func placeOf(partition int32, offset int64, young bool) int64 {
	place := int64(partition)<<offsetBits | offset&(1<<offsetBits-1)
	if young {
		place |= youngPlace
	}
	return place
}

func placeText(place int64) string {
	place &^= youngPlace
	return fmt.Sprintf("%d@%d", place>>offsetBits, place&(1<<offsetBits-1))
}

// target counts one target.
func (c *comparison) target(j joined) error {
	r := &c.result
	r.Targets++
	r.add(j, c.asOf, r.MoneyAPI)
	in := j.buckets(c.asOf, r.Kafka != nil, r.MoneyAPI)
	for _, b := range in {
		r.Buckets[b]++
		if b != bucketMatched && len(r.Examples[b]) < examples {
			r.Examples[b] = append(r.Examples[b], j.target)
		}
	}
	if c.each == nil {
		return nil
	}
	return c.each(j, in)
}
