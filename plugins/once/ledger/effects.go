package ledger

import (
	"context"
	"time"

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// Effect is an effect as it was at one moment, without its calls.
type Effect struct {
	ID          string
	State       rules.State
	PerhapsDone bool // it is not settled, and may have been done
	Sent        bool // a request for it may have reached the far side
	AcceptedAt  time.Time
	SettledAt   time.Time // zero: not settled
	Receipt     string
	Payload     []byte // nil unless it was asked for
}

// effectPage is the number of effects that EachEffect reads at once.
const effectPage = 1000

// The statements of a page, in the order of the key.
//
//nolint:gochecknoglobals // constant, but not for the compiler
var (
	sqlEffectPage = `SELECT ` + reads(rowColumns, "") + ` FROM once_effects WHERE kind = $1 AND grp = $2 AND id > $3 ORDER BY kind, grp, id LIMIT $4`

	effectAndPayloadColumns = append(rowColumns[:len(rowColumns):len(rowColumns)], messageColumns[0])

	sqlEffectAndPayloadPage = `SELECT ` + reads(effectAndPayloadColumns, "") + ` FROM once_effects WHERE kind = $1 AND grp = $2 AND id > $3 ORDER BY kind, grp, id LIMIT $4`
)

// EachEffect calls fn for every effect of a group in the order of ids, byte by byte, in bounded memory. It is no
// snapshot: each page is read by itself and shows what is committed then, so no transaction stays open, and fn may
// take its time. Effects that are accepted meanwhile may be missing, and each one that was there before appears once,
// in a state that it had since the call began. An error of fn ends it. A kind that no program has registered returns
// ErrNotFound.
func (l *Ledger) EachEffect(ctx context.Context, g Group, payloads bool, fn func(Effect) error) error {
	sql, columns := sqlEffectPage, rowColumns
	if payloads {
		sql, columns = sqlEffectAndPayloadPage, effectAndPayloadColumns
	}
	for last := ""; ; {
		var page []*storedRow
		var k *kind
		err := l.call(ctx, "effects", func(ctx context.Context) (err error) {
			if k, err = l.known(ctx, g.Kind); err != nil {
				return err
			}
			page, err = selectAll(ctx, l, func(r scanner, to **storedRow, _ time.Time) (err error) {
				*to, err = scanRow(r, columns)
				return err
			}, sql, k.number, g.Name, last, effectPage)
			return err
		})
		if err != nil {
			return err
		}
		for _, row := range page {
			if err := fn(k.effect(row)); err != nil {
				return err
			}
			last = row.id
		}
		if len(page) < effectPage {
			return nil
		}
	}
}

// effect is what is known of a row, a restore of the database included.
func (k *kind) effect(r *storedRow) Effect {
	_, lost := k.policy().MayBeLost(r.Row)
	return Effect{
		ID: r.id, State: r.State, PerhapsDone: !r.State.Settled() && (lost || r.PerhapsDone()), Sent: !r.KeyFirstUsedAt.IsZero(),
		AcceptedAt: r.AcceptedAt, SettledAt: r.SettledAt, Receipt: r.Receipt, Payload: r.payload,
	}
}

// Now returns the time of the ledger, which is that of its database.
func (l *Ledger) Now(ctx context.Context) (now time.Time, err error) {
	err = l.call(ctx, "time", func(ctx context.Context) error {
		return l.store.read(ctx, func(_ querier, at time.Time) error { now = at; return nil })
	})
	return now, err
}
