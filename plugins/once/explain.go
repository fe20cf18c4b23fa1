package once

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/millrace-io/millrace/internal/sorted"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once/ledger"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// explained is the answer of "once explain" for programs.
type explained struct {
	Key         string          `json:"key"`
	Idempotency string          `json:"idempotency_key,omitempty"` // empty: this binary does not have the kind
	Value       string          `json:"value"`
	State       rules.State     `json:"state"`
	Group       string          `json:"group_state"`
	Part        string          `json:"part,omitempty"`
	Origin      string          `json:"origin"`
	TraceID     string          `json:"trace_id,omitempty"` // in which the effect was accepted, as the span
	SpanID      string          `json:"span_id,omitempty"`
	Record      string          `json:"record"`
	Request     string          `json:"request"`
	AcceptedAt  time.Time       `json:"accepted_at"`
	SettledAt   time.Time       `json:"settled_at,omitzero"`
	NotBefore   time.Time       `json:"not_before,omitzero"`
	Receipt     string          `json:"receipt,omitempty"`
	PerhapsDone bool            `json:"perhaps_done"`
	Lost        *rules.Lost     `json:"lost,omitempty"` // it may have been called for in this time, which a restored ledger does not know
	KeyUsedAt   time.Time       `json:"key_first_used_at,omitzero"`
	Sends       callCount       `json:"sends"`
	Lookups     callCount       `json:"lookups"`
	Calls       []rules.Attempt `json:"calls"`
	Audit       []ledger.Audit  `json:"audit"`
	GroupAudit  []ledger.Audit  `json:"group_audit"`
	Next        string          `json:"next"`
}

// explain answers with everything that is known about one effect.
func (p *Plugin) explain(ctx context.Context, l *ledger.Ledger, k ledger.Key, _ operate.Input) (operate.Answer, error) {
	x, err := l.Explain(ctx, k)
	if err != nil {
		return operate.Answer{}, notFound(err, "%s", p.notAccepted(ctx, k))
	}
	then, err := next(ctx, l, x)
	if err != nil {
		return operate.Answer{}, err
	}
	e := explained{
		Key: textOf(k), Value: textOf(k), State: x.Row.State, Group: string(x.Group), Part: x.Part, Origin: x.Origin, Record: string(x.Payload),
		Request: string(x.Request), AcceptedAt: x.Row.AcceptedAt, SettledAt: x.Row.SettledAt, NotBefore: x.NotBefore, Receipt: x.Row.Receipt,
		PerhapsDone: x.Row.PerhapsDone() || x.Lost != nil, Lost: x.Lost, KeyUsedAt: x.Row.KeyFirstUsedAt, Calls: append([]rules.Attempt{}, x.Calls...), Audit: append([]ledger.Audit{}, x.Audit...), GroupAudit: append([]ledger.Audit{}, x.GroupAudit...),
		Next: then,
	}
	e.TraceID, e.SpanID = pipeline.TraceOf(x.Headers[pipeline.MetaTraceParent])
	e.Sends, e.Lookups = p.countsOf(x)
	if w := p.kindOf(k.Kind); w != nil {
		e.Idempotency, e.Value = w.effects.describe(k, x.Payload)
	}
	return operate.Answer{Value: e, Lines: e.lines(), Tables: e.tables(), Notes: []string{"Next: " + e.Next}}, nil
}

// notAccepted says where an effect may be that is not in the ledger.
func (p *Plugin) notAccepted(ctx context.Context, k ledger.Key) string {
	text := textOf(k) + " is not in the ledger. If its record was published, it may still wait in its topic, or be a dead letter (deadletter list)"
	if paused := operate.PausedNote(ctx, p.routes, acceptRoute(k.Kind)); paused != "" {
		text += ". " + paused
	}
	return text
}

