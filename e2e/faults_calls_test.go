package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// call is one row of the ledger's attempts.
type call struct {
	target, epoch  int64
	late           bool
	kind           payouts.CallKind
	outcome        payouts.Outcome
	class          string
	instance       string
	started, ended time.Time
}

// calls returns the lines of every payout, in order of epoch; the late answers apart.
func (t *caseRun) calls(ctx context.Context) (lines, late map[int64][]call, err error) {
	lines, late = map[int64][]call{}, map[int64][]call{}
	err = t.sql(ctx, func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, `SELECT p.target_id, a.epoch, a.late, a.kind, a.outcome, a.class, a.instance,
				coalesce(a.started_at, a.ended_at), a.ended_at FROM attempts a JOIN payouts p ON p.id = a.payout_id
			WHERE p.type = $1 AND p.promotion_id = $2 ORDER BY p.target_id, a.epoch`, t.c.Kind, t.id.ID)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var c call
			if err := rows.Scan(&c.target, &c.epoch, &c.late, (*string)(&c.kind), (*string)(&c.outcome), &c.class, &c.instance, &c.started, &c.ended); err != nil {
				return err
			}
			if c.late {
				late[c.target] = append(late[c.target], c)
			} else {
				lines[c.target] = append(lines[c.target], c)
			}
		}
		return rows.Err()
	})
	return lines, late, err
}

// rowsAndCalls returns every payout with its lines, late answers left out.
func (t *caseRun) rowsAndCalls(ctx context.Context) (map[int64]ledger.Payout, map[int64][]call, error) {
	rows, err := t.rows(ctx)
	if err != nil {
		return nil, nil, err
	}
	lines, _, err := t.calls(ctx)
	return rows, lines, err
}

// spent says whether a call counts as an attempt: a shutdown, a refusal to listen and a wrong
// password don't.
func (c call) spent() bool {
	if c.kind != payouts.CallSend {
		return false
	}
	return c.class == rules.ClassLeaseExpired ||
		!slices.Contains([]payouts.Outcome{payouts.NotSent, payouts.NotCharged, payouts.Misconfigured, payouts.Unrecognized, payouts.Interrupted}, c.outcome)
}

// outOfTime reports whether a call used its whole time without an answer, as on a machine without
// CPU. A call of an instance that was stopped does not count.
func (s *faultDeployment) outOfTime(c call) bool {
	return (c.outcome == payouts.PerhapsCharged || c.kind == payouts.CallLookup && c.outcome == payouts.Unrecognized) && c.ended.Sub(c.started) >= faultCall &&
		s.unasked(c)
}

// overslept reports whether a lease ended before its call, as in a process that stands still. A call of
// an instance that was stopped does not count.
func (s *faultDeployment) overslept(c call) bool {
	return c.class == rules.ClassLeaseExpired && c.ended.Sub(c.started) >= faultLease && s.unasked(c)
}

// unasked reports whether nobody had asked the instance of a call to end when the call ended.
func (s *faultDeployment) unasked(c call) bool {
	at := slices.IndexFunc(s.all, func(m *member) bool { return m.name == c.instance })
	return at >= 0 && (s.all[at].asked.IsZero() || c.ended.Before(s.all[at].asked))
}

func TestOutOfTime(t *testing.T) {
	t.Parallel()
	at := time.Now()
	s := &faultDeployment{all: []*member{{name: "lives"}, {name: "ends", asked: at}}}
	see := func(instance string, outcome payouts.Outcome, lasted, ended time.Duration) bool {
		return s.outOfTime(call{instance: instance, outcome: outcome, started: at.Add(ended - lasted), ended: at.Add(ended)})
	}
	require.True(t, see("lives", payouts.PerhapsCharged, faultCall, time.Hour))
	require.True(t, see("ends", payouts.PerhapsCharged, faultCall, -time.Millisecond))
	require.False(t, see("ends", payouts.PerhapsCharged, faultCall, time.Millisecond), "while it ends")
	require.False(t, see("lives", payouts.PerhapsCharged, faultCall-time.Millisecond, 0), "cut off")
	require.False(t, see("lives", payouts.Interrupted, faultCall, 0), "its lease was lost")
	require.False(t, see("unheard of", payouts.PerhapsCharged, faultCall, 0))

	slept := func(instance, class string, lasted, ended time.Duration) bool {
		return s.overslept(call{instance: instance, outcome: payouts.Interrupted, class: class, started: at.Add(ended - lasted), ended: at.Add(ended)})
	}
	require.True(t, slept("lives", rules.ClassLeaseExpired, faultLease, time.Hour))
	require.True(t, slept("ends", rules.ClassLeaseExpired, faultLease, -time.Millisecond))
	require.False(t, slept("ends", rules.ClassLeaseExpired, faultLease, time.Millisecond), "while it ends")
	require.False(t, slept("lives", rules.ClassLeaseExpired, faultLease-time.Millisecond, 0), "its lease was taken")
	require.False(t, slept("lives", "", faultLease, 0), "it was interrupted")
}

