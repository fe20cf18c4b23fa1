package ledger

import (
	"database/sql"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/sqldbtest"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

func TestOneCallAcceptsDuplicatesOneAfterTheOther(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		other := record("acme", 1)
		other.Payload = []byte("another request")
		require.Equal(t, []Accepted{Fresh, Known, Conflict, Fresh}, mustAccept(t, l, record("acme", 1), record("acme", 1), other, record("acme", 2)))
		require.Equal(t, []Accepted{Conflict, Known, Fresh, Known}, mustAccept(t, l, other, record("acme", 1), record("acme", 3), record("acme", 2)))
		require.Equal(t, Totals{Accepted: 3}, mustStatus(t, l, acme).Totals)
		require.Len(t, mustAccept(t, l, records("many", 1203)...), 1203, "in several transactions")
		require.Equal(t, int64(1203), mustStatus(t, l, Group{"invoice", "many"}).Accepted)
	})
}

// A record whose request means the same as the stored one is known, and the stored one is sent.
func TestRequestsThatMeanTheSame(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		require.NoError(t, l.Register(t.Context(), Kind{Name: "invoice", Policy: policyOf("invoice"), Same: sameButSpaces}))
		spaced, other := record("acme", 1), record("acme", 1)
		spaced.Payload, other.Payload = append(slices.Clone(spaced.Payload), "  "...), []byte("another request")
		require.Equal(t, []Accepted{Fresh, Known, Conflict}, mustAccept(t, l, record("acme", 1), spaced, other), "in one batch")
		require.Equal(t, []Accepted{Known, Conflict}, mustAccept(t, l, spaced, other), "and later")
		mail := spaced
		mail.Kind = "mail"
		plain := record("acme", 1)
		plain.Kind = "mail"
		require.Equal(t, []Accepted{Fresh, Conflict}, mustAccept(t, l, plain, mail), "a kind without Same compares bytes")
		claimed := claimAll(t, l, "invoice")
		require.Len(t, claimed, 1)
		require.Equal(t, string(record("acme", 1).Payload), string(claimed[0].Request))
		if l.store.dialect() == portable.SQLite {
			return
		}
		accept := func(records ...Record) error {
			tx := h.begin(t)
			defer func() { _ = tx.Rollback(t.Context()) }()
			return l.AcceptTx(t.Context(), PgxTx(tx), records)
		}
		require.NoError(t, accept(spaced), "in a transaction of a caller")
		require.ErrorIs(t, accept(other), ErrConflict)
		first, second := record("acme", 2), record("acme", 2)
		second.Payload = append(slices.Clone(second.Payload), ' ')
		require.NoError(t, accept(first, second))
		second.Payload = other.Payload
		require.ErrorIs(t, accept(first, second), ErrConflict)
	})
}

// Two keys whose texts are equal when they are joined by a colon are two effects.
func TestKeysAreNotMixed(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		a, b := record("a:b", 1), record("a", 1)
		a.ID, b.ID = "c", "b:c"
		require.Equal(t, []Accepted{Fresh, Fresh}, mustAccept(t, l, a, b))
		claimed := claimAll(t, l, "invoice")
		require.Len(t, claimed, 2)
		for _, c := range claimed {
			if c.Key == a.Key {
				mustSettle(t, l, end(c, rules.Done))
			}
		}
		require.Equal(t, rules.Success, mustExplain(t, l, a.Key).Row.State)
		require.Equal(t, rules.Sending, mustExplain(t, l, b.Key).Row.State)
	})
}

