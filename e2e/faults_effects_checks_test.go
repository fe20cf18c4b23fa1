package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace-io/millrace/e2e/faults"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// invariants are those of campaigns, where effects have them, and the promise of each Repeat.
func (e *effects) invariants() []invariant {
	own := func(check func(context.Context) error) func(*caseRun, context.Context) error {
		return func(_ *caseRun, ctx context.Context) error { return check(ctx) }
	}
	return []invariant{
		{"an instance ends only when it is stopped", false, (*caseRun).noneEnded},
		{"each Repeat keeps its promise", false, own(e.promisesKept)},
		{"nothing is lost", true, own(e.nothingLost)},
		{"ledger and far side agree", false, own(e.agrees)},
		{"each end is told", true, own(e.endsTold)},
		{"poison is isolated", true, (*caseRun).poisonIsolated},
		{"no effect ends without need", false, own(e.nothingGivenUp)},
		{"nothing is stranded", true, own(e.nothingStranded)},
		{"the totals are correct", true, own(e.totalsCount)},
		{"attempts are within policy", false, own(e.attemptsInPolicy)},
		{"one caller at a time", false, own(e.oneCaller)},
		{"offsets never pass an unrecorded row", false, (*caseRun).offsetsRecorded},
		{"goroutines and memory return to normal", true, (*caseRun).usageIsBack},
	}
}

