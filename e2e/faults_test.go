package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/e2e/faults"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// The environment variables of `make test-faults SEED=n BUDGET=10m FULL=1 ONLY=redis/ README=1`.
const (
	faultsSeed   = "MILLRACE_FAULTS_SEED"   // one, or several with commas; without it seed 1
	faultsBudget = "MILLRACE_FAULTS_BUDGET" // of time; no case begins after it
	faultsFull   = "MILLRACE_FAULTS_FULL"   // the whole matrix, however long it takes
	faultsOnly   = "MILLRACE_FAULTS_ONLY"   // only cases whose name begins so, with commas
	faultsReadme = "MILLRACE_FAULTS_README" // write the results into the READMEs
)

// usualBudget is the budget of `make test-all`. Promotions and kinds of effects have half of a budget each.
const usualBudget = 10 * time.Minute

// All ten promises under faults: the built binary, three instances, real servers, faults from one
// seed.
func TestFaults(t *testing.T) {
	tier.RestOf(t) // its cases are selected one by one
	runFaults(t, onPromotions)
}

// runFaults tries the matrix of a business, as the environment says.
func runFaults(t *testing.T, of func(*deployment) business) {
	if testing.Short() {
		t.Skip("needs servers of its own, and minutes")
	}
	seeds := []uint64{1}
	if v := os.Getenv(faultsSeed); v != "" {
		seeds = nil
		for one := range strings.SplitSeq(v, ",") {
			n, err := strconv.ParseUint(strings.TrimSpace(one), 10, 64)
			require.NoError(t, err, faultsSeed)
			seeds = append(seeds, n)
		}
	}
	budget := usualBudget / 2
	if v := os.Getenv(faultsBudget); v != "" {
		d, err := time.ParseDuration(v)
		require.NoError(t, err, faultsBudget)
		budget = d / 2
	}
	full := os.Getenv(faultsFull) != ""
	var plan []faults.Case
	matrix := of(nil).matrix()
	for _, seed := range seeds {
		plan = append(plan, faults.Plan(seed, matrix)...)
	}
	if only := os.Getenv(faultsOnly); only != "" {
		plan = slices.DeleteFunc(plan, func(c faults.Case) bool {
			return !slices.ContainsFunc(strings.Split(only, ","), func(p string) bool { return strings.HasPrefix(c.Name, p) })
		})
	}
	// A run after a change has the cases of its areas, and the quarters of its round of the others.
	plan = slices.DeleteFunc(plan, func(c faults.Case) bool { return !tier.Selected(c.Name, faultAreas(c.Group)...) })
	if len(plan) == 0 {
		t.Skip("the change touches no case, and none is in the quarters of this round")
	}
	t.Logf("seeds %v, %d cases, budget %s, full %t", seeds, len(plan), budget, full)
	if full {
		budget = math.MaxInt64
	}
	s := newFaultDeployment(t, of)
	ctx := t.Context()
	require.NoError(t, s.warmUp(ctx))
	var results []faults.Result
	began := time.Now()
	for _, c := range plan {
		if time.Since(began) > budget {
			t.Logf("the budget of %s is spent: %d of %d cases", budget, len(results), len(plan))
			break
		}
		r := faults.Result{Case: c}
		ok := t.Run(fmt.Sprintf("%d/%s", c.Seed, c.Name), func(t *testing.T) {
			start := time.Now()
			notes, err := s.try(t.Context(), c)
			r.Took = time.Since(start)
			if err != nil {
				r.Broken = "the case itself"
				var broken *brokenError
				if errors.As(err, &broken) {
					r.Broken = broken.name
				}
				t.Errorf("first broken invariant: %s\ncase:  %s\nagain: make test-faults SEED=%d ONLY=%s\nlogs:  %s\n%v", r.Broken, c, c.Seed, c.Name, s.dir, err)
			}
			t.Logf("%s: %s %s", c, r.Took.Round(100*time.Millisecond), strings.Join(notes, "\n"))
		})
		results = append(results, r)
		writeReadme(t, s.business.place(), results)
		if !ok {
			require.NoError(t, s.renew(ctx), "after a case that failed")
		}
	}
	t.Logf("\n%s", faults.Table(results))
}

// faultAreas returns the areas whose changes a group of faults follows.
func faultAreas(group string) []tier.Area {
	switch group {
	case faults.GroupRedis:
		return []tier.Area{tier.Promotion, tier.Redis}
	case faults.GroupKafka:
		return []tier.Area{tier.Promotion, tier.Kafka}
	case faults.GroupShutdown:
		return []tier.Area{tier.Promotion, tier.Pipeline}
	case faults.GroupPoison:
		return []tier.Area{tier.Promotion, tier.Pipeline, tier.DeadLetter}
	default:
		return []tier.Area{tier.Promotion}
	}
}

