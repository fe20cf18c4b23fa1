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
	key, err := payoutKey(l.Subject)
	if err != nil {
		return deadletter.Refuse("%s", err), nil
	}
	done, err := d.replay(ctx, key, l, ledger.Replay{Who: by.Who, Why: by.Why})
	if err != nil {
		return deadletter.Outcome{}, fmt.Errorf("promotion: replay %s: %w", key, err)
	}
	return done, nil
}

// replay has the ledger answer for a letter about a payout.
func (d deadReplays) replay(ctx context.Context, key ledger.Key, l letters.Letter, r ledger.Replay) (deadletter.Outcome, error) {
	if l.Class == ledger.ClassConflict {
		return deadletter.Refuse("another request for %s came first, and the first one wins", key), nil
	}
	r.Letter, r.Generation = l.ID, l.Generation
	var done ledger.Replayed
	var err error
	if l.Class == ledger.ClassUnannounced {
		var rec ledger.Record
		if rec, err = announcement(key, l); err != nil {
			return deadletter.Refuse("%s", err), nil
		}
		done, err = d.run.ledger.Announce(ctx, rec, r)
	} else {
		done, err = d.run.ledger.Replay(ctx, key, r)
	}
	switch {
	case errors.Is(err, ledger.ErrNotFound):
		return deadletter.Refuse("the ledger has no payout %s", key), nil
	case err != nil:
		return deadletter.Outcome{}, err
	}
	switch done.Outcome {
	case ledger.ReplayDone:
		return deadletter.Outcome{Result: letters.OutcomeReplayed}, nil
	case ledger.ReplayAlready:
		return deadletter.Outcome{Result: letters.OutcomeAlready, Reason: fmt.Sprintf("%s is %s", key, done.State)}, nil
	case ledger.ReplayRefused:
		return deadletter.Refuse("%s: %s", key, done.Reason), nil
	}
	return deadletter.Outcome{}, fmt.Errorf("the ledger answers %q", done.Outcome)
}

// announcement makes the record that a dead letter of class unannounced offers.
func announcement(key ledger.Key, l letters.Letter) (ledger.Record, error) {
	s, known := strategyOf(string(key.Type))
	if !known {
		return ledger.Record{}, fmt.Errorf("this version does not know the type %s", key.Type)
	}
	pay, err := s.decode(l.Payload)
	if err != nil {
		return ledger.Record{}, err
	}
	rec := ledger.Record{Key: s.key(pay), SummaryID: pay.summary, Payload: l.Payload, Request: pay.request,
		Headers: l.Headers, RecordKey: []byte(l.Key), Origin: l.Source.String(), Handler: l.Handler}
	if rec.Key != key {
		return ledger.Record{}, fmt.Errorf("the letter is about %s, its payload about %s", key, rec.Key)
	}
	return rec, nil
}

// Look implements deadletter.Replayer: the ledger tries the replay, and takes it back.
func (d deadReplays) Look(ctx context.Context, l letters.Letter) (deadletter.Standing, error) {
	key, err := payoutKey(l.Subject)
	if err != nil {
		return deadletter.Standing{Replay: deadletter.Refuse("%s", err)}, nil
	}
	replay, err := d.replay(ctx, key, l, ledger.Replay{DryRun: true})
	if err != nil {
		return deadletter.Standing{}, fmt.Errorf("promotion: look at %s: %w", key, err)
	}
	x, err := d.run.ledger.Explain(ctx, key)
	switch {
	case errors.Is(err, ledger.ErrNotFound):
		return deadletter.Standing{State: "not in the ledger", Replay: replay}, nil
	case err != nil:
		return deadletter.Standing{}, fmt.Errorf("promotion: look at %s: %w", key, err)
	}
	s := deadletter.Standing{State: string(x.State), Replay: replay}
	switch {
	case x.State == ledger.Success:
		s.State += ", " + x.TransactionKey
	case offered(l.Class):
		// What became of the stored record is not this letter's to remind of.
	case x.State == ledger.Unknown:
		s.Unsettled = fmt.Sprintf("%s is UNKNOWN, it may have been charged: find out, then millrace unknown resolve %s %d %d --paid TRANSACTION_KEY | --unpaid, with --why",
			key, key.Type, key.Promotion, key.Target)
	case x.State == ledger.Failed:
		s.Remains = fmt.Sprintf("%s stays FAILED: nobody is paid", key)
	}
	return s, nil
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
