package store

import (
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/sqldbtest"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/sqldb"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

var ann, bob = By{Who: "ann", Why: "fixed"}, By{Who: "bob", Why: "continues"}

func outcomes(actions []Action) (list []string) {
	for _, a := range actions {
		list = append(list, a.Who+" "+a.Outcome)
	}
	return list
}

func TestALeaseExcludesOtherReplays(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, open func() *Store) {
		s := open()
		one, two := orderDeadLetter(1), orderDeadLetter(2)
		mustPut(t, s, one, two)
		lease, err := s.Begin(t.Context(), one.ID, ann, false)
		require.NoError(t, err)
		require.False(t, lease.Resumed)
		require.WithinDuration(t, time.Now().Add(leaseDuration-leaseMargin), lease.Deadline, 5*time.Second)

		var held *HeldError
		for name, act := range map[string]func() error{
			"replay":  func() error { _, err := s.Begin(t.Context(), one.ID, bob, true); return err },
			"discard": func() error { return s.Discard(t.Context(), one.ID, bob) },
		} {
			require.ErrorAs(t, act(), &held, name)
			require.Equal(t, []string{one.ID, "ann"}, []string{held.ID, held.Who})
			require.WithinDuration(t, time.Now().Add(leaseDuration), held.Until, 5*time.Second)
		}
		got, actions := mustGet(t, s, one.ID)
		require.Equal(t, Replaying, got.State)
		require.Equal(t, held.Until, got.HeldUntil)
		require.Equal(t, []string{"ann begun"}, outcomes(actions))

		other, err := s.Begin(t.Context(), two.ID, bob, false)
		require.NoError(t, err, "another dead letter is free")
		require.NoError(t, s.Finish(t.Context(), other, Outcome{OutcomeReplayed, ""}))
		require.NoError(t, s.Finish(t.Context(), lease, Outcome{OutcomeReplayed, ""}))
		got, _ = mustGet(t, s, one.ID)
		require.Equal(t, Replayed, got.State)
		require.Zero(t, got.HeldUntil)
	})
}

func TestAReplayThatCrashedIsResumedWhenItsLeaseEnds(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, open func() *Store) {
		s := open()
		d := orderDeadLetter(1)
		mustPut(t, s, d)
		crashed, err := s.Begin(t.Context(), d.ID, ann, false)
		require.NoError(t, err)
		endLeases(t, s)
		next, err := s.Begin(t.Context(), d.ID, bob, false)
		require.NoError(t, err)
		require.True(t, next.Resumed)
		require.Equal(t, crashed.ReplayHeader(), next.ReplayHeader(), "the same generation")
		require.NoError(t, s.Finish(t.Context(), next, Outcome{OutcomeReplayed, ""}))
		_, actions := mustGet(t, s, d.ID)
		require.Equal(t, []string{"ann begun", "bob replayed"}, outcomes(actions))

		require.NoError(t, s.Finish(t.Context(), crashed, Outcome{OutcomeReplayed, ""}), "it was frozen, and continues")
		_, actions = mustGet(t, s, d.ID)
		require.Equal(t, []string{"ann already", "bob replayed"}, outcomes(actions), "a generation is replayed once")
	})
}

func TestAFailedReplayReleasesItsLease(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, open func() *Store) {
		s := open()
		d := orderDeadLetter(1)
		mustPut(t, s, d)
		failed, err := s.Begin(t.Context(), d.ID, ann, false)
		require.NoError(t, err)
		require.NoError(t, s.Finish(t.Context(), failed, Outcome{OutcomeFailed, "no broker"}))
		next, err := s.Begin(t.Context(), d.ID, bob, false)
		require.NoError(t, err)
		require.True(t, next.Resumed)
	})
}

// A replay that lost its lease changes nothing that the next holder depends on.
func TestFinishAfterTheLeaseWasLost(t *testing.T) {
	t.Parallel()
	for _, late := range []string{OutcomeReplayed, OutcomeRefused, OutcomeFailed} {
		t.Run(late, func(t *testing.T) {
			t.Parallel()
			onBoth(t, func(t *testing.T, open func() *Store) {
				s := open()
				d := orderDeadLetter(1)
				mustPut(t, s, d)
				frozen, err := s.Begin(t.Context(), d.ID, ann, false)
				require.NoError(t, err)
				endLeases(t, s)
				next, err := s.Begin(t.Context(), d.ID, bob, false)
				require.NoError(t, err)
				require.NoError(t, s.Finish(t.Context(), frozen, Outcome{late, "late"}))
				_, err = s.Begin(t.Context(), d.ID, ann, true)
				var held *HeldError
				require.ErrorAs(t, err, &held, "the next one holds it still")
				require.NoError(t, s.Finish(t.Context(), next, Outcome{OutcomeReplayed, ""}))
				got, actions := mustGet(t, s, d.ID)
				require.Equal(t, Replayed, got.State)
				n := 0
				for _, a := range actions {
					if a.Outcome == OutcomeReplayed {
						n++
					}
				}
				require.Equal(t, 1, n)
			})
		})
	}
}

