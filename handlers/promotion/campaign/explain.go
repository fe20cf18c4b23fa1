package campaign

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/payout"
	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// Explained is the history of one payout, as `campaign explain --json` writes it.
type Explained struct {
	Type           payouts.Type     `json:"type"`
	Promotion      int64            `json:"promotion"`
	Target         int64            `json:"target"`
	Key            string           `json:"idempotency_key"`
	State          rules.State      `json:"state"`
	PromotionState rules.GroupState `json:"promotion_state"`
	// all accepted payouts of the promotion are settled
	PromotionFinished bool      `json:"promotion_finished"`
	Origin            string    `json:"origin"`             // source of the accepted record or entry
	TraceID           string    `json:"trace_id,omitempty"` // in which it was accepted, and which its calls continue
	SpanID            string    `json:"span_id,omitempty"`  // in which it was accepted
	Record            string    `json:"record"`             // unchanged
	Request           string    `json:"request"`
	AcceptedAt        time.Time `json:"accepted_at"`
	SettledAt         time.Time `json:"settled_at,omitzero"`
	TransactionKey    string    `json:"transaction_key,omitempty"`
	// a request may have charged, one whose outcome is not stored included
	MaybeCharged bool `json:"maybe_charged"`
	// of the oldest request that may have charged
	FirstSentAt time.Time `json:"first_sent_at,omitzero"`
	// since it was accepted, or replayed
	Attempts int `json:"attempts"`
	Lookups  int `json:"asks"`
	// calls that spent no attempt and count towards max_released
	Released int `json:"released"`
	// when the idempotency key may have reached the Money API first
	KeyFirstUsedAt time.Time           `json:"key_first_used_at,omitzero"`
	Queue          rules.QueueLocation `json:"hint"`
	QueueDue       time.Time           `json:"hint_due"`
	// a call without a stored outcome is the last one and has neither ended_at nor outcome
	Calls       []payouts.Attempt     `json:"calls"`
	DeadLetters []ExplainedDeadLetter `json:"dead_letters"`
	Audit       []ledger.Audit        `json:"audit"`
	MoneyAPI    *lookup               `json:"money_api,omitempty"`
	Next        string                `json:"next"`
}

// explained adds the state of the dead letters, and the Money API's answer if it was queried, to an
// explanation of the ledger.
func (e Env) explained(ctx context.Context, x ledger.Explanation, answer *lookup) (Explained, error) {
	known, err := e.DeadLetters.About(ctx, e.Plugin, x.Key.String())
	if err != nil {
		return Explained{}, err
	}
	counts, err := e.Resources.Ledger().Status(ctx, x.OfPromotion())
	if err != nil {
		return Explained{}, err
	}
	traceID, spanID := pipeline.TraceOf(x.TraceParent)
	out := Explained{Type: x.Type, Promotion: x.Promotion, Target: x.Target, Key: x.Key.String(), State: x.State, PromotionState: x.PromotionState, PromotionFinished: counts.Finished(counts.TotalCount),
		Origin: x.Origin, Record: string(x.Payload), Request: string(x.Request), AcceptedAt: x.AcceptedAt, SettledAt: x.SettledAt,
		TransactionKey: x.Receipt, MaybeCharged: x.PerhapsDone(), FirstSentAt: x.FirstSentAt, Attempts: x.Attempts, Lookups: x.Lookups,
		TraceID: traceID, SpanID: spanID, Released: x.Released, KeyFirstUsedAt: x.KeyFirstUsedAt, Queue: x.Queue, QueueDue: x.QueueDue, Calls: []payouts.Attempt{},
		DeadLetters: e.explainDeadLetters(x.DeadLetters, known), Audit: []ledger.Audit{}, MoneyAPI: answer}
	out.Calls, out.Audit = append(out.Calls, x.Calls...), append(out.Audit, x.Audit...)
	out.Next = nextStep(x, e.Settings(), out.DeadLetters, answer, e.notHeardOf(ctx, x))
	return out, nil
}

