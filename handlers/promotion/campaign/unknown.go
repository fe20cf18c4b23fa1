package campaign

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// UnknownPayout is one payout of `unknown list`.
type UnknownPayout struct {
	Type      payouts.Type `json:"type"`
	Promotion int64        `json:"promotion"`
	Target    int64        `json:"target"`
	// State is UNKNOWN, or AMBIGUOUS for a payout that can only be looked up.
	State rules.State `json:"state"`
	// Since is when the payout became UNKNOWN, or when the oldest request of an AMBIGUOUS one was
	// sent.
	Since       time.Time `json:"since"`
	Age         float64   `json:"age_seconds"`
	FirstSentAt time.Time `json:"first_sent_at"`
	Attempts    int       `json:"attempts"`
	Lookups     int       `json:"asks"`
	Class       string    `json:"class"`
	Answer      string    `json:"answer"`
}

// UnknownFilter selects payouts of `unknown list`. A zero field selects any.
type UnknownFilter struct {
	Type      payouts.Type
	Promotion int64
	OlderThan time.Duration
	Limit     int // required
	// Decided leaves out those that the service still looks up.
	Decided bool
}

func (f UnknownFilter) takes(r payouts.Row, since time.Duration) bool {
	return (f.Type == "" || r.Type == f.Type) && (f.Promotion == 0 || r.Promotion == f.Promotion) && since >= f.OlderThan
}

// UnknownPayouts is the value of `unknown list --json`.
type UnknownPayouts struct {
	Unknown []UnknownPayout `json:"unknown"`
	More    bool            `json:"more"`
	others  bool            // the filter has left some out
}

var errLimit = errors.New("limit reached")

// PerhapsCharged returns the unsettled payouts of a promotion that may have been charged, at most limit of them: the service
// finds out by itself what became of them.
func (e Env) PerhapsCharged(ctx context.Context, id payouts.Promotion, limit int) ([]payouts.Row, error) {
	l, err := e.ledger()
	if err != nil {
		return nil, err
	}
	return l.PerhapsCharged(ctx, id, limit)
}

// Unknown returns the payouts that may have been charged: UNKNOWN ones, and AMBIGUOUS ones that can only be looked up.
func (e Env) Unknown(ctx context.Context, f UnknownFilter) (UnknownPayouts, error) {
	l, err := e.ledger()
	if err != nil {
		return UnknownPayouts{}, err
	}
	list := UnknownPayouts{Unknown: []UnknownPayout{}}
	add := func(r payouts.Row, at time.Time, since time.Duration) error {
		switch {
		case !f.takes(r, since):
			list.others = true
			return nil
		case len(list.Unknown) == f.Limit:
			list.More = true
			return errLimit
		}
		list.Unknown = append(list.Unknown, UnknownPayout{Type: r.Type, Promotion: r.Promotion, Target: r.Target, State: r.State, Since: at, Age: since.Seconds(),
			FirstSentAt: r.FirstSentAt, Attempts: r.Attempts, Lookups: r.Lookups, Class: r.LastClass, Answer: r.LastError})
		return nil
	}
	err = l.EachUnknown(ctx, func(r payouts.Row, since time.Duration) error { return add(r, r.SettledAt, since) })
	if err == nil && !f.Decided {
		err = l.EachLookupOnly(ctx, func(r payouts.Row, since time.Duration) error { return add(r, r.FirstSentAt, since) })
	}
	if errors.Is(err, errLimit) {
		err = nil
	}
	return list, err
}

// Write writes the table.
func (list UnknownPayouts) Write(out io.Writer) error {
	if len(list.Unknown) == 0 {
		none := "No payout is UNKNOWN, and none is AMBIGUOUS that can only be looked up."
		if list.others {
			none = "No such payout matches."
		}
		fmt.Fprintln(out, none)
		return nil
	}
	w := app.Table(out)
	fmt.Fprintln(w, "PAYOUT\tSTATE\tSINCE\tAGE\tATTEMPTS USED\tLOOKUPS USED\tCLASS\tLAST ANSWER")
	for _, u := range list.Unknown {
		fmt.Fprintf(w, "%s:%d:%d\t%s\t%s\t%s\t%d\t%d\t%s\t%s\n", u.Type, u.Promotion, u.Target, u.State, stamp(u.Since), age(time.Duration(u.Age*float64(time.Second))),
			u.Attempts, u.Lookups, app.Printable(u.Class), app.Printable(u.Answer))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if list.More {
		fmt.Fprintf(out, "There are more than %s; --limit shows them.\n", app.Plural(int64(len(list.Unknown)), "payout"))
	}
	return nil
}
