package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/millrace-io/millrace/e2e/faults"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/internal/failpoint"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// strike carries out the fault of a case, under load, and undoes it.
func (t *caseRun) strike(ctx context.Context) error {
	group, what, _ := strings.Cut(t.c.Name, "/")
	switch group {
	case "kill":
		return t.killed(ctx)
	case "frozen":
		switch what {
		case "clean-up":
			return t.frozenCleaning(ctx)
		case "in-a-transaction":
			return t.frozenInTransaction(ctx)
		}
		return t.frozenAt(ctx, map[string]failpoint.Point{"before-the-call": failpoint.AfterSending, "after-the-call": failpoint.AfterCall}[what])
	case "shutdown":
		return t.shutDown(ctx, what)
	case "money":
		return t.moneyFails(ctx, what)
	case "person":
		return t.steered(ctx, what)
	case "redis":
		return t.redisFails(ctx, what)
	case "postgres":
		return t.postgresFails(ctx, what)
	case "kafka":
		return t.kafkaFails(ctx, what)
	case "poison":
		return t.poisoned(ctx, what)
	}
	return fmt.Errorf("no code for the fault %s", t.c.Name)
}

// underLoad publishes the campaign and waits until the case's share of it is settled.
func (t *caseRun) underLoad(ctx context.Context) error {
	if err := t.publish(ctx, t.c.Targets); err != nil {
		return err
	}
	return t.settledShare(ctx, t.c.At)
}

// killed loses every armed instance at its point. A point that is not passed often enough is passed
// again.
func (t *caseRun) killed(ctx context.Context) error {
	armed := map[*member]faults.Arm{}
	for _, a := range t.c.Arms {
		armed[t.members[a.Instance]] = a
	}
	arm := func() error {
		for m, a := range armed {
			if err := m.arm(ctx, fmt.Sprintf("%s:%d", a.Point, a.Nth)); err != nil {
				return err
			}
		}
		return nil
	}
	switch t.c.Arms[0].Point {
	case failpoint.CleanUp, failpoint.FeederBatch, failpoint.Reclaim:
		return t.killedSeldom(ctx, t.c.Arms[0])
	case failpoint.Drain:
		if err := t.underLoad(ctx); err != nil {
			return err
		}
		if err := arm(); err != nil {
			return err
		}
		t.victim().signal(syscall.SIGTERM)
	default:
		if err := arm(); err != nil {
			return err
		}
		if err := t.publish(ctx, t.c.Targets); err != nil {
			return err
		}
	}
	for range 5 {
		err := until(ctx, 8*time.Second, "all are lost", func() error {
			for m, a := range armed {
				if !m.ended() {
					return fmt.Errorf("%s at %s: %w", m.name, a.Point, errNotReached)
				}
			}
			return nil
		})
		if !errors.Is(err, errNotReached) {
			return err
		}
		if err := t.publish(ctx, t.c.Targets); err != nil {
			return err
		}
	}
	return errNotReached
}

// killedSeldom kills the instance at a point that few instances pass, and seldom.
func (t *caseRun) killedSeldom(ctx context.Context, a faults.Arm) error {
	members := t.members
	armAll := func(spec string) error {
		for _, m := range members {
			if err := m.arm(ctx, spec); err != nil {
				return err
			}
		}
		return nil
	}
	lost := 0
	spec := fmt.Sprintf("%s:%d", a.Point, a.Nth)
	switch a.Point {
	case failpoint.FeederBatch:
		if err := t.steer(ctx, "pause", "--future"); err != nil {
			return err
		}
		if err := t.publish(ctx, t.c.Targets); err != nil {
			return err
		}
		if err := until(ctx, 30*time.Second, "all are accepted", func() error {
			if c := t.counts(ctx); c.Accepted < int64(t.c.Targets) {
				return fmt.Errorf("%+v", c)
			}
			return nil
		}); err != nil {
			return err
		}
		if err := armAll(spec); err != nil {
			return err
		}
		if err := t.steer(ctx, "resume"); err != nil {
			return err
		}
	case failpoint.Reclaim:
		if err := t.underLoad(ctx); err != nil {
			return err
		}
		t.victim().kill() // leaves entries to reclaim
		lost++
		if err := armAll(spec); err != nil {
			return err
		}
	default:
		if err := armAll(spec); err != nil {
			return err
		}
		if err := t.publish(ctx, t.c.Targets); err != nil {
			return err
		}
	}
	if err := until(ctx, 60*time.Second, "somebody is lost at "+string(a.Point), func() error {
		if err := t.age(ctx); err != nil {
			return err
		}
		n := 0
		for _, m := range members {
			if m.ended() {
				n++
			}
		}
		if n <= lost {
			return errNotReached
		}
		return nil
	}); err != nil {
		return err
	}
	return armAll("")
}