func (t *caseRun) attemptsInPolicy(ctx context.Context) error {
	rows, lines, err := t.rowsAndCalls(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for target, row := range rows {
		spent, excused, overslept := 0, 0, 0
		for _, c := range lines[target] {
			if t.overslept(c) {
				overslept++
			}
			if c.spent() {
				spent++
				if t.outOfTime(c) || t.overslept(c) {
					excused++
				}
			}
		}
		switch {
		case row.Attempts > attemptsMax:
			errs = append(errs, fmt.Errorf("%s was attempted %d times", row.Key, row.Attempts))
		case row.Attempts != spent:
			errs = append(errs, fmt.Errorf("%s says %d attempts, its lines %d: %+v", row.Key, row.Attempts, spent, lines[target]))
		case t.quiet && (row.Attempts-excused != 1 || row.Interruptions != overslept):
			errs = append(errs, fmt.Errorf("%s was run again: %d attempts, %d interruptions: %+v", row.Key, row.Attempts, row.Interruptions, lines[target]))
		}
	}
	return first(errs)
}

// oneCaller: an epoch begins when the one before has ended, or its lease; and none is without an
// end.
func (t *caseRun) oneCaller(ctx context.Context) error {
	rows, lines, err := t.rowsAndCalls(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for target, row := range rows {
		calls := lines[target]
		if row.State == rules.Success && int64(len(calls)) != row.Epoch {
			errs = append(errs, fmt.Errorf("%s was started %d times and ended %d times: %+v", row.Key, row.Epoch, len(calls), calls))
		}
		for i, c := range calls {
			if i > 0 && c.started.Before(calls[i-1].ended) {
				errs = append(errs, fmt.Errorf("%s: call %d began before call %d had ended: %+v", row.Key, c.epoch, calls[i-1].epoch, calls))
			}
			if c.class == rules.ClassLeaseExpired && c.ended.Sub(c.started) < faultLease {
				errs = append(errs, fmt.Errorf("%s: the lease of call %d was taken after %s: %+v", row.Key, c.epoch, c.ended.Sub(c.started), calls))
			}
		}
	}
	return first(errs)
}

// retriesInTime: what has failed is tried again no sooner than the policy says.
func (t *caseRun) retriesInTime(ctx context.Context) error {
	lines, _, err := t.calls(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for target, calls := range lines {
		failures := 0
		for i, c := range calls[:max(0, len(calls)-1)] {
			if c.outcome == payouts.Interrupted || c.outcome == payouts.Paid {
				continue
			}
			failures++
			least := min(faultRetry<<(failures-1), 2*time.Second) * 8 / 10 // a fifth is jitter
			if gap := calls[i+1].started.Sub(c.ended); gap < least {
				errs = append(errs, fmt.Errorf("target %d: tried again after %s, not %s: %+v", target, gap, least, calls))
			}
		}
	}
	return first(errs)
}

// frozenStaysQuiet: a worker that was frozen between SENDING and its call reports after it wakes
// that it has sent nothing. Other workers of the instance were frozen during their calls.
func (t *caseRun) frozenStaysQuiet(ctx context.Context) error {
	if !t.frozen {
		return nil
	}
	_, late, err := t.calls(ctx)
	if err != nil {
		return err
	}
	for _, calls := range late {
		for _, c := range calls {
			if c.outcome == payouts.NotSent || c.outcome == payouts.Interrupted {
				return nil
			}
		}
	}
	return fmt.Errorf("no worker woke after its lease and sent nothing: %+v", late)
}
