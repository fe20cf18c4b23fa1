package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// invariant is a condition that must hold after every fault. One that may take a while is checked
// until the case's time is up.
type invariant struct {
	name       string
	eventually bool
	holds      func(*caseRun, context.Context) error
}

// invariants in the order in which they are looked at; the first broken one is what a failing case
// prints.
var invariants = []invariant{
	{"an instance ends only when it is stopped", false, (*caseRun).noneEnded},
	{"one charge per target", false, (*caseRun).oneCharge},
	{"no charge is denied", false, (*caseRun).noChargeDenied},
	{"nothing is lost", true, (*caseRun).nothingLost},
	{"ledger and Money API agree", false, (*caseRun).balanced},
	{"poison is isolated", true, (*caseRun).poisonIsolated},
	{"no payout fails without need", false, (*caseRun).nothingGivenUp},
	{"nothing is stranded", true, (*caseRun).nothingStranded},
	{"the summary is correct", false, (*caseRun).summaryCounts},
	{"attempts are within policy", false, (*caseRun).attemptsInPolicy},
	{"one caller at a time", false, (*caseRun).oneCaller},
	{"a retry is never early", false, (*caseRun).retriesInTime},
	{"a frozen worker wakes and does not call", true, (*caseRun).frozenStaysQuiet},
	{"offsets never pass an unrecorded row", false, (*caseRun).offsetsRecorded},
	{"nothing is trimmed unread", false, (*caseRun).nothingTrimmed},
	{"goroutines and memory return to normal", true, (*caseRun).usageIsBack},
}

// brokenError is the first broken invariant.
type brokenError struct {
	name string
	err  error
}

func (b *brokenError) Error() string { return b.name + ": " + b.err.Error() }

// quietWithin is how long a case may take to become quiet.
const quietWithin = 45 * time.Second

// check looks at every invariant and returns the first broken one.
func (t *caseRun) check(ctx context.Context) error {
	deadline := time.Now().Add(quietWithin)
	waited := map[string]error{} // first it must be quiet: who charges late charges too
	for _, inv := range t.work.invariants() {
		if inv.eventually {
			waited[inv.name] = t.holds(ctx, inv, deadline)
		}
	}
	for _, inv := range t.work.invariants() {
		err := waited[inv.name]
		if !inv.eventually {
			err = t.holds(ctx, inv, deadline)
		}
		if err != nil {
			return &brokenError{inv.name, err}
		}
	}
	return nil
}

// holds checks one invariant at least once, and until the deadline if it may take a while.
func (t *caseRun) holds(ctx context.Context, inv invariant, deadline time.Time) error {
	began := time.Now()
	for last := error(nil); ; {
		once, cancel := context.WithTimeout(ctx, time.Minute)
		err := inv.holds(t, once)
		cancel()
		if err == nil && last != nil && time.Since(began) > 8*time.Second {
			t.note("%s: only after %s: %w", inv.name, time.Since(began).Round(time.Second), last)
		}
		if err == nil || !inv.eventually || time.Now().After(deadline) || ctx.Err() != nil {
			return err
		}
		last = err
		if err := t.age(ctx); err != nil {
			return err
		}
		wait(ctx, 100*time.Millisecond)
	}
}

// first keeps errors short: some of many.
func first(errs []error) error {
	if len(errs) > 5 {
		errs = append(errs[:5:5], fmt.Errorf("… and %d more", len(errs)-5))
	}
	return errors.Join(errs...)
}

// noneEnded: an instance that ends without a signal or a fault is found, although another one has
// replaced it.
func (t *caseRun) noneEnded(context.Context) error {
	errs := []error{t.fallen()}
	for _, m := range t.members {
		if m.ended() {
			errs = append(errs, fmt.Errorf("%s is gone: %s", m.name, m.cmd.ProcessState))
		}
	}
	return errors.Join(errs...)
}

// rows returns the ledger's; a server that has just come back may refuse once or twice.
func (t *caseRun) rows(ctx context.Context) (rows map[int64]ledger.Payout, err error) {
	return rows, until(ctx, 20*time.Second, "the ledger's rows", func() error {
		rows = make(map[int64]ledger.Payout, len(t.offer))
		return t.ledger.EachPayout(ctx, t.id, func(e ledger.Payout) error {
			rows[e.Target] = e
			return nil
		})
	})
}

