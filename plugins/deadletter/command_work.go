package deadletter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/deadletter/letters"
)

// workFlags are the flags of the commands that change letters.
type workFlags struct {
	filterFlags
	all       bool
	dry       bool
	parked    bool
	unsettled bool
	rate      string
	limit     int
	by        letters.By

	perSecond float64
}

func (f *workFlags) add(cmd *cobra.Command) {
	f.filterFlags.add(cmd)
	flags := cmd.Flags()
	flags.BoolVar(&f.all, "all", false, "all that wait")
	flags.BoolVar(&f.dry, "dry-run", false, "only say which letters are meant, and what would become of each")
	flags.StringVar(&f.rate, "rate", "", "at most so many letters a second, as `5/s`; also 30/m, 100/h")
	flags.IntVar(&f.limit, "limit", 0, "at most so many letters, oldest first")
	flags.StringVar(&f.by.Who, "who", app.Person(), "the `name` that is recorded")
	flags.StringVar(&f.by.Why, "why", "", "the `reason` that is recorded; required")
}

// parse reads arguments and flags; waiting are the states in which the command takes letters.
func (f *workFlags) parse(args []string, waiting []letters.State) error {
	if err := f.filterFlags.parse(); err != nil {
		return err
	}
	filtered := f.Source+f.Plugin+f.Handler+f.Class+f.Fingerprint+f.since+f.until != ""
	given := 0
	for _, b := range []bool{len(args) > 0, filtered, f.all} {
		if b {
			given++
		}
	}
	if given != 1 {
		return app.Usage("say which letters: either ids, or a filter, or --all")
	}
	f.IDs = slices.Compact(slices.Sorted(slices.Values(args)))
	if len(args) == 0 {
		f.States = waiting
	}
	if f.limit < 0 {
		return app.Usage("--limit must be >= 0, got %d", f.limit)
	}
	var err error
	if f.perSecond, err = parseRate(f.rate); err != nil {
		return err
	}
	if f.dry {
		return nil
	}
	return signed(f.by)
}

// signed refuses an action that does not say who does it and why.
func signed(by letters.By) error {
	if by.Who == "" || strings.TrimSpace(by.Why) == "" {
		return app.Usage("say who does it and why with --who NAME and --why REASON; both are recorded")
	}
	return nil
}

// parseRate returns letters a second; 0 for no limit.
func parseRate(text string) (float64, error) {
	if text == "" {
		return 0, nil
	}
	number, unit, _ := strings.Cut(text, "/")
	seconds, known := map[string]float64{"": 1, "s": 1, "m": 60, "h": 3600}[unit]
	n, err := strconv.ParseFloat(number, 64)
	if err != nil || !known || !(n > 0) || n > 1e6 {
		return 0, app.Usage("--rate must be a number of letters a second, such as 5/s, 30/m or 100/h, got %q", text)
	}
	return n / seconds, nil
}

func (p *Plugin) replayCommand(h *app.Host) *cobra.Command {
	var f workFlags
	cmd := h.JSONFlag(&cobra.Command{
		Use:   "replay [ID…]",
		Short: "Replay dead letters: these, those of a filter, or all",
		Long: `Replay dead letters: these, those of a filter, or all.

What a ledger gave up is tried again by the ledger, with its stored request and idempotency key. Anything else is
published to where it came from. A letter is replayed once however often this is asked, and a replay that died
half-way is finished by the next. One that comes back is parked: --parked replays it again.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			states := []letters.State{letters.Open, letters.Replaying}
			if f.parked {
				states = letters.Waiting()
			}
			if err := f.parse(args, states); err != nil {
				return err
			}
			return p.withStore(h, cmd, func(ctx context.Context, running *app.Running, s *letters.Store) error {
				if err := f.known(ctx, s); err != nil {
					return err
				}
				kinds, err := s.Kinds(ctx, f.Filter)
				if err != nil {
					return err
				}
				if f.dry {
					return p.withLooker(ctx, running.Registry.Env(), kinds, func(ctx context.Context, k *looker) error {
						return dryRun(ctx, h, cmd, s, &f, states, func(l letters.Letter) Line { return wouldReplay(k.look(ctx, l)) })
					})
				}
				return tools{p, kinds}.open(ctx, running.Registry.Env(), running.Settings.StartTimeout, func(ctx context.Context) error {
					return work(ctx, h, cmd, s, &f, p.replayOne(s, f.by, f.parked))
				})
			})
		},
	})
	f.add(cmd)
	cmd.Flags().BoolVar(&f.parked, "parked", false, "also those that came back after a replay")
	return cmd
}

func (p *Plugin) discardCommand(h *app.Host) *cobra.Command {
	var f workFlags
	cmd := h.JSONFlag(&cobra.Command{
		Use:   "discard [ID…]",
		Short: "Give dead letters up: these, those of a filter, or all; it can't be undone",
		Long: `Give dead letters up: these, those of a filter, or all; it can't be undone.

It changes the letters alone: a payout that was given up stays unpaid. One that may have been charged is refused until
somebody has found out, since its letter is what reminds of it; the reason names the command that books what was
found.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.parse(args, letters.Waiting()); err != nil {
				return err
			}
			return p.withStore(h, cmd, func(ctx context.Context, running *app.Running, s *letters.Store) error {
				if err := f.known(ctx, s); err != nil {
					return err
				}
				if f.unsettled && !f.dry {
					return work(ctx, h, cmd, s, &f, discardOne(s, f.by, nil))
				}
				kinds, err := s.Kinds(ctx, f.Filter)
				if err != nil {
					return err
				}
				return p.withLooker(ctx, running.Registry.Env(), kinds, func(ctx context.Context, k *looker) error {
					if f.dry {
						return dryRun(ctx, h, cmd, s, &f, letters.Waiting(), func(l letters.Letter) Line {
							now, err := k.look(ctx, l)
							return wouldDiscard(now, err, f.unsettled)
						})
					}
					return work(ctx, h, cmd, s, &f, discardOne(s, f.by, k.look))
				})
			})
		},
	})
	f.add(cmd)
	cmd.Flags().BoolVar(&f.unsettled, "unsettled", false, "also those about a payout that may have been charged, or whose ledger can't be asked")
	return cmd
}

// work does it and reports.
func work(ctx context.Context, h *app.Host, cmd *cobra.Command, s *letters.Store, f *workFlags,
	one func(context.Context, *letters.Turn, string) (Line, error)) error {
	total, err := s.Count(ctx, f.Filter)
	if err != nil {
		return err
	}
	if f.limit > 0 {
		total = min(total, int64(f.limit))
	}
	bar := h.Progress(total, "letters")
	var n int64
	j := &job{store: s, filter: f.Filter, by: f.by, limit: f.limit, rate: f.perSecond,
		one: func(ctx context.Context, turn *letters.Turn, id string) (Line, error) {
			l, err := one(ctx, turn, id)
			n++
			bar.Set(n)
			return l, err
		},
		say: func(format string, args ...any) { fmt.Fprintf(h.Err(), format+"\n", args...) },
	}
	report, err := j.run(ctx)
	bar.Done()
	if err == nil || report.Selected > 0 || h.JSON(cmd) { // an error before the first letter needs no "No letter is meant."
		if werr := writeReport(h, cmd, &report); err == nil {
			err = werr
		}
	}
	if err == nil && report.bad() {
		err = &app.ExitError{Code: app.ExitBad, Err: errors.New("not every letter that was meant could be worked on")}
	}
	return err
}
