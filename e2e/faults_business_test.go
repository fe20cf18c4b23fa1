package e2e

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace-io/millrace/e2e/faults"
	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
)

// business is what all cases of a deployment work with: campaigns of promotions, or the effects of kinds in the
// settings.
type business interface {
	matrix() []faults.Fault
	place() string                    // of the results in the READMEs
	peace() []string                  // the kinds of the cases without a fault that come first
	settings() map[string]any         // of every instance, beyond those of the suite
	groups() []string                 // the consumer groups of an instance
	begin(t *caseRun) work            // the work of one case
	SetFaults(simulator.Faults) error // of the far side
}

// work is that of one case.
type work interface {
	source() string                                                      // the topic of the records
	readers() []string                                                   // its consumer groups
	written() []string                                                   // the topics that instances write to
	dead() []string                                                      // those of the dead letters of records, and of events
	told() []string                                                      // those of the results of effects
	each() int                                                           // how many readers accept a record
	payload(o offer) string                                              // of a record
	announcement() []*kgo.Record                                         // the events that are published behind the records
	bad(what string, i int) (*kgo.Record, string)                        // a record of a poison, and the class of its dead letter
	watch(ctx context.Context)                                           // begins what is looked at during the whole case
	counts(ctx context.Context) ledger.Counts                            // of what was accepted
	recorded(ctx context.Context, reader string) (map[int64]bool, error) // the targets that a reader has accepted
	steer(verb string) [][]string                                        // the commands that pause, resume or cancel it all
	table() string                                                       // that accepting, calling and settling need
	invariants() []invariant
}

// promotions is the business of campaigns, whose far side is the simulated Money API.
type promotions struct{ *simulator.Server }

func (promotions) matrix() []faults.Fault   { return faults.Matrix() }
func (promotions) place() string            { return faults.OfPromotions }
func (promotions) peace() []string          { return []string{"POINT", "VOUCHER"} }
func (promotions) settings() map[string]any { return nil }
func (promotions) begin(t *caseRun) work    { return campaign{t} }

func (promotions) groups() []string {
	return []string{
		"prepay-admin-campaign-point", "prepay-admin-campaign-voucher",
		"prepay-admin-campaign-point-retry", "prepay-admin-campaign-voucher-retry",
	}
}

// campaign is the work of a case with a promotion.
type campaign struct{ *caseRun }

const startedTopic = "campaign-promotion-started"

func (c campaign) source() string { return c.topic("publish") }
func (c campaign) readers() []string {
	return []string{"prepay-admin-campaign-" + strings.ToLower(c.c.Kind)}
}
func (c campaign) written() []string     { return []string{c.topic("retry"), c.topic("dead")} }
func (campaign) told() []string          { return nil }
func (c campaign) dead() []string        { return []string{c.topic("dead"), startedTopic + "-dead"} }
func (campaign) each() int               { return 1 }
func (campaign) table() string           { return "payouts" }
func (campaign) invariants() []invariant { return invariants }

func (c campaign) topic(what string) string {
	return "campaign-promotion-" + strings.ToLower(c.c.Kind) + "-" + what
}

func (c campaign) payload(o offer) string {
	if c.c.Kind == "VOUCHER" {
		return fmt.Sprintf(`{"promotionId":%d,"promotionSummaryId":9,"targetId":%d,"voucherId":%q}`, c.id.ID, o.target, o.voucher)
	}
	return point(c.id.ID, int(o.target), strconv.FormatInt(o.amount, 10))
}

func (c campaign) announcement() []*kgo.Record {
	started := fmt.Sprintf(`{"promotionId":%d,"promotionType":%q,"totalCount":%d}`, c.id.ID, c.c.Kind, c.next)
	return []*kgo.Record{{Topic: startedTopic, Value: []byte(started)}}
}

func (c campaign) bad(what string, i int) (*kgo.Record, string) {
	r := &kgo.Record{Topic: c.source(), Key: fmt.Appendf(nil, "%d", i)}
	switch what {
	case "large":
		r.Value = []byte(`{"promotionId":1,"x":"` + strings.Repeat("x", 1<<20) + `"}`)
		return r, "too_large"
	case "limit":
		r.Value = padded(nearTheLimit)
		return r, "too_large"
	}
	r.Value = []byte(`{"promotionId":`)
	return r, "undecodable"
}

func (c campaign) watch(ctx context.Context) {
	c.caseRun.watch = startWatch(ctx, c.deployment.redis, c.streamName(), c.groupName())
}

func (c campaign) counts(ctx context.Context) ledger.Counts {
	counts, _ := c.ledger.Status(ctx, c.id)
	return counts
}

func (c campaign) recorded(ctx context.Context, _ string) (map[int64]bool, error) {
	rows, err := c.rows(ctx)
	targets := make(map[int64]bool, len(rows))
	for target := range rows {
		targets[target] = true
	}
	return targets, err
}

func (c campaign) steer(verb string) [][]string {
	return [][]string{{"campaign", verb, c.c.Kind, strconv.FormatInt(c.id.ID, 10)}}
}
