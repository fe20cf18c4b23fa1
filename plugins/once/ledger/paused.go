package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// PausedLimit is the highest result of PausedGroups.
const PausedLimit = 1000

// sqlPausedGroups steps from group to group in the index of parked effects, so it reads none twice.
//
//nolint:gochecknoglobals // constant, but not for the compiler
var sqlPausedGroups = fmt.Sprintf(`WITH RECURSIVE parked (grp, n) AS (
	SELECT (SELECT min(grp) FROM once_due WHERE kind = $1 AND at IS NULL), 1
	UNION ALL
	SELECT (SELECT min(d.grp) FROM once_due AS d WHERE d.kind = $1 AND d.at IS NULL AND d.grp > parked.grp), n + 1
		FROM parked WHERE grp IS NOT NULL AND n < %d
) SELECT count(*) FROM parked JOIN once_groups AS g ON g.kind = $1 AND g.grp = parked.grp WHERE g.state = 2`, PausedLimit)

// PausedGroups counts the paused groups of a kind that hold back effects which would be called for otherwise. A group counts
// from when its first effect is due. The cost depends on the number of such groups, up to PausedLimit.
func (l *Ledger) PausedGroups(ctx context.Context, kind string) (groups int, err error) {
	err = l.briefly(ctx, "paused groups", func(ctx context.Context) error {
		k, err := l.known(ctx, kind)
		if err != nil {
			return err
		}
		return l.store.read(ctx, func(q querier, _ time.Time) error {
			return q.query(ctx, func(r scanner) error { return r.Scan(&groups) }, sqlPausedGroups, k.number)
		})
	})
	return groups, err
}

// KindPause is the pause of a whole kind.
type KindPause struct {
	Kind  string    `json:"kind"`
	Since time.Time `json:"since"`
	By
}

const (
	sqlPause = `INSERT INTO once_paused (kind, since, who, why) VALUES ($1, $2, $3, $4) ON CONFLICT (kind) DO NOTHING`

	sqlResume = `DELETE FROM once_paused WHERE kind = $1`

	sqlPauseOf = `SELECT kind, since, who, why FROM once_paused WHERE kind = $1`

	sqlPauses = `SELECT kind, since, who, why FROM once_paused ORDER BY kind`
)

// pauseLock is the lock of a kind's pause: a claim shares it, and a pause takes it alone. No group has a control
// character in its name.
func pauseLock(kind int64) groupID { return groupID{kind: kind, name: "\n"} }

// PauseKind stops a kind: after its return no call of it starts, of whichever group and by whichever instance. Calls
// that run end normally, and effects are accepted. Pauses of groups are another matter, and stay. The pause of
// a kind that is paused stays as it is. A kind that no program has registered returns ErrNotFound.
func (l *Ledger) PauseKind(ctx context.Context, kind string, by By) error {
	return l.steerKind(ctx, "pause", kind, rules.GroupPaused, by)
}

// ResumeKind ends the pause of a kind. Instances learn of it when they next look for work. It has the errors of
// PauseKind.
func (l *Ledger) ResumeKind(ctx context.Context, kind string, by By) error {
	return l.steerKind(ctx, "resume", kind, rules.GroupRunning, by)
}

func (l *Ledger) steerKind(ctx context.Context, what, kind string, to rules.GroupState, by By) error {
	if err := by.check(what+" of "+kind, true); err != nil {
		return err
	}
	return l.call(ctx, what, func(ctx context.Context) error {
		k, err := l.known(ctx, kind)
		if err != nil {
			return err
		}
		lock := pauseLock(k.number)
		return l.update(ctx, groupLock{exclusive: &lock}, func(q querier, now time.Time) error {
			paused, err := l.readPause(ctx, q, k)
			if err != nil {
				return err
			}
			from := rules.GroupRunning
			if paused != nil {
				from = rules.GroupPaused
			}
			if to == rules.GroupPaused {
				_, err = q.exec(ctx, sqlPause, k.number, now, by.Who, by.Why)
			} else {
				_, err = q.exec(ctx, sqlResume, k.number)
			}
			if err != nil {
				return err
			}
			return writeAudit(ctx, q, now, rowKey{kind: k.number}, Audit{By: by, Action: what, Detail: fmt.Sprintf("the kind: %s to %s", from, to)})
		})
	})
}

// readPause returns the pause of a kind; nil: it is not paused.
func (l *Ledger) readPause(ctx context.Context, q querier, k *kind) (p *KindPause, err error) {
	err = q.query(ctx, func(r scanner) error {
		p = new(KindPause)
		return l.scanPause(r, p, time.Time{})
	}, sqlPauseOf, k.number)
	return p, err
}

func (l *Ledger) scanPause(r scanner, p *KindPause, _ time.Time) error {
	var kind int64
	err := r.Scan(&kind, (*portableTime)(&p.Since), &p.Who, &p.Why)
	p.Kind = l.nameOf(kind)
	return err
}

// KindPaused returns the pause of a kind; nil: it is not paused. It has the errors of PauseKind.
func (l *Ledger) KindPaused(ctx context.Context, kind string) (p *KindPause, err error) {
	err = l.call(ctx, "pause", func(ctx context.Context) error {
		k, err := l.known(ctx, kind)
		if err != nil {
			return err
		}
		return l.store.read(ctx, func(q querier, _ time.Time) error {
			p, err = l.readPause(ctx, q, k)
			return err
		})
	})
	return p, err
}

// PausedKinds returns the pauses of all kinds.
func (l *Ledger) PausedKinds(ctx context.Context) (all []KindPause, err error) {
	err = l.call(ctx, "pauses", func(ctx context.Context) error {
		if err := l.findKinds(ctx); err != nil {
			return err
		}
		all, err = selectAll(ctx, l, l.scanPause, sqlPauses)
		return err
	})
	return all, err
}