// writeReadme writes the results so far: the table into e2e/README.md, and the totals of promotions into the main
// README. A run that is ended early leaves its results there.
func writeReadme(t *testing.T, place string, results []faults.Result) {
	t.Helper()
	if os.Getenv(faultsReadme) == "" {
		return
	}
	contents := map[string]string{"README.md": faults.Table(results)}
	if place == faults.OfPromotions {
		contents[filepath.Join("..", "README.md")] = faults.Totals(results)
	}
	for readme, content := range contents {
		text, err := os.ReadFile(readme)
		require.NoError(t, err)
		next, err := faults.Replace(string(text), place, content)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(readme, []byte(next), 0o644))
	}
}

// warmUp has work of each kind done in peace, after which a quiet instance is what it is always
// measured against.
func (s *faultDeployment) warmUp(ctx context.Context) error {
	for _, kind := range s.business.peace() {
		c := faults.Case{Fault: faults.Fault{Name: "peace/" + kind}, Kind: kind, Targets: 300}
		t := s.run(c)
		if err := t.prepare(ctx); err != nil {
			return err
		}
		// Some failures, so that every connection there will ever be is there: producers of retry
		// records too.
		f := usualMoney
		f.FailRate = 0.1
		if err := s.business.SetFaults(f); err != nil {
			return err
		}
		if err := t.publish(ctx, c.Targets); err != nil {
			return err
		}
		if err := t.settledShare(ctx, 100); err != nil {
			return err
		}
		if err := s.business.SetFaults(usualMoney); err != nil {
			return err
		}
		if err := t.check(ctx); err != nil {
			return fmt.Errorf("without any fault: %w", err)
		}
	}
	return nil
}

func (t *caseRun) prepare(ctx context.Context) (err error) {
	if err := t.fill(ctx); err != nil {
		return err
	}
	t.work.watch(ctx)
	t.panicsBefore = t.panics()
	t.ends, err = t.endsOf(ctx, append(t.work.dead(), t.work.told()...)...)
	return err
}

// try runs one case: all instances, the fault under load, all instances again, quiet, every
// invariant.
func (s *faultDeployment) try(ctx context.Context, c faults.Case) (notes []string, err error) {
	t := s.run(c)
	phases := []struct {
		name string
		do   func(context.Context) error
	}{{"before the fault", t.prepare}, {"the fault", t.strike}, {"offsets never pass an unrecorded row", t.offsetsRecorded}, {"after the fault", t.heal}, {"", t.check}}
	for _, phase := range phases {
		began := time.Now()
		if err := phase.do(ctx); err != nil {
			if fell := t.fallen(); fell != nil {
				err = &brokenError{t.work.invariants()[0].name, errors.Join(fell, err)}
			}
			t.dump()
			var broken *brokenError
			if phase.name == "" || errors.As(err, &broken) {
				return t.notes, err
			}
			return t.notes, &brokenError{phase.name, err}
		}
		if took := time.Since(began); took > 8*time.Second {
			t.note("%s took %s", cmp.Or(phase.name, "the check"), took.Round(time.Second))
		}
	}
	return t.notes, nil
}

// dump makes the instances write their goroutines into their logs, which belong to a failure.
func (t *caseRun) dump() {
	for _, m := range t.members {
		if m == nil {
			continue
		}
		m.signal(syscall.SIGCONT)
		m.signal(syscall.SIGQUIT)
		select {
		case <-m.done:
		case <-time.After(5 * time.Second):
		}
	}
}

// heal ends what may still be wrong, and replaces who is gone.
func (t *caseRun) heal(ctx context.Context) error {
	t.redis.SetDelay(0)
	t.redis.CutAnswers(0)
	if err := t.business.SetFaults(usualMoney); err != nil {
		return err
	}
	for _, m := range t.members {
		m.signal(syscall.SIGCONT)
		if err := m.arm(ctx, ""); err != nil {
			return err
		}
	}
	if n := t.panics() - t.panicsBefore; n > 0 {
		t.letters["panic"] = n
	}
	return t.fill(ctx)
}

// renew ends the instances, so that a failed case leaves nothing to the next one.
func (s *faultDeployment) renew(ctx context.Context) error {
	for _, m := range s.members {
		m.kill()
	}
	for _, m := range s.all {
		m.asked = time.Now() // its end has been reported
	}
	if err := s.business.SetFaults(usualMoney); err != nil {
		return err
	}
	s.redis.SetDelay(0)
	s.redis.CutAnswers(0)
	s.flagOff = false
	if err := s.deployment.redis.FlushAll(ctx).Err(); err != nil {
		return err
	}
	return s.fill(ctx)
}

// The failpoints themselves are tested in a binary that has them.
func TestFailpointsInABinaryThatHasThem(t *testing.T) {
	tier.Rest(t, tier.Pipeline)
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-tags", "faults", "../internal/failpoint").CombinedOutput()
	require.NoError(t, err, "%s", out)
}
