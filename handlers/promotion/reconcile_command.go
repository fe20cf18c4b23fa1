package promotion

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
)

// reconcileFlags are those of `campaign reconcile`.
type reconcileFlags struct {
	csv     string
	all     bool
	noKafka bool
	noMoney bool
	lag     time.Duration
}

func (p *Plugin) reconcileCommand(h *app.Host) *cobra.Command {
	var f reconcileFlags
	cmd := h.JSONFlag(&cobra.Command{
		Use:   "reconcile TYPE PROMOTION",
		Short: "Hold Kafka, the ledger and the Money API's own book against each other; 0 only when they balance",
		Long: `Hold Kafka, the ledger and the Money API's own book against each other, a target at a time.

What Kafka's publish topic offers is read from its beginning to its end of now, which takes as long as the topic is
large; --no-kafka leaves it out. The contract of the Money API has no call that lists charges: the simulated one has, and
who has another API writes charges.go; --no-money compares Kafka with the ledger alone. A promotion of any size is
compared in little memory. It ends with 0 only when everything that Kafka offers was accepted, all is settled, and the
books balance.`,
		Args: promotionArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := onePromotion(args)
			if err != nil {
				return err
			}
			if f.all && f.csv == "" {
				return app.Usage("--all needs --csv")
			}
			if f.lag < 0 {
				return app.Usage("--lag must not be negative")
			}
			if f.noKafka && f.noMoney {
				return app.Usage("--no-kafka and --no-money leave nothing to hold the ledger against")
			}
			var money pipeline.Service
			if !f.noMoney {
				money = p.run.foreignMoney(false)
			}
			o := app.ServicesOptions{Register: p.registerBooks(money)}
			if !f.noKafka {
				o.Plugins = []string{p.kafka.Name()}
			}
			return services(h, cmd, o, func(ctx context.Context) error { return p.reconcile(ctx, h, cmd, id, f) })
		},
	})
	cmd.Flags().StringVar(&f.csv, "csv", "", "write a line for every target that differs to this `file`")
	cmd.Flags().BoolVar(&f.all, "all", false, "with --csv: a line for every target")
	cmd.Flags().BoolVar(&f.noKafka, "no-kafka", false, "don't read what Kafka offers")
	cmd.Flags().BoolVar(&f.noMoney, "no-money", false, "don't read the Money API's book: compare Kafka with the ledger alone")
	cmd.Flags().DurationVar(&f.lag, "lag", 10*time.Second, "a record published less than this before the start counts as pending, not as lost")
	return cmd
}

func (p *Plugin) reconcile(ctx context.Context, h *app.Host, cmd *cobra.Command, id ledger.Promotion, f reconcileFlags) error {
	s, _ := strategyOf(string(id.Type))
	var (
		offers  scanner
		charges iter.Seq2[charge, error]
	)
	if !f.noKafka {
		offers = p.kafka.Scan
	}
	if !f.noMoney {
		charges = p.run.charges(ctx, s, id.ID)
	}
	table, err := newTable(f, id)
	if err != nil {
		return &app.ExitError{Code: app.ExitUsage, Err: fmt.Errorf("--csv: %w", err)}
	}
	r, err := p.run.reconcile(ctx, s, id.ID, offers, f.lag, charges, table.write)
	if err = errors.Join(err, table.close()); err != nil {
		return err
	}
	if h.JSON(cmd) {
		err = h.WriteJSON(r)
	} else {
		err = writeReconciliation(h.Out(), r)
	}
	if err == nil {
		if notWell := r.settledWell(); notWell != nil {
			err = &app.ExitError{Code: app.ExitBad, Err: notWell}
		}
	}
	return err
}

