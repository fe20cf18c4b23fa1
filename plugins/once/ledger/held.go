package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace-io/millrace/plugins/once/ledger/rate"
)

// Stop says that an instance calls for nothing of a kind at the moment.
type Stop struct {
	Instance string    `json:"instance"`
	Reason   string    `json:"reason"`
	Since    time.Time `json:"since"`
}

// Held is what holds an effect back that is due.
type Held struct {
	DueFor  time.Duration // how long it has been due; 0: it is not, or its group was paused until now
	Ahead   int64         // effects of its kind that have been due for longer, although groups take turns; at most BacklogLimit
	Calling int64         // effects of its kind that are under a lease
	Limits  InForce       // of its kind
	TokenIn time.Duration // the time until Limits.PerSecond lets a call begin
	Stops   []Stop        // instances that call for nothing of its kind
	Paused  *KindPause    // nil: its kind is not paused
}

const (
	// maxReasonBytes is the length of what is stored of the reason of a stop.
	maxReasonBytes = 300

	sqlDueAt = `SELECT at FROM once_effect_due WHERE kind = $1 AND grp = $2 AND id = $3`

	sqlCalling = `SELECT count(*) FILTER (WHERE at > $2), max(at) FILTER (WHERE at > $2) FROM once_due_effects WHERE kind = $1 AND calling`

	sqlCallingOfGroup = `SELECT count(*) FILTER (WHERE at > $3), max(at) FILTER (WHERE at > $3) FROM once_due_effects WHERE kind = $1 AND grp = $2 AND calling`
)

// sqlAhead counts what was due before an effect that is due at $2.
//
//nolint:gochecknoglobals // constant, but not for the compiler
var sqlAhead = `SELECT count(*) FROM (SELECT 1 FROM (` + laneList() + `) AS l JOIN once_due_effects AS d ON d.kind = $1 AND d.lane = l.lane AND d.at < $2 LIMIT ` +
	fmt.Sprint(BacklogLimit) + `) AS d`

// UnderWay returns how many calls run of a group, or of a whole kind if the group has no name, and for how long at most: until
// the last of their leases ends. After a pause has returned they only become fewer.
func (l *Ledger) UnderWay(ctx context.Context, g Group) (calls int64, atMost time.Duration, err error) {
	err = l.call(ctx, "under way", func(ctx context.Context) error {
		k, err := l.known(ctx, g.Kind)
		if err != nil {
			return err
		}
		return l.store.read(ctx, func(q querier, now time.Time) error {
			sql, args := sqlCallingOfGroup, []any{k.number, g.Name, now}
			if g.Name == "" {
				sql, args = sqlCalling, []any{k.number, now}
			}
			return q.query(ctx, func(r scanner) error {
				last := now
				err := r.Scan(&calls, (*portableTime)(&last))
				atMost = max(0, last.Sub(now))
				return err
			}, sql, args...)
		})
	})
	return calls, atMost, err
}

// Held returns what holds the calls for an effect back. Its cost is bounded like that of Backlog. An effect
// that waits for nothing, such as one that is settled, has the zero DueFor.
func (l *Ledger) Held(ctx context.Context, key Key) (h Held, err error) {
	err = l.call(ctx, "held", func(ctx context.Context) error {
		k, err := l.known(ctx, key.Kind)
		if err != nil {
			return err
		}
		return l.store.read(ctx, func(q querier, now time.Time) error {
			h = Held{}
			var at time.Time
			if err := q.query(ctx, func(r scanner) error { return r.Scan((*portableTime)(&at)) }, sqlDueAt, k.number, key.Group, key.ID); err != nil {
				return err
			}
			if !at.IsZero() && at.Before(now) {
				h.DueFor = now.Sub(at)
				if err := q.query(ctx, func(r scanner) error { return r.Scan(&h.Ahead) }, sqlAhead, k.number, at); err != nil {
					return err
				}
			}
			if err := q.query(ctx, func(r scanner) error { return r.Scan(&h.Calling, (*portableTime)(&at)) }, sqlCalling, k.number, now); err != nil {
				return err
			}
			set, tat, err := readLimits(ctx, q, k)
			if err != nil {
				return err
			}
			if h.Limits = set.over(k.Limits); h.Limits.PerSecond > 0 {
				_, h.TokenIn, _ = rate.Take(tat, now, h.Limits.PerSecond, 1)
			}
			if h.Stops, err = readStops(ctx, q, k, now); err != nil {
				return err
			}
			h.Paused, err = l.readPause(ctx, q, k)
			return err
		})
	})
	return h, err
}
