package promotion

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/moneysim"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/redispoll"
	"github.com/millrace-io/millrace/plugins/streams"
)

// Commands implements app.Commander.
func (p *Plugin) Commands(h *app.Host) []*cobra.Command {
	group := h.ServiceFlags(&cobra.Command{
		Use:   "campaign",
		Short: "Publish, watch and steer campaign promotions",
	})
	group.AddCommand(p.publishCommand(h), p.statusCommand(h), p.explainCommand(h), p.reconcileCommand(h), p.rebuildCommand(h))
	for _, s := range []steerVerb{
		{"pause", "Stop paying a promotion; nothing is lost, and resume goes on", (*ledger.Ledger).Pause},
		{"resume", "Go on paying a paused promotion", (*ledger.Ledger).Resume},
	} {
		group.AddCommand(p.steerCommand(h, s))
	}
	group.AddCommand(p.cancelCommand(h))
	return []*cobra.Command{p.demoCommand(h), group, p.unknownCommand(h), moneysim.Command()}
}

// onePromotion reads the arguments TYPE PROMOTION.
func onePromotion(args []string) (ledger.Promotion, error) {
	s, known := strategyOf(strings.ToUpper(args[0]))
	if !known {
		return ledger.Promotion{}, app.Usage("TYPE must be one of %s, got %q", strings.Join(kinds(), ", "), args[0])
	}
	id, err := strconv.ParseInt(args[1], 10, 64)
	if err != nil || id <= 0 {
		return ledger.Promotion{}, app.Usage("PROMOTION must be a whole number > 0, got %q", args[1])
	}
	return ledger.Promotion{Type: ledger.Type(s.kind), ID: id}, nil
}

// promotionArgs wants TYPE PROMOTION.
func promotionArgs(_ *cobra.Command, args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("wants TYPE PROMOTION, as in POINT 12345; got %d arguments", len(args))
	}
	return nil
}

// payoutArgs wants TYPE PROMOTION TARGET.
func payoutArgs(_ *cobra.Command, args []string) error {
	if len(args) != 3 {
		return fmt.Errorf("wants TYPE PROMOTION TARGET, as in POINT 12345 777; got %d arguments", len(args))
	}
	return nil
}

// withLedger opens the ledger alone, around do.
func (p *Plugin) withLedger(h *app.Host, cmd *cobra.Command, do func(context.Context) error) error {
	return services(h, cmd, app.ServicesOptions{Register: p.registerBooks(nil)}, do)
}

// services runs do with what o names, and makes its error an answer of a command.
func services(h *app.Host, cmd *cobra.Command, o app.ServicesOptions, do func(context.Context) error) error {
	return bad(h.Services(cmd.Context(), cmd, o, func(ctx context.Context, _ *app.Running) error { return do(ctx) }))
}

// bad turns what the ledger says about a promotion, or a server that went away, into an answer of a command.
func bad(err error) error {
	var (
		answer  *app.ExitError
		network net.Error
	)
	switch {
	case errors.As(err, &answer), errors.Is(err, pipeline.ErrUnavailable):
	case errors.Is(err, ledger.ErrNotFound):
		return &app.ExitError{Code: app.ExitBad, Err: fmt.Errorf("%w: nothing of it was ever accepted by the service that these settings name; is it another type (%s), or another number?",
			err, strings.Join(kinds(), ", "))}
	case errors.Is(err, errNoBook), errors.Is(err, errSimulatorInside):
		return &app.ExitError{Code: app.ExitUsage, Err: err}
	case errors.Is(err, ledger.ErrCancelled), errors.Is(err, ledger.ErrRefused):
		return &app.ExitError{Code: app.ExitBad, Err: err}
	case errors.As(err, &network), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: %w", pipeline.ErrUnavailable, err)
	}
	return err
}

func (p *Plugin) publishCommand(h *app.Host) *cobra.Command {
	var (
		o         demoOptions
		c         campaign
		kind      string
		noStarted bool
	)
	cmd := h.JSONFlag(&cobra.Command{
		Use:   "publish",
		Short: "Publish a campaign's records to Kafka, from a file or generated",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if c.promotion <= 0 || c.summary <= 0 {
				return app.Usage("--promotion and --summary must be > 0, got %d and %d", c.promotion, c.summary)
			}
			if (o.csv == "") == (o.targets == 0) {
				return app.Usage("give either --csv or --targets")
			}
			types := kinds()
			if kind != "" {
				s, known := strategyOf(strings.ToUpper(kind))
				if !known {
					return app.Usage("--type must be one of %s, got %q", strings.Join(kinds(), ", "), kind)
				}
				types = []string{s.kind}
			}
			return p.publish(cmd, h, o, c, types, !noStarted)
		},
	})
	f := cmd.Flags()
	f.Int64Var(&c.promotion, "promotion", 0, "promotion `id`")
	f.Int64Var(&c.summary, "summary", 1, "promotion summary `id`")
	f.StringVar(&o.csv, "csv", "", "publish the targets of this `file`; columns "+strings.Join(csvColumns, ","))
	f.IntVar(&o.targets, "targets", 0, "publish so many generated targets of each type")
	f.StringVar(&kind, "type", "", "only generate targets of this type; without it of every type")
	f.Uint64Var(&o.seed, "seed", 1, "for the amounts of generated targets")
	f.BoolVar(&noStarted, "no-started", false, "don't publish the started event")
	_ = cmd.MarkFlagRequired("promotion") // it exists
	return cmd
}

