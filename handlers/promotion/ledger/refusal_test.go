package ledger

import (
	"log/slog"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// The state of the server is no fault of a record: the calls may be repeated, an operator finds the
// reason and the repair in the log, and after the repair everything is stored.
func TestARefusalByTheServersStateIsNoFaultOfARecord(t *testing.T) {
	t.Parallel()
	rival := record(1, 1)
	rival.Payload = []byte(`{"promotionId":1,"targetId":1,"amount":1}`)
	for name, c := range map[string]struct {
		broken []string // statements
		call   func(t *testing.T, l *Ledger) error
		logged []string
		repair string // empty: the statement that the log names
	}{
		"a sequence behind its table, settle": {
			[]string{`ALTER TABLE outbox ALTER COLUMN id RESTART WITH 1`},
			func(t *testing.T, l *Ledger) error {
				_, err := l.Settle(t.Context(), payouts.CallResult{Key: key(1, 2), CallResult: rules.CallResult{Epoch: 1, Outcome: rules.Rejected, Class: "rejected", Answer: "no", Route: "point"}})
				return err
			},
			[]string{"operation=settle", "sqlstate=23505", "constraint=outbox_pkey", "table=outbox"}, "",
		},
		"a sequence behind its table, accept": {
			[]string{`ALTER TABLE outbox ALTER COLUMN id RESTART WITH 1`},
			func(t *testing.T, l *Ledger) error { _, err := l.acceptOne(t.Context(), rival, false); return err },
			[]string{"operation=accept", "sqlstate=23505", "constraint=outbox_pkey", "table=outbox"}, "",
		},
		"a sequence at its end": {
			[]string{`ALTER TABLE payouts ALTER COLUMN id SET MAXVALUE 50`, `SELECT setval(pg_get_serial_sequence('payouts', 'id'), 50)`},
			func(t *testing.T, l *Ledger) error {
				_, err := l.acceptOne(t.Context(), record(1, 90), false)
				return err
			},
			[]string{"operation=accept", "sqlstate=2200H", "raise its MAXVALUE"}, `ALTER TABLE payouts ALTER COLUMN id SET MAXVALUE 5000`,
		},
		"a missing partition": {
			[]string{
				`ALTER TABLE payout_attempts RENAME TO old_attempts`,
				`CREATE TABLE payout_attempts (LIKE old_attempts INCLUDING INDEXES) PARTITION BY RANGE (promotion_id)`,
			},
			func(t *testing.T, l *Ledger) error {
				_, err := l.Settle(t.Context(), payouts.CallResult{Key: key(1, 2), CallResult: rules.CallResult{Epoch: 1, Outcome: rules.Done, Receipt: "T"}})
				return err
			},
			[]string{"operation=settle", "sqlstate=23514", "create the missing partition of payout_attempts"},
			`CREATE TABLE every_attempt PARTITION OF payout_attempts DEFAULT`,
		},
		"a constraint that guards the ledger": {
			[]string{`ALTER TABLE payouts ADD CONSTRAINT nothing_here CHECK (target_id <> 90)`},
			func(t *testing.T, l *Ledger) error {
				_, err := l.acceptOne(t.Context(), record(1, 90), false)
				return err
			},
			[]string{"operation=accept", "sqlstate=23514", "constraint=nothing_here", "table=payouts"}, `ALTER TABLE payouts DROP CONSTRAINT nothing_here`,
		},
	} {
		t.Run("postgres, "+name, func(t *testing.T) {
			t.Parallel()
			h := newPostgresDB(t)
			h.open(t)
			conn := h.connect(t)
			exec := executes(t, conn)
			exec(`INSERT INTO outbox (id, kind, type, promotion_id, target_id, class, error, payload, headers, origin, handler, attempts, created_at, published_at)
				OVERRIDING SYSTEM VALUE SELECT n, 'dead', 'POINT', 7, n, 'c', 'e', '', '', '', '', 1, now(), now() FROM generate_series(1, 5000) AS n`)
			exec(`SELECT setval(pg_get_serial_sequence('outbox', 'id'), 5000)`)

			var log pipelinetest.Buffer
			cfg, opts := h.config()
			opts.OutcomeEvents = false
			l, err := Open(t.Context(), cfg, opts, slog.New(slog.NewTextHandler(&log, nil)))
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, l.Close()) })
			mustAccept(t, l, record(1, 1))
			mustAccept(t, l, record(1, 2))
			require.EqualValues(t, 1, mustBegin(t, l, record(1, 2)).Epoch)

			for _, sql := range c.broken {
				exec(sql)
			}
			for range 3 {
				err := c.call(t, l)
				require.ErrorIs(t, err, ErrRefusedByDatabase)
				require.NotErrorIs(t, err, rules.ErrInvalid)
			}
			require.Len(t, regexp.MustCompile(`level=ERROR`).FindAllString(log.String(), -1), 1, "sampled: %s", log.String())
			for _, part := range c.logged {
				require.Contains(t, log.String(), part)
			}
			if c.repair == "" {
				c.repair = regexp.MustCompile(`SELECT setval.* FROM \w+`).FindString(log.String())
				require.NotEmpty(t, c.repair, log.String())
			}
			exec(c.repair)
			require.Eventually(t, func() bool { return c.call(t, l) == nil }, 2*time.Minute, 10*time.Millisecond)
		})
	}
}
