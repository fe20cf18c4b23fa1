package once

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/millrace-io/millrace/internal/sorted"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once/ledger"
)

// limitedBy says what bounds the rate, or nothing.
func (s speed) limitedBy(bound string) string {
	if s.of.waiting == 0 || s.of.held {
		return ""
	}
	force := s.of.limits.InForce
	switch bound {
	case boundConcurrency:
		return s.concurrencyText()
	case limitPerSecond:
		return bound + " of the kind " + s.of.kind + limitText(ledger.Limits{PerSecond: force.PerSecond}, force.PerSecondFrom)
	case limitInFlight:
		return bound + " of the kind " + s.of.kind + limitText(ledger.Limits{InFlight: force.InFlight}, force.InFlightFrom) + s.takeText()
	case limitFarSide:
		return "the far side, which has refused calls: they begin at the rate that it answers"
	case boundLedger:
		return "the database of the ledger: most of the time goes by with claims, and with answers that are stored" + s.takeText()
	case boundStopped:
		return "instances that call for nothing"
	case boundNothingDue:
		if s.of.oldestDue == 0 {
			return "nothing that is due: what waits has a later time"
		}
	}
	return ""
}

// limitText says what a limit is, unless only another program knows that.
func limitText(limit ledger.Limits, from ledger.Source) string {
	if limit == (ledger.Limits{}) {
		return ""
	}
	return fmt.Sprintf(", which is %s (%s)", limit, from)
}

// concurrencyText says how many calls run of those that may run at once.
func (s speed) concurrencyText() string {
	calling, most, instances := 0, 0, 0
	for _, i := range s.Instances {
		if !i.Gone && i.Bound == boundConcurrency {
			calling, most, instances = calling+i.Calling, most+i.Concurrency, instances+1
		}
	}
	where := ""
	if s.of.plugin != "" {
		where = " in plugins." + s.of.plugin
	}
	return fmt.Sprintf("the concurrency of the kind %s%s: %d of %d calls run, on %s%s. More instances or a higher concurrency make it faster, as far as the far side permits",
		s.of.kind, where, calling, most, app.Plural(int64(instances), "instance"), s.takeText())
}

func (s speed) takeText() string {
	if s.Calls.Mean == 0 {
		return ""
	}
	return ", and a call takes " + shortCall(s.Calls.Mean)
}

// shortCall writes how long a call takes.
func shortCall(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d == 0:
		return "-"
	case d < time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	}
	return d.Round(100 * time.Millisecond).String()
}

// perSecondText writes a rate, and one of less than 0.1/s per minute.
func perSecondText(n float64) string {
	if perMinute := n * time.Minute.Seconds(); n > 0 && n < 0.1 {
		return fmt.Sprintf("%.1f/min", perMinute)
	}
	return operate.PerSecond(n, app.Thousands) + "/s"
}

// rateCell is a rate in a table of groups.
func rateCell(perSecond *float64) console.Cell {
	if perSecond == nil {
		return console.Cell{Text: "-", Right: true}
	}
	return console.Cell{Text: perSecondText(*perSecond), Data: *perSecond, Right: true}
}

// rateText says how many effects end, and within which time; nothing: it is not known.
func (s speed) rateText() string {
	r := s.Rate
	if r == nil {
		return ""
	}
	when := "in the last minute"
	switch looked := int(r.Seconds); {
	case s.of.resumedFor > 0 && s.of.resumedFor < recentWindow:
		when = fmt.Sprintf("in the %ds since it was resumed", int(s.of.resumedFor.Seconds()))
	case looked < int(recentWindow.Seconds()):
		when = fmt.Sprintf("in the last %ds", max(1, looked))
	}
	if r.settled == 0 {
		return "no effect has ended " + when
	}
	least := ""
	if r.AtLeast {
		least = "at least "
	}
	return fmt.Sprintf("%s%s have ended %s, %s of them done", least, perSecondText(r.PerSecond), when, perSecondText(r.DonePerSecond))
}

// endText says when what is open has ended, and what that leaves out; nothing: it is not known.
func (s speed) endText() string {
	if s.ExpectedEnd.IsZero() {
		return ""
	}
	open := "the effect that is open ends"
	if s.of.open != 1 {
		open = fmt.Sprintf("the %s effects that are open end", app.Thousands(s.of.open))
	}
	text := fmt.Sprintf("%s in about %s at this rate", open, console.Short(s.ExpectedEnd.Sub(s.now)))
	if s.of.missing > 0 {
		text += fmt.Sprintf(", without the %s that are expected and not accepted yet", app.Thousands(s.of.missing))
	}
	return text
}

// lines are those of the commands: the rate with the end, what limits it, and the instances that are gone.
func (s speed) lines() (lines []string) {
	if text := s.rateText(); text != "" {
		if end := s.endText(); end != "" {
			text += "; " + end
		}
		lines = append(lines, text)
	}
	if s.LimitedBy != "" {
		lines = append(lines, "limited by "+s.LimitedBy)
	}
	for _, i := range s.Instances {
		if i.Gone {
			lines = append(lines, i.Instance+" is "+i.goneText(s.now))
		}
	}
	return lines
}