func (e explained) lines() []string {
	lines := []string{e.Key + "  " + string(e.State)}
	add := func(name, value string) {
		if value != "" {
			lines = append(lines, fmt.Sprintf("  %-15s %s", name, value))
		}
	}
	at := func(name string, t time.Time) {
		if !t.IsZero() {
			add(name, t.UTC().Format(time.RFC3339Nano))
		}
	}
	add("value", e.Value)
	add("group", e.Group)
	add("source", e.Origin)
	if e.TraceID != "" {
		add("trace", e.TraceID+", span "+e.SpanID)
	}
	at("accepted", e.AcceptedAt)
	at("not before", e.NotBefore)
	at("key first used", e.KeyUsedAt)
	add("sends", e.Sends.text())
	add("lookups", e.Lookups.text())
	if text := perhapsDone(e.PerhapsDone && e.Receipt == "", e.Lost, len(e.Calls)); text != "" {
		add("perhaps done", text)
	}
	add("receipt", e.Receipt)
	at("settled", e.SettledAt)
	return lines
}

// perhapsDone says why an effect is perhaps done, or nothing if it is not.
func perhapsDone(is bool, lost *rules.Lost, calls int) string {
	switch {
	case !is:
		return ""
	case lost != nil:
		return fmt.Sprintf("yes: the ledger was restored, and calls from %s to %s are not in it", lost.Since.UTC().Format(time.RFC3339), lost.Until.UTC().Format(time.RFC3339))
	case calls == 0:
		return "yes: its record is older than a restore of the ledger, which does not know of a call"
	}
	return "yes: a request was sent, and its outcome is not known"
}

func (e explained) tables() []operate.Table {
	calls := operate.Table{Columns: []string{"CALL", "STARTED", "TOOK", "INSTANCE", "OUTCOME", "STATUS", "CLASS", "ANSWER"}, Empty: "No call was made."}
	names := namesOf(e.Calls)
	for i, a := range e.Calls {
		took, outcome := "", string(a.Outcome)
		switch {
		case a.Late:
		case a.Open():
			outcome = "not known"
		case !a.StartedAt.IsZero():
			took = a.EndedAt.Sub(a.StartedAt).Round(time.Millisecond).String()
		}
		status := ""
		if a.Status != 0 {
			status = fmt.Sprint(a.Status)
		}
		started := ""
		if !a.StartedAt.IsZero() {
			started = a.StartedAt.UTC().Format(time.RFC3339Nano)
		}
		calls.Rows = append(calls.Rows, []string{names[i], started, took, a.Instance, outcome, status, a.Class, strings.TrimSpace(a.Answer + " " + a.Receipt)})
	}
	tables := []operate.Table{calls}
	if changes := changesOf(e.Audit, e.GroupAudit); len(changes) > 0 {
		tables = append(tables, auditTable(changes, ""))
	}
	return tables
}

// changesOf returns what operators did to an effect and to its group, in order, for people.
func changesOf(effect, group []ledger.Audit) []ledger.Audit {
	all := append([]ledger.Audit{}, effect...)
	for _, a := range group {
		a.Action += " of the group"
		all = append(all, a)
	}
	sorted.By(all, func(a, b ledger.Audit) int { return a.At.Compare(b.At) })
	return all
}

// sinceGroupPaused says who paused a group, when and why, from what operators did to it.
func sinceGroupPaused(audit []ledger.Audit) string {
	for _, a := range slices.Backward(audit) {
		if a.Action == "pause" {
			return fmt.Sprintf("It has been paused since %s by %s: %s.", a.At.UTC().Format(time.RFC3339), a.Who, a.Why)
		}
	}
	return ""
}

// next reads what an effect waits for, and says what happens next with it, or what an operator can do.
func next(ctx context.Context, l *ledger.Ledger, x ledger.Explanation) (string, error) {
	if x.Row.State.Settled() {
		return nextOf(x, ledger.Held{}), nil
	}
	held, err := l.Held(ctx, x.Key)
	return nextOf(x, held), err
}

