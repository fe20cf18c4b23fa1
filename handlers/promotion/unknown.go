package promotion

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/deadletter/letters"
)

func (p *Plugin) unknownCommand(h *app.Host) *cobra.Command {
	group := h.ServiceFlags(&cobra.Command{
		Use:   "unknown",
		Short: "Payouts that may have been charged, for a person to find out",
	})
	group.AddCommand(p.unknownListCommand(h), p.unknownResolveCommand(h))
	return group
}

// UnknownPayout is a line of `unknown list`.
type UnknownPayout struct {
	Type      ledger.Type `json:"type"`
	Promotion int64       `json:"promotion"`
	Target    int64       `json:"target"`
	// State is UNKNOWN. It is AMBIGUOUS for a payout of which only lookups are left.
	State ledger.State `json:"state"`
	// Since is when the payout became UNKNOWN, or when the oldest request of an AMBIGUOUS one was sent.
	Since       time.Time `json:"since"`
	Age         float64   `json:"age_seconds"`
	FirstSentAt time.Time `json:"first_sent_at"`
	Attempts    int       `json:"attempts"`
	Asks        int       `json:"asks"`
	Class       string    `json:"class"`
	Answer      string    `json:"answer"`
}

// unknownFilter is what `unknown list` shows.
type unknownFilter struct {
	kind      string
	promotion int64
	olderThan time.Duration
	limit     int
}

func (f unknownFilter) takes(r ledger.Row, since time.Duration) bool {
	return (f.kind == "" || string(r.Type) == f.kind) && (f.promotion == 0 || r.Promotion == f.promotion) && since >= f.olderThan
}

