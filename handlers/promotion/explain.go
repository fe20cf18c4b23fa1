package promotion

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
)

// Explained is what `campaign explain --json` prints: the whole life of one payout.
type Explained struct {
	Type           ledger.Type           `json:"type"`
	Promotion      int64                 `json:"promotion"`
	Target         int64                 `json:"target"`
	Key            string                `json:"idempotency_key"`
	State          ledger.State          `json:"state"`
	PromotionState ledger.PromotionState `json:"promotion_state"`
	Origin         string                `json:"origin"` // where the record or entry came from that was accepted
	Record         string                `json:"record"` // as it came
	Request        string                `json:"request"`
	AcceptedAt     time.Time             `json:"accepted_at"`
	SettledAt      time.Time             `json:"settled_at,omitzero"`
	TransactionKey string                `json:"transaction_key,omitempty"`
	MaybeCharged   bool                  `json:"maybe_charged"`
	FirstSentAt    time.Time             `json:"first_sent_at,omitzero"` // of the oldest request that may have charged
	Attempts       int                   `json:"attempts"`               // since it was accepted, or replayed
	Asks           int                   `json:"asks"`
	Released       int                   `json:"released"`                   // calls that spent no attempt and count towards max_released
	KeyFirstUsedAt time.Time             `json:"key_first_used_at,omitzero"` // when the idempotency key may have reached the Money API first
	Hint           ledger.Hint           `json:"hint"`
	HintDue        time.Time             `json:"hint_due"`
	Calls          []ledger.Attempt      `json:"calls"`
	Letters        []ExplainedLetter     `json:"dead_letters"`
	Audit          []ledger.Audit        `json:"audit"`
	MoneyAPI       *lookup               `json:"money_api,omitempty"`
	Next           string                `json:"next"`
}

// explained adds to what the ledger tells what became of the dead letters, and what the Money API says when it was asked.
func (p *Plugin) explained(ctx context.Context, x ledger.Explanation, asked *lookup) (Explained, error) {
	known, err := p.dead.About(ctx, deadName, x.Key.String())
	if err != nil {
		return Explained{}, err
	}
	e := Explained{Type: x.Type, Promotion: x.Promotion, Target: x.Target, Key: x.Key.String(), State: x.State, PromotionState: x.PromotionState,
		Origin: x.Origin, Record: string(x.Payload), Request: string(x.Request), AcceptedAt: x.AcceptedAt, SettledAt: x.SettledAt,
		TransactionKey: x.TransactionKey, MaybeCharged: x.MaybeCharged, FirstSentAt: x.FirstSentAt, Attempts: x.Attempts, Asks: x.Asks, Released: x.Released, KeyFirstUsedAt: x.KeyFirstUsedAt,
		Hint: x.Hint, HintDue: x.HintDue, Calls: []ledger.Attempt{}, Letters: explainLetters(x.Letters, known), Audit: []ledger.Audit{}, MoneyAPI: asked}
	e.Calls, e.Audit = append(e.Calls, x.Calls...), append(e.Audit, x.Audit...)
	e.Next = whatNext(x, &p.config, e.Letters, asked)
	return e, nil
}

func (p *Plugin) explainCommand(h *app.Host) *cobra.Command {
	var ask bool
	cmd := h.JSONFlag(&cobra.Command{
		Use:   "explain TYPE PROMOTION TARGET",
		Short: "Tell one payout's history: its record, every call with its answer, and what happens next",
		Args:  payoutArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			k, err := onePayout(args)
			if err != nil {
				return err
			}
			with := p.withLedger
			if ask {
				with = p.withMoney
			}
			return with(h, cmd, func(ctx context.Context) error {
				x, err := p.explain(ctx, k)
				if err != nil {
					return err
				}
				var asked *lookup
				if ask {
					asked = p.lookUp(ctx, x)
				}
				e, err := p.explained(ctx, x, asked)
				if err != nil {
					return err
				}
				if h.JSON(cmd) {
					return h.WriteJSON(e)
				}
				return writeExplained(h.Out(), e)
			})
		},
	})
	cmd.Flags().BoolVar(&ask, "ask", false, "ask the Money API too what it knows of the charge")
	return cmd
}

// explain asks the ledger; a payout that is not there is a bad answer, with where to look next.
func (p *Plugin) explain(ctx context.Context, k ledger.Key) (ledger.Explanation, error) {
	x, err := p.run.ledger.Explain(ctx, k)
	if errors.Is(err, ledger.ErrNotFound) {
		err = &app.ExitError{Code: app.ExitBad, Err: fmt.Errorf("%s is not in the ledger: it was never accepted. Its record may wait in Kafka (millrace campaign reconcile %s %d), or be a dead letter (millrace dead list)",
			k, k.Type, k.Promotion)}
	}
	return x, err
}

