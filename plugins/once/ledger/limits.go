package ledger

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/once/ledger/rate"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// Limits bound the calls of a kind, lookups too, over all instances together. 0 is no limit.
type Limits struct {
	// PerSecond is how many calls may begin in a second. It may be less than 1.
	PerSecond float64 `yaml:"per_second" json:"per_second"`
	// InFlight is how many calls may run at once.
	InFlight int `yaml:"in_flight" json:"in_flight"`
}

// Validate reports every mistake at once, as joined *setting.FieldError values.
func (l Limits) Validate() error {
	var p setting.Problems
	ok := l.PerSecond == 0 || l.PerSecond >= rate.Least && l.PerSecond <= rate.Most // not so for NaN
	p.Check(ok, "per_second", "must be 0 (no limit), or from %g to %.0f, got %g", rate.Least, rate.Most, l.PerSecond)
	p.Check(l.InFlight >= 0 && l.InFlight <= math.MaxInt32, "in_flight", "must be >= 0, where 0 is no limit, got %d", l.InFlight)
	return p.Err()
}

// String returns what people read, such as "20/s, 8 in flight".
func (l Limits) String() string {
	var parts []string
	if l.PerSecond > 0 {
		parts = append(parts, strconv.FormatFloat(l.PerSecond, 'g', -1, 64)+"/s")
	}
	if l.InFlight > 0 {
		parts = append(parts, fmt.Sprint(l.InFlight)+" in flight")
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

// Source is where a limit comes from.
type Source string

// The sources.
const (
	FromSettings Source = "settings"
	FromOperator Source = "operator"
)

// InForce are the limits of a kind that apply now.
type InForce struct {
	Limits
	PerSecondFrom Source `json:"per_second_from"`
	InFlightFrom  Source `json:"in_flight_from"`
}

// steered are the limits that an operator has set; nil: that of the settings applies.
type steered struct {
	perSecond *float64
	inFlight  *int
}

func (s steered) over(settings Limits) InForce {
	f := InForce{settings, FromSettings, FromSettings}
	if s.perSecond != nil {
		f.PerSecond, f.PerSecondFrom = *s.perSecond, FromOperator
	}
	if s.inFlight != nil {
		f.InFlight, f.InFlightFrom = *s.inFlight, FromOperator
	}
	return f
}

// Ask is what an instance asks the limits of a kind for.
type Ask struct {
	Tokens  int // calls to begin; 0: none
	Slots   int // calls to run at once, those that run included; 0: leave its slots as they are
	Running int // calls that run
}

// Permit is what an instance gets.
type Permit struct {
	Limits Limits // in force
	// Tokens may be used in the time from Wait to Wait + rate.Life after now, one for each call that begins.
	// Without any, Wait is how long others are ahead.
	Tokens int
	Wait   time.Duration
	// Slots is how many calls the instance may run at once, if it asked. It may be less than what it runs.
	// The ledger counts them, and at least those that run, for SlotLife.
	Slots int
}

// SlotLife is how long slots count that an instance got, also when it is killed. A call that begins within
// SlotUse ends its lease before.
func SlotLife(lease time.Duration) time.Duration { return lease + SlotUse(lease) }

// SlotUse is how long an instance may use slots before it asks again.
func SlotUse(lease time.Duration) time.Duration { return lease / 2 }

const (
	sqlLimits = `SELECT per_second, in_flight, tat FROM once_limits WHERE kind = $1`

	sqlSetTAT = `INSERT INTO once_limits (kind, tat) VALUES ($1, $2) ON CONFLICT (kind) DO UPDATE SET tat = excluded.tat`

	sqlSetLimits = `INSERT INTO once_limits (kind, per_second, in_flight) VALUES ($1, $2, $3)
ON CONFLICT (kind) DO UPDATE SET per_second = excluded.per_second, in_flight = excluded.in_flight`

	sqlSlots = `SELECT holder, slots, wanted, until FROM once_slots WHERE kind = $1 ORDER BY kind, holder`

	sqlSetSlots = `INSERT INTO once_slots (kind, holder, slots, wanted, until) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (kind, holder) DO UPDATE SET slots = excluded.slots, wanted = excluded.wanted, until = excluded.until`

	sqlFreeSlots = `DELETE FROM once_slots WHERE kind = $1 AND holder = $2`

	sqlForgetSlots = `DELETE FROM once_slots WHERE kind = $1 AND until <= $2`
)

// ofLimits is the lock of a kind's limits. No group has an empty name.
func (k *kind) ofLimits() groupLock { return groupLock{exclusive: &groupID{kind: k.number}} }

// Permit asks the limits of a kind for tokens and slots, in one short transaction. Asks of the same kind wait
// for each other, and the clock is the database's.
func (l *Ledger) Permit(ctx context.Context, kind string, a Ask) (p Permit, err error) {
	k, err := l.registered(kind)
	if err != nil {
		return p, err
	}
	err = l.briefly(ctx, "permit", func(ctx context.Context) error {
		return l.update(ctx, k.ofLimits(), func(q querier, now time.Time) error {
			s, tat, err := readLimits(ctx, q, k)
			if err != nil {
				return err
			}
			p = Permit{Limits: s.over(k.Limits).Limits}
			if p.Limits.InFlight > 0 && a.Slots > 0 {
				if p.Slots, err = l.takeSlots(ctx, q, now, k, p.Limits.InFlight, a); err != nil {
					return err
				}
				if p.Slots <= a.Running { // a token would be of no use
					return nil
				}
			}
			if p.Limits.PerSecond == 0 || a.Tokens < 1 {
				return nil
			}
			n, wait, next := rate.Take(tat, now, p.Limits.PerSecond, a.Tokens)
			if p.Tokens, p.Wait = n, wait; n == 0 {
				return nil
			}
			_, err = q.exec(ctx, sqlSetTAT, k.number, next)
			return err
		})
	})
	return p, err
}

func readLimits(ctx context.Context, q querier, k *kind) (s steered, tat time.Time, err error) {
	err = q.query(ctx, func(r scanner) error { return r.Scan(&s.perSecond, &s.inFlight, (*portableTime)(&tat)) }, sqlLimits, k.number)
	return s, tat, err
}

// holding are the slots of one instance.
type holding struct {
	holder        string
	slots, wanted int
	until         time.Time
}

func readSlots(ctx context.Context, q querier, k *kind) (all []holding, err error) {
	err = q.query(ctx, func(r scanner) error {
		var h holding
		err := r.Scan(&h.holder, &h.slots, &h.wanted, (*portableTime)(&h.until))
		all = append(all, h)
		return err
	}, sqlSlots, k.number)
	return all, err
}

// takeSlots sets the slots of this instance to its share, as far as others leave it.
func (l *Ledger) takeSlots(ctx context.Context, q querier, now time.Time, k *kind, limit int, a Ask) (slots int, err error) {
	all, err := readSlots(ctx, q, k)
	if err != nil {
		return 0, err
	}
	left, wanted, forget := limit, []int{}, false
	for _, h := range all {
		switch {
		case !h.until.After(now):
			forget = true
		case h.holder != l.holder:
			left, wanted = left-h.slots, append(wanted, h.wanted)
		}
	}
	if forget {
		if _, err := q.exec(ctx, sqlForgetSlots, k.number, now); err != nil {
			return 0, err
		}
	}
	// Last among equals, it gets what can't be shared. Otherwise a limit below the number of instances would be
	// nobody's.
	slots = max(0, min(left, rate.Share(limit, append(wanted, a.Slots), len(wanted))))
	_, err = q.exec(ctx, sqlSetSlots, k.number, l.holder, max(slots, a.Running), a.Slots, now.Add(SlotLife(k.Policy.Lease)))
	return slots, err
}

// FreeSlots gives all slots of this instance back. None of its calls may be running.
func (l *Ledger) FreeSlots(ctx context.Context, kind string) error {
	k, err := l.registered(kind)
	if err != nil {
		return err
	}
	return l.briefly(ctx, "free slots", func(ctx context.Context) error {
		return l.update(ctx, k.ofLimits(), func(q querier, _ time.Time) error {
			_, err := q.exec(ctx, sqlFreeSlots, k.number, l.holder)
			return err
		})
	})
}

// LimitChange is an operator's change of the limits of a kind.
type LimitChange struct {
	PerSecond *float64 // nil: leave it
	InFlight  *int     // nil: leave it
	// Settings ends what operators have set, before the other fields apply.
	Settings bool
}

// SetLimits changes the limits of a kind while instances run. They learn of it with their next look for work.
// A kind that no program has registered returns ErrNotFound.
func (l *Ledger) SetLimits(ctx context.Context, kind string, c LimitChange, by By) error {
	if err := by.check("limit of "+kind, true); err != nil {
		return err
	}
	if err := (steered{c.PerSecond, c.InFlight}).over(Limits{}).Validate(); err != nil {
		return rules.Invalid("limit of %s: %s", kind, err)
	}
	return l.call(ctx, "limit", func(ctx context.Context) error {
		k, err := l.known(ctx, kind)
		if err != nil {
			return err
		}
		return l.update(ctx, k.ofLimits(), func(q querier, now time.Time) error {
			from, _, err := readLimits(ctx, q, k)
			if err != nil {
				return err
			}
			to := from
			if c.Settings {
				to = steered{}
			}
			if c.PerSecond != nil {
				to.perSecond = c.PerSecond
			}
			if c.InFlight != nil {
				to.inFlight = c.InFlight
			}
			if _, err := q.exec(ctx, sqlSetLimits, k.number, to.perSecond, to.inFlight); err != nil {
				return err
			}
			detail := fmt.Sprintf("per_second: %s to %s; in_flight: %s to %s", shown(from.perSecond), shown(to.perSecond), shown(from.inFlight), shown(to.inFlight))
			return writeAudit(ctx, q, now, rowKey{kind: k.number}, Audit{By: by, Action: "limit", Detail: detail})
		})
	})
}

func shown[T int | float64](limit *T) string {
	switch {
	case limit == nil:
		return string(FromSettings)
	case *limit == 0:
		return "none"
	}
	return fmt.Sprint(*limit)
}

// LimitStatus is what is known of the limits of a kind.
type LimitStatus struct {
	Kind string `json:"kind"`
	// InForce has 0 for a limit that comes from the settings of another program, see Registered.
	InForce
	Registered bool    `json:"registered"` // this program has the kind, and so its settings
	Slots      int     `json:"slots"`      // that instances hold of InFlight
	Holders    int     `json:"holders"`    // instances that hold or want slots
	Audit      []Audit `json:"audit"`      // changes of operators
}

// LimitsOf returns the limits of a kind, with the changes that operators have made. A kind that no program has
// registered returns ErrNotFound.
func (l *Ledger) LimitsOf(ctx context.Context, kind string) (s LimitStatus, err error) {
	err = l.call(ctx, "limits", func(ctx context.Context) error {
		k, err := l.known(ctx, kind)
		if err != nil {
			return err
		}
		return l.store.read(ctx, func(q querier, now time.Time) error {
			set, _, err := readLimits(ctx, q, k)
			if err != nil {
				return err
			}
			s = LimitStatus{Kind: kind, InForce: set.over(k.Limits), Registered: k.registered, Audit: []Audit{}}
			all, err := readSlots(ctx, q, k)
			if err != nil {
				return err
			}
			for _, h := range all {
				if h.until.After(now) {
					s.Slots, s.Holders = s.Slots+h.slots, s.Holders+1
				}
			}
			audit, err := readAudit(ctx, q, rowKey{kind: k.number})
			s.Audit = append(s.Audit, audit...)
			return err
		})
	})
	return s, err
}
