package reconcile

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
	"github.com/millrace-io/millrace/plugins/kafka"
	"github.com/millrace-io/millrace/plugins/once/reconcile"
)

// Input is one promotion in three sources.
type Input struct {
	Type      promotiontype.Type
	Promotion int64
	// AsOf is the ledger's clock before any source was read.
	AsOf time.Time
	// Lag is the time a record may take into the ledger. A record published less than Lag before
	// AsOf is pending, not lost.
	Lag time.Duration
	// Unannounced is the setting accept_unannounced: payouts need no record.
	Unannounced bool

	// Rows calls its function for each row of the promotion in order of target.
	Rows func(func(ledger.Payout) error) error
	// Kept returns the totals of settled payouts that the ledger keeps, which are compared with the rows if they are the
	// same before and after those are read. May be nil.
	Kept func() (reconcile.Kept, error)
	// Records reads a complete topic (kafka.Plugin.Scan). Nil: Kafka is not read.
	Records Scanner
	// Charges are the charges of the promotion in the Money API. Nil: the Money API is not read.
	Charges iter.Seq2[Charge, error]
	// Each is called for each target in ascending order. May be nil. An error ends the comparison.
	Each func(Target, []Bucket) error
}

// Scanner calls each for every record of a topic, up to the topic's end at the time of the call.
type Scanner func(ctx context.Context, topic string, each func(kafka.Scanned) error) (kafka.Scan, error)

// Charge is one key in the Money API's journal.
type Charge struct {
	Target     int64
	Value      string // as promotiontype.Payout.Value
	Executions int    // how often the key was charged
}

// Compare reads all sources and compares them. The report's Dead, Conflict and DeadWaiting are the
// caller's to fill in.
func Compare(ctx context.Context, in Input) (Report, error) {
	c := comparison{Input: in, report: Report{Type: payouts.Type(in.Type.Name), Promotion: in.Promotion, unannounced: in.Unannounced}}
	err := c.run(ctx)
	return c.report, err
}

type comparison struct {
	Input
	report Report
}

func (c *comparison) run(ctx context.Context) (err error) {
	records, charges := newSorter(), newSorter()
	defer func() { err = errors.Join(err, records.Close(), charges.Close()) }()
	// The topic comes last: it takes longest, and a Money API that can't list its charges is found
	// earlier.
	if c.Charges != nil {
		if err := c.readCharges(charges); err != nil {
			return err
		}
	}
	if c.Records != nil {
		if err := c.readRecords(ctx, records); err != nil {
			return err
		}
	}
	sortedRecords, err := records.Sorted()
	if err != nil {
		return err
	}
	sortedCharges, err := charges.Sorted()
	if err != nil {
		return err
	}
	r := &c.report
	r.Tally = reconcile.NewTally[int64](AllBuckets())
	if r.Kept, err = reconcile.Steady(c.Kept, func() error { return c.join(sortedRecords, sortedCharges) }); err != nil {
		return err
	}
	r.compared(r.Buckets)
	r.Balanced = r.MoneyAPI && r.Balance() && r.notAnnounced() == 0 && !r.miscounted()
	return nil
}

func (c *comparison) readCharges(into *sorter) error {
	for charge, err := range c.Charges {
		if err != nil {
			return fmt.Errorf("read the charges of the Money API: %w", err)
		}
		s := statement{target: charge.Target, value: c.Type.MinorUnits(charge.Value), hash: hashOf([]byte(charge.Value)), times: int64(charge.Executions)}
		if err := into.Add(s); err != nil {
			return err
		}
	}
	c.report.MoneyAPI = true
	return nil
}

// readRecords sorts the records of the promotion in Kafka's publish topic.
func (c *comparison) readRecords(ctx context.Context, into *sorter) error {
	t := &Topic{Topic: c.Type.PublishTopic()}
	scan, err := c.Records(ctx, t.Topic, func(r kafka.Scanned) error {
		p, err := c.Type.Decode(r.Value)
		if err != nil {
			t.Undecodable++
			return nil //nolint:nilerr // counted and reported
		}
		if p.Promotion != c.Promotion {
			return nil
		}
		t.Records++
		return into.Add(statement{target: p.Target, value: c.Type.MinorUnits(p.Value), hash: hashOf(p.Request), times: 1,
			place: placeOf(r.Partition, r.Offset, r.Time.After(c.AsOf.Add(-c.Lag)))})
	})
	if err != nil {
		return fmt.Errorf("read the records of Kafka (--no-kafka leaves them out): %w", err)
	}
	t.Read, t.Complete = scan.Records, scan.Beginning
	c.report.Kafka = t
	return nil
}

// join goes through all sources in order of target. It holds one target at a time.
func (c *comparison) join(records, charges *reconcile.Sorted[statement]) error {
	one := func(t Target) (err error) {
		if t.Record, err = take(records, t.ID); err != nil {
			return err
		}
		if t.Charge, err = take(charges, t.ID); err != nil {
			return err
		}
		return c.count(t)
	}
	// before goes through the targets without a row up to the next row's target; without a limit
	// through all that are left.
	before := func(limit int64, limited bool) error {
		for {
			next, found := records.Peek()
			if s, ok := charges.Peek(); ok && (!found || s.target < next.target) {
				next, found = s, true
			}
			if !found || limited && next.target >= limit {
				return nil
			}
			if err := one(Target{ID: next.target}); err != nil {
				return err
			}
		}
	}
	err := c.Rows(func(row ledger.Payout) error {
		if err := before(row.Target, true); err != nil {
			return err
		}
		t := Target{ID: row.Target, Row: &row}
		request := row.Request
		if p, err := c.Type.Decode(row.Request); err == nil {
			request, t.Amount, t.value = p.Request, c.Type.MinorUnits(p.Value), hashOf([]byte(p.Value))
		}
		t.request = hashOf(request)
		return one(t)
	})
	if err != nil {
		return err
	}
	return before(0, false)
}

func (c *comparison) count(t Target) error {
	r := &c.report
	r.Targets++
	r.count(t, c.AsOf)
	in := t.buckets(c.AsOf, r.Kafka != nil, r.MoneyAPI)
	for _, b := range in {
		r.Tally.Count(b, t.ID, b != Matched)
	}
	if c.Each == nil {
		return nil
	}
	return c.Each(t, in)
}