func nextOf(x ledger.Explanation, held ledger.Held) string {
	_, open := x.Row.OpenCall()
	switch {
	case x.Row.State == rules.Success:
		return "nothing. It is done."
	case x.Row.State == rules.Cancelled:
		return "nothing. It was certainly not done, and was cancelled with its group."
	case x.Row.State == rules.Failed:
		return "nothing. It was certainly not done. `once replay` gives it all its attempts again."
	case x.Row.State == rules.Unknown:
		return "it may have been done, and nothing more is tried. Look at the far side, then `once resolve --done RECEIPT` or `--not-done`."
	case open && x.NextCallIn > 0:
		return fmt.Sprintf("%s is calling for it. If that worker has died, its lease ends %s.", x.Row.AttemptBy, in(x.NextCallIn))
	case held.Paused != nil:
		then := "nothing until the kind " + x.Kind + " is resumed: `" + resumeKind(x.Kind) + "`. It " + sincePaused(*held.Paused) + "."
		if x.Group == rules.GroupPaused {
			then += " Its group is paused, too, and must be resumed as well: `once resume`."
		}
		return then
	case x.Group == rules.GroupPaused:
		return strings.TrimSpace("nothing until its group is resumed: `once resume`. " + sinceGroupPaused(x.GroupAudit))
	case !x.Registered:
		return fmt.Sprintf("this binary does not have the kind %s, so a program that has it decides. If none runs, nothing happens.", x.Kind)
	}
	when := in(x.NextCallIn)
	switch {
	case x.NextCallIn <= 0:
		when = whenHeld(x.Kind, held)
	case len(held.Stops) > 0:
		when += " at the earliest, " + whenStopped(x.Kind, held.Stops)
	}
	switch {
	case x.NextCall == rules.Lookup:
		return "it is looked up " + when + "."
	case x.NextCall == rules.Send && x.Repeat == rules.Always && (x.Row.PerhapsDone() || x.Lost != nil):
		return "the request is sent again, so it may be done twice, " + when + "."
	case x.NextCall == rules.Send && (x.Row.PerhapsDone() || x.Lost != nil):
		return "the request is sent again, with the same key and the same bytes, " + when + "."
	case x.NextCall == rules.Send:
		return "the request is sent " + when + "."
	}
	return "no attempt is left, so it ends when it is taken up: " + when + "."
}

func in(d time.Duration) string {
	if d <= 0 {
		return "now"
	}
	return "in " + d.Round(time.Millisecond).String()
}

// overdue is how long an effect may be due before it is worth a word that nobody takes it up.
const overdue = 30 * time.Second

// whenHeld says when an effect that is due is called for.
func whenHeld(kind string, h ledger.Held) string {
	var waits []string
	if len(h.Stops) > 0 {
		waits = append(waits, whenStopped(kind, h.Stops))
	}
	ahead := ""
	if h.Ahead > 0 {
		ahead = ", while " + atMost(h.Ahead) + " of the kind waited before it"
	}
	most := ledger.Limits{InFlight: h.Limits.InFlight}
	if most.InFlight > 0 && h.Calling >= int64(most.InFlight) {
		waits = append(waits, fmt.Sprintf("when calls end, because the kind %s has a limit of %s (%s) and %d run%s", kind, most, h.Limits.InFlightFrom, h.Calling, ahead))
	}
	if rate := (ledger.Limits{PerSecond: h.Limits.PerSecond}); rate.PerSecond > 0 {
		wait := h.TokenIn + time.Duration(float64(h.Ahead)/rate.PerSecond*float64(time.Second))
		if wait >= time.Second {
			waits = append(waits, fmt.Sprintf("when the limit of the kind %s allows it, which is %s (%s)%s: in about %s", kind, rate, h.Limits.PerSecondFrom, ahead, wait.Round(time.Second)))
		}
	}
	switch {
	case len(waits) > 0:
		return strings.Join(waits, ", and ")
	case h.Ahead > 0:
		return "when it is the turn of its group, because " + atMost(h.Ahead) + " of the kind " + kind + " waited before it"
	case h.DueFor > overdue:
		return fmt.Sprintf("when an instance takes it up. It has been due for %s: does an instance run that has the kind %s?", h.DueFor.Round(time.Second), kind)
	}
	return "now"
}

func atMost(n int64) string {
	if n >= ledger.BacklogLimit {
		return fmt.Sprintf("%d or more effects", n)
	}
	if n == 1 {
		return "1 effect"
	}
	return fmt.Sprintf("%d effects", n)
}

func whenStopped(kind string, stops []ledger.Stop) string {
	return "when an instance calls for the kind " + kind + " again. At the moment " + textOfStops(stops)
}

// textOfStops names the instances that call for nothing, and why.
func textOfStops(stops []ledger.Stop) string {
	var each []string
	for _, s := range stops {
		each = append(each, fmt.Sprintf("%s has made no call since %s: %s", s.Instance, s.Since.UTC().Format(time.RFC3339), s.Reason))
	}
	return strings.Join(each, "; ")
}
