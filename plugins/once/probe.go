package once

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once/ledger"
)

// probeAction finds out whether the far side of a kind does what the Repeat of the kind says.
func (p *Plugin) probeAction() operate.Action {
	about := p.about("once probe", "Find out whether a far side keeps its promise", []operate.Field{
		{Name: "kind", Help: "the `kind` of effect", Required: true},
		{Name: "record", Help: "a `record` of the kind, as in its topic, about something of your own", Required: true},
	}, `once probe --kind mail --record '{"id":"p1"}' --dry-run`, `once probe --kind mail --record '{"id":"p1"}' --why new`)
	about.Long = `Find out whether the far side of a kind keeps its promise, with a record of your own.

A kind states what its far side does with a second request (Repeat), and a wrong statement loses or doubles effects. With ByKey the request of the record is sent twice, with the same key and the same bytes, and both answers must name the same receipt. With ByKey and ByLookup the lookup must then find it.

The effect really happens, once if all is well and perhaps twice if it is not, so use a record whose effect you can undo. It gets no row in the ledger, and a record whose effect is in the ledger is refused.`
	about.Register = p.registerProbe
	return operate.Action{
		About:   about,
		Danger:  operate.Irreversible,
		Role:    operate.Admin,
		Audited: true,
		Preview: p.withLedger(func(ctx context.Context, l *ledger.Ledger, in operate.Input) (operate.Answer, error) {
			b, err := p.newProbe(ctx, l, in)
			if err != nil {
				return operate.Answer{}, err
			}
			return b.preview(), nil
		}),
		Do: func(ctx context.Context, r *pipeline.Registry, in operate.Input, use operate.Use) (operate.Answer, error) {
			return p.withLedger(func(ctx context.Context, l *ledger.Ledger, in operate.Input) (operate.Answer, error) {
				b, err := p.newProbe(ctx, l, in)
				if err != nil {
					return operate.Answer{}, err
				}
				if err := l.RecordProbe(ctx, b.record.Key, byOf(use)); err != nil {
					return operate.Answer{}, b.refused(err)
				}
				return b.run(ctx, use), nil
			})(ctx, r, in)
		},
	}
}

// registerProbe opens the ledger for a command, and starts the services of the plugins that have kinds, such as their clients.
func (p *Plugin) registerProbe(r *pipeline.Registry) error {
	if err := p.registerCommand(r); err != nil {
		return err
	}
	var owners []string
	for _, e := range r.Endpoints() {
		if e.Use == pipeline.UseFollows && e.Kind == kindLedger {
			owners = append(owners, e.Plugin)
		}
	}
	for _, s := range slices.Clone(r.Services()) {
		if slices.Contains(owners, s.Plugin) {
			r.Service(s.Name+".probe", s.Service)
		}
	}
	return nil
}

// probe is one record that is sent to the far side of its kind.
type probe struct {
	worker *worker
	record ledger.Record
	repeat Repeat
	lookup bool // the kind has one
	key    string
}

func (p *Plugin) newProbe(ctx context.Context, l *ledger.Ledger, in operate.Input) (*probe, error) {
	w := p.kindOf(in.Text("kind"))
	if w == nil {
		return nil, p.unknownKind(in.Text("kind"), "this program does not have")
	}
	policy := w.effects.ledgerKind(p.instance()).Policy
	b := &probe{worker: w, repeat: policy.Repeat, lookup: policy.MaxLookups > 0}
	if b.repeat != ByKey && b.repeat != ByLookup {
		return nil, &operate.InputError{Field: "kind", Problem: fmt.Sprintf("the kind %s says that its far side has neither keys nor a lookup (%s), so there is nothing to find out", w.name, b.repeat)}
	}
	var err error
	if b.record, err = w.effects.read([]byte(in.Text("record"))); err != nil {
		return nil, &operate.InputError{Field: "record", Problem: err.Error()}
	}
	b.key, _ = w.effects.describe(b.record.Key, b.record.Payload)
	switch _, err := l.Explain(ctx, b.record.Key); {
	case err == nil:
		return nil, b.refused(ErrConflict)
	case !errors.Is(err, ledger.ErrNotFound):
		return nil, err
	}
	return b, nil
}

func (b *probe) refused(err error) error {
	if errors.Is(err, ErrConflict) {
		return app.Bad("%s is in the ledger or was probed before, so its effect must not be repeated: give a record with a new key of your own", textOf(b.record.Key))
	}
	return err
}

func (b *probe) preview() operate.Answer {
	times := "twice, with the same key"
	if b.repeat != ByKey {
		times = "once"
	}
	lines := []string{fmt.Sprintf("The request of %s would be sent %s, and the effect would happen.", textOf(b.record.Key), times)}
	if b.lookup {
		lines = append(lines, "It would be looked up then.")
	}
	return operate.Answer{Value: probed{Effect: textOf(b.record.Key), Key: b.key, Repeat: b.repeat.String(), Answers: []probeAnswer{}}, Lines: lines, Tables: []operate.Table{
		{Rows: [][]string{{"idempotency key", b.key}, {"request", string(b.record.Request)}}},
	}}
}