// Explain returns the history of a payout and its next step. With queryAPI it asks the Money API for the charge, too.
// For a payout that is not in the ledger the error names the places to look next.
func (e Env) Explain(ctx context.Context, k payouts.Key, queryAPI bool) (Explained, error) {
	x, err := e.explanation(ctx, k)
	if err != nil {
		return Explained{}, err
	}
	var answer *lookup
	if queryAPI {
		answer = e.lookUp(ctx, x)
	}
	return e.explained(ctx, x, answer)
}

// Oldest returns the unsettled payouts of a promotion that were accepted first, at most limit of them, with the last answer
// and the next step of each.
func (e Env) Oldest(ctx context.Context, id payouts.Promotion, limit int) ([]OldPayout, error) {
	l, err := e.ledger()
	if err != nil {
		return nil, err
	}
	keys, err := l.Oldest(ctx, id, limit)
	if err != nil {
		return nil, err
	}
	all := []OldPayout{}
	for _, k := range keys {
		x, err := l.Explain(ctx, k)
		if errors.Is(err, ledger.ErrNotFound) || err == nil && x.State.Settled() {
			continue // since it was listed
		} else if err != nil {
			return nil, err
		}
		all = append(all, OldPayout{Row: x.Row, Next: nextStep(x, e.Settings(), nil, nil, e.notHeardOf(ctx, x))})
	}
	return all, nil
}

// OldPayout is an unsettled payout, and what happens to it next.
type OldPayout struct {
	payouts.Row
	Next string
}

// IsNotFound reports whether an error of Explain says that the payout is not in the ledger.
func IsNotFound(err error) bool { return errors.Is(err, errNoPayout) }

// errNoPayout is in the error about a payout that is not in the ledger.
var errNoPayout = errors.New("is not in the ledger")

// explanation reads the ledger. For a payout that is not in the ledger the error names the places
// to look next.
func (e Env) explanation(ctx context.Context, k payouts.Key) (ledger.Explanation, error) {
	l, err := e.ledger()
	if err != nil {
		return ledger.Explanation{}, err
	}
	x, err := l.Explain(ctx, k)
	if errors.Is(err, ledger.ErrNotFound) {
		paused := ""
		if e.Paused != nil {
			if paused = e.Paused(ctx, k.Type); paused != "" {
				paused = ". " + paused
			}
		}
		err = app.Bad("%s %w. If its record was published, it may still wait in Kafka (millrace campaign reconcile %s %d), or be a dead letter (millrace deadletter list); "+
			"a ledger that was restored from a backup may have had the payout before%s",
			k, errNoPayout, k.Type, k.Promotion, paused)
	}
	return x, err
}

// Write writes the history as text, with the next step last.
func (e Explained) Write(out io.Writer) error {
	if err := e.writeHistory(out); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "\nNext: %s\n", app.Printable(e.Next))
	return err
}