// goneText says since when an instance is gone, and when others may go on with what it has called for.
func (i instanceStatus) goneText(now time.Time) string {
	text := "gone, and has told nothing"
	if !i.At.IsZero() {
		text = "gone since " + i.At.UTC().Format(time.RFC3339)
	}
	switch i.Leases {
	case 0:
		return text + ": it has no lease any more"
	case 1:
		return fmt.Sprintf("%s: it has 1 lease, which ends by %s", text, i.LeasesEnd.UTC().Format(time.RFC3339))
	}
	return fmt.Sprintf("%s: it has %d leases, which end by %s", text, i.Leases, i.LeasesEnd.UTC().Format(time.RFC3339))
}

// stateText is what an instance does, in a table.
func (i instanceStatus) stateText(now time.Time) (text string, level operate.Level) {
	switch {
	case i.Gone:
		return i.goneText(now), operate.Warn
	case i.At.IsZero():
		return "has begun", operate.OK
	case i.Reason != "":
		return "calls for nothing: " + i.Reason, operate.Warn
	}
	return "calls", operate.OK
}

// boundText is what an instance waits for, in a table.
func boundText(bound string) string {
	switch bound {
	case boundConcurrency:
		return "its own calls"
	case limitPerSecond, limitInFlight:
		return "the limit " + bound
	case limitFarSide:
		return "the rate of the far side"
	case boundLedger:
		return "the ledger"
	case boundNothingDue:
		return "effects that are due"
	case boundPaused:
		return "a resume"
	case boundStopped:
		return "the far side"
	}
	return "-"
}

// columns of the table of instances.
func (s speed) columns() []string {
	all := []string{"Instance", "State", "Per second", "Of the group", "Calls", "Call takes", "Waits for"}
	if s.of.group == "" {
		return slices.Delete(all, 3, 4)
	}
	return all
}

// table is that of the commands. It has no row when no instance does anything.
func (s speed) table() operate.Table {
	t := operate.Table{}
	for _, title := range s.columns() {
		t.Columns = append(t.Columns, strings.ToUpper(title))
	}
	for _, row := range s.rows() {
		var texts []string
		for _, c := range row {
			texts = append(texts, c.Text)
		}
		t.Rows = append(t.Rows, texts)
	}
	return t
}

// rows has a row per instance.
func (s speed) rows() (rows [][]console.Cell) {
	for _, i := range s.Instances {
		state, level := i.stateText(s.now)
		told := !i.Gone && !i.At.IsZero()
		number := func(text string, data any) console.Cell {
			if !told {
				return console.Cell{Text: "-", Right: true}
			}
			return console.Cell{Text: text, Data: data, Right: true}
		}
		row := []console.Cell{console.Word(i.Instance), console.Word(state).In(level), number(perSecondText(i.PerSecond), i.PerSecond)}
		if s.of.group != "" {
			cell := number("-", nil)
			if i.GroupPerSecond != nil {
				cell = number(perSecondText(*i.GroupPerSecond), *i.GroupPerSecond)
			}
			row = append(row, cell)
		}
		waits := "-"
		if told {
			waits = boundText(i.Bound)
		}
		rows = append(rows, append(row, number(fmt.Sprintf("%d of %d", i.Calling, i.Concurrency), i.Calling), number(shortCall(i.CallSeconds), i.CallSeconds), console.Word(waits)))
	}
	return rows
}

// answersText names the answers of the last minute, the most frequent first.
func (c callsOfMinute) answersText() string {
	var all []string
	for _, class := range sorted.Of(maps.Keys(c.Answers), func(a, b string) int {
		if c.Answers[a] != c.Answers[b] {
			return int(c.Answers[b] - c.Answers[a])
		}
		return strings.Compare(a, b)
	}) {
		all = append(all, app.Thousands(c.Answers[class])+" "+class)
	}
	return strings.Join(all, ", ")
}

// block is what the pages show.
func (s speed) block() console.Block {
	rate, end := console.Cell{Text: console.Unknown}, console.Cell{Text: console.Unknown}
	if s.Rate != nil {
		rate = console.Cell{Text: s.rateText(), Data: s.Rate.PerSecond}
	}
	switch {
	case s.of.open == 0:
		end = console.Word("nothing is open")
	case !s.ExpectedEnd.IsZero():
		end = console.Cell{Text: s.endText(), Data: s.ExpectedEnd.Format(time.RFC3339)}
	}
	stats := console.Stats{{Name: "Rate", Cell: rate}, {Name: "Expected end", Cell: end}}
	if s.LimitedBy != "" {
		stats = append(stats, console.Stat{Name: "Limited by", Cell: console.Word(s.LimitedBy)})
	}
	if answers := s.Calls.answersText(); answers != "" {
		stats = append(stats, console.Stat{Name: "Answers of the kind in the last minute", Cell: console.Word(answers)},
			console.Stat{Name: "Half of the calls take up to", Cell: console.Cell{Text: shortCall(s.Calls.P50), Data: s.Calls.P50}},
			console.Stat{Name: "99 % up to", Cell: console.Cell{Text: shortCall(s.Calls.P99), Data: s.Calls.P99}})
	}
	return console.Blocks{stats, console.Table{Columns: console.Columns(s.columns()...), Rows: s.rows(), Empty: "No instance calls or waits."}}
}
