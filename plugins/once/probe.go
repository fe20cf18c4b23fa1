package once

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/millrace-io/millrace/pipeline/operate"
)

// Probe is one request of an operator's own, which shows whether a far side does what is said of it. The action
// that makes it has the field ProbeConsent.
type Probe struct {
	Effect string // what is done, for people
	Key    string // the idempotency key
	// Repeat is what the far side is said to do. With ByKey the request is sent twice, otherwise once.
	Repeat  Repeat
	To      string // where the request goes; empty: not shown
	Request []byte
	// Contract names what obliges the far side, such as a specification. Empty: the kind may say another Repeat.
	Contract string
	Class    func(Class) string // names the class of an answer; nil: Class.String
	Timeout  time.Duration      // of a call
	// Record is called before the first request. With an error nothing is sent.
	Record func(context.Context, operate.Use) error
	// Send sends the request. number counts the calls from 1, and began is when the first one began.
	Send func(ctx context.Context, number int, began time.Time) Answer
	// Lookup looks the effect up. Nil: there is no lookup.
	Lookup func(ctx context.Context, number int, began time.Time) Answer
}

const probeYes = "yes"

// ProbeConsent returns the field without which Probe.Do sends nothing.
func ProbeConsent() operate.Field {
	return operate.Field{Name: probeYes, Type: operate.Switch, Help: "send it; without this the request is only shown"}
}

// Preview says what Do would send.
func (b *Probe) Preview() operate.Answer {
	times := "twice, with the same key"
	if b.Repeat != ByKey {
		times = "once"
	}
	lines := []string{fmt.Sprintf("The request of %s would be sent %s, and the effect would happen.", b.Effect, times)}
	if b.Lookup != nil {
		lines = append(lines, "It would be looked up then.")
	}
	var rows [][]string
	if b.To != "" {
		rows = append(rows, []string{"to", b.To})
	}
	rows = append(rows, []string{"idempotency key", b.Key}, []string{"request", string(b.Request)})
	return operate.Answer{Value: b.result(), Lines: lines, Tables: []operate.Table{{Rows: rows}}}
}

// Do sends the request and judges the answers. Without the consent it sends nothing, and answers as Preview.
func (b *Probe) Do(ctx context.Context, in operate.Input, use operate.Use) (operate.Answer, error) {
	if !in.Switch(probeYes) {
		return b.Preview(), &operate.InputError{Field: probeYes, Problem: "nothing was sent: --yes sends it"}
	}
	if err := b.Record(ctx, use); err != nil {
		return operate.Answer{}, err
	}
	return b.run(ctx, use), nil
}

// probed is the answer for programs.
type probed struct {
	Effect  string          `json:"effect"`
	Key     string          `json:"idempotency_key"`
	To      string          `json:"to,omitempty"`
	Request string          `json:"request"`
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

func (b *Probe) result() probed {
	return probed{Effect: b.Effect, Key: b.Key, To: b.To, Request: string(b.Request), Repeat: b.Repeat.String(), Answers: []probeAnswer{}}
}

func (b *Probe) run(ctx context.Context, use operate.Use) operate.Answer {
	result := b.result()
	table := operate.Table{Columns: []string{"CALL", "ANSWER", "RECEIPT", "STATUS", "TEXT"}}
	var began time.Time
	ask := func(call string, f func(context.Context, int, time.Time) Answer) Answer {
		use.Tell(call + " …")
		if began.IsZero() {
			began = time.Now()
		}
		a := b.ask(ctx, f, len(result.Answers)+1, began)
		result.Answers = append(result.Answers, probeAnswer{call, b.class(a), a.Receipt, a.Status, textOfAnswer(a)})
		table.Rows = append(table.Rows, []string{call, b.class(a), a.Receipt, fmt.Sprint(a.Status), textOfAnswer(a)})
		return a
	}
	first := ask("send 1", b.Send)
	result.Checks = append(result.Checks, b.judgeFirst(first))
	if first.Class == Done {
		if b.Repeat == ByKey {
			result.Checks = append(result.Checks, b.judgeSecond(first, ask("send 2", b.Send)))
		}
		if b.Lookup != nil {
			result.Checks = append(result.Checks, b.judgeLookup(first, ask("lookup", b.Lookup)))
		}
	}
	return operate.Answer{Value: result, Tables: []operate.Table{table}, Checks: result.Checks}
}

func (b *Probe) ask(ctx context.Context, f func(context.Context, int, time.Time) Answer, number int, began time.Time) Answer {
	return askOnce(ctx, b.Timeout, func(ctx context.Context) Answer { return f(ctx, number, began) })
}

func (b *Probe) judgeFirst(a Answer) operate.Check {
	c := operate.Check{Name: "first request", Level: operate.OK, Text: "was done, receipt " + cmp.Or(a.Receipt, "unknown")}
	if a.Class == Done {
		return c
	}
	c.Level, c.Text = operate.Fail, "was not answered as done but as "+b.saidOf(a)+", so nothing more was sent"
	if a.Class == Unclear || a.Class == Unrecognized {
		c.Text += ", and it is perhaps done"
	}
	c.Remedy = "correct the record, the client or how answers are read, and probe again with another key"
	return c
}

// judgeSecond compares the answers to two equal requests.
func (b *Probe) judgeSecond(first, second Answer) operate.Check {
	c := operate.Check{Name: "second request", Level: operate.OK, Text: "was answered with the same receipt, so the far side knows the key"}
	switch {
	case second.Class != Done:
		c.Level = operate.Fail
		c.Text = "was answered as " + b.saidOf(second) + ", though the first one was done: an effect whose first answer is lost would " + followsFrom(second.Class)
		c.Remedy = b.remedy("read this answer as done, or look effects up (ByLookup)")
	case first.Receipt == "" || second.Receipt == "":
		c.Level, c.Text = operate.Warn, "was answered as done without a receipt, which does not show whether it was done twice"
		c.Remedy = "look at the far side, and " + b.remedy("read the receipt of its answers")
	case first.Receipt != second.Receipt:
		c.Level, c.Text = operate.Fail, "has another receipt, "+second.Receipt+": the far side did it twice"
		c.Remedy = "undo one of the two, and " + b.remedy("let the kind say ByLookup or Never")
	}
	return c
}

func (b *Probe) judgeLookup(first, found Answer) operate.Check {
	c := operate.Check{Name: "lookup", Level: operate.OK, Text: "finds the effect"}
	switch {
	case found.Class == NotDone:
		c.Level, c.Text = operate.Fail, "finds nothing, though the request was done"
		c.Remedy = b.remedy("correct the lookup; if the far side shows an effect late, under_way must be longer than that")
	case found.Class != Done:
		c.Level, c.Text = operate.Fail, "was answered as "+b.saidOf(found)
		c.Remedy = b.remedy("correct the lookup or how its answers are read")
	case first.Receipt != "" && found.Receipt != "" && first.Receipt != found.Receipt:
		c.Level, c.Text = operate.Fail, fmt.Sprintf("finds the receipt %s, and the request was answered with %s", found.Receipt, first.Receipt)
		c.Remedy = b.remedy("correct the lookup, because it finds another effect")
	}
	return c
}

func (b *Probe) saidOf(a Answer) string {
	text := b.class(a)
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

func (b *Probe) class(a Answer) string {
	if b.Class != nil {
		return b.Class(a.Class)
	}
	return a.Class.String()
}

// remedy returns what to do about a far side that does not do what is said of it. A kind may say something else.
func (b *Probe) remedy(ofKind string) string {
	if b.Contract == "" {
		return ofKind
	}
	return "send nothing else there until it does what " + b.Contract + " says"
}
