package campaign

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/payout"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/streams"
)

// Running is what an instance that pays writes about itself every few seconds, whether or not it reads a stream.
type Running struct {
	Client Client `json:"client"`
	// Recent has the promotions for which it did something within the last minute, by TYPE:promotion, and
	// at most a few: those that had something last.
	Recent map[string]payout.RecentStatus `json:"recent,omitempty"`
}

// allInstances returns the instances that read the stream of a promotion, and all others that run, by name. What an
// instance says next to the stream is newer than what it says about itself.
func allInstances(readers []Instance, running map[string]Running, id payouts.Promotion) []Instance {
	all := slices.Clone(readers)
	for _, name := range slices.Sorted(maps.Keys(running)) {
		if slices.ContainsFunc(readers, func(i Instance) bool { return i.Instance == name }) {
			continue
		}
		r := running[name]
		other := Instance{InstanceStatus: streams.InstanceStatus{Instance: name}, Note: &Note{Client: r.Client}}
		if recent, known := r.Recent[id.String()]; known {
			other.Note.Recent = &recent
		}
		all = append(all, other)
	}
	return all
}

// resumedFor returns for how long a promotion has run since an operator resumed it, and 0 for one that was never paused.
func resumedFor(c ledger.Counts) time.Duration {
	if c.State != rules.GroupRunning {
		return 0
	}
	return c.ChangedFor
}

// notHeardOf says that the instance which leased a payout is not heard of, or nothing if it is or that is not known. It may
// still call, because it may only not reach Redis.
func (e Env) notHeardOf(ctx context.Context, x ledger.Explanation) string {
	if !x.LeaseUntil.After(x.Now) {
		return ""
	}
	running, err := e.Resources.Running(ctx)
	if err != nil {
		return ""
	}
	return goneText(running, x)
}

// goneText compares by the clock of the instance, which may differ a little from that of the database: a start that is
// hardly later than the call proves nothing.
func goneText(running map[string]Running, x ledger.Explanation) string {
	r, runs := running[x.AttemptBy]
	switch {
	case !runs:
		return fmt.Sprintf("%s had begun to call at %s and is not heard of: it has ended, or does not reach Redis", x.AttemptBy, stamp(x.AttemptStartedAt))
	case r.Client.Since.After(x.AttemptStartedAt.Add(clockSkew)):
		return fmt.Sprintf("%s had begun to call at %s and was started again %s", x.AttemptBy, stamp(x.AttemptStartedAt), stamp(r.Client.Since))
	}
	return ""
}

// clockSkew is by how much clocks may differ.
const clockSkew = time.Second

// gone returns the instances that hold leases and do not run, with the number of their leases.
func gone(leases map[string]int64, running map[string]Running) map[string]int64 {
	left := maps.Clone(leases)
	maps.DeleteFunc(left, func(name string, _ int64) bool { _, runs := running[name]; return runs })
	return left
}

// LeasedText says what the workers do that have leased payouts.
func (s Status) LeasedText() string {
	text := app.Thousands(s.InFlight) + " by workers, which call the Money API or wait for a call slot"
	if len(s.Gone) == 0 {
		return text
	}
	var all []string
	for _, name := range slices.Sorted(maps.Keys(s.Gone)) {
		all = append(all, fmt.Sprintf("%s by %s", app.Thousands(s.Gone[name]), name))
	}
	return text + "; of them " + strings.Join(all, ", ") + ". These are not heard of, because they have ended or do not reach Redis; the leases end, and the feeder enqueues the payouts again"
}