func TestARecordThatCantBeStoredIsRefusedAlone(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		var bad []Record
		for _, change := range []func(*Record){
			func(r *Record) { r.Kind = "nothing" },
			func(r *Record) { r.Group = "" },
			func(r *Record) { r.Group = strings.Repeat("x", 101) },
			func(r *Record) { r.ID = "a\nb" },
			func(r *Record) { r.ID = "a\xff" },
			func(r *Record) { r.Part = "a\x00" },
			func(r *Record) { r.Payload = make([]byte, MaxPayloadBytes+1) },
			func(r *Record) { r.Request = make([]byte, MaxPayloadBytes+1) },
			func(r *Record) { r.Headers = map[string]string{"a": "\xff"} },
			func(r *Record) { r.NotBefore = time.Date(12000, 1, 1, 0, 0, 0, 0, time.UTC) },
		} {
			r := record("acme", len(bad))
			change(&r)
			bad = append(bad, r)
		}
		good := record("acme", 99)
		results, err := l.Accept(t.Context(), append(bad, good))
		require.NoError(t, err)
		for i := range bad {
			require.ErrorIs(t, results[i].Err, ErrInvalid)
			require.Zero(t, results[i].Accepted)
		}
		require.Equal(t, AcceptResult{Accepted: Fresh}, results[len(bad)])
		empty := record("acme", 100)
		empty.Payload, empty.Request = nil, []byte{}
		require.Equal(t, []Accepted{Fresh}, mustAccept(t, l, empty))
		require.Empty(t, mustExplain(t, l, empty.Key).Payload)
	})
}

func TestNothingIsCalledBeforeItsTime(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		r := record("acme", 1)
		r.NotBefore = l.clock(t).Add(time.Hour)
		mustAccept(t, l, r)
		require.Empty(t, claimAll(t, l, "invoice"))
		require.Zero(t, mustStatus(t, l, acme).OldestDue, "a far future raises no alert")
		h.advance(time.Hour)
		require.Len(t, claimAll(t, l, "invoice"), 1)
	})
}

// begin begins a transaction of a caller, which ends with the test.
func (h *testDB) begin(t *testing.T) pgx.Tx {
	conn, err := pgx.Connect(t.Context(), h.dsn)
	require.NoError(t, err)
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	return tx
}

func TestACallersTransactionDecides(t *testing.T) {
	t.Parallel()
	onPostgres(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		committed, aborted := h.begin(t), h.begin(t)
		require.NoError(t, l.AcceptTx(t.Context(), PgxTx(committed), append(records("acme", 45), record("acme", 3))))
		require.NoError(t, l.AcceptTx(t.Context(), PgxTx(aborted), []Record{record("zeta", 1)}))
		require.Empty(t, claimAll(t, l, "invoice"), "before the commit")
		require.NoError(t, committed.Commit(t.Context()))
		require.NoError(t, aborted.Rollback(t.Context()))
		require.Len(t, claimAll(t, l, "invoice"), 45)
		require.Equal(t, int64(45), mustStatus(t, l, acme).Accepted)
		_, err := l.Status(t.Context(), Group{"invoice", "zeta"})
		require.ErrorIs(t, err, ErrNotFound)

		db := stdlib.OpenDB(*committed.Conn().Config())
		defer func() { _ = db.Close() }()
		tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
		require.NoError(t, err)
		other := record("acme", 2)
		other.Payload = []byte("another request")
		require.NoError(t, l.AcceptTx(t.Context(), SQLTx(tx), []Record{record("beta", 1), record("acme", 1)}), "one is known")
		require.NoError(t, tx.Commit())
		require.Len(t, claimAll(t, l, "invoice"), 1)
		tx, err = db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		require.ErrorIs(t, l.AcceptTx(t.Context(), SQLTx(tx), []Record{other}), ErrConflict)
		require.NoError(t, tx.Rollback())
		tx, err = db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		require.ErrorIs(t, l.AcceptTx(t.Context(), SQLTx(tx), []Record{record("beta", 2), {Key: record("beta", 2).Key, Payload: []byte("else")}}), ErrConflict, "in one call")
		require.NoError(t, tx.Rollback())
	})
}

