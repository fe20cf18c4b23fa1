package promotion

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	key, err := payoutKey(l.Subject)
	switch {
	case err != nil:
		return deadletter.Refuse("%s", err), nil
	case l.Class == ledger.ClassConflict:
		return cameSecond(key), nil
	}
	done, err := d.run.ledger.Replay(ctx, key, ledger.Replay{Letter: l.ID, Generation: l.Generation, Who: by.Who, Why: by.Why})
	switch {
	case errors.Is(err, ledger.ErrNotFound):
		return noPayout(key), nil
	case err != nil:
		return deadletter.Outcome{}, fmt.Errorf("promotion: replay %s: %w", key, err)
	}
	switch done.Outcome {
	case ledger.ReplayDone:
		return deadletter.Outcome{Result: letters.OutcomeReplayed}, nil
	case ledger.ReplayAlready:
		return replayedBefore(key, done.State), nil
	case ledger.ReplayRefused:
		return deadletter.Refuse("%s: %s", key, done.Reason), nil
	}
	return deadletter.Outcome{}, fmt.Errorf("promotion: replay %s: the ledger answers %q", key, done.Outcome)
}

// Look implements deadletter.Replayer. It answers what Replay would.
func (d deadReplays) Look(ctx context.Context, l letters.Letter) (deadletter.Standing, error) {
	key, err := payoutKey(l.Subject)
	if err != nil {
		return deadletter.Standing{Replay: deadletter.Refuse("%s", err)}, nil
	}
	x, err := d.run.ledger.Explain(ctx, key)
	switch {
	case errors.Is(err, ledger.ErrNotFound):
		return deadletter.Standing{State: "not in the ledger", Replay: noPayout(key)}, nil
	case err != nil:
		return deadletter.Standing{}, fmt.Errorf("promotion: look at %s: %w", key, err)
	}
	s := deadletter.Standing{State: string(x.State), Replay: foreseen(x, l)}
	switch {
	case x.State == ledger.Success:
		s.State += ", " + x.TransactionKey
	case l.Class == ledger.ClassConflict:
		// What became of the first record is not this letter's to remind of.
	case x.State == ledger.Unknown:
		s.Unsettled = fmt.Sprintf("%s is UNKNOWN, it may have been charged: find out, then millrace unknown resolve %s %d %d --paid TRANSACTION_KEY | --unpaid, with --why",
			key, key.Type, key.Promotion, key.Target)
	case x.State == ledger.Failed:
		s.Remains = fmt.Sprintf("%s stays FAILED: nobody is paid", key)
	}
	return s, nil
}

// foreseen is what Replay would answer for a payout that the ledger has, by the rules of ledger.Replay.
func foreseen(x ledger.Explanation, l letters.Letter) deadletter.Outcome {
	key := x.Key
	refuse := func(format string, args ...any) deadletter.Outcome {
		return deadletter.Refuse("%s: %s", key, fmt.Sprintf(format, args...))
	}
	before := fmt.Sprintf("letter %s, generation %d: ", l.ID, l.Generation)
	switch {
	case l.Class == ledger.ClassConflict:
		return cameSecond(key)
	case slices.ContainsFunc(x.Audit, func(a ledger.Audit) bool { return a.Action == "replay" && strings.HasPrefix(a.Detail, before) }):
		return replayedBefore(key, x.State)
	case x.State == ledger.Success:
		return refuse("it is paid, transaction key %s", x.TransactionKey)
	case x.State == ledger.Cancelled:
		return refuse("it was cancelled with its promotion")
	case !x.State.Settled():
		return refuse("it is %s: it is being paid", x.State)
	case x.PromotionState == ledger.PromotionCancelled:
		return refuse("its promotion is cancelled")
	}
	return deadletter.Outcome{Result: letters.OutcomeReplayed}
}

func cameSecond(k ledger.Key) deadletter.Outcome {
	return deadletter.Refuse("another request for %s came first, and the first one wins", k)
}

func noPayout(k ledger.Key) deadletter.Outcome {
	return deadletter.Refuse("the ledger has no payout %s", k)
}

func replayedBefore(k ledger.Key, now ledger.State) deadletter.Outcome {
	return deadletter.Outcome{Result: letters.OutcomeAlready, Reason: fmt.Sprintf("%s is %s", k, now)}
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