// promisesKept: what the book has. By key, by lookup and never nothing was done twice, and what was surely not done, as
// the ledger says, was not. Always, what was accepted was done at least once.
func (e *effects) promisesKept(ctx context.Context) error {
	rows, err := e.effectRows(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for i, row := range rows {
		times := len(e.billing.of(i).receipts)
		switch {
		case i.kind != kindAlways && times > 1:
			errs = append(errs, fmt.Errorf("%+v was done %d times", i, times))
		case row.state == rules.Success && times == 0:
			errs = append(errs, fmt.Errorf("%+v is SUCCESS and was never done", i))
		case (row.state == rules.Failed || row.state == rules.Cancelled) && times > 0:
			errs = append(errs, fmt.Errorf("%+v was done and is %s", i, row.state))
		case i.kind == kindAlways && times == 0 && row.state != rules.Cancelled:
			errs = append(errs, fmt.Errorf("%+v is %s and was never done", i, row.state))
		}
	}
	return first(errs)
}

// nothingLost: every accepted record is settled for each kind.
func (e *effects) nothingLost(ctx context.Context) error {
	rows, err := e.effectRows(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for target := range e.offer {
		for _, kind := range invoiceKinds() {
			i := e.invoice(kind, target)
			if row, ok := rows[i]; !ok || !row.state.Settled() {
				errs = append(errs, fmt.Errorf("%+v is %q", i, row.state))
			}
		}
	}
	if len(rows) != e.offered() {
		errs = append(errs, fmt.Errorf("%d rows for %d targets", len(rows), len(e.offer)))
	}
	return first(errs)
}

// agrees: the receipt of the ledger is one of the book's, and every attempt sent what was offered, with one key.
func (e *effects) agrees(ctx context.Context) error {
	rows, err := e.effectRows(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for target, o := range e.offer {
		for _, kind := range invoiceKinds() {
			i := e.invoice(kind, target)
			row, book := rows[i], e.billing.of(i)
			if row.state == rules.Success && !slices.Contains(book.receipts, row.receipt) {
				errs = append(errs, fmt.Errorf("%+v has the receipt %s, and the book %v", i, row.receipt, book.receipts))
			}
			if len(book.keys) > 1 || len(book.requests) > 0 && !slices.Equal(book.requests, []string{e.request(o)}) {
				errs = append(errs, fmt.Errorf("%+v was asked for with %q and %q, not %q", i, book.keys, book.requests, e.request(o)))
			}
		}
	}
	for _, i := range e.billing.customers(e.customers()) {
		if _, ok := rows[i]; !ok {
			errs = append(errs, fmt.Errorf("%+v is in the book and has no row", i))
		}
	}
	return first(errs)
}

// endsTold: the topic of results has the state of each effect, and no other one, and nothing about what was not accepted.
func (e *effects) endsTold(ctx context.Context) error {
	rows, err := e.effectRows(ctx)
	if err != nil {
		return err
	}
	told, ids := map[invoice]once.Result{}, map[invoice]string{}
	var errs []error
	if err := e.sinceBegin(ctx, e.told(), func(r *kgo.Record) {
		var one once.Result
		if err := json.Unmarshal(r.Value, &one); err != nil {
			errs = append(errs, fmt.Errorf("%q: %w", r.Value, err))
			return
		}
		i, id := invoice{one.Kind, one.Group, one.ID}, ""
		for _, h := range r.Headers {
			if h.Key == "_watermill_message_uuid" {
				id = string(h.Value)
			}
		}
		if before, again := ids[i]; again && (before != id || told[i].State != one.State) {
			errs = append(errs, fmt.Errorf("%+v ended %s (%s) and %s (%s)", i, told[i].State, before, one.State, id))
		}
		told[i], ids[i] = one, id
	}); err != nil {
		return err
	}
	for i, row := range rows {
		if one := told[i]; one.State != row.state || one.Receipt != row.receipt {
			errs = append(errs, fmt.Errorf("%+v is %s with the receipt %q, and was told to be %q with %q", i, row.state, row.receipt, one.State, one.Receipt))
		}
	}
	for i := range told {
		if _, ok := rows[i]; !ok && slices.Contains(e.customers(), i.customer) {
			errs = append(errs, fmt.Errorf("%+v was told and is not in the ledger", i))
		}
	}
	return first(errs)
}

// nothingGivenUp: the fault passes, so all is done. Never may leave an outcome open, and a cancellation something undone.
func (e *effects) nothingGivenUp(ctx context.Context) error {
	rows, err := e.effectRows(ctx)
	if err != nil {
		return err
	}
	var errs []error
	unknown := 0
	for i, row := range rows {
		allowed := row.state == rules.Success || e.cancels && (row.state == rules.Cancelled || row.state == rules.Unknown) ||
			i.kind == kindNever && row.state == rules.Unknown
		if !allowed {
			errs = append(errs, fmt.Errorf("%+v is %s after %d attempts", i, row.state, row.attempts))
		}
		if row.state == rules.Unknown {
			unknown++
			if e.quiet && row.slow == 0 {
				errs = append(errs, fmt.Errorf("%+v is UNKNOWN, and nothing had gone wrong", i))
			}
		}
	}
	// The calls of an instance that is lost may have been done: as many as it makes at once, and as many again whose
	// answers were not stored.
	if most := len(e.c.Arms) * 2 * effectCalls; e.c.Group == faults.GroupKill && unknown > most {
		errs = append(errs, fmt.Errorf("%d are UNKNOWN, and the lost instances had at most %d calls", unknown, most))
	}
	if unknown > 0 {
		e.note("%d of %d are UNKNOWN", unknown, len(rows))
	}
	return first(errs)
}

// nothingStranded: no effect waits for a call, and no record is unread.
func (e *effects) nothingStranded(ctx context.Context) error {
	var due int
	if err := e.sql(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT count(*) FROM once_due_effects WHERE grp = ANY($1)`, e.customers()).Scan(&due)
	}); err != nil {
		return err
	}
	if due > 0 {
		return fmt.Errorf("%d effects are due", due)
	}
	return e.nothingUnread(ctx)
}

// totalsCount: the totals of the groups are the numbers of rows by state.
func (e *effects) totalsCount(ctx context.Context) error {
	counts := e.counts(ctx)
	var accepted, done, failed, unknown, cancelled int64
	if err := e.sql(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT coalesce(sum(accepted), 0)::bigint, coalesce(sum(done), 0)::bigint, coalesce(sum(failed), 0)::bigint,
				coalesce(sum(unknown), 0)::bigint, coalesce(sum(cancelled), 0)::bigint
			FROM (SELECT grp, accepted, done, failed, unknown, cancelled FROM once_totals UNION ALL SELECT grp, accepted, done, failed, unknown, cancelled FROM once_deltas) t
			WHERE grp = ANY($1)`, e.customers()).Scan(&accepted, &done, &failed, &unknown, &cancelled)
	}); err != nil {
		return err
	}
	if got, want := [...]int64{accepted, done, failed, unknown, cancelled}, [...]int64{counts.Accepted, counts.Paid, counts.Failed, counts.Unknown, counts.Cancelled}; got != want {
		return fmt.Errorf("the totals are %v, and the rows %v", got, want)
	}
	return nil
}

func (e *effects) attemptsInPolicy(ctx context.Context) error {
	rows, err := e.effectRows(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for i, row := range rows {
		switch {
		case row.attempts > attemptsMax:
			errs = append(errs, fmt.Errorf("%+v was attempted %d times", i, row.attempts))
		case e.quiet && row.slow == 0 && (row.attempts != 1 || row.interruptions != 0):
			errs = append(errs, fmt.Errorf("%+v was run again: %d attempts, %d interruptions", i, row.attempts, row.interruptions))
		}
	}
	return first(errs)
}

// oneCaller: no call began while another one for the same effect was under way at the far side.
func (e *effects) oneCaller(context.Context) error {
	var errs []error
	for _, i := range e.billing.customers(e.customers()) {
		if b := e.billing.of(i); b.overlaps > 0 {
			errs = append(errs, fmt.Errorf("%d of %d calls of %+v began during another one", b.overlaps, b.calls, i))
		}
	}
	return first(errs)
}
