package once

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once/ledger"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// lookupReport asks the far side about one effect, and changes nothing.
func (p *Plugin) lookupReport(effect []operate.Field) operate.Report {
	about := p.about("once lookup", "Ask the far side what became of one effect", effect, "once lookup --kind invoice --group acme --id 17")
	about.Long = `Ask the far side what became of one effect, by the lookup of its kind, and
compare the answer with the ledger, in which nothing changes.

The exit code is 1 if they contradict each other, such as an effect that is done
in the ledger and not known there. A lookup that finds nothing proves nothing
while a request may be under way, or when the far side may have forgotten the key.
The limits of the kind do not count this call.`
	about.Register = p.registerLookup
	return operate.Report{About: about, Read: p.withEffect(func(ctx context.Context, l *ledger.Ledger, k ledger.Key, in operate.Input) (operate.Answer, error) {
		w := p.kindOf(k.Kind)
		if w == nil {
			return operate.Answer{}, p.unknownKind(k.Kind, "only a program that has a kind can look its effects up, and this one does not have")
		}
		if w.effects.ledgerKind(p.instance()).Policy.MaxLookups == 0 {
			return operate.Answer{}, &operate.InputError{Field: "kind", Problem: "the kind " + k.Kind + " has no lookup, so its far side can't be asked"}
		}
		x, err := l.Explain(ctx, k)
		if err != nil {
			return operate.Answer{}, notFound(err, "%s", p.notAccepted(ctx, k))
		}
		a, err := p.explain(ctx, l, k, in)
		if err != nil {
			return a, err
		}
		f, err := p.ask(ctx, l, w, x)
		if err != nil {
			return operate.Answer{}, err
		}
		a.Value = struct {
			explained
			FarSide *farSide `json:"far_side"`
		}{a.Value.(explained), f}
		a.Lines = append([]string{"The far side says: " + f.String() + "."}, a.Lines...)
		a.Checks = []operate.Check{f.compare(x)}
		return a, nil
	})}
}

// registerLookup opens the ledger for a command, and starts the clients of kinds. One that can't start is no reason to end, because an
// operator can also act without an answer.
func (p *Plugin) registerLookup(r *pipeline.Registry) error {
	if err := p.registerCommand(r); err != nil {
		return err
	}
	for _, s := range p.clientsOf(r) {
		r.Service(s.Name+".lookup", &optionalService{Service: s.Service, plugin: p})
	}
	return nil
}

// clientsOf returns the services of the plugins that have kinds, such as their clients.
func (p *Plugin) clientsOf(r *pipeline.Registry) []pipeline.NamedService {
	var owners []string
	for _, e := range r.Endpoints() {
		if e.Use == pipeline.UseFollows && e.Kind == kindLedger {
			owners = append(owners, e.Plugin)
		}
	}
	return slices.DeleteFunc(slices.Clone(r.Services()), func(s pipeline.NamedService) bool { return !slices.Contains(owners, s.Plugin) })
}

// optionalService is a service of a command without which the far side is not asked.
type optionalService struct {
	pipeline.Service
	plugin  *Plugin
	mu      sync.Mutex
	running bool
}

func (s *optionalService) Start(ctx context.Context) error {
	err := s.Service.Start(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running = err == nil; err != nil {
		s.plugin.noClient.Store(&err)
	}
	return nil
}

func (s *optionalService) Stop(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running {
		return nil
	}
	return s.Service.Stop(ctx)
}

// farSide is what the far side says of an effect now.
type farSide struct {
	Class   string `json:"class"` // as in Answers, or not_asked
	Receipt string `json:"receipt,omitempty"`
	Status  int    `json:"status,omitempty"`
	Text    string `json:"text,omitempty"`
	// KeyTooOld: an API that forgets keys would know nothing, whether the effect was done or not.
	KeyTooOld bool `json:"key_too_old,omitempty"`
	// UnderWay: the last request may still be under way, so an effect that is not known may be done yet.
	UnderWay bool `json:"under_way,omitempty"`

	class Class
	asked bool
}

// ask looks an effect up. Its error is that of the ledger's clock.
func (p *Plugin) ask(ctx context.Context, l *ledger.Ledger, w *worker, x ledger.Explanation) (*farSide, error) {
	if away := p.noClient.Load(); away != nil {
		return &farSide{Class: "not_asked", Text: (*away).Error()}, nil
	}
	now, err := l.Now(ctx)
	if err != nil {
		return nil, err
	}
	var sent time.Time
	for _, c := range x.Calls {
		if c.Kind == rules.CallSend && c.StartedAt.After(sent) {
			sent = c.StartedAt
		}
	}
	a := askOnce(ctx, w.config.CallTimeout, func(ctx context.Context) Answer {
		a, _ := w.effects.call(ctx, ledger.Claimed{Key: x.Key, Payload: x.Payload, Request: x.Request, Headers: x.Headers, Lookup: true, LastSent: sent})
		return a
	})
	policy := w.effects.ledgerKind(p.instance()).Policy
	return &farSide{
		Class: a.Class.String(), Receipt: a.Receipt, Status: a.Status, Text: textOfAnswer(a), class: a.Class, asked: true,
		KeyTooOld: policy.Repeat == ByKey && x.Row.KeyAge(now) > policy.KeyTTL,
		UnderWay:  !sent.IsZero() && now.Sub(sent) <= max(policy.Lease, policy.UnderWay),
	}, nil
}

// askOnce makes one call for an operator. A panic is an answer, as in the worker.
func askOnce(ctx context.Context, timeout time.Duration, call func(context.Context) Answer) (a Answer) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	defer func() {
		if r := recover(); r != nil {
			a = Answer{Text: fmt.Sprintf("the call panicked: %v", r)}
		}
	}()
	return call(ctx)
}

