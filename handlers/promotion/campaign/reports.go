package campaign

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// Reports are what an operator can ask about promotions.
func (e Env) Reports() []operate.Report {
	return []operate.Report{
		{
			About: operate.About{
				Name: "campaign status", Short: "Show one promotion, or all that are not settled or are paused",
				Examples: []string{"campaign status", "campaign status --watch", "campaign status POINT 12345"},
				Fields: []operate.Field{{
					Name: FieldPromotion, Type: operate.List, Arguments: true, Shape: "TYPE PROMOTION",
					Help: "the promotion, such as POINT:12345",
				}},
				Validate: func(in operate.Input) error {
					_, err := promotionsOf(in)
					return asInput(err, FieldPromotion)
				},
				Register: e.register(Services{Ledger: true, Streams: true}),
			},
			Read: func(ctx context.Context, _ *pipeline.Registry, in operate.Input) (operate.Answer, error) {
				only, err := promotionsOf(in)
				if err != nil {
					return operate.Answer{}, err
				}
				all, err := e.Status(ctx, only...)
				switch {
				case all.Promotions == nil:
					return operate.Answer{}, WithExitCode(err)
				case len(only) > 0:
					return all.Promotions[0].answer(all, time.Now()), err
				}
				return all.answer(time.Now()), err
			},
		},
		{
			About: operate.About{
				Name: "campaign list", Short: "List all promotions, also finished ones, highest number first",
				Examples: []string{"campaign list", "campaign list --type POINT --limit 10"},
				Fields: []operate.Field{
					{Name: fieldType, Help: "promotions of this `type` only"},
					{Name: fieldLimit, Type: operate.Number, Default: "100", Help: "largest number of rows"},
				},
				Validate: func(in operate.Input) error {
					if _, err := TypeFilter(in.Text(fieldType)); err != nil {
						return asInput(err, fieldType)
					}
					if in.Number(fieldLimit) < 1 {
						return &operate.InputError{Problem: "--limit must be > 0", Field: fieldLimit}
					}
					return nil
				},
				Register: e.register(Services{Ledger: true}),
			},
			Read: func(ctx context.Context, _ *pipeline.Registry, in operate.Input) (operate.Answer, error) {
				of, err := TypeFilter(in.Text(fieldType))
				if err != nil {
					return operate.Answer{}, err
				}
				list, err := e.List(ctx, of, in.Number(fieldLimit))
				if err != nil {
					return operate.Answer{}, WithExitCode(err)
				}
				return list.answer(), nil
			},
		},
	}
}

const (
	fieldType  = "type"
	fieldLimit = "limit"
)

func (e Env) register(s Services) func(*pipeline.Registry) error {
	return func(r *pipeline.Registry) error { return e.Resources.Register(r, s) }
}

// promotionsOf returns the promotion of an input, or none for all.
func promotionsOf(in operate.Input) ([]payouts.Promotion, error) {
	if len(in.List(FieldPromotion)) == 0 {
		return nil, nil
	}
	id, err := PromotionOf(in.List(FieldPromotion))
	return []payouts.Promotion{id}, err
}

func (list Listing) answer() operate.Answer {
	t := operate.Table{
		Columns: []string{"PROMOTION", "STATE", "CREATED", "ACCEPTED", "PAID", "FAILED", "UNKNOWN", "CANCELLED", "PENDING"},
		Empty:   "The ledger has no promotions.",
	}
	for _, p := range list.Promotions {
		created := "-"
		if !p.CreatedAt.IsZero() {
			created = p.CreatedAt.UTC().Format(time.DateTime)
		}
		t.Rows = append(t.Rows, slices.Concat([]string{fmt.Sprintf("%s:%d", p.Type, p.Promotion), promotionState(p.State, p.Finished) + MissingText(p.State, p.PayoutCounts, p.TotalCount), created},
			thousands(p.Accepted, p.Paid, p.Failed, p.Unknown, p.Cancelled, p.Pending)))
	}
	a := operate.Answer{Value: list, Tables: []operate.Table{t}}
	if list.More {
		a.Notes = []string{fmt.Sprintf("There are more than %s; --limit shows them.", app.Plural(int64(len(list.Promotions)), "promotion"))}
	}
	return a
}

func thousands(counts ...int64) []string {
	texts := make([]string, len(counts))
	for i, n := range counts {
		texts[i] = app.Thousands(n)
	}
	return texts
}

// answer has a row for each promotion that is unfinished or paused.
func (all Statuses) answer(now time.Time) operate.Answer {
	if len(all.Promotions) == 0 {
		return all.nothingUnfinished()
	}
	t := operate.Table{Columns: []string{"PROMOTION", "STATE", "ACCEPTED", "PAID", "FAILED", "UNKNOWN", "PENDING", "LEASED", "OLDEST UNPAID", "PER SECOND", "ENDS"}}
	missing := ""
	for _, s := range all.Promotions {
		end := s.EndText(now)
		if !s.ExpectedEnd.IsZero() {
			end = "in " + max(0, s.ExpectedEnd.Sub(now)).Round(time.Second).String()
		}
		t.Rows = append(t.Rows, slices.Concat([]string{fmt.Sprintf("%s:%d", s.Type, s.Promotion), s.StateText()},
			thousands(s.Accepted, s.Paid, s.Failed, s.Unknown, s.Pending, s.InFlight), []string{age(s.Counts.OldestUnpaid), s.RateText(), end}))
		for _, m := range s.NotKnown {
			missing = cmp.Or(missing, m)
		}
	}
	a := operate.Answer{Value: all, Tables: []operate.Table{t}}
	if missing != "" {
		a.Notes = []string{missing}
	}
	return a
}