// nothingLost: every accepted record reaches a final state.
func (t *caseRun) nothingLost(ctx context.Context) error {
	if c := t.counts(ctx); settled(c) < int64(len(t.offer)) {
		return fmt.Errorf("%d were offered: %+v", len(t.offer), c)
	}
	rows, err := t.rows(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for target := range t.offer {
		if row, ok := rows[target]; !ok || !row.State.Settled() {
			errs = append(errs, fmt.Errorf("target %d is %q", target, row.State))
		}
	}
	if len(rows) != len(t.offer) {
		errs = append(errs, fmt.Errorf("%d rows for %d targets", len(rows), len(t.offer)))
	}
	return first(errs)
}

// poisonIsolated: the dead letters are those of the poison, once each.
func (t *caseRun) poisonIsolated(ctx context.Context) error {
	got, err := t.deadLetters(ctx)
	if err != nil {
		return err
	}
	want := []map[string]int{t.letters, t.startedDead}
	for i, topic := range t.work.dead() {
		if !maps.Equal(got[topic], want[i]) {
			return fmt.Errorf("dead letters in %s: %v, want %v", topic, got[topic], want[i])
		}
	}
	return nil
}

// nothingStranded: no stream, group, consumer or pending entry is left, no record is unread, and no
// promotion is active.
func (t *caseRun) nothingStranded(ctx context.Context) error {
	keys, err := t.deployment.redis.Keys(ctx, "*"+t.streamName()+"*").Result()
	if err != nil {
		return err
	}
	if len(keys) > 0 {
		pending, _ := t.deployment.redis.XPending(ctx, t.streamName(), t.groupName()).Result()
		return fmt.Errorf("redis still has %v, pending %+v", keys, pending)
	}
	if t.counts(ctx).Active {
		return errors.New("the promotion is still on the active set")
	}
	return t.nothingUnread(ctx)
}

// nothingUnread: the consumer groups have no record left to read.
func (t *caseRun) nothingUnread(ctx context.Context) error {
	lags, err := t.admin.Lag(ctx, t.business.groups()...)
	if err != nil {
		return err
	}
	for group, lag := range lags {
		if err := lag.Error(); err != nil {
			return err
		}
		if n := lag.Lag.Total(); n != 0 {
			return fmt.Errorf("group %s has %d records to read", group, n)
		}
	}
	return nil
}

// valueOf returns what is paid as the simulator's journal has it.
func valueOf(amount int64, voucher string) string {
	if voucher != "" {
		return voucher
	}
	return strconv.FormatInt(amount, 10)
}

func (t *caseRun) oneCharge(context.Context) error {
	var errs []error
	for target, entries := range t.charges(t.id) {
		if len(entries) != 1 || entries[0].Executions != 1 {
			errs = append(errs, fmt.Errorf("target %d: %+v", target, entries))
		}
		if _, ok := t.offer[target]; !ok {
			errs = append(errs, fmt.Errorf("target %d was charged and never offered", target))
		}
	}
	if n := t.api.Summary().Doubled; n != 0 {
		errs = append(errs, fmt.Errorf("the journal has %d double charges", n))
	}
	return first(errs)
}

func (t *caseRun) balanced(ctx context.Context) error {
	rows, err := t.rows(ctx)
	if err != nil {
		return err
	}
	charges := t.charges(t.id)
	var errs []error
	for target, row := range rows {
		charged := charges[target]
		switch {
		case row.State == rules.Success && len(charged) == 0:
			errs = append(errs, fmt.Errorf("%s is SUCCESS, and nothing was charged", row.Key))
		case row.State == rules.Success:
			amount, voucher, err := requestOf(row)
			o, e := t.offer[target], charged[0]
			if err != nil || e.Receipt != row.Receipt || e.Value != valueOf(amount, voucher) ||
				amount != 0 && amount != o.amount || voucher != "" && voucher != o.voucher {
				errs = append(errs, fmt.Errorf("%s: offered %+v, ledger %s %d%s, journal %+v, %w", row.Key, o, row.Receipt, amount, voucher, e, err))
			}
		case len(charged) > 0 && row.State != rules.Unknown:
			errs = append(errs, fmt.Errorf("%s is %s and was charged", row.Key, row.State))
		}
	}
	for target := range charges {
		if _, ok := rows[target]; !ok {
			errs = append(errs, fmt.Errorf("target %d was charged and has no row", target))
		}
	}
	return first(errs)
}

func (t *caseRun) noChargeDenied(ctx context.Context) error {
	rows, err := t.rows(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for target := range t.charges(t.id) {
		if s := rows[target].State; s == rules.Failed || s == rules.Cancelled {
			errs = append(errs, fmt.Errorf("target %d was charged and is %s", target, s))
		}
	}
	return first(errs)
}

// nothingGivenUp: the fault passes, so everything is paid; only a cancelled promotion leaves
// something unpaid.
func (t *caseRun) nothingGivenUp(ctx context.Context) error {
	rows, err := t.rows(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, row := range rows {
		allowed := row.State == rules.Success || t.badly[row.Target] || t.cancels && (row.State == rules.Cancelled || row.State == rules.Unknown && row.MaybeDone)
		if !allowed {
			errs = append(errs, fmt.Errorf("%s is %s after %d attempts: %s %s", row.Key, row.State, row.Attempts, row.LastClass, row.LastError))
		}
	}
	return first(errs)
}

func (t *caseRun) summaryCounts(ctx context.Context) error {
	rows, err := t.rows(ctx)
	if err != nil {
		return err
	}
	states := map[rules.State]int64{}
	for _, row := range rows {
		states[row.State]++
	}
	c := t.counts(ctx)
	if c.Paid != states[rules.Success] || c.Failed != states[rules.Failed] || c.Unknown != states[rules.Unknown] ||
		c.Cancelled != states[rules.Cancelled] || c.Pending != 0 || c.Accepted != int64(len(rows)) {
		return fmt.Errorf("%+v, and the rows are %v", c, states)
	}
	return nil
}

// offsetsRecorded: every record before a committed offset has its row. Offsets are read first.
func (t *caseRun) offsetsRecorded(ctx context.Context) error {
	var errs []error
	for _, group := range t.work.readers() {
		var committed kadm.OffsetResponses
		if err := until(ctx, 30*time.Second, "committed offsets of "+group, func() (err error) {
			committed, err = t.admin.FetchOffsets(ctx, group)
			return errors.Join(err, committed.Error())
		}); err != nil {
			return err
		}
		recorded, err := t.work.recorded(ctx, group)
		if err != nil {
			return err
		}
		for target, o := range t.offer {
			if c, ok := committed.Lookup(t.work.source(), o.partition); ok && o.offset < c.At && !recorded[target] {
				errs = append(errs, fmt.Errorf("target %d at %d/%d is not in the ledger, and %d is committed by %s", target, o.partition, o.offset, c.At, group))
			}
		}
	}
	return first(errs)
}

// Log lines and metrics that must not be there. A renamed one would never be found, so
// TestTheChecksKnowTheNames compares them with the product.
const (
	logDeletedPending = "pending entries were deleted before they were handled"
	logLostInFlight   = "entries in flight are no longer this reader's"

	metricClaims         = "millrace_reclaim_claims_total"
	metricReadersRemoved = "millrace_reclaim_readers_removed_total"
	metricLost           = "millrace_redis_lost_total"
)

func TestTheChecksKnowTheNames(t *testing.T) {
	t.Parallel()
	for name, files := range map[string]string{
		logDeletedPending: "../internal/redis/poll/*.go", logLostInFlight: "../internal/redis/poll/*.go", `"deleted"`: "../internal/redis/poll/*.go",
		metricClaims: "../docs/metrics.md", metricReadersRemoved: "../docs/metrics.md", metricLost: "../docs/metrics.md",
	} {
		paths, err := filepath.Glob(files)
		require.NoError(t, err)
		require.True(t, slices.ContainsFunc(paths, func(path string) bool {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			return strings.Contains(string(text), name)
		}), "no file of %s has %q", files, name)
	}
}

// nothingTrimmed: no entry was removed before it was read, and no instance found one that was
// deleted before it was handled.
func (t *caseRun) nothingTrimmed(context.Context) error {
	lost := t.watch.result()
	if t.redisLost {
		return nil
	}
	if lost != nil {
		return lost
	}
	for _, m := range t.all {
		log, err := os.ReadFile(m.log)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(log)) {
			if (strings.Contains(line, logDeletedPending) || strings.Contains(line, logLostInFlight) && !strings.Contains(line, `"deleted":0`)) &&
				strings.Contains(line, t.streamName()) {
				return fmt.Errorf("%s: %s", m.name, line)
			}
		}
	}
	return nil
}

// usageIsBack: a case leaves no goroutine and no heap behind.
func (t *caseRun) usageIsBack(ctx context.Context) error {
	for _, m := range t.members {
		if m.stained {
			continue
		}
		now, err := m.usage(ctx)
		if err != nil {
			return err
		}
		if m.began.goroutines == 0 {
			m.began = now // its first quiet moment
		}
		// The pipeline keeps 256 idle workers. A producer keeps one goroutine per partition that it
		// has written to, and some connections. A leak grows with every case.
		if now.goroutines > m.began.goroutines+256+6*8+100 || now.bytes > 2*m.began.bytes+64<<20 {
			return fmt.Errorf("%s has %.0f goroutines and %.0f MB, at first %.0f and %.0f", m.name,
				now.goroutines, now.bytes/(1<<20), m.began.goroutines, m.began.bytes/(1<<20))
		}
	}
	return nil
}