func (p *Plugin) publish(cmd *cobra.Command, h *app.Host, o demoOptions, c campaign, types []string, started bool) error {
	targets, counts, _, err := o.campaignOf()
	if err != nil {
		return &app.ExitError{Code: app.ExitUsage, Err: err}
	}
	if o.csv == "" {
		targets, counts = generated(o.targets, o.seed, types...), map[string]int64{}
		for _, kind := range types {
			counts[kind] = int64(o.targets)
		}
	}
	return services(h, cmd, app.ServicesOptions{Plugins: []string{p.kafka.Name()}}, func(ctx context.Context) error {
		begin := time.Now()
		var total int64
		for kind, n := range counts {
			total += n
			if !started {
				continue
			}
			if err := c.announce(ctx, p.kafka, kind, n); err != nil {
				return err
			}
		}
		bar := h.Progress(total, "published")
		n, err := c.publish(ctx, p.kafka, targets, bar.Set)
		bar.Done()
		if err != nil {
			return fmt.Errorf("after %d of %d records (publishing them again is harmless): %w", n, total, err)
		}
		if h.JSON(cmd) {
			return h.WriteJSON(map[string]any{"promotion": c.promotion, "published": n, "seconds": time.Since(begin).Seconds()})
		}
		fmt.Fprintf(h.Out(), "Promotion %d: %s records published in %.1f s.\n", c.promotion, thousands(n), time.Since(begin).Seconds())
		return nil
	})
}

// Status is what `campaign status --json` prints, an object a promotion.
type Status struct {
	Type      ledger.Type `json:"type"`
	Promotion int64       `json:"promotion"`
	ledger.Counts
	// OldestUnpaid is how long the oldest unsettled payout has been known; 0 without one.
	OldestUnpaid float64 `json:"oldest_unpaid_seconds"`
	// WaitsForPlace is how long it has waited until fewer than max_active_promotions are active; 0 if it does not wait.
	WaitsForPlace float64 `json:"waits_for_place_seconds"`
	// Audit is what persons did to the promotion, oldest first.
	Audit []ledger.Audit `json:"audit"`
	// Instances are those that read the promotion's stream now. Null: Redis could not be asked, or this version
	// does not know the type.
	Instances []streams.InstanceStatus `json:"instances"`
	// DelayingGroups are foreign consumer groups that delay the trimming and the deletion of the promotion's stream.
	DelayingGroups []streams.DelayingGroup `json:"delaying_groups,omitempty"`
	// ForeignOwner is the id of the deployment that the promotion's stream belongs to, when that is another one.
	ForeignOwner string `json:"foreign_owner,omitempty"`
}