func (all Statuses) nothingUnfinished() operate.Answer {
	var unknown, failed int64
	for _, t := range all.done {
		unknown, failed = unknown+t.Unknown, failed+t.Failed
	}
	a := operate.Answer{Value: all, Lines: []string{"No promotion has unsettled payouts, and none is paused."}}
	if unknown > 0 {
		a.Lines = append(a.Lines, fmt.Sprintf("UNKNOWN payouts, an operator decides: %s (millrace unknown list)", app.Thousands(unknown)))
	}
	if failed > 0 {
		a.Lines = append(a.Lines, fmt.Sprintf("FAILED payouts, not charged and not retried: %s (millrace deadletter list)", app.Thousands(failed)))
	}
	return a
}

// answer has all that is known of one promotion. The value for programs is all.
func (s Status) answer(all Statuses, now time.Time) operate.Answer {
	a := operate.Answer{Value: all, Tables: []operate.Table{{Rows: s.rows(now)}}}
	if len(s.Instances) == 0 {
		return a
	}
	t := operate.Table{Columns: []string{"  INSTANCE", "CALLS NOW", "CALLS AT MOST", "ENTRIES HELD", "SINCE", "LAST MESSAGE"}}
	for _, x := range s.Instances {
		last := "none yet"
		if !x.LastMessage.IsZero() {
			last = x.LastMessage.UTC().Format(time.RFC3339)
		}
		t.Rows = append(t.Rows, []string{"  " + x.Instance, x.CallsText(), fmt.Sprint(x.Slots), fmt.Sprint(x.InFlight), x.Since.UTC().Format(time.RFC3339), last})
	}
	a.Tables = append(a.Tables, t)
	a.Notes = []string{"  Entries held are read from the stream: they are called, wait for a call slot, or wait for their turn."}
	return a
}

// rows have a name and what there is to say about it, or one sentence.
func (s Status) rows(now time.Time) [][]string {
	rows := [][]string{{fmt.Sprintf("%s:%d", s.Type, s.Promotion), promotionState(s.State, s.Finished) + MissingText(s.State, s.PayoutCounts, s.TotalCount)}}
	add := func(name, format string, args ...any) {
		rows = append(rows, []string{"  " + name, fmt.Sprintf(format, args...)})
	}
	say := func(format string, args ...any) { rows = append(rows, []string{"  " + fmt.Sprintf(format, args...)}) }
	for _, x := range s.Audit {
		add(stamp(x.At), "%s", auditText(x))
	}
	add("announced", "%s", s.announcedText())
	add("accepted", "%s", app.Thousands(s.Accepted))
	add("paid", "%s", app.Thousands(s.Paid))
	add("failed", "%s", app.Thousands(s.Failed))
	add("unknown", "%s", app.Thousands(s.Unknown))
	add("cancelled", "%s", app.Thousands(s.Cancelled))
	add("pending", "%s", app.Thousands(s.Pending))
	if where := s.PendingText(); where != "" {
		add("  of them", "%s", where)
		add("  leased", "%s", s.LeasedText())
		add("  perhaps charged", "%s", s.PerhapsText())
	}
	add("dead letters", "%s", s.DeadText())
	if s.Rate == nil {
		add("rate", "not known: no instance that pays runs")
	} else {
		add("rate", "%s payouts a second %s", s.Rate.perSecondText(), s.Rate.WindowText())
		if s.LimitedBy != "" {
			add("limited by", "%s", s.LimitedBy)
		}
		add("expected end", "%s", s.EndText(now))
		add("answers", "%s, %s", s.Rate.AnswersText(), s.Rate.MinuteText())
		add("latency", "%s", s.Rate.LatencyText())
		add("breaker", "%s", s.Rate.BreakerText())
		add("calls now", "%d; the clients of these instances make at most %d at once, for all promotions", s.Rate.Calling, s.Rate.Limit)
	}
	if s.Counts.OldestUnpaid > 0 {
		add("oldest unpaid", "%s%s", age(s.Counts.OldestUnpaid), s.oldestText())
	}
	if s.ForeignOwner != "" {
		add("foreign stream", "the stream belongs to the deployment with the ledger id %s; payouts wait here", s.ForeignOwner)
	}
	for _, g := range s.DelayingGroups {
		state := "for at most plugins.promotion.stream.foreign_group_grace"
		if g.Ignored {
			state = "ignored since the grace period ended"
		}
		add("foreign group", "%s has delayed trimming and deletion of the stream for %s, %s", g.Group, age(g.For), state)
	}
	if s.Counts.WaitsForPlace > 0 {
		add("waits for a place", "for %s, until fewer than plugins.promotion.stream.max_active_promotions are active", age(s.Counts.WaitsForPlace))
	}
	for _, m := range s.NotKnown {
		say("%s", m)
	}
	switch {
	case s.Instances == nil:
	case len(s.Instances) == 0:
		say("no instance reads its stream now, because nothing is in it or none runs")
		for _, x := range s.Others {
			add(x.Instance, "runs, breaker %s, calls now %s, calls at most %d for all promotions", x.Note.Client.Breaker, x.CallsText(), x.Note.Client.Limit)
		}
	default:
		add("stream", "%s, group %s", s.Instances[0].Stream, s.Instances[0].Group)
	}
	return rows
}

func auditText(x ledger.Audit) string {
	text := x.Action + " by " + person(x)
	if x.Why != "" {
		text += ": " + x.Why
	}
	return text
}