func writeReconciliation(out io.Writer, r Reconciliation) error {
	fmt.Fprintf(out, "%s:%d, %s targets in all books\n\n", r.Type, r.Promotion, thousands(r.Targets))
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "  BUCKET\tTARGETS\t\tSUCH AS\n")
	for _, b := range allBuckets() {
		n := r.Buckets[b.bucket]
		if n == 0 && b.bucket != bucketMatched {
			continue
		}
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\n", b.bucket, thousands(n), b.about, targetList(r.Examples[b.bucket], n))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if k := r.Kafka; k != nil {
		fmt.Fprintf(out, "\n%s: %s records, %s of this promotion.\n", k.Topic, thousands(k.Read), thousands(k.Records))
		if k.Undecodable > 0 {
			fmt.Fprintf(out, "%s records of that topic can't be read, and may belong to any promotion: they should be dead letters (millrace dead list).\n", thousands(k.Undecodable))
		}
		if !k.Complete && r.Buckets[bucketNotOffered] > 0 {
			fmt.Fprintf(out, "Retention has removed the topic's first records, which may explain those that are not offered.\n")
		}
	}
	fmt.Fprintln(out)
	writeLedgerBook(out, r.Books)
	if r.MoneyAPI {
		writeMoneyBook(out, r.Books)
	}
	fmt.Fprintf(out, "\n%s\n", r.verdict())
	return nil
}

func targetList(targets []int64, n int64) string {
	var all []string
	for _, t := range targets {
		all = append(all, strconv.FormatInt(t, 10))
	}
	text := strings.Join(all, " ")
	if len(targets) > 0 && int64(len(targets)) < n {
		text += " …"
	}
	return text
}

// table is the CSV file of a reconciliation; without a path it writes nothing.
type table struct {
	file  *os.File
	out   *csv.Writer
	flags reconcileFlags
	id    ledger.Promotion
}

func tableColumns() []string {
	return []string{"type", "promotion", "target", "buckets", "state", "attempts", "class", "transaction_key",
		"offers", "offered_amount", "accepted_amount", "charges", "charged_amount", "first_offer", "origin"}
}

// newTable returns a table whose file is written from the first target on: an older one is kept until then.
func newTable(f reconcileFlags, id ledger.Promotion) (*table, error) {
	if f.csv == "" {
		return &table{flags: f, id: id}, nil
	}
	_, err := os.Stat(filepath.Dir(f.csv))
	return &table{flags: f, id: id}, err
}

func (t *table) create() error {
	var err error
	if t.file, err = os.Create(t.flags.csv); err != nil {
		return err
	}
	t.out = csv.NewWriter(t.file)
	return t.out.Write(tableColumns())
}

func (t *table) write(j joined, in []bucket) error {
	if t.flags.csv == "" {
		return nil
	}
	if t.file == nil {
		if err := t.create(); err != nil {
			return err
		}
	}
	if !t.flags.all && slices.Contains(in, bucketMatched) {
		return nil
	}
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	buckets := make([]string, len(in))
	for i, b := range in {
		buckets[i] = string(b)
	}
	line := make([]string, len(tableColumns()))
	copy(line, []string{string(t.id.Type), number(t.id.ID), number(j.target), strings.Join(buckets, " ")})
	if row := j.row; row != nil {
		copy(line[4:], []string{string(row.State), strconv.Itoa(row.Attempts), app.Cell(row.LastClass), app.Cell(row.TransactionKey)})
		line[10], line[14] = number(j.asked.Amount), app.Cell(row.Origin)
	}
	if !t.flags.noKafka {
		line[8] = "0"
	}
	if !t.flags.noMoney {
		line[11] = "0"
	}
	if j.offer != nil {
		line[8], line[9], line[13] = number(j.offer.times), number(j.offer.value), placeText(j.offer.place)
	}
	if j.charge != nil {
		line[11], line[12] = number(j.charge.times), number(j.charge.value)
	}
	return t.out.Write(line)
}

// close ends the file, whatever happened before.
func (t *table) close() error {
	if t.file == nil {
		return nil
	}
	t.out.Flush()
	return errors.Join(t.out.Error(), t.file.Close())
}