func (e Explained) writeHistory(out io.Writer) error {
	w := app.Table(out)
	fmt.Fprintf(w, "%s\t%s\n", e.Key, e.State)
	fmt.Fprintf(w, "  promotion\t%s\n  source\t%s\n", promotionState(e.PromotionState, e.PromotionFinished), app.Printable(e.Origin))
	if e.TraceID != "" {
		fmt.Fprintf(w, "  trace\t%s, span %s\n", e.TraceID, e.SpanID)
	}
	fmt.Fprintf(w, "  accepted\t%s\n  record\t%s\n", stamp(e.AcceptedAt), app.Printable(e.Record))
	if e.Request != e.Record {
		fmt.Fprintf(w, "  request\t%s\n", app.Printable(e.Request))
	}
	if e.MaybeCharged && e.State != rules.Success {
		fmt.Fprintf(w, "  perhaps charged\tby a request sent %s\n", stamp(e.FirstSentAt))
	}
	if !e.KeyFirstUsedAt.IsZero() {
		fmt.Fprintf(w, "  key first used\t%s\n", stamp(e.KeyFirstUsedAt))
	}
	if e.Released > 0 {
		fmt.Fprintf(w, "  released calls\t%d that count towards max_released\n", e.Released)
	}
	if !e.SettledAt.IsZero() {
		fmt.Fprintf(w, "  settled\t%s\n", stamp(e.SettledAt))
	}
	if e.TransactionKey != "" {
		fmt.Fprintf(w, "  transaction key\t%s\n", app.Printable(e.TransactionKey))
	}
	writeCalls(w, e.History())
	if open := e.OpenCall(); open != "" {
		fmt.Fprintf(w, "\n%s\n", app.Printable(open))
	}
	writeDeadLetters(w, e.DeadLetters)
	if len(e.Audit) > 0 {
		fmt.Fprintf(w, "\nOPERATOR ACTION\tBY\tACTION\tREASON\n")
	}
	for _, a := range e.Audit {
		fmt.Fprintf(w, "%s\t%s\t%s: %s\t%s\n", stamp(a.At), person(a), a.Action, app.Printable(a.Detail), app.Printable(a.Why))
	}
	if e.MoneyAPI != nil {
		fmt.Fprintf(w, "\nThe Money API says: %s.\n", app.Printable(e.MoneyAPI.String()))
	}
	return w.Flush()
}

// Call is a call of the Money API as people read it.
type Call struct {
	Name     string    // such as send 1
	Began    time.Time // of a late answer, when it came
	Took     time.Duration
	Ended    bool // Took is known
	Instance string
	Outcome  string
	Stored   bool // the outcome is known
	Status   int
	Class    string
	Answer   string
}

// History returns the calls in their order. Those after a replay are marked, because their numbers start at 1 again. A call
// that spent no attempt has the number of the next one, and lookups have numbers of their own.
func (e Explained) History() (all []Call) {
	lookups := 0
	replay := slices.IndexFunc(e.Audit, func(a ledger.Audit) bool { return a.Action == "replay" })
	for _, c := range e.Calls {
		one := Call{
			Name: fmt.Sprint(c.Kind, " ", c.Number), Began: c.StartedAt, Ended: !c.StartedAt.IsZero() && !c.Open(), Instance: c.Instance,
			Outcome: string(c.Outcome), Stored: true, Status: c.Status, Class: c.Class, Answer: c.Answer,
		}
		if c.Kind == payouts.CallLookup {
			lookups++
			one.Name = fmt.Sprint(c.Kind, " ", lookups)
		}
		switch {
		case c.Late:
			one.Name = "late answer"
		case replay >= 0 && !c.StartedAt.Before(e.Audit[replay].At):
			one.Name += ", replayed"
		}
		if one.Ended {
			one.Took = c.EndedAt.Sub(c.StartedAt)
		}
		if c.StartedAt.IsZero() {
			one.Began = c.EndedAt
		}
		if c.Open() {
			one.Outcome, one.Stored = "not stored", false
		} else if c.Class == rules.ClassLeaseExpired {
			one.Outcome, one.Stored, one.Answer = "not stored", false, "its lease ended without an answer"
			if c.Kind == payouts.CallSend {
				one.Answer += "; it may have been charged"
			}
		}
		all = append(all, one)
	}
	return all
}

// NoCall is what is said of a payout without a call.
const NoCall = "No call of the Money API has begun, according to the ledger."