// probed is the answer for programs.
type probed struct {
	Effect  string          `json:"effect"`
	Key     string          `json:"idempotency_key"`
	Repeat  string          `json:"repeat"`
	Answers []probeAnswer   `json:"answers"`
	Checks  []operate.Check `json:"checks,omitempty"`
}

type probeAnswer struct {
	Call    string `json:"call"`
	Class   string `json:"class"`
	Receipt string `json:"receipt,omitempty"`
	Status  int    `json:"status,omitempty"`
	Text    string `json:"text,omitempty"`
}

func (b *probe) run(ctx context.Context, use operate.Use) operate.Answer {
	result := probed{Effect: textOf(b.record.Key), Key: b.key, Repeat: b.repeat.String()}
	table := operate.Table{Columns: []string{"CALL", "ANSWER", "RECEIPT", "STATUS", "TEXT"}}
	var began time.Time
	ask := func(call string, lookup bool) Answer {
		use.Tell(call + " …")
		if began.IsZero() {
			began = time.Now()
		}
		number := len(result.Answers) + 1
		a := b.ask(ctx, ledger.Claimed{Key: b.record.Key, Payload: b.record.Payload, Request: b.record.Request, Headers: b.record.Headers, Number: number, Lookup: lookup, LastSent: began})
		result.Answers = append(result.Answers, probeAnswer{call, a.Class.String(), a.Receipt, a.Status, textOfAnswer(a)})
		table.Rows = append(table.Rows, []string{call, a.Class.String(), a.Receipt, fmt.Sprint(a.Status), textOfAnswer(a)})
		return a
	}
	first := ask("send 1", false)
	result.Checks = append(result.Checks, judgeFirst(first))
	if first.Class == Done {
		if b.repeat == ByKey {
			result.Checks = append(result.Checks, judgeSecond(first, ask("send 2", false)))
		}
		if b.lookup {
			result.Checks = append(result.Checks, judgeLookup(first, ask("lookup", true)))
		}
	}
	return operate.Answer{Value: result, Tables: []operate.Table{table}, Checks: result.Checks}
}

// ask makes one call. A panic is an answer, as in the worker.
func (b *probe) ask(ctx context.Context, c ledger.Claimed) (a Answer) {
	ctx, cancel := context.WithTimeout(ctx, b.worker.config.CallTimeout)
	defer cancel()
	defer func() {
		if r := recover(); r != nil {
			a = Answer{Text: fmt.Sprintf("the call panicked: %v", r)}
		}
	}()
	a, _ = b.worker.effects.call(ctx, c)
	return a
}

func judgeFirst(a Answer) operate.Check {
	c := operate.Check{Name: "first request", Level: operate.OK, Text: "was done, receipt " + cmp.Or(a.Receipt, "unknown")}
	if a.Class == Done {
		return c
	}
	c.Level, c.Text = operate.Fail, "was not answered as done but as "+saidOf(a)+", so nothing more was sent"
	if a.Class == Unclear || a.Class == Unrecognized {
		c.Text += ", and it is perhaps done"
	}
	c.Remedy = "correct the record, the client or how answers are read, and probe again with another key"
	return c
}

// judgeSecond compares the answers to two equal requests.
func judgeSecond(first, second Answer) operate.Check {
	c := operate.Check{Name: "second request", Level: operate.OK, Text: "was answered with the same receipt, so the far side knows the key"}
	switch {
	case second.Class != Done:
		c.Level = operate.Fail
		c.Text = "was answered as " + saidOf(second) + ", though the first one was done: an effect whose first answer is lost would " + followsFrom(second.Class)
		c.Remedy = "read this answer as done, or look effects up (ByLookup)"
	case first.Receipt == "" || second.Receipt == "":
		c.Level, c.Text = operate.Warn, "was answered as done without a receipt, which does not show whether it was done twice"
		c.Remedy = "look at the far side, and read the receipt of its answers"
	case first.Receipt != second.Receipt:
		c.Level, c.Text = operate.Fail, "has another receipt, "+second.Receipt+": the far side did it twice"
		c.Remedy = "undo one of the two, and let the kind say ByLookup or Never"
	}
	return c
}

func judgeLookup(first, found Answer) operate.Check {
	c := operate.Check{Name: "lookup", Level: operate.OK, Text: "finds the effect"}
	switch {
	case found.Class == NotDone:
		c.Level, c.Text = operate.Fail, "finds nothing, though the request was done"
		c.Remedy = "correct the lookup; if the far side shows an effect late, under_way must be longer than that"
	case found.Class != Done:
		c.Level, c.Text = operate.Fail, "was answered as "+saidOf(found)
		c.Remedy = "correct the lookup or how its answers are read"
	case first.Receipt != "" && found.Receipt != "" && first.Receipt != found.Receipt:
		c.Level, c.Text = operate.Fail, fmt.Sprintf("finds the receipt %s, and the request was answered with %s", found.Receipt, first.Receipt)
		c.Remedy = "correct the lookup, because it finds another effect"
	}
	return c
}

func saidOf(a Answer) string {
	text := a.Class.String()
	if said := textOfAnswer(a); said != "" {
		text += " (" + said + ")"
	}
	return text
}

// followsFrom says what an answer does to an effect that is done already.
func followsFrom(c Class) string {
	if c == Rejected {
		return "end as failed"
	}
	return "be sent again until its attempts are used up"
}
