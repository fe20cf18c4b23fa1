package campaign

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/streams"
)

// Status is one promotion of `campaign status --json`.
type Status struct {
	Type      payouts.Type `json:"type"`
	Promotion int64        `json:"promotion"`
	Finished  bool         `json:"finished"` // all announced payouts are accepted, and all accepted ones are settled
	ledger.Counts
	// OldestUnpaid is the age of the oldest unsettled payout; 0 without one.
	OldestUnpaid float64 `json:"oldest_unpaid_seconds"`
	// OldestTarget is the target of that payout; null without one.
	OldestTarget *int64 `json:"oldest_target"`
	// WaitsForPlace is how long the promotion has waited for a place among max_active_promotions; 0
	// if it does not wait.
	WaitsForPlace float64 `json:"waits_for_place_seconds"`
	// DeadWaiting are the dead letters that wait for a person. Null: not known, because there is no store
	// of dead letters, or it did not answer.
	DeadWaiting *int64 `json:"dead_waiting"`
	// Rate is what all instances did within the last minute. Null: not known.
	Rate *Rate `json:"rate"`
	// LimitedBy says what limits the rate, in words. Empty: nothing of what instances tell does.
	LimitedBy string `json:"limited_by,omitempty"`
	// ExpectedEnd is when the last payout is settled at this rate. Zero: not known, or nothing is pending.
	ExpectedEnd time.Time `json:"expected_end,omitzero"`
	// Audit is what operators did to the promotion, oldest first.
	Audit []ledger.Audit `json:"audit"`
	// Instances are the instances that read the promotion's stream, and may be empty. Null: not known,
	// because Redis did not answer, or this version does not have the type.
	Instances []Instance `json:"instances"`
	// Others are the instances that run and do not read its stream now. Rate has what they do, too. Null: as Instances.
	Others []Instance `json:"others"`
	// Gone are the instances that hold leases and are not heard of, with the number of their leases. Null: not known.
	Gone map[string]int64 `json:"gone"`
	// NotKnown says which parts are missing, and why.
	NotKnown []string `json:"not_known,omitempty"`
	// DelayingGroups are foreign consumer groups that delay the trimming and the deletion of the
	// promotion's stream.
	DelayingGroups []streams.DelayingGroup `json:"delaying_groups,omitempty"`
	// ForeignOwner is the id of the deployment that owns the promotion's stream, if it is another
	// one.
	ForeignOwner string `json:"foreign_owner,omitempty"`

	away error // why a server did not answer
}

// Statuses is the value of `campaign status --json`.
type Statuses struct {
	Promotions []Status        `json:"promotions"`
	done       []ledger.Totals // when nothing is unfinished or paused
}

// Status returns what is known about promotions; none named means all that are unfinished or paused. The answer of the
// ledger is complete without Redis: then the error wraps pipeline.ErrUnavailable, and the statuses say what is missing.
func (e Env) Status(ctx context.Context, only ...payouts.Promotion) (Statuses, error) {
	l, err := e.ledger()
	if err != nil {
		return Statuses{}, err
	}
	all := Statuses{Promotions: []Status{}}
	if len(only) == 0 {
		if only, err = unfinished(ctx, l); err != nil {
			return Statuses{}, err
		}
		if len(only) == 0 {
			all.done, err = l.Totals(ctx)
			return all, err
		}
	}
	var away error
	for _, id := range only {
		s, err := e.statusOf(ctx, l, id)
		if err != nil {
			return Statuses{}, err
		}
		away = cmp.Or(away, s.away)
		all.Promotions = append(all.Promotions, s)
	}
	return all, away
}