func TestAReplayThatFinishesLateLeavesTheNextGenerationAlone(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, open func() *Store) {
		s := open()
		d := orderDeadLetter(1)
		mustPut(t, s, d)
		late, err := s.Begin(t.Context(), d.ID, ann, false)
		require.NoError(t, err)
		mustPut(t, s, failedReplay(d, 1, 1))
		_, err = s.Begin(t.Context(), d.ID, bob, true)
		require.NoError(t, err)
		require.NoError(t, s.Finish(t.Context(), late, Outcome{OutcomeReplayed, ""}))
		got, _ := mustGet(t, s, d.ID)
		require.Equal(t, Replaying, got.State)
		require.NotZero(t, got.HeldUntil)
	})
}

// Several replays of all dead letters at the same time: each dead letter has one effect.
func TestConcurrentReplaysHaveOneEffectPerDeadLetter(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, open func() *Store) {
		const n, operators = 30, 3
		s := open()
		for i := range n {
			mustPut(t, s, orderDeadLetter(i))
		}
		var mu sync.Mutex
		effects, held := map[string]int{}, 0
		replay := func(s *Store, who string) error {
			for id, err := range s.Walk(t.Context(), Filter{}) {
				if err != nil {
					return err
				}
				lease, err := s.Begin(t.Context(), id, By{Who: who, Why: "fixed"}, false)
				var state *StateError
				var other *HeldError
				switch {
				case errors.As(err, &state):
					continue
				case errors.As(err, &other):
					mu.Lock()
					held++
					mu.Unlock()
					continue
				case err != nil:
					return err
				}
				mu.Lock()
				effects[lease.ReplayHeader()]++
				mu.Unlock()
				if err := s.Finish(t.Context(), lease, Outcome{OutcomeReplayed, ""}); err != nil {
					return err
				}
			}
			return nil
		}
		var group sync.WaitGroup
		errs := make([]error, operators)
		for i := range operators {
			s := open()
			group.Go(func() { errs[i] = replay(s, fmt.Sprint("operator ", i)) })
		}
		group.Wait()
		require.NoError(t, errors.Join(errs...))
		require.Len(t, effects, n)
		for header, times := range effects {
			require.Equal(t, 1, times, header)
		}
		t.Logf("%d were held by another operator", held)
	})
}

// before returns migrations up to a version, as an older binary has them.
type before struct {
	fs.FS
	last string
}

func (b before) ReadDir(name string) ([]fs.DirEntry, error) {
	list, err := fs.ReadDir(b.FS, name)
	return slices.DeleteFunc(list, func(e fs.DirEntry) bool { return strings.HasSuffix(e.Name(), ".sql") && e.Name() > b.last }), err
}

func (b before) Glob(pattern string) ([]string, error) {
	list, err := fs.Glob(b.FS, pattern)
	return slices.DeleteFunc(list, func(name string) bool { return name[strings.LastIndexByte(name, '/')+1:] > b.last }), err
}

// A replay of a version without leases is running during the upgrade. It gets no further dead
// letter. The one that it works on is leased until it must be over.
func TestAVersionWithoutLeasesIsExcluded(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, func(t *testing.T, dsn string) {
		s, err := Connect(t.Context(), sqldb.Databases{}, setting.NewSecret(dsn), nil)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		old := sqldb.Migrations(migrations())
		old.Files = before{old.Files, "00004_z"}
		require.NoError(t, old.Up(t.Context(), s.db.DB, s.db.Dialect, s.log))

		// The older version takes the one lock, and begins with a dead letter.
		take := func() bool {
			n, err := s.exec(t.Context(), s.db, `UPDATE dead_letter_lock SET holder = $1, held_until = $2
				WHERE name = 'work' AND (holder = $1 OR held_until IS NULL OR held_until <= $3)`, "old", time.Now().Add(15*time.Second), time.Now())
			require.NoError(t, err)
			return n == 1
		}
		require.True(t, take())
		_, err = s.exec(t.Context(), s.db, oldInsert(s.db.Dialect), time.Now())
		require.NoError(t, err)

		_, err = Schema(sqldb.Databases{}, setting.NewSecret(dsn), "", nil).Migrate(t.Context())
		require.NoError(t, err)
		require.False(t, take(), "it renews its lock before each dead letter, and ends without it")
		var holder string
		require.NoError(t, s.query(t.Context(), s.db, func(r *sql.Rows) error { return r.Scan(&holder) }, `SELECT holder FROM dead_letter_lock`))
		require.Equal(t, "a newer version of millrace, use that one", holder, "this is in its error")
		_, err = s.Begin(t.Context(), "begun", bob, false)
		var held *HeldError
		require.ErrorAs(t, err, &held)
		require.WithinDuration(t, time.Now().Add(15*time.Second), held.Until, 5*time.Second)
		endLeases(t, s)
		lease, err := s.Begin(t.Context(), "begun", bob, false)
		require.NoError(t, err)
		require.True(t, lease.Resumed)
	})
}

func oldInsert(d portable.Dialect) string {
	bytes := "''"
	if d == portable.SQLite {
		bytes = "x''"
	}
	return `INSERT INTO dead_letters (id, lineage, state, plugin, handler, subject, class, error, fingerprint, kind, source, entry_id, topic, attempts,
		first_failed_at, failed_at, stored_at, changed_at, traceparent, uuid, record_key, headers, payload)
		VALUES ('begun', 'begun', 'replaying', 'orders', 'orders.take', '', 'rejected', '', '', 'kafka', 'orders', '', 'orders-dead', 1,
		$1, $1, $1, $1, '', '', ` + bytes + `, '{}', ` + bytes + `)`
}
