package once_test

import (
	"context"
	"database/sql"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/ledger"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/once/oncetest"
	"github.com/millrace-io/millrace/plugins/sqldb"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// tablesOf opens the database of a ledger.
func tablesOf(t *testing.T, dsn string) (db *sql.DB) {
	t.Helper()
	var err error
	if portable.DialectOf(dsn) == portable.SQLite {
		file, wrong := sqldb.ParseFile(dsn)
		require.NoError(t, wrong)
		db, err = file.Open(t.Context(), nil)
	} else {
		db, _, _, err = sqldb.OpenPostgres(setting.NewSecret(dsn), nil)
	}
	require.NoError(t, err)
	return db
}

// backup keeps the effects of a ledger. restore puts them back.
func backup(t *testing.T, dsn string) (restore func()) {
	t.Helper()
	each := func(statements ...string) {
		db := tablesOf(t, dsn)
		defer func() { require.NoError(t, db.Close()) }()
		for _, table := range []string{"effects", "due", "groups", "attempts", "problems", "deltas", "totals", "slots"} {
			for _, s := range statements {
				_, err := db.ExecContext(t.Context(), s+table+map[bool]string{true: " SELECT * FROM backup_" + table}[s == "INSERT INTO once_"]+
					map[bool]string{true: " AS SELECT * FROM once_" + table}[s == "CREATE TABLE backup_"])
				require.NoError(t, err, s)
			}
		}
	}
	each("CREATE TABLE backup_")
	return func() { each("DELETE FROM once_", "INSERT INTO once_") }
}

// recordAt is a record of the topic with the time at which it was published.
func recordAt(i invoice, at time.Time) *message.Message {
	m := message.NewMessage(watermill.NewULID(), []byte(i.payload()))
	m.SetContext(pipeline.WithDelivery(context.Background(), pipeline.Delivery{Published: at}))
	return m
}

// What was done after the backup is not done again, as far as the far side allows: before anything is sent,
// it is looked up.
func TestARestoredLedgerLooksBeforeItSends(t *testing.T) {
	t.Parallel()
	type end struct {
		state rules.State
		times int
	}
	var (
		found, sent       = end{rules.Success, 1}, end{rules.Success, 1}
		perhaps, isNot    = end{rules.Unknown, 1}, end{rules.Unknown, 0}
		withoutLookup     = func(k *once.Kind[invoice]) { k.Lookup = nil }
		executesEachOne   = once.Never // also with a known key
		executesOncePerID = once.ByKey
	)
	for name, c := range map[string]struct {
		repeat, far   once.Repeat
		change        func(*once.Kind[invoice])
		ago           time.Duration // the backup
		done, notDone end           // in the lost time
		says          string
	}{
		"a key and a lookup":         {once.ByKey, executesEachOne, nil, minute, found, sent, "Each is looked up before anything is sent. What is not found is sent again with its key until its key is"},
		"a lookup":                   {once.ByLookup, executesEachOne, nil, minute, found, sent, "because a request may be under way for 1m0s. What is not found is sent."},
		"an old key and a lookup":    {once.ByKey, executesEachOne, nil, 2 * hour, found, isNot, "What is not found ends UNKNOWN, because the far side may have forgotten a key that is older than 1h0m0s."},
		"a key":                      {once.ByKey, executesOncePerID, withoutLookup, minute, found, sent, "The kind has no lookup, so each is sent again with its key until"},
		"an old key":                 {once.ByKey, executesEachOne, withoutLookup, 2 * hour, perhaps, isNot, "The kind has no lookup, so each ends UNKNOWN"},
		"neither":                    {once.Never, executesEachOne, nil, minute, perhaps, isNot, "Each ends UNKNOWN"},
		"neither, and it is no harm": {once.Always, executesEachOne, nil, minute, end{rules.Success, 2}, sent, "Each is sent again"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			each(t, func(t *testing.T, w *oncetest.World) {
				var ready atomic.Bool
				far := oncetest.NewFar(c.far)
				plugin := func(o *once.Plugin) *invoices {
					p := newInvoices(o, c.repeat, func(k *once.Kind[invoice], config *once.KindConfig) {
						k.Gate, config.Topic, config.Group = gate(ready.Load), "invoice", "millrace-invoice"
						if c.change != nil {
							c.change(k)
						}
					})
					p.far = far
					return p
				}
				dsn := w.Once.Settings().(*once.Config).Ledger.DSN.Reveal()
				numbered := func(n string) invoice { return invoice{Customer: "acme", Number: n} }
				before, pendingDone, pendingNot, reread, fresh, handled := numbered("1"), numbered("2"), numbered("3"), numbered("4"), numbered("5"), numbered("6")

				p := plugin(w.Once)
				stop := w.StartUntil(p)
				enqueue := func(i invoice) {
					_, err := p.effects.Enqueue(t.Context(), i)
					require.NoError(t, err)
				}
				ready.Store(true)
				enqueue(before)
				oncetest.Settled(t, p.effects, before.key())
				require.NoError(t, stop())
				ready.Store(false)

				w = oncetest.On(t, dsn)
				p = plugin(w.Once)
				stop = w.StartUntil(p) // a worker that was ready may claim once more, so this is another one
				enqueue(pendingDone)
				require.NoError(t, stop())
				restore := backup(t, dsn)

				w = oncetest.On(t, dsn)
				p = plugin(w.Once)
				stop = w.StartUntil(p)
				ready.Store(true)
				published := time.Now()
				inHandler := recordAt(handled, published).Context()
				require.NoError(t, p.effects.Accept(inHandler, handled))
				w.Topics.Feed("invoice").Send(recordAt(reread, published))
				for _, i := range []invoice{pendingDone, reread, handled} {
					require.Equal(t, rules.Success, oncetest.Settled(t, p.effects, i.key()).State)
				}
				require.NoError(t, stop())
				ready.Store(false)
				restore()

				w = oncetest.On(t, dsn)
				p = plugin(w.Once)
				stop = w.StartUntil(p) // only to have one that was not done in the lost time
				enqueue(pendingNot)
				require.NoError(t, stop())

				o := commandOf(t, dsn, func(o *once.Plugin) pipeline.Plugin { return plugin(o) })
				in := input("", "since", time.Now().Add(-c.ago).UTC().Format(time.RFC3339))
				a := o.must("once recover", in)
				require.Regexp(t, `^invoice: 2 effects are open, and may have been called for since .*Z\.$`, a.Lines[0])
				require.Contains(t, a.Lines[2], c.says)
				require.EqualValues(t, 2, a.Value.(ledger.Recovery).Open)
				require.Contains(t, strings.Join(o.must("once explain", input("2")).Lines, "\n"), "perhaps done    yes: the ledger was restored, and calls from")

				w = oncetest.On(t, dsn)
				p = plugin(w.Once)
				w.Start(p)
				ready.Store(true)
				w.Topics.Feed("invoice").Send(recordAt(reread, published), recordAt(fresh, time.Now().Add(minute)))
				require.NoError(t, p.effects.Accept(inHandler, handled))
				for _, one := range []struct {
					name    string
					invoice invoice
					want    end
				}{{"settled before", before, sent}, {"done", pendingDone, c.done}, {"not done", pendingNot, c.notDone}, {"read again", reread, c.done}, {"asked for again by a handler", handled, c.done}, {"new", fresh, sent}} {
					s := oncetest.SettledInTurns(t, w, p.effects, one.invoice.key())
					require.Equal(t, one.want, end{s.State, far.Executed(one.invoice.idempotency())}, "%s: %+v", one.name, s)
				}
			})
		})
	}
}