func unfinished(ctx context.Context, l *ledger.Ledger) ([]payouts.Promotion, error) {
	all := []payouts.Promotion{}
	work, err := l.Unfinished(ctx)
	if err != nil {
		return nil, err
	}
	for _, w := range work {
		all = append(all, w.Promotion)
	}
	paused, err := l.Paused(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range paused {
		all = append(all, p.Promotion)
	}
	return all, nil
}

func (e Env) statusOf(ctx context.Context, l *ledger.Ledger, id payouts.Promotion) (Status, error) {
	counts, err := l.Status(ctx, id)
	if err != nil {
		return Status{}, err
	}
	s := Status{Type: id.Type, Promotion: id.ID, Finished: counts.Finished(counts.TotalCount), Counts: counts, OldestUnpaid: counts.OldestUnpaid.Seconds(), WaitsForPlace: counts.WaitsForPlace.Seconds()}
	if s.Audit, err = l.Audit(ctx, id); err != nil {
		return Status{}, err
	}
	oldest, err := l.Oldest(ctx, id, 1)
	if err != nil {
		return Status{}, err
	}
	for _, k := range oldest {
		s.OldestTarget = &k.Target
	}
	if s.Dead > 0 {
		if s.DeadWaiting, err = e.DeadWaiting(ctx, id); err != nil {
			s.miss("dead letters: their store does not answer", err)
		}
	} else {
		s.DeadWaiting = new(int64)
	}
	if err := e.readInstances(ctx, l, &s, id); err != nil {
		return Status{}, err
	}
	s.ExpectedEnd, s.LimitedBy = ExpectedEnd(time.Now(), s.Counts.State, s.Pending, s.Rate), s.limitedBy()
	return s, nil
}

// DeadWaiting counts the dead letters of a promotion that wait for a person, in their store. It returns nil where
// there is no store.
func (e Env) DeadWaiting(ctx context.Context, id payouts.Promotion) (*int64, error) {
	_, n, stored, err := e.DeadLetters.Waiting(ctx, e.Plugin, id.String(), 1)
	if err != nil || !stored {
		return nil, err
	}
	return &n, nil
}

// miss notes what is not known.
func (s *Status) miss(what string, err error) {
	s.NotKnown = append(s.NotKnown, what+": "+logs.OneLine(err.Error()))
	if !errors.Is(err, pipeline.ErrUnavailable) {
		err = fmt.Errorf("%w: %w", pipeline.ErrUnavailable, err)
	}
	s.away = cmp.Or(s.away, fmt.Errorf("%s: %w", what, err))
}

// noRedis is what the text says of the instances without Redis.
const noRedis = "instances: redis does not answer"

// Rates returns what all instances did for promotions with payouts that are not settled, within the last minute or
// since each was resumed. One of which they don't say it is missing. running are the instances that run. The error says
// that Redis does not answer.
func (e Env) Rates(ctx context.Context, list []Listed, running map[string]Running) (map[payouts.Promotion]*Rate, error) {
	byType := map[payouts.Type][]string{}
	for _, p := range list {
		if p.Pending > 0 {
			byType[p.Type] = append(byType[p.Type], p.id().StreamID())
		}
	}
	said := map[payouts.Type]map[string][]streams.InstanceStatus{}
	var away error
	for of, ids := range byType {
		if m := e.Resources.Streams(of); m != nil {
			var err error
			if said[of], err = m.Statuses(ctx, ids...); err != nil {
				away = fmt.Errorf("%s: %w", noRedis, err)
			}
			if err != nil && !errors.Is(err, streams.ErrRefused) {
				break // a server that is away is asked once
			}
		}
	}
	rates := map[payouts.Promotion]*Rate{}
	for _, p := range list {
		if all, known := said[p.Type][p.id().StreamID()]; known {
			rates[p.id()] = rateOf(allInstances(instancesOf(all), running, p.id()), p.resumedFor(), time.Now())
		}
	}
	return rates, away
}

func (e Env) readInstances(ctx context.Context, l *ledger.Ledger, s *Status, id payouts.Promotion) error {
	of := e.Resources.Streams(id.Type)
	if of == nil {
		s.NotKnown = append(s.NotKnown, fmt.Sprintf("instances: this version does not have the type %s", id.Type))
		return nil
	}
	if err := e.Resources.Redis(); err != nil {
		s.miss(noRedis, err)
		return nil
	}
	all, st, err := of.Look(ctx, id.StreamID())
	var running map[string]Running
	if err == nil {
		running, err = e.Resources.Running(ctx)
	}
	if err != nil {
		s.miss(noRedis, err)
		return nil
	}
	s.Instances = instancesOf(all)
	both := allInstances(s.Instances, running, id)
	s.Others = both[len(s.Instances):]
	s.Rate = rateOf(both, resumedFor(s.Counts), time.Now())
	s.DelayingGroups = st.Delaying
	if st.Foreign {
		s.ForeignOwner = st.Owner
	}
	leases := map[string]int64{}
	if s.InFlight > 0 {
		if leases, err = l.Leases(ctx, id); err != nil {
			return err
		}
	}
	for _, reader := range s.Instances {
		delete(leases, reader.Instance)
	}
	s.Gone = gone(leases, running)
	return nil
}

// ExpectedEnd returns when all pending payouts are settled at the rate of the instances that send calls now. It is zero when
// it is not known, such as without a rate.
func ExpectedEnd(now time.Time, state rules.GroupState, pending int64, r *Rate) time.Time {
	if r == nil || r.PerSecond <= r.stopped || r.Stopped() != "" || pending == 0 || state == rules.GroupPaused {
		return time.Time{}
	}
	left := float64(pending) / (r.PerSecond - r.stopped)
	if left > (10 * 365 * 24 * time.Hour).Seconds() {
		return time.Time{}
	}
	return now.Add(time.Duration(left * float64(time.Second))).UTC().Truncate(time.Second)
}

// StateText is the state with what else holds the promotion back.
func (s Status) StateText() string {
	state := promotionState(s.State, s.Finished) + MissingText(s.State, s.PayoutCounts, s.TotalCount)
	if s.Counts.WaitsForPlace > 0 {
		state += ", waits for a place"
	}
	if why := s.Rate.Stopped(); why != "" && s.Pending > 0 && s.State != rules.GroupPaused {
		state += ", " + why
	}
	return state
}

// announcedText is the number of the started event, and what to do about payouts that are not accepted while all others
// are settled.
func (s Status) announcedText() string {
	switch {
	case s.TotalCount == 0:
		return "-"
	case MissingText(s.State, s.PayoutCounts, s.TotalCount) == "":
		return app.Thousands(s.TotalCount)
	}
	missing, are := s.TotalCount-s.Accepted, "are"
	if missing == 1 {
		are = "is"
	}
	return fmt.Sprintf("%s, of which %s %s not accepted; all others are settled; millrace campaign reconcile %s %d looks for the records",
		app.Thousands(s.TotalCount), app.Thousands(missing), are, s.Type, s.Promotion)
}

// RateText is the rate, or a dash.
func (s Status) RateText() string {
	if s.Rate == nil {
		return "-"
	}
	return s.Rate.perSecondText()
}

// EndText is the expected end, or why there is none.
func (s Status) EndText(now time.Time) string {
	switch {
	case s.Pending == 0:
		return "-"
	case s.State == rules.GroupPaused:
		return "paused"
	case s.ExpectedEnd.IsZero() && s.Rate.Stopped() != "":
		return "not known: " + s.Rate.Stopped()
	case s.ExpectedEnd.IsZero():
		return "not known"
	}
	return when(s.ExpectedEnd, now)
}

// PendingText says where the next try of the unsettled payouts comes from.
func (s Status) PendingText() string {
	if s.Pending == 0 {
		return ""
	}
	return fmt.Sprintf("%s next from the stream, %s next from the retry topic, %s with a worker, %s for the feeder to enqueue",
		app.Thousands(s.InStream), app.Thousands(s.InRetry-s.WithWorker), app.Thousands(s.WithWorker), app.Thousands(s.InNoQueue))
}

// PerhapsText says how many payouts may have been charged, and who finds out.
func (s Status) PerhapsText() string {
	text := app.Thousands(s.PerhapsCharged)
	if s.Calling > 0 {
		text += fmt.Sprintf(", of them %s by a call that runs now", app.Thousands(s.Calling))
	}
	if s.PerhapsCharged > s.Calling {
		text += "; the service finds out by itself"
	}
	return text
}

// DeadText separates the dead letters that were written from those that wait for a person.
func (s Status) DeadText() string {
	text := app.Thousands(s.Dead) + " written so far"
	switch {
	case s.DeadWaiting != nil:
		text += fmt.Sprintf(", %s of them wait for a person", app.Thousands(*s.DeadWaiting))
	case s.Dead > 0:
		text += ", how many of them wait is not known"
	}
	text += fmt.Sprintf("; %s about a second request for a target", app.Thousands(s.Conflict))
	if s.Dead > 0 {
		text += fmt.Sprintf("; millrace deadletter list --subject %s:%d", s.Type, s.Promotion)
	}
	return text
}

// oldestText names the oldest unpaid payout, and the command that says what comes next for it.
func (s Status) oldestText() string {
	if s.OldestTarget == nil {
		return ""
	}
	return fmt.Sprintf(", target %d; millrace campaign explain %s %d %[1]d", *s.OldestTarget, s.Type, s.Promotion)
}

// CallsText is the number of calls that run now, or a dash when the instance does not say.
func (x Instance) CallsText() string {
	if x.Note == nil {
		return "-"
	}
	if x.Note.Recent == nil {
		return "0"
	}
	return fmt.Sprint(x.Note.Recent.Calling)
}