// onePayout reads the arguments TYPE PROMOTION TARGET.
func onePayout(args []string) (ledger.Key, error) {
	of, err := onePromotion(args)
	if err != nil {
		return ledger.Key{}, err
	}
	target, err := strconv.ParseInt(args[2], 10, 64)
	if err != nil || target <= 0 {
		return ledger.Key{}, app.Usage("TARGET must be a whole number > 0, got %q", args[2])
	}
	return ledger.Key{Type: of.Type, Promotion: of.ID, Target: target}, nil
}

// withMoney opens the ledger and the client of the Money API, around do.
func (p *Plugin) withMoney(h *app.Host, cmd *cobra.Command, do func(context.Context) error) error {
	return services(h, cmd, app.ServicesOptions{Register: p.registerBooks(p.run.foreignMoney(false))}, do)
}

// registerBooks adds the ledger and, unless it is nil, the Money API.
func (p *Plugin) registerBooks(money pipeline.Service) func(*pipeline.Registry) error {
	return func(r *pipeline.Registry) error {
		p.run.prepare(r.Env(), r.Env().Logger)
		if money != nil {
			r.Service("promotion.money", money)
		}
		r.Service("promotion.ledger", p.run.ledgerService())
		return nil
	}
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02T15:04:05.000Z")
}

func writeExplained(out io.Writer, e Explained) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "%s\t%s\n", e.Key, e.State)
	fmt.Fprintf(w, "  promotion\t%s\n  came from\t%s\n  accepted\t%s\n  record\t%s\n", e.PromotionState, app.Printable(e.Origin), stamp(e.AcceptedAt), app.Printable(e.Record))
	if e.Request != e.Record {
		fmt.Fprintf(w, "  request\t%s\n", app.Printable(e.Request))
	}
	if e.MaybeCharged && e.State != ledger.Success {
		fmt.Fprintf(w, "  perhaps charged\tby a request since %s\n", stamp(e.FirstSentAt))
	}
	if !e.KeyFirstUsedAt.IsZero() {
		fmt.Fprintf(w, "  key first used\t%s\n", stamp(e.KeyFirstUsedAt))
	}
	if e.Released > 0 {
		fmt.Fprintf(w, "  released calls\t%d, while other payouts were answered\n", e.Released)
	}
	if !e.SettledAt.IsZero() {
		fmt.Fprintf(w, "  settled\t%s\n", stamp(e.SettledAt))
	}
	if e.TransactionKey != "" {
		fmt.Fprintf(w, "  transaction key\t%s\n", app.Printable(e.TransactionKey))
	}
	writeCalls(w, e.Calls, e.Audit)
	writeLetters(w, e.Letters)
	if len(e.Audit) > 0 {
		fmt.Fprintf(w, "\nBY A PERSON\tWHO\tWHAT\tWHY\n")
	}
	for _, a := range e.Audit {
		fmt.Fprintf(w, "%s\t%s\t%s: %s\t%s\n", stamp(a.At), person(a), a.Action, app.Printable(a.Detail), app.Printable(a.Why))
	}
	if e.MoneyAPI != nil {
		fmt.Fprintf(w, "\nThe Money API says: %s.\n", app.Printable(e.MoneyAPI.String()))
	}
	fmt.Fprintf(w, "\nNext: %s\n", app.Printable(e.Next))
	return w.Flush()
}

// person names who did something: the given name, and the database's role.
func person(a ledger.Audit) string {
	if a.DBUser == "" {
		return app.Printable(a.Who)
	}
	return fmt.Sprintf("%s (database user %s)", app.Printable(a.Who), a.DBUser)
}

// writeCalls marks the calls after a replay, because their numbers begin again. A call that spent no attempt has the number of the next one.
func writeCalls(w io.Writer, calls []ledger.Attempt, audit []ledger.Audit) {
	if len(calls) == 0 {
		fmt.Fprintf(w, "\nThe Money API was never called.\n")
		return
	}
	fmt.Fprintf(w, "\nCALL\tBEGAN\tTOOK\tBY\tOUTCOME\tSTATUS\tCLASS\tANSWER\n")
	replay := slices.IndexFunc(audit, func(a ledger.Audit) bool { return a.Action == "replay" })
	for _, c := range calls {
		what, took := fmt.Sprint(c.Kind, " ", c.Number), "-"
		switch {
		case c.Late:
			what = "late answer"
		case replay >= 0 && !c.StartedAt.Before(audit[replay].At):
			what += ", replayed"
		}
		if !c.StartedAt.IsZero() {
			took = c.EndedAt.Sub(c.StartedAt).Round(time.Millisecond).String()
		}
		began := c.StartedAt
		if began.IsZero() {
			began = c.EndedAt
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", what, stamp(began), took, app.Printable(c.Instance), c.Outcome, c.Status, app.Printable(c.Class), app.Printable(c.Answer))
	}
}
