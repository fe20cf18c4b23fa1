package promotion

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/deadletter"
	"github.com/millrace-io/millrace/plugins/deadletter/letters"
)

// deadName is the name of the outbox, and of the plugin whose letters are in it.
const deadName = "promotion"

// letterID is the same whenever a dead letter is relayed. The time tells rows of two ledgers apart.
func letterID(m ledger.Message) string {
	return letters.ID(deadName, strconv.FormatInt(m.ID, 10), strconv.FormatInt(m.CreatedAt.UnixMicro(), 10))
}

// deadReplays replays dead letters of payouts: the payout's row goes back among those that are due, with the
// request and the key it has always had, and the feeder of a running instance takes it from there.
type deadReplays struct{ run *engine }

// Register implements deadletter.Replayer.
func (d deadReplays) Register(r *pipeline.Registry) error {
	d.run.prepare(r.Env(), r.Env().Logger)
	r.Service("promotion.ledger", d.run.ledgerService())
	return nil
}

// Replay implements deadletter.Replayer.
func (d deadReplays) Replay(ctx context.Context, l letters.Letter, by letters.By) (deadletter.Outcome, error) {
	if l.Class == ledger.ClassConflict {
		return deadletter.Refuse("another request for %s came first, and the first one wins", l.Subject), nil
	}
	key, err := payoutKey(l.Subject)
	if err != nil {
		return deadletter.Refuse("%s", err), nil
	}
	done, err := d.run.ledger.Replay(ctx, key, ledger.Replay{Letter: l.ID, Generation: l.Generation, Who: by.Who, Why: by.Why})
	switch {
	case errors.Is(err, ledger.ErrNotFound):
		return deadletter.Refuse("the ledger has no payout %s", key), nil
	case err != nil:
		return deadletter.Outcome{}, fmt.Errorf("promotion: replay %s: %w", key, err)
	}
	switch done.Outcome {
	case ledger.ReplayDone:
		return deadletter.Outcome{Result: letters.OutcomeReplayed}, nil
	case ledger.ReplayAlready:
		return deadletter.Outcome{Result: letters.OutcomeAlready, Reason: fmt.Sprintf("%s is %s", key, done.State)}, nil
	case ledger.ReplayRefused:
		return deadletter.Refuse("%s: %s", key, done.Reason), nil
	}
	return deadletter.Outcome{}, fmt.Errorf("promotion: replay %s: the ledger answers %q", key, done.Outcome)
}

// payoutKey reads what ledger.Key.String writes.
func payoutKey(text string) (ledger.Key, error) {
	parts := strings.Split(text, ":")
	if len(parts) == 3 {
		promotion, err1 := strconv.ParseInt(parts[1], 10, 64)
		target, err2 := strconv.ParseInt(parts[2], 10, 64)
		if k := (ledger.Key{Type: ledger.Type(parts[0]), Promotion: promotion, Target: target}); err1 == nil && err2 == nil && k.String() == text {
			return k, nil
		}
	}
	return ledger.Key{}, fmt.Errorf("%q is no payout", text)
}

var _ deadletter.Replayer = deadReplays{}
