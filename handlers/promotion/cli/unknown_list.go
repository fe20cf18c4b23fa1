package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
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

type unknownFilter struct {
	of        payouts.Type
	promotion int64
	olderThan time.Duration
	limit     int
}

func (f unknownFilter) takes(r payouts.Row, since time.Duration) bool {
	return (f.of == "" || r.Type == f.of) && (f.promotion == 0 || r.Promotion == f.promotion) && since >= f.olderThan
}

func (c commands) unknownList() *cobra.Command {
	var f unknownFilter
	var typeName string
	cmd := c.h.JSONFlag(&cobra.Command{
		Use:   "list",
		Short: "List the payouts that may have been charged",
		Long: `List the payouts that may have been charged.

UNKNOWN payouts come first: an operator must resolve them. AMBIGUOUS payouts that can only be looked up come after them. The
service looks them up again, at least every ledger.retry.max. If such a payout is old, probably a proxy answers instead of the
Money API; unknown resolve --force ends it. The command considers only the 1,000 oldest AMBIGUOUS payouts.`,
		Example: `  millrace unknown list
  millrace unknown list --type POINT --older-than 24h`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if f.of, err = typeFilter(typeName); err != nil {
				return err
			}
			if f.promotion < 0 || f.olderThan < 0 || f.limit < 1 {
				return app.Usage("--promotion and --older-than must not be negative, and --limit must be > 0")
			}
			return c.withLedger(cmd, func(ctx context.Context, l *ledger.Ledger) error {
				list, err := unknownPayouts(ctx, l, f)
				if err != nil {
					return err
				}
				return c.h.Show(cmd, list, list.write)
			})
		},
	})
	cmd.Flags().StringVar(&typeName, "type", "", "payouts of this type only")
	cmd.Flags().Int64Var(&f.promotion, "promotion", 0, "payouts of this promotion `id` only")
	cmd.Flags().DurationVar(&f.olderThan, "older-than", 0, "payouts of at least this age only, such as 24h")
	cmd.Flags().IntVar(&f.limit, "limit", 1000, "maximum number of payouts")
	return cmd
}

type unknownList struct {
	Unknown []UnknownPayout `json:"unknown"`
	More    bool            `json:"more"`
	others  bool            // the filter has left some out
}

var errLimit = errors.New("limit reached")

func unknownPayouts(ctx context.Context, l *ledger.Ledger, f unknownFilter) (unknownList, error) {
	list := unknownList{Unknown: []UnknownPayout{}}
	add := func(r payouts.Row, at time.Time, since time.Duration) error {
		switch {
		case !f.takes(r, since):
			list.others = true
			return nil
		case len(list.Unknown) == f.limit:
			list.More = true
			return errLimit
		}
		list.Unknown = append(list.Unknown, UnknownPayout{Type: r.Type, Promotion: r.Promotion, Target: r.Target, State: r.State, Since: at, Age: since.Seconds(),
			FirstSentAt: r.FirstSentAt, Attempts: r.Attempts, Lookups: r.Lookups, Class: r.LastClass, Answer: r.LastError})
		return nil
	}
	err := l.EachUnknown(ctx, func(r payouts.Row, since time.Duration) error { return add(r, r.SettledAt, since) })
	if err == nil {
		err = l.EachLookupOnly(ctx, func(r payouts.Row, since time.Duration) error { return add(r, r.FirstSentAt, since) })
	}
	if errors.Is(err, errLimit) {
		err = nil
	}
	return list, err
}

func (list unknownList) write(out io.Writer) error {
	if len(list.Unknown) == 0 {
		none := "No payout is UNKNOWN."
		if list.others {
			none = "No UNKNOWN payout matches."
		}
		fmt.Fprintln(out, none)
		return nil
	}
	w := app.Table(out)
	fmt.Fprintln(w, "PAYOUT\tSTATE\tSINCE\tAGE\tSENDS\tLOOKUPS\tCLASS\tLAST ANSWER")
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