// freeze publishes the targets and returns when m is frozen at a point, which spec names as for
// arm.
func (t *caseRun) freeze(ctx context.Context, m *member, spec string) error {
	if err := m.arm(ctx, spec); err != nil {
		return err
	}
	if err := t.publish(ctx, t.c.Targets); err != nil {
		return err
	}
	return until(ctx, 20*time.Second, m.name+" is frozen", func() error {
		if !m.stopped() {
			return errNotReached
		}
		return nil
	})
}

// frozenAt stops the victim at a point until the lease of what it holds has gone, and wakes it.
func (t *caseRun) frozenAt(ctx context.Context, p failpoint.Point) error {
	t.frozen = p == failpoint.AfterSending
	m := t.victim()
	if err := t.freeze(ctx, m, fmt.Sprintf("%s:%d:stop", p, 1+t.rand.IntN(30))); err != nil {
		return err
	}
	// The lease is the database's and the worker's own clock: it can't be aged. Then the others
	// take over.
	wait(ctx, faultLease)
	if err := until(ctx, 30*time.Second, "others have paid what it holds", func() error {
		if c := t.counts(ctx); c.InFlight > 0 || c.Paid == 0 || c.InRetry > 0 {
			return fmt.Errorf("%+v", c)
		}
		return nil
	}); err != nil {
		return err
	}
	m.signal(syscall.SIGCONT)
	return nil
}

// frozenCleaning stops the instance that cleans up a drained stream: after it leaves the active
// set, and before it is deleted. The instance wakes when the stream has entries again.
func (t *caseRun) frozenCleaning(ctx context.Context) error {
	for _, m := range t.members {
		if err := m.arm(ctx, string(failpoint.CleanUp)+":1:stop"); err != nil {
			return err
		}
	}
	if err := t.publish(ctx, t.c.Targets/2); err != nil {
		return err
	}
	var cleaner *member
	if err := until(ctx, 30*time.Second, "an instance is frozen in the clean-up", func() error {
		for _, m := range t.members {
			if m.stopped() {
				cleaner = m
				return nil
			}
		}
		return errNotReached
	}); err != nil {
		return err
	}
	for _, m := range t.members {
		if m != cleaner {
			m.signal(syscall.SIGCONT)
			if err := m.arm(ctx, ""); err != nil {
				return err
			}
		}
	}
	slow := usualMoney
	slow.Latency = 60 * time.Millisecond // the work lasts
	if err := errors.Join(t.business.SetFaults(slow), t.publish(ctx, t.c.Targets)); err != nil {
		return err
	}
	if err := until(ctx, 20*time.Second, "there is work in the stream", func() error {
		if n, err := t.deployment.redis.XLen(ctx, t.streamName()).Result(); err != nil || n < 20 {
			return fmt.Errorf("%d entries: %w", n, err)
		}
		return nil
	}); err != nil {
		return err
	}
	cleaner.signal(syscall.SIGCONT)
	return nil
}

func (t *caseRun) shutDown(ctx context.Context, what string) error {
	t.quiet = true
	if err := t.underLoad(ctx); err != nil {
		return err
	}
	if what == "sigterm" {
		return t.victim().terminate()
	}
	for i := range t.members {
		if err := t.replace(ctx, i); err != nil {
			return err
		}
		if err := t.publish(ctx, 100); err != nil {
			return err
		}
	}
	return nil
}

// replace ends an instance and starts another one in its place.
func (t *caseRun) replace(ctx context.Context, i int) error {
	if err := t.members[i].terminate(); err != nil {
		return err
	}
	m, err := t.start(ctx)
	if err != nil {
		return err
	}
	t.members[i] = m
	return nil
}