func (p *Plugin) statusCommand(h *app.Host) *cobra.Command {
	return h.JSONFlag(&cobra.Command{
		Use:   "status [TYPE PROMOTION]",
		Short: "Show a promotion's counts and who is paying it; without arguments all that are unfinished or paused",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 0 && len(args) != 2 {
				return fmt.Errorf("give TYPE PROMOTION, or nothing; got %d arguments", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var only []ledger.Promotion
			if len(args) == 2 {
				id, err := onePromotion(args)
				if err != nil {
					return err
				}
				only = []ledger.Promotion{id}
			}
			return services(h, cmd, app.ServicesOptions{Register: p.registerStatus}, func(ctx context.Context) error {
				all, err := p.statuses(ctx, only)
				if err != nil {
					return err
				}
				if h.JSON(cmd) {
					return h.WriteJSON(all)
				}
				if len(all) == 0 {
					return p.showNothingUnfinished(ctx, h)
				}
				return showStatuses(h, all)
			})
		},
	})
}

// registerStatus adds what status needs: the ledger and the streams' Redis, without presence or readers.
func (p *Plugin) registerStatus(r *pipeline.Registry) error {
	p.run.prepare(r.Env(), r.Env().Logger)
	client := &streamRedis{config: p.config.Stream.Redis, log: r.Env().Logger}
	if client.config == nil {
		client.config = &p.redis.Settings().(*redispoll.Config).ClientConfig
	}
	r.Service("promotion.redis", client)
	r.Service("promotion.ledger", p.run.ledgerService())
	p.managers = p.newManagers(client, r.Env(), r.Env().Logger, nil)
	return nil
}

func (p *Plugin) statuses(ctx context.Context, only []ledger.Promotion) ([]Status, error) {
	if only == nil {
		work, err := p.run.ledger.Unfinished(ctx)
		if err != nil {
			return nil, err
		}
		for _, w := range work {
			only = append(only, w.Promotion)
		}
		paused, err := p.run.ledger.Paused(ctx)
		if err != nil {
			return nil, err
		}
		for _, w := range paused {
			only = append(only, w.Promotion)
		}
	}
	all := []Status{}
	for _, id := range only {
		s, err := p.run.ledger.Status(ctx, id)
		if err != nil {
			return nil, err
		}
		one := Status{Type: id.Type, Promotion: id.ID, Counts: s, OldestUnpaid: s.OldestUnpaid.Seconds(), WaitsForPlace: s.WaitsForPlace.Seconds()}
		if one.Audit, err = p.run.ledger.Audit(ctx, id); err != nil {
			return nil, err
		}
		if m, known := p.managers[string(id.Type)]; known {
			if one.Instances, err = m.Statuses(ctx, id.ID); err != nil {
				p.run.log.WarnContext(ctx, "can't ask Redis who is reading", pipeline.Err(err))
			} else if st, err := m.Inspect(ctx, id.ID); err == nil {
				one.DelayingGroups = st.Delaying
				if st.Foreign {
					one.ForeignOwner = st.Owner
				}
			}
		}
		all = append(all, one)
	}
	return all, nil
}

// showNothingUnfinished says so, and what is finished and still wants a person.
func (p *Plugin) showNothingUnfinished(ctx context.Context, h *app.Host) error {
	totals, err := p.run.ledger.Totals(ctx)
	if err != nil {
		return err
	}
	var unknown, failed int64
	for _, t := range totals {
		unknown, failed = unknown+t.Unknown, failed+t.Failed
	}
	fmt.Fprintln(h.Out(), "No promotion is unfinished or paused.")
	if unknown > 0 {
		fmt.Fprintf(h.Out(), "UNKNOWN payouts, for a person to find out: %s (millrace unknown list)\n", thousands(unknown))
	}
	if failed > 0 {
		fmt.Fprintf(h.Out(), "FAILED payouts, not charged and given up: %s (millrace dead list)\n", thousands(failed))
	}
	return nil
}

func showStatuses(h *app.Host, all []Status) error {
	w := tabwriter.NewWriter(h.Out(), 0, 0, 2, ' ', 0)
	for i, s := range all {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "%s:%d\t%s\n", s.Type, s.Promotion, s.State)
		for _, a := range s.Audit {
			why := ""
			if a.Why != "" {
				why = ": " + app.Printable(a.Why)
			}
			fmt.Fprintf(w, "  %s\t%s by %s%s\n", stamp(a.At), a.Action, person(a), why)
		}
		fmt.Fprintf(w, "  accepted\t%s\n  paid\t%s\n  failed\t%s\n  unknown\t%s\n  cancelled\t%s\n  pending\t%s, %s of them in flight\n  dead letters\t%s written, %s of them conflicts\n",
			thousands(s.Accepted), thousands(s.Paid), thousands(s.Failed), thousands(s.Unknown), thousands(s.Cancelled),
			thousands(s.Pending), thousands(s.InFlight), thousands(s.Dead), thousands(s.Conflict))
		if s.Counts.OldestUnpaid > 0 {
			fmt.Fprintf(w, "  oldest unpaid\t%s\n", s.Counts.OldestUnpaid.Round(time.Second))
		}
		if s.ForeignOwner != "" {
			fmt.Fprintf(w, "  foreign stream\tits stream belongs to the deployment with the ledger id %s, payouts wait here\n", app.Printable(s.ForeignOwner))
		}
		for _, g := range s.DelayingGroups {
			state := "for at most plugins.promotion.stream.foreign_group_grace"
			if g.Ignored {
				state = "ignored, since the grace is over"
			}
			fmt.Fprintf(w, "  foreign group\t%s delays trimming and deletion of the stream since %s, %s\n", g.Group, g.For.Round(time.Second), state)
		}
		if s.Counts.WaitsForPlace > 0 {
			fmt.Fprintf(w, "  waits for a place\tsince %s, until fewer than plugins.promotion.stream.max_active_promotions are active\n", s.Counts.WaitsForPlace.Round(time.Second))
		}
		if len(s.Instances) == 0 {
			fmt.Fprintln(w, "  no instance is reading its stream")
			continue
		}
		fmt.Fprintln(w, "  INSTANCE\tSTREAM\tGROUP\tSLOTS\tIN HAND\tSINCE\tLAST MESSAGE")
		for _, x := range s.Instances {
			last := "none yet"
			if !x.LastMessage.IsZero() {
				last = x.LastMessage.Format(time.RFC3339)
			}
			fmt.Fprintf(w, "  %s\t%s\t%s\t%d\t%d\t%s\t%s\n", x.Instance, x.Stream, x.Group, x.Slots, x.InHand, x.Since.Format(time.RFC3339), last)
		}
	}
	return w.Flush()
}

var _ app.Commander = (*Plugin)(nil)
