package ledger

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// Activity is what an instance does for a kind, as it tells others every few seconds while it does anything.
type Activity struct {
	Reason      string `json:"-"`           // why it calls for nothing; empty: it does
	Bound       string `json:"bound"`       // what it waited for most since it told last, such as concurrency
	Calling     int    `json:"calling"`     // calls that run
	Concurrency int    `json:"concurrency"` // calls that may run at once
	// StepSeconds is how long ago the current step of all Counts began.
	StepSeconds float64 `json:"step_seconds"`
	Counts
	// Groups are those with the most settled effects, and More says that others had some, too.
	Groups map[string]Counts `json:"groups,omitempty"`
	More   bool              `json:"more,omitempty"`
	// Answers of the far side within the last minute, by class, and how many of its calls took how long: index i is the
	// number of those below the bound i of the program.
	Answers     map[string]int64 `json:"answers,omitempty"`
	Took        []int64          `json:"took,omitempty"`
	CallSeconds float64          `json:"call_seconds,omitempty"` // of all these calls together
}

// Counts are the effects that an instance has settled in each step of the last minute, the current one first.
type Counts struct {
	Seconds float64 `json:"seconds"` // that they look back, less than a minute for what began since
	Settled []int64 `json:"settled,omitempty"`
	Done    []int64 `json:"done,omitempty"` // of these
}

// Instance is an instance that calls, waits or is stopped, or that has been gone for a short time.
type Instance struct {
	Name string
	Activity
	Since time.Time // of the reason
	// At is when it told its activity. Zero: it has told nothing yet, and is known by its leases alone.
	At        time.Time
	Gone      bool      // it has told nothing for GoneAfter
	Leases    int64     // on effects of the kind
	LeasesEnd time.Time // the last of them; zero: it has none
}

// Instances are those of a kind, at a time of the database.
type Instances struct {
	Now time.Time
	All []Instance // by name
}

const (
	// GoneAfter is how long an instance may tell nothing until it counts as gone.
	GoneAfter = 15 * time.Second

	// keepGone is how long a gone instance is shown after its leases must have ended.
	keepGone = time.Minute

	// leasesRead is how many leases Instances reads at most.
	leasesRead = 10_000

	sqlInstances = `SELECT holder, began, at, reason, since, activity FROM once_instances WHERE kind = $1 AND until > $2 ORDER BY kind, holder`

	sqlStops = `SELECT holder, reason, since FROM once_instances WHERE kind = $1 AND at > $2 AND reason <> '' ORDER BY kind, holder`

	// A reason keeps its time while the instance repeats it.
	sqlSetActivity = `INSERT INTO once_instances AS s (kind, holder, began, at, until, reason, since, activity) VALUES ($1, $2, $3, $4, $5, $6, $4, $7)
ON CONFLICT (kind, holder) DO UPDATE SET at = excluded.at, until = excluded.until, reason = excluded.reason, activity = excluded.activity,
	since = CASE WHEN s.reason <> '' AND s.at > $8 THEN s.since ELSE excluded.since END`

	sqlEndActivity = `DELETE FROM once_instances WHERE kind = $1 AND holder = $2`

	sqlForgetInstances = `DELETE FROM once_instances WHERE kind = $1 AND until <= $2`
)

// sqlLeases has no condition on the time and no join, for which PostgreSQL could read all that is due, or all effects.
//
//nolint:gochecknoglobals // constant, but not for the compiler
var sqlLeases = `SELECT coalesce((SELECT e.attempt_by FROM once_effects AS e WHERE e.kind = d.kind AND e.grp = d.grp AND e.id = d.id), ''),
	(SELECT e.attempt_started_at FROM once_effects AS e WHERE e.kind = d.kind AND e.grp = d.grp AND e.id = d.id), d.at
FROM once_due_effects AS d WHERE d.kind = $1 AND d.calling LIMIT ` + fmt.Sprint(leasesRead)

// SetActivity tells other processes what this instance does for a kind, which counts for GoneAfter. It is repeated every few
// seconds, and nil ends it, so that an idle instance writes nothing and is not gone either.
func (l *Ledger) SetActivity(ctx context.Context, kind string, a *Activity) error {
	k, err := l.registered(kind)
	if err != nil {
		return err
	}
	text := ""
	if a != nil {
		encoded, err := json.Marshal(a)
		if err != nil {
			return fmt.Errorf("once: ledger: encode what this instance does: %w", err)
		}
		text = string(encoded)
	}
	return l.briefly(ctx, "activity", func(ctx context.Context) error {
		return l.update(ctx, groupLock{}, func(q querier, now time.Time) error {
			if a != nil {
				if _, err := q.exec(ctx, sqlSetActivity, k.number, l.holder, l.since(), now, now.Add(k.Policy.Lease+GoneAfter+keepGone),
					portable.Text(a.Reason, maxReasonBytes), text, now.Add(-GoneAfter)); err != nil || k.told.Swap(true) {
					return err
				}
			} else if _, err := q.exec(ctx, sqlEndActivity, k.number, l.holder); err != nil {
				return err
			}
			k.told.Store(a != nil)
			_, err := q.exec(ctx, sqlForgetInstances, k.number, now) // those of killed instances, when one begins or ends
			return err
		})
	})
}