func (p *Plugin) unknownListCommand(h *app.Host) *cobra.Command {
	var f unknownFilter
	cmd := h.JSONFlag(&cobra.Command{
		Use:   "list",
		Short: "List the payouts that may have been charged",
		Long: `List the payouts that may have been charged.

UNKNOWN payouts come first: they wait for a person. After them come AMBIGUOUS payouts of which only lookups are left. The service looks
them up again, at most every ledger.retry.max. One that is old is answered by a proxy and not by the Money API, and then unknown
resolve --force ends it. Only the 1,000 oldest AMBIGUOUS payouts are considered.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.kind = strings.ToUpper(f.kind); f.kind != "" {
				if _, known := strategyOf(f.kind); !known {
					return app.Usage("--type must be one of %s, got %q", strings.Join(kinds(), ", "), f.kind)
				}
			}
			if f.promotion < 0 || f.olderThan < 0 || f.limit < 1 {
				return app.Usage("--promotion and --older-than must not be negative, and --limit must be > 0")
			}
			return p.withLedger(h, cmd, func(ctx context.Context) error {
				list, err := p.unknown(ctx, f)
				if err != nil {
					return err
				}
				if h.JSON(cmd) {
					return h.WriteJSON(list)
				}
				return showUnknown(h, list)
			})
		},
	})
	cmd.Flags().StringVar(&f.kind, "type", "", "only of this type")
	cmd.Flags().Int64Var(&f.promotion, "promotion", 0, "only of this promotion `id`")
	cmd.Flags().DurationVar(&f.olderThan, "older-than", 0, "only those that are so old, such as 24h")
	cmd.Flags().IntVar(&f.limit, "limit", 1000, "at most so many")
	return cmd
}

var errEnough = errors.New("enough")

// unknownList is what `unknown list --json` prints.
type unknownList struct {
	Unknown []UnknownPayout `json:"unknown"`
	More    bool            `json:"more"`
	others  bool            // there are some that the filter doesn't take
}

func (p *Plugin) unknown(ctx context.Context, f unknownFilter) (unknownList, error) {
	list := unknownList{Unknown: []UnknownPayout{}}
	add := func(r ledger.Row, at time.Time, since time.Duration) error {
		switch {
		case !f.takes(r, since):
			list.others = true
			return nil
		case len(list.Unknown) == f.limit:
			list.More = true
			return errEnough
		}
		list.Unknown = append(list.Unknown, UnknownPayout{Type: r.Type, Promotion: r.Promotion, Target: r.Target, State: r.State, Since: at, Age: since.Seconds(),
			FirstSentAt: r.FirstSentAt, Attempts: r.Attempts, Asks: r.Asks, Class: r.LastClass, Answer: r.LastError})
		return nil
	}
	err := p.run.ledger.Unknown(ctx, func(r ledger.Row, since time.Duration) error { return add(r, r.SettledAt, since) })
	if err == nil {
		err = p.run.ledger.LookedUp(ctx, func(r ledger.Row, since time.Duration) error { return add(r, r.FirstSentAt, since) })
	}
	if errors.Is(err, errEnough) {
		err = nil
	}
	return list, err
}

func showUnknown(h *app.Host, list unknownList) error {
	if len(list.Unknown) == 0 {
		none := "No payout is UNKNOWN."
		if list.others {
			none = "No UNKNOWN payout matches."
		}
		fmt.Fprintln(h.Out(), none)
		return nil
	}
	w := tabwriter.NewWriter(h.Out(), 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "TYPE\tPROMOTION\tTARGET\tSTATE\tSINCE\tAGE\tSENDS\tASKS\tCLASS\tLAST ANSWER")
	for _, u := range list.Unknown {
		age := time.Duration(u.Age * float64(time.Second)).Round(time.Second)
		fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\t%s\t%d\t%d\t%s\t%s\n", u.Type, u.Promotion, u.Target, u.State, stamp(u.Since), age, u.Attempts, u.Asks, app.Printable(u.Class), app.Printable(u.Answer))
	}
	if list.More {
		fmt.Fprintln(w, "There are more: --limit.")
	}
	return w.Flush()
}

// resolveHandler is in the dead letter of an AMBIGUOUS payout that a person has declared unpaid.
const resolveHandler = deadName + ".unknown"

// resolveFlags are those of `unknown resolve`.
type resolveFlags struct {
	paid     string
	unpaid   bool
	why, who string
	force    bool
	dry      bool
}

func (p *Plugin) unknownResolveCommand(h *app.Host) *cobra.Command {
	var f resolveFlags
	cmd := h.JSONFlag(&cobra.Command{
		Use:   "resolve TYPE PROMOTION TARGET (--paid TRANSACTION_KEY | --unpaid) --why TEXT",
		Short: "Book what a person has found out about a payout that may have been charged",
		Long: `Book what a person has found out about a payout that may have been charged.

The evidence is shown first: every call with its answer, and what the Money API says of the key now, when it can be
asked. That it knows no charge is no proof: a request may still be under way, and an API that forgets keys answers so
for every key older than idempotency_ttl. What contradicts the Money API is refused. --unpaid is refused too, unless the API
says that it knows no charge, the key is not older than that, and the last request was sent more than a lease ago. --force
books it all the same. --paid makes the payout SUCCESS
and its dead letter is discarded; --unpaid makes it FAILED, and its dead letter may then be replayed. Who, when and why
are kept.

An AMBIGUOUS payout of which only lookups are left (unknown list) needs --force: the service still looks it up, and the answer may
settle it. --unpaid then writes the dead letter that it does not have yet. When the Money API says that the payout was charged,
--force books nothing else.`,
		Args: payoutArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			k, err := onePayout(args)
			if err != nil {
				return err
			}
			switch {
			case (f.paid != "") == f.unpaid:
				return app.Usage("give either --paid with the transaction key, or --unpaid")
			case strings.TrimSpace(f.why) == "":
				return app.Usage("--why must say how you know")
			case f.who == "":
				return app.Usage("--who must name you")
			}
			o := app.ServicesOptions{Register: p.registerBooks(p.run.foreignMoney(true))}
			return services(h, cmd, o, func(ctx context.Context) error { return p.resolve(ctx, h, cmd, k, f) })
		},
	})
	cmd.Flags().StringVar(&f.paid, "paid", "", "it was charged, under this transaction `key`")
	cmd.Flags().BoolVar(&f.unpaid, "unpaid", false, "it was not charged and never will be")
	cmd.Flags().StringVar(&f.why, "why", "", "how you know; kept for the audit")
	cmd.Flags().StringVar(&f.who, "who", app.Person(), "who says so; kept for the audit")
	cmd.Flags().BoolVar(&f.dry, "dry-run", false, "show the evidence and what would be booked; change nothing")
	cmd.Flags().BoolVar(&f.force, "force", false, "also when the Money API says otherwise, its answer can't be believed, or the payout is still looked up")
	return cmd
}

func (p *Plugin) resolve(ctx context.Context, h *app.Host, cmd *cobra.Command, k ledger.Key, f resolveFlags) error {
	x, err := p.explain(ctx, k)
	if err != nil {
		return err
	}
	lookedUp := x.State == ledger.Ambiguous && x.Then == ledger.Ask
	if x.State != ledger.Unknown && !lookedUp {
		return &app.ExitError{Code: app.ExitBad, Err: fmt.Errorf("%s is %s, not UNKNOWN: there is nothing to resolve", k, x.State)}
	}
	e, err := p.explained(ctx, x, p.lookUp(ctx, x))
	if err != nil {
		return err
	}
	if !h.JSON(cmd) {
		if err := writeExplained(h.Out(), e); err != nil {
			return err
		}
	}
	if lookedUp && !f.force {
		return &app.ExitError{Code: app.ExitBad, Err: fmt.Errorf("nothing was changed: %s is AMBIGUOUS and is looked up again; when you know what became of it, --force books it", k)}
	}
	// An AMBIGUOUS payout needs --force in any case, so the flag can't mean that the person insists.
	if charged := e.MoneyAPI.TransactionKey; lookedUp && e.MoneyAPI.paid() && f.paid != charged {
		return &app.ExitError{Code: app.ExitBad, Err: fmt.Errorf("nothing was changed: the Money API says it is charged, transaction key %s; --paid %s --force books that, and so does the next lookup", charged, charged)}
	}
	if key := x.PaidLate(); key != "" && f.unpaid && !f.force {
		return &app.ExitError{Code: app.ExitBad, Err: fmt.Errorf("nothing was changed: an answer that came late says it was charged, transaction key %s; --force denies it", key)}
	}
	if err := e.MoneyAPI.contradicts(f); err != nil && !f.force {
		return &app.ExitError{Code: app.ExitBad, Err: fmt.Errorf("nothing was changed: %w", err)}
	}
	if f.dry {
		return dryResolve(h, cmd, e, f)
	}
	why := fmt.Sprintf("%s (the Money API says: %s)", strings.TrimSpace(f.why), e.MoneyAPI)
	if err := p.run.ledger.Resolve(ctx, k, ledger.Resolution{Paid: f.paid != "", TransactionKey: f.paid, Who: f.who, Why: why, Force: f.force, Handler: resolveHandler}); err != nil {
		return err
	}
	closed, err := p.closeLetter(ctx, k, f, why)
	if err != nil {
		return fmt.Errorf("%s is resolved, but its dead letter still waits: millrace dead discard, with its id: %w", k, err)
	}
	if x, err = p.run.ledger.Explain(ctx, k); err != nil {
		return err
	}
	after, err := p.explained(ctx, x, e.MoneyAPI)
	if err != nil {
		return err
	}
	if h.JSON(cmd) {
		return h.WriteJSON(after)
	}
	fmt.Fprintf(h.Out(), "\n%s is %s now, %s.\n", k, x.State, e.MoneyAPI.wordFor(f))
	for _, id := range closed {
		fmt.Fprintf(h.Out(), "Its dead letter %s is discarded.\n", id)
	}
	fmt.Fprintf(h.Out(), "Next: %s\n", app.Printable(after.Next))
	return nil
}

// dryResolve tells what would be booked.
func dryResolve(h *app.Host, cmd *cobra.Command, e Explained, f resolveFlags) error {
	if h.JSON(cmd) {
		return h.WriteJSON(e)
	}
	as := ledger.Failed
	if f.paid != "" {
		as = ledger.Success
	}
	fmt.Fprintf(h.Out(), "\n%s would be %s, %s; nothing was done.\n", e.Key, as, e.MoneyAPI.wordFor(f))
	return nil
}

// closeLetter discards the letter of a payout that turned out to be paid. That of an unpaid one waits for its replay.
func (p *Plugin) closeLetter(ctx context.Context, k ledger.Key, f resolveFlags, why string) ([]string, error) {
	if f.paid == "" {
		return nil, nil
	}
	return p.dead.Settled(ctx, deadName, k.String(), letters.By{Who: f.who, Why: "it is paid, transaction key " + f.paid + ": " + why})
}