func writeCalls(w io.Writer, calls []Call) {
	if len(calls) == 0 {
		fmt.Fprintf(w, "\n%s\n", NoCall)
		return
	}
	fmt.Fprintf(w, "\nCALL\tSTARTED\tTOOK\tINSTANCE\tOUTCOME\tSTATUS\tCLASS\tANSWER\n")
	for _, c := range calls {
		took := "-"
		if c.Ended {
			took = c.Took.Round(time.Millisecond).String()
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", c.Name, stamp(c.Began), took, app.Printable(c.Instance), c.Outcome, c.Status, app.Printable(c.Class), app.Printable(c.Answer))
	}
}

// OpenCall says what is known of a call whose outcome is not stored, and nothing if there is none. The table has only the
// fact, and an operator must not read a missing outcome as a missing call.
func (e Explained) OpenCall() string {
	if len(e.Calls) == 0 || !e.Calls[len(e.Calls)-1].Open() {
		return ""
	}
	c := e.Calls[len(e.Calls)-1]
	if c.Kind == payouts.CallSend {
		return fmt.Sprintf("A call began at %s, by instance %s, and its outcome is not stored: it may have been charged.", stamp(c.StartedAt), c.Instance)
	}
	return fmt.Sprintf("A lookup began at %s, by instance %s, and its outcome is not stored. A lookup charges nothing.", stamp(c.StartedAt), c.Instance)
}

// ExplainedDeadLetter is a dead letter of a payout, with its state in the dead letter store.
type ExplainedDeadLetter struct {
	ledger.DeadLetter
	// its id in the store; empty: no store, or not there yet
	Name  string      `json:"letter,omitempty"`
	State store.State `json:"letter_state,omitempty"` // empty as Name
}

// Waits reports whether an operator must still decide.
func (l ExplainedDeadLetter) Waits() bool { return slices.Contains(store.Waiting(), l.State) }

// explainDeadLetters joins the dead letters that the ledger wrote about a payout with the store.
// The payout itself has one in the store, which is updated each time a replay fails. Each message
// that is not the stored record has its own.
func (e Env) explainDeadLetters(written []ledger.DeadLetter, known []store.DeadLetter) []ExplainedDeadLetter {
	byID, own := map[string]store.DeadLetter{}, store.DeadLetter{}
	for _, l := range known {
		byID[l.ID] = l
		if !payout.Offered(l.Class) {
			own = l
		}
	}
	all := []ExplainedDeadLetter{}
	for _, w := range written {
		l := own
		if payout.Offered(w.Class) {
			l = byID[e.DeadLetterID(ledger.OutboxMessage{ID: w.ID, CreatedAt: w.CreatedAt})]
		}
		all = append(all, ExplainedDeadLetter{w, l.ID, l.State})
	}
	return all
}

// deadLettersOf returns the payout's own dead letter, as it was written last, or the zero value.
// others are those of other messages that wait for an operator.
func deadLettersOf(all []ExplainedDeadLetter) (own ExplainedDeadLetter, others []ExplainedDeadLetter) {
	for _, l := range all {
		switch {
		case !payout.Offered(l.Class):
			own = l
		case l.Waits():
			others = append(others, l)
		}
	}
	return own, others
}

// onItsWay reports whether the dead letter was written and is not in the store yet.
func (l ExplainedDeadLetter) onItsWay() bool {
	return l.Class != "" && l.PublishedAt.IsZero() && !l.Waits() && l.State != store.Discarded
}

func (l ExplainedDeadLetter) replay() string {
	const fixed = "when the cause is fixed, replay its dead letter: "
	switch {
	case l.State == store.Parked:
		return fmt.Sprintf("%smillrace deadletter replay %s --parked, with --why.", fixed, l.Name)
	case l.Waits():
		return fmt.Sprintf("%smillrace deadletter replay %s, with --why.", fixed, l.Name)
	case l.onItsWay():
		return "its dead letter is not in the store yet; it can be replayed when millrace deadletter list shows it."
	case l.State == store.Discarded:
		return "its dead letter was discarded and can't be replayed."
	case l.State == store.Replayed:
		return "its dead letter was replayed before."
	}
	return "its dead letter is not in the store and can't be replayed."
}

func writeDeadLetters(w io.Writer, all []ExplainedDeadLetter) {
	if len(all) == 0 {
		return
	}
	fmt.Fprintf(w, "\nDEAD LETTER\tSTATE\tWRITTEN\tCLASS\tATTEMPTS\tERROR\n")
	for _, l := range all {
		text := l.Error
		if l.Offered != "" {
			text += ": offered " + l.Offered
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\n", orDash(l.Name), orDash(string(l.State)), stamp(l.CreatedAt), app.Printable(l.Class), l.Attempts, app.Printable(text))
	}
}