// poisonAnswers pays a campaign while some payouts are always answered badly: all others are paid
// meanwhile, and only once. Then the Money API is well again, and the rest ends.
func (t *caseRun) poisonAnswers(ctx context.Context, f simulator.Faults) error {
	if err := t.business.SetFaults(f); err != nil {
		return err
	}
	if err := t.publish(ctx, t.c.Targets); err != nil {
		return err
	}
	t.badly = map[int64]bool{}
	for target := range t.offer {
		if t.api.Poisons(payouts.Key{Type: t.id.Type, Promotion: t.id.ID, Target: target}.String()) {
			t.badly[target] = true
		}
	}
	if len(t.badly) == 0 {
		return errors.New("no payout is poisoned")
	}
	if err := until(ctx, time.Minute, "all other payouts are paid", func() error {
		rows, err := t.rows(ctx)
		if err != nil {
			return err
		}
		for target := range t.offer {
			if row := rows[target]; !t.badly[target] && row.State != rules.Success {
				return fmt.Errorf("target %d is %s", target, row.State)
			}
		}
		return nil
	}); err != nil {
		return err
	}
	if err := t.business.SetFaults(usualMoney); err != nil {
		return err
	}
	if err := t.settledShare(ctx, 100); err != nil {
		return err
	}
	rows, err := t.rows(ctx)
	for target := range t.badly {
		switch row := rows[target]; row.State {
		case rules.Failed:
			t.letters[row.LastClass]++
		case rules.Unknown:
			t.letters[rules.ClassUnknown]++
		}
	}
	return err
}

// moneyFails makes the Money API fail for some seconds. That is longer than lease, retry and
// breaker, which are short here.
func (t *caseRun) moneyFails(ctx context.Context, what string) error {
	f := usualMoney
	f.Seed = t.c.Draw
	lasts := 3 * time.Second
	switch what {
	case "fail":
		f.FailRate = 0.05
	case "cut-off":
		// Some by a connection that is reset, which Go's client repeats by itself, and some by
		// silence.
		f.ResetRate, f.TimeoutRate = 0.03, 0.02
	case "throttled":
		f.ThrottleRate, f.RetryAfter = 0.02, time.Second // each slows its own payout for a second
	case "unauthorized":
		f.Unauthorized = true
	case "silence":
		f.Silence = true
	case "down":
		f.Down = true
	}
	if what == "poison-answers" {
		f.PoisonRate = 0.01
		return t.poisonAnswers(ctx, f)
	}
	passing := f.Unauthorized || f.Silence || f.Down
	if passing {
		if err := t.underLoad(ctx); err != nil {
			return err
		}
		if err := t.business.SetFaults(f); err != nil {
			return err
		}
		wait(ctx, lasts)
		return t.business.SetFaults(usualMoney)
	}
	if err := t.business.SetFaults(f); err != nil {
		return err
	}
	if err := t.publish(ctx, t.c.Targets); err != nil {
		return err
	}
	return t.settledShare(ctx, 100)
}

// steer runs the commands of a person.
func (t *caseRun) steer(ctx context.Context, verb string, more ...string) error {
	var errs []error
	for _, command := range t.work.steer(verb) {
		errs = append(errs, t.cli(ctx, append(append(command, "--why", "a fault case"), more...)...))
	}
	return errors.Join(errs...)
}

func (t *caseRun) steered(ctx context.Context, what string) error {
	slow := usualMoney
	slow.Latency = 60 * time.Millisecond // so that the campaign lasts
	if err := t.business.SetFaults(slow); err != nil {
		return err
	}
	defer func(f simulator.Faults) { _ = t.business.SetFaults(f) }(usualMoney)
	if err := t.publish(ctx, t.c.Targets); err != nil {
		return err
	}
	if err := t.settledShare(ctx, min(t.c.At, 25)); err != nil {
		return err
	}
	switch what {
	case "pause-resume":
		if err := t.steer(ctx, "pause"); err != nil {
			return err
		}
		wait(ctx, time.Second) // what is in flight ends, later in a process that stands still
		var before int64
		if err := until(ctx, 20*time.Second, "no call is in flight", func() error {
			c := t.counts(ctx)
			if before = c.Paid; c.InFlight > 0 || c.Paid == 0 {
				return fmt.Errorf("%+v", c)
			}
			return nil
		}); err != nil {
			return err
		}
		if err := t.publish(ctx, 100); err != nil {
			return err
		}
		wait(ctx, time.Second)
		if after := t.counts(ctx).Paid; after != before {
			return &brokenError{"a pause holds", fmt.Errorf("%d were paid, a second later %d", before, after)}
		}
		return t.steer(ctx, "resume")
	case "cancel":
		t.cancels = true
		if err := t.steer(ctx, "cancel"); err != nil {
			return err
		}
		return t.publish(ctx, 100)
	default: // the flag
		t.quiet = true
		for _, off := range []bool{true, false} {
			t.flagOff = off
			for i := range t.members {
				if err := t.replace(ctx, i); err != nil {
					return err
				}
			}
			if err := t.publish(ctx, 100); err != nil {
				return err
			}
		}
		return nil
	}
}