// since is when this ledger was opened, by the clock of the database.
func (l *Ledger) since() time.Time {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.began
}

// Stops returns the instances that call for nothing of a kind at the moment.
func (l *Ledger) Stops(ctx context.Context, kind string) (stops []Stop, err error) {
	err = l.call(ctx, "stops", func(ctx context.Context) error {
		k, err := l.known(ctx, kind)
		if err != nil {
			return err
		}
		return l.store.read(ctx, func(q querier, now time.Time) error {
			stops, err = readStops(ctx, q, k, now)
			return err
		})
	})
	return stops, err
}

func readStops(ctx context.Context, q querier, k *kind, now time.Time) (stops []Stop, err error) {
	err = q.query(ctx, func(r scanner) error {
		var s Stop
		err := r.Scan(&s.Instance, &s.Reason, (*portableTime)(&s.Since))
		s.Instance = nameOfHolder(s.Instance)
		stops = append(stops, s)
		return err
	}, sqlStops, k.number, now.Add(-GoneAfter))
	return stops, err
}

// nameOfHolder returns the name of the instance.
func nameOfHolder(holder string) string { return holder[:max(0, strings.LastIndexByte(holder, '/'))] }

// Instances returns the instances that do anything for a kind, and those that have gone meanwhile, with their leases. One that
// is idle is not among them. The leases of more than 10,000 calls are counted as 10,000.
func (l *Ledger) Instances(ctx context.Context, kind string) (Instances, error) {
	return l.readInstances(ctx, kind, true)
}

// Told returns what Instances does, without the leases, for the cost of reading a row per instance.
func (l *Ledger) Told(ctx context.Context, kind string) (Instances, error) {
	return l.readInstances(ctx, kind, false)
}

func (l *Ledger) readInstances(ctx context.Context, kind string, leases bool) (all Instances, err error) {
	err = l.call(ctx, "instances", func(ctx context.Context) error {
		k, err := l.known(ctx, kind)
		if err != nil {
			return err
		}
		return l.store.read(ctx, func(q querier, now time.Time) error {
			all = Instances{Now: now}
			var began []time.Time
			if err := q.query(ctx, func(r scanner) error {
				var i Instance
				var from time.Time
				var text string
				if err := r.Scan(&i.Name, (*portableTime)(&from), (*portableTime)(&i.At), &i.Reason, (*portableTime)(&i.Since), &text); err != nil {
					return err
				}
				_ = json.Unmarshal([]byte(text), &i.Activity) // of another version, it may say less
				i.Name, i.Gone = nameOfHolder(i.Name), now.Sub(i.At) > GoneAfter
				all.All, began = append(all.All, i), append(began, from)
				return nil
			}, sqlInstances, k.number, now); err != nil || !leases {
				return err
			}
			return all.readLeases(ctx, q, k, began)
		})
	})
	return all, err
}

// readLeases adds the leases to the instances, which began at these times, and those that are known by their leases alone.
func (all *Instances) readLeases(ctx context.Context, q querier, k *kind, began []time.Time) error {
	return q.query(ctx, func(r scanner) error {
		var by string
		var started, end time.Time
		if err := r.Scan(&by, (*portableTime)(&started), (*portableTime)(&end)); err != nil || !end.After(all.Now) {
			return err
		}
		i := holderOf(all.All, began, by, started)
		if i < 0 {
			i, all.All, began = len(all.All), append(all.All, Instance{Name: by}), append(began, started)
		}
		x := &all.All[i]
		if x.Leases++; end.After(x.LeasesEnd) {
			x.LeasesEnd = end
		}
		if x.At.IsZero() && all.Now.Sub(started) > GoneAfter { // one that lives would have told something
			x.Gone = true
		}
		return nil
	}, sqlLeases, k.number)
}

// holderOf returns which instance with the name has begun a call: an instance that starts again may have the same name as the
// one that was killed. It is negative for none.
func holderOf(all []Instance, began []time.Time, name string, started time.Time) int {
	found := -1
	for i := range all {
		switch {
		case all[i].Name != name:
		case all[i].At.IsZero(): // known by its leases, of which began is any
			if found < 0 {
				found = i
			}
		case !began[i].After(started) && (found < 0 || all[found].At.IsZero() || began[i].After(began[found])):
			found = i
		}
	}
	return found
}