func TestATransactionOfAnotherDatabaseIsRefused(t *testing.T) {
	t.Parallel()
	onPostgres(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		elsewhere := newTestDB(sqldbtest.Schema(t))
		elsewhere.open(t)
		// The names of all tables have the schema of the ledger, whatever the caller's search_path is.
		require.NoError(t, l.AcceptTx(t.Context(), PgxTx(elsewhere.begin(t)), []Record{record("acme", 1)}))
		copied := l.home
		copied.id = "another"
		l.mu.Lock()
		l.home = copied
		l.mu.Unlock()
		require.ErrorIs(t, l.AcceptTx(t.Context(), PgxTx(h.begin(t)), []Record{record("acme", 1)}), ErrOtherLedger)

		file := newTestDB(sqldbtest.File(t)).open(t)
		db := file.store.(*sqliteStore).readers
		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		defer func() { _ = tx.Rollback() }()
		require.ErrorIs(t, l.AcceptTx(t.Context(), SQLTx(tx), []Record{record("acme", 1)}), ErrOtherLedger, "a SQLite file has no such schema")
		require.ErrorIs(t, file.AcceptTx(t.Context(), SQLTx(tx), []Record{record("acme", 1)}), ErrOtherLedger, "nor is it a place for callers")
	})
}

// A transaction of a caller stays open: what it holds stops only records with its keys. It never delays
// a pause, a claim, a cancellation or another record of its group.
func TestAnOpenTransactionOfACallerStopsOnlyItsKeys(t *testing.T) {
	t.Parallel()
	onPostgres(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		tx := h.begin(t)
		require.NoError(t, l.AcceptTx(t.Context(), PgxTx(tx), []Record{record("acme", 7)}))

		results, err := l.Accept(t.Context(), records("acme", 40))
		require.NoError(t, err)
		for i, r := range results {
			if i == 7 {
				require.ErrorIs(t, r.Err, ErrUnavailable)
				require.ErrorIs(t, r.Err, pipeline.ErrUnavailable)
				require.ErrorContains(t, r.Err, "acme n7")
				continue
			}
			require.Equal(t, AcceptResult{Accepted: Fresh}, r, i)
		}
		require.Len(t, claimAll(t, l, "invoice"), 39, "the claim also makes the row of the group")
		require.NoError(t, l.Pause(t.Context(), acme, operator))
		require.NoError(t, l.Resume(t.Context(), acme, operator))
		require.NoError(t, l.Sweep(t.Context()))
		_, err = l.Cancel(t.Context(), acme, operator)
		require.NoError(t, err)

		// What the caller commits into a cancelled group is cancelled when it is claimed.
		require.NoError(t, tx.Commit(t.Context()))
		require.Empty(t, claimAll(t, l, "invoice"))
		require.Equal(t, rules.Cancelled, mustExplain(t, l, key("acme", 7)).Row.State)
		require.Equal(t, []Accepted{Cancelled}, mustAccept(t, l, record("acme", 7)))
	})
}

// A caller holds many keys for longer than any limit, and a batch has them among others. The others are accepted.
func TestAnOpenTransactionOfACallerMayHoldManyKeys(t *testing.T) {
	t.Parallel()
	onPostgres(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		all := records("acme", 256)
		slices.SortFunc(all, func(a, b Record) int { return strings.Compare(a.ID, b.ID) })
		var held []Record
		for i := 0; i < len(all); i += 4 {
			held = append(held, all[i])
		}
		require.NoError(t, l.AcceptTx(t.Context(), PgxTx(h.begin(t)), held))
		results, err := l.Accept(t.Context(), all)
		require.NoError(t, err)
		for i, r := range results {
			if i%4 == 0 {
				require.ErrorIs(t, r.Err, ErrUnavailable)
				continue
			}
			require.Equal(t, AcceptResult{Accepted: Fresh}, r, i)
		}
	})
}

func TestAnEffectThatCommitsLateIsFound(t *testing.T) {
	t.Parallel()
	onPostgres(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		tx := h.begin(t)
		require.NoError(t, l.AcceptTx(t.Context(), PgxTx(tx), []Record{record("acme", 1)}))
		mustAccept(t, l, record("acme", 2))
		require.Len(t, claimAll(t, l, "invoice"), 1, "the later one is first")
		require.NoError(t, tx.Commit(t.Context()))
		claimed := claimAll(t, l, "invoice")
		require.Len(t, claimed, 1)
		require.Equal(t, key("acme", 1), claimed[0].Key)
	})
}