func TestARecoveryIsAskedForWithATime(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		p := newInvoices(w.Once, once.Never, nil)
		w.Start(p)
		o := operator{t, w}
		for in, problem := range map[string]operate.Input{
			`--since must be a time such as 2026-11-28T02:00:00Z, got "yesterday"`: input("", "since", "yesterday"),
			"the ledger can't be as it was at":                                     input("", "since", time.Now().Add(hour).Format(time.RFC3339)),
			`neither this program nor the ledger has the kind "nothing"`:           input("", "kind", "nothing", "since", "2026-01-01T00:00:00Z"),
		} {
			_, err := o.ask("once recover", problem)
			require.ErrorContains(t, err, in)
		}
		in := input("", "since", "2026-01-01T00:00:00Z")
		for _, a := range w.Once.Operations().Actions {
			if a.Name == "once recover" {
				_, err := a.Preview(t.Context(), nil, in)
				require.NoError(t, err)
			}
		}
		_, err := p.effects.Enqueue(t.Context(), one)
		require.NoError(t, err)
		require.Equal(t, rules.Success, oncetest.Settled(t, p.effects, one.key()).State, "a preview changes nothing")
		o.must("once recover", in)
		audit := o.must("once limit", input("", "in-flight", "4")).Tables[0].Rows
		require.Equal(t, []string{"recover", "me", "ticket 4711"}, audit[0][1:4])
		require.Contains(t, audit[0][4], "lost from 2026-01-01T00:00:00Z to ")
	})
}