func (f *farSide) done() bool { return f.asked && f.class == Done }

func (f *farSide) knowsNothing() bool { return f.asked && f.class == NotDone }

// String is a phrase.
func (f *farSide) String() string {
	switch {
	case f.done() && f.Receipt == "":
		return "it is done"
	case f.done():
		return "it is done, receipt " + f.Receipt
	case f.knowsNothing() && f.KeyTooOld:
		return "it is not known there, which is no proof, because its key is older than key_ttl"
	case f.knowsNothing() && f.UnderWay:
		return "it is not known there, which is no proof, because the last request may still be under way"
	case f.knowsNothing():
		return "it is not known there"
	case f.Text == "":
		return "nothing (" + f.Class + ")"
	}
	return fmt.Sprintf("nothing (%s: %s)", f.Class, f.Text)
}

// compare says whether the ledger agrees.
func (f *farSide) compare(x ledger.Explanation) operate.Check {
	c := operate.Check{Name: "ledger and far side", Level: operate.OK}
	state := x.Row.State
	switch {
	case !f.done() && !f.knowsNothing():
		c.Level, c.Text, c.Remedy = operate.Warn, "can't be compared, because the far side gave no answer", "ask again when it answers"
	case f.done() && state == rules.Success && f.Receipt != "" && x.Row.Receipt != "" && f.Receipt != x.Row.Receipt:
		c.Level, c.Text = operate.Fail, fmt.Sprintf("contradict each other: the receipt is %s in the ledger and %s there", x.Row.Receipt, f.Receipt)
	case f.done() && state == rules.Success, f.knowsNothing() && (state == rules.Failed || state == rules.Cancelled):
		c.Text = "agree"
	case f.done() && state == rules.Unknown:
		c.Level, c.Text, c.Remedy = operate.Warn, "the far side knows what the ledger does not", "once resolve --done "+f.Receipt
	case f.done() && state.Settled():
		c.Level, c.Text = operate.Fail, fmt.Sprintf("contradict each other: it is %s in the ledger and done there", state)
		c.Remedy = "once resolve is for UNKNOWN effects alone: correct it at the far side, or once replay, which finds the key known"
	case f.knowsNothing() && state == rules.Success && !f.KeyTooOld:
		c.Level, c.Text = operate.Fail, "contradict each other: it is done in the ledger and not known there"
		c.Remedy = "ask the far side whether it forgets or undoes effects"
	case f.done():
		c.Text = fmt.Sprintf("the effect is %s in the ledger, which finds out by itself", state)
	default:
		c.Text = fmt.Sprintf("the effect is %s in the ledger, and the far side proves nothing else", state)
	}
	return c
}

// contradicts returns why a resolution is refused without force, or nothing.
func (f *farSide) contradicts(r rules.Resolution) string {
	switch {
	case f.done() && !r.Done:
		return fmt.Sprintf("the far side says that it is done, receipt %s: --done %s records that, and --force denies it", f.Receipt, f.Receipt)
	case f.done() && f.Receipt != "" && f.Receipt != r.Receipt:
		return fmt.Sprintf("the far side names it %s and not %s; --force records %s all the same", f.Receipt, r.Receipt, r.Receipt)
	case f.knowsNothing() && r.Done:
		return "the far side does not know it; if you have seen it elsewhere, --force records that it is done"
	case r.Done || f.knowsNothing() && !f.KeyTooOld && !f.UnderWay:
		return ""
	case f.knowsNothing():
		return "the far side says that " + f.String() + "; if you are sure that it was not done, --force records that"
	}
	return "the far side has not answered that it does not know the effect, but " + f.String() + "; if you are sure that it was not done, --force records that"
}
