package once

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once/ledger"
)

// limitAction changes the limits of a kind while instances run.
func (p *Plugin) limitAction() operate.Action {
	about := p.about("once limit", "Change how many calls of a kind all instances begin and run", []operate.Field{
		{Name: "kind", Help: "the `kind` of effect", Required: true},
		{Name: "per-second", Help: "at most this `number` of calls begin in a second; it may be less than 1, and 0 is no limit"},
		{Name: "in-flight", Help: "at most this `number` of calls run at once; 0 is no limit"},
		{Name: "settings", Type: operate.Switch, Help: "what operators have set ends, and the limits of the settings apply again"},
	}, "once limit --kind invoice --per-second 20 --why \"they asked for it\"", "once limit --kind invoice --settings --why \"they have more servers\"")
	about.Validate = func(in operate.Input) error {
		_, err := changeOf(in)
		return err
	}
	return operate.Action{
		About:   about,
		Danger:  operate.Safe,
		Role:    operate.Operator,
		Audited: true,
		Preview: p.withLedger(previewLimits),
		Do: func(ctx context.Context, r *pipeline.Registry, in operate.Input, use operate.Use) (operate.Answer, error) {
			return p.withLedger(func(ctx context.Context, l *ledger.Ledger, in operate.Input) (operate.Answer, error) {
				c, err := changeOf(in)
				if err == nil {
					err = l.SetLimits(ctx, in.Text("kind"), c, byOf(use))
				}
				if err != nil {
					return operate.Answer{}, noKind(err, in.Text("kind"))
				}
				a, err := showLimits(ctx, l, in)
				a.Notes = append(a.Notes, "Instances apply it within seconds. Calls that run end normally.")
				return a, err
			})(ctx, r, in)
		},
	}
}

// changeOf reads what the fields say.
func changeOf(in operate.Input) (c ledger.LimitChange, err error) {
	c.Settings = in.Switch("settings")
	wrong := func(field, must string) error {
		return &operate.InputError{Field: field, Problem: fmt.Sprintf("--%s must be %s, got %q", field, must, in.Text(field))}
	}
	limits := ledger.Limits{}
	if text := in.Text("per-second"); text != "" {
		if limits.PerSecond, err = strconv.ParseFloat(text, 64); err != nil || limits.Validate() != nil {
			return c, wrong("per-second", "0 (no limit), or a number from 0.001 to 1000000")
		}
		c.PerSecond = &limits.PerSecond
	}
	if text := in.Text("in-flight"); text != "" {
		if limits.InFlight, err = strconv.Atoi(text); err != nil || limits.Validate() != nil {
			return c, wrong("in-flight", "0 (no limit), or a whole number")
		}
		c.InFlight = &limits.InFlight
	}
	if c == (ledger.LimitChange{}) {
		return c, &operate.InputError{Problem: "give --per-second, --in-flight or --settings"}
	}
	return c, nil
}

func noKind(err error, kind string) error {
	return notFound(err, "no program has registered the kind %q in the ledger; `once` lists the kinds that have effects", kind)
}

// showLimits answers with the limits of a kind, and who has changed them.
func showLimits(ctx context.Context, l *ledger.Ledger, in operate.Input) (operate.Answer, error) {
	s, err := l.LimitsOf(ctx, in.Text("kind"))
	if err != nil {
		return operate.Answer{}, noKind(err, in.Text("kind"))
	}
	a := operate.Answer{Value: s, Lines: []string{s.Kind + "  limits: " + textOfLimits(s)}}
	if s.Slots > 0 {
		a.Lines = append(a.Lines, fmt.Sprintf("  %d of them in flight belong to %d instances now", s.Slots, s.Holders))
	}
	a.Tables = []operate.Table{auditTable(s.Audit, "No operator has changed the kind.")}
	return a, nil
}

// auditTable has what operators did, or the text empty.
func auditTable(audit []ledger.Audit, empty string) operate.Table {
	t := operate.Table{Columns: []string{"AT", "ACTION", "WHO", "WHY", "DETAIL"}, Empty: empty}
	for _, x := range audit {
		t.Rows = append(t.Rows, []string{x.At.UTC().Format(time.RFC3339), x.Action, x.Who, x.Why, x.Detail})
	}
	return t
}

// textOfLimits returns the limits and where each comes from, such as "20/s (operator), 8 in flight (settings)".
func textOfLimits(s ledger.LimitStatus) string {
	if !s.Registered && (s.PerSecondFrom == ledger.FromSettings || s.InFlightFrom == ledger.FromSettings) {
		return textOfForce(s.InForce) + "; what operators have not set is in the settings of a program that has the kind"
	}
	return textOfForce(s.InForce)
}

func textOfForce(f ledger.InForce) string {
	rate, calls := ledger.Limits{PerSecond: f.PerSecond}, ledger.Limits{InFlight: f.InFlight}
	switch {
	case f.Limits == ledger.Limits{} && f.PerSecondFrom == f.InFlightFrom:
		return fmt.Sprintf("none (%s)", f.PerSecondFrom)
	case f.PerSecond == 0 && f.PerSecondFrom == ledger.FromSettings:
		return fmt.Sprintf("%s (%s)", calls, f.InFlightFrom)
	case f.InFlight == 0 && f.InFlightFrom == ledger.FromSettings:
		return fmt.Sprintf("%s (%s)", rate, f.PerSecondFrom)
	case f.PerSecond == 0:
		return fmt.Sprintf("%s (%s), any number per second (%s)", calls, f.InFlightFrom, f.PerSecondFrom)
	case f.InFlight == 0:
		return fmt.Sprintf("%s (%s), any number in flight (%s)", rate, f.PerSecondFrom, f.InFlightFrom)
	}
	return fmt.Sprintf("%s (%s), %s (%s)", rate, f.PerSecondFrom, calls, f.InFlightFrom)
}

// limitsCell shows the limits at the last look for work.
func limitsCell(f *ledger.InForce) console.Cell {
	if f == nil {
		return console.Word(console.Unknown)
	}
	cell := console.Word(textOfForce(*f))
	if f.PerSecondFrom == ledger.FromOperator || f.InFlightFrom == ledger.FromOperator {
		return cell.In(operate.Warn)
	}
	return cell
}
