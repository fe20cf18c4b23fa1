package payout

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// Replays replays dead letters of payouts. The payout's row becomes due again, with its request and
// its key, and the feeder of a running instance enqueues it.
type Replays struct {
	Ledger func() *ledger.Ledger
	// Services registers the service that opens the ledger in a process that only replays.
	Services func(*pipeline.Registry)
}

// Register implements deadletter.Replayer.
func (r Replays) Register(registry *pipeline.Registry) error {
	r.Services(registry)
	return nil
}

// Replay implements deadletter.Replayer.
func (r Replays) Replay(ctx context.Context, l store.DeadLetter, by store.By) (store.Outcome, error) {
	key, err := payoutKey(l.Subject)
	if err != nil {
		return store.Refuse("%s", err), nil
	}
	done, err := r.replay(ctx, key, l, ledger.Replay{Who: by.Who, Why: by.Why})
	if err != nil {
		return store.Outcome{}, fmt.Errorf("promotion: replay %s: %w", key, err)
	}
	return done, nil
}

// replay replays a dead letter in the ledger, or announces its payout.
func (r Replays) replay(ctx context.Context, key payouts.Key, l store.DeadLetter, how ledger.Replay) (store.Outcome, error) {
	if l.Class == rules.ClassConflict {
		return store.Refuse("another request for %s came first, and the first one wins", key), nil
	}
	how.DeadLetter, how.Generation = l.ID, l.Generation
	var done ledger.ReplayResult
	var err error
	if l.Class == rules.ClassUnannounced {
		var rec payouts.Record
		if rec, err = announcement(key, l); err != nil {
			return store.Refuse("%s", err), nil
		}
		done, err = r.Ledger().Announce(ctx, rec, how)
	} else {
		done, err = r.Ledger().Replay(ctx, key, how)
	}
	switch {
	case errors.Is(err, ledger.ErrNotFound):
		return store.Refuse("the ledger has no payout %s", key), nil
	case err != nil:
		return store.Outcome{}, err
	}
	switch done.Outcome {
	case ledger.ReplayDone:
		return store.Outcome{Result: store.OutcomeReplayed}, nil
	case ledger.ReplayAlready:
		return store.Outcome{Result: store.OutcomeAlready, Reason: fmt.Sprintf("%s is %s", key, done.State)}, nil
	case ledger.ReplayRefused:
		return store.Refuse("%s: %s", key, done.Reason), nil
	}
	return store.Outcome{}, fmt.Errorf("the ledger answers %q", done.Outcome)
}

// announcement returns the record of a dead letter of class unannounced.
func announcement(key payouts.Key, l store.DeadLetter) (payouts.Record, error) {
	t, known := promotiontype.ByName(string(key.Type))
	if !known {
		return payouts.Record{}, fmt.Errorf("this version does not have the type %s", key.Type)
	}
	rec := payouts.Record{Payload: l.Payload, Headers: l.Headers, RecordKey: []byte(l.Key), Origin: l.Source.String(), Route: l.Handler}
	if err := decode(t, &rec); err != nil {
		return payouts.Record{}, err
	}
	if rec.Key != key {
		return payouts.Record{}, fmt.Errorf("the dead letter is about %s, its payload about %s", key, rec.Key)
	}
	return rec, nil
}

// Preview implements deadletter.Replayer. The ledger tries the replay and rolls it back.
func (r Replays) Preview(ctx context.Context, l store.DeadLetter) (store.Status, error) {
	key, err := payoutKey(l.Subject)
	if err != nil {
		return store.Status{Replay: store.Refuse("%s", err)}, nil
	}
	replay, err := r.replay(ctx, key, l, ledger.Replay{DryRun: true})
	if err != nil {
		return store.Status{}, fmt.Errorf("promotion: preview %s: %w", key, err)
	}
	x, err := r.Ledger().Explain(ctx, key)
	switch {
	case errors.Is(err, ledger.ErrNotFound):
		return store.Status{State: "not in the ledger", Replay: replay}, nil
	case err != nil:
		return store.Status{}, fmt.Errorf("promotion: preview %s: %w", key, err)
	}
	s := store.Status{State: string(x.State), Replay: replay}
	switch {
	case x.State == rules.Success:
		s.State += ", " + x.Receipt
	case Offered(l.Class):
		// The state is that of the stored record, and not of this dead letter.
	case x.State == rules.Unknown:
		s.Unsettled = fmt.Sprintf("%s is UNKNOWN, it may have been charged: find out, then millrace unknown resolve %s %d %d --paid TRANSACTION_KEY | --unpaid, with --why",
			key, key.Type, key.Promotion, key.Target)
	case x.State == rules.Failed:
		s.Remains = fmt.Sprintf("%s stays FAILED: nothing is paid", key)
	}
	return s, nil
}

// payoutKey parses the text of payouts.Key.String.
func payoutKey(text string) (payouts.Key, error) {
	parts := strings.Split(text, ":")
	if len(parts) == 3 {
		promotion, err1 := strconv.ParseInt(parts[1], 10, 64)
		target, err2 := strconv.ParseInt(parts[2], 10, 64)
		if k := (payouts.Key{Type: payouts.Type(parts[0]), Promotion: promotion, Target: target}); err1 == nil && err2 == nil && k.String() == text {
			return k, nil
		}
	}
	return payouts.Key{}, fmt.Errorf("%q is no payout", text)
}
