package once

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/millrace-io/millrace/internal/pace"
	"github.com/millrace-io/millrace/internal/sorted"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once/ledger"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// replayAction gives one effect, or many, all their attempts again.
func (p *Plugin) replayAction() operate.Action {
	about := p.about("once replay", "Give failed or unknown effects all their attempts again", []operate.Field{
		{Name: "kind", Help: "the `kind` of effect", Required: true},
		{Name: "group", Help: "the `group` of effects"},
		{Name: "id", Help: "the `id` of one effect in its group; without it: many"},
		{Name: "all", Type: operate.Switch, Help: "many of the whole kind, in place of a group"},
		{Name: "state", Help: "of many, only in this `state`: FAILED, the default, or UNKNOWN"},
		{Name: "class", Help: "of many, only with this `class`, as once problems shows it"},
		{Name: "limit", Type: operate.Number, Help: "of many, replay at most this number; 0 is no limit"},
		{Name: "rate", Help: "of many, at most this `number` per second, such as 5/s; also 30/m, 100/h"},
	}, "once replay --kind invoice --group acme --id 17 --why \"corrected\"",
		"once replay --kind invoice --group acme --class rejected --dry-run", "once replay --kind invoice --all --rate 20/s --why \"they are back\"")
	about.Long = `Give effects that failed or are unknown all their attempts again, with the same
key and the same bytes: one with --id, those of a group, or with --all those of
a whole kind.

Each of many is decided by the same rules as one, and recorded with who and why.
An UNKNOWN effect may be done already. It is looked up or sent again as its kind
allows, and refused if no call can find out what became of it.

Of many, only those are replayed that had ended before the command began, so two
operators at once replay each effect once. After an interruption the same
command goes on with those that are left, and with what has failed again since.
--rate does not replace the limits of the kind, which hold for the calls.`
	about.Validate = func(in operate.Input) error {
		_, err := bulkOf(in)
		return err
	}
	previewOne := p.previewChange(wouldReplay)
	return operate.Action{
		About:   about,
		Danger:  operate.Safe,
		Role:    operate.Operator,
		Audited: true,
		Preview: func(ctx context.Context, r *pipeline.Registry, in operate.Input) (operate.Answer, error) {
			if in.Text("id") == "" {
				return p.replayMany(ctx, in, nil)
			}
			return previewOne(ctx, r, in)
		},
		Do: func(ctx context.Context, r *pipeline.Registry, in operate.Input, use operate.Use) (operate.Answer, error) {
			if in.Text("id") == "" {
				return p.replayMany(ctx, in, &use)
			}
			return p.withEffect(func(ctx context.Context, l *ledger.Ledger, k ledger.Key, in operate.Input) (operate.Answer, error) {
				if err := l.Replay(ctx, k, byOf(use)); err != nil {
					return operate.Answer{}, refusal(k, err)
				}
				return p.explain(ctx, l, k, in)
			})(ctx, r, in)
		},
	}
}

// bulkOf reads the fields. It returns nil for one effect.
func bulkOf(in operate.Input) (*bulkReplay, error) {
	limit := in.Number("limit")
	if in.Text("id") != "" {
		switch {
		case in.Text("group") == "":
			return nil, &operate.InputError{Field: "group", Problem: "--group is required, because --id names an effect in its group"}
		case in.Switch("all") || limit != 0 || cmp.Or(in.Text("state"), in.Text("class"), in.Text("rate")) != "":
			return nil, &operate.InputError{Field: "id", Problem: "--id is one effect: give it without --all, --state, --class, --limit and --rate, which select many"}
		}
		return nil, nil
	}
	if err := checkScope(in); err != nil {
		return nil, err
	}
	b := &bulkReplay{limit: int64(limit), counts: map[replayResult]int64{}}
	b.selected = ledger.Selection{
		Group: ledger.Group{Kind: in.Text("kind"), Name: in.Text("group")}, Class: in.Text("class"),
		State: rules.State(strings.ToUpper(cmp.Or(in.Text("state"), string(rules.Failed)))),
	}
	switch {
	case b.selected.State != rules.Failed && b.selected.State != rules.Unknown:
		return nil, &operate.InputError{Field: "state", Problem: "--state must be FAILED or UNKNOWN"}
	case limit < 0:
		return nil, &operate.InputError{Field: "limit", Problem: "--limit must be >= 0"}
	}
	if in.Text("rate") == "0" {
		return b, nil
	}
	var err error
	b.pace, err = pace.Parse(in.Text("rate"))
	return b, err
}

const (
	// maxFailuresInARow is the number of consecutive effects at which a replay of many ends because the database does
	// not answer. One may have a lock that is not released.
	maxFailuresInARow = 3
	// fewEffects is how many effects of each result are shown.
	fewEffects = 5
	// maxResults is how many results there are in an answer, and fewResults in one for people.
	maxResults, fewResults = 1000, 20
)

// The results of effects.
const (
	isReplayed = "replayed"
	isRefused  = "refused"
	isChanged  = "changed meanwhile"
	isFailed   = "failed"
)

// bulkReplay replays many effects, or says what it would do.
type bulkReplay struct {
	selected ledger.Selection
	limit    int64 // of replayed ones; 0: none
	pace     pace.Pace
	use      *operate.Use // nil: nothing is changed
	report   replayReport
	counts   map[replayResult]int64
	inARow   int // consecutive failures
}

// replayReport is the answer about many effects for programs. Of a dry run it says what would be done.
type replayReport struct {
	Would    string           `json:"would,omitempty"` // of a dry run
	Kind     string           `json:"kind"`
	Group    string           `json:"group,omitempty"` // empty: all of the kind
	State    rules.State      `json:"state"`
	Class    string           `json:"class,omitempty"` // empty: any
	Selected int64            `json:"selected"`
	Replayed int64            `json:"replayed"`
	Refused  int64            `json:"refused"`
	Changed  int64            `json:"changed"` // since they were selected, such as by another operator's replay
	Failed   int64            `json:"failed"`  // it is not known whether they were replayed; the next replay goes on with them
	Left     int64            `json:"left"`    // by the limit, or by an interruption
	Results  []replayResult   `json:"results"` // most first, at most 1000
	Effects  []replayedEffect `json:"effects"` // up to 5 of each result; what was replayed is left out
}

// replayResult is a result that effects of a class share.
type replayResult struct {
	Class  string `json:"class"`
	Result string `json:"result"`
	Reason string `json:"reason,omitempty"`
	Count  int64  `json:"count"`
}

type replayedEffect struct {
	ledger.Problem
	Result string `json:"result"`
}

func (p *Plugin) replayMany(ctx context.Context, in operate.Input, use *operate.Use) (operate.Answer, error) {
	b, err := bulkOf(in)
	if err != nil {
		return operate.Answer{}, err
	}
	b.use = use
	return p.withLedger(b.run)(ctx, nil, in)
}

func (b *bulkReplay) run(ctx context.Context, l *ledger.Ledger, _ operate.Input) (operate.Answer, error) {
	held, err := heldBack(ctx, l, b.selected.Group)
	if err != nil {
		return operate.Answer{}, err
	}
	of, r := &b.selected, &b.report
	r.Kind, r.Group, r.State, r.Class = of.Kind, of.Name, of.State, of.Class
	if *of, r.Selected, err = l.CountSelected(ctx, *of); err != nil {
		return operate.Answer{}, err
	}
	ended, err := b.work(ctx, l)
	a, err := b.finish(ended, err)
	if r.Replayed > 0 {
		a.Notes = held
	}
	return a, err
}

// finish returns the answer after the last effect. ended says that none is left.
func (b *bulkReplay) finish(ended bool, err error) (operate.Answer, error) {
	r := &b.report
	handled := r.Replayed + r.Refused + r.Changed + r.Failed
	r.Selected = max(r.Selected, handled) // one may have been committed after the count
	if !ended {
		r.Left = r.Selected - handled
	}
	if err == nil && b.use != nil && r.Refused+r.Failed > 0 {
		err = app.Bad("some of the selected effects were not replayed")
	}
	return b.answer(), err
}

// heldBack says which pauses hold back the calls for effects of a group, or of a kind with an empty group. A group
// without an effect is an error.
func heldBack(ctx context.Context, l *ledger.Ledger, g ledger.Group) (notes []string, err error) {
	if g.Name != "" {
		s, err := l.Status(ctx, g)
		if err != nil {
			return nil, noGroup(err, g)
		}
		if s.State == rules.GroupPaused {
			notes = append(notes, "The group is paused, so nothing of it is called for until it is resumed.")
		}
	}
	paused, err := l.KindPaused(ctx, g.Kind)
	if paused != nil {
		notes = append(notes, textOfPause(*paused)+". Nothing of it is called for until it is resumed.")
	}
	return notes, err
}

// work replays the effects one by one. ended says that none is left.
func (b *bulkReplay) work(ctx context.Context, l *ledger.Ledger) (ended bool, err error) {
	total, tried := b.report.Selected, int64(0)
	if b.limit > 0 {
		total = min(total, b.limit)
	}
	tell := func() {
		if b.use != nil {
			b.use.Report(min(tried, total), total)
		}
	}
	for one, err := range l.Select(ctx, b.selected) {
		switch {
		case err != nil:
			return false, err
		case b.limit > 0 && b.report.Replayed == b.limit:
			tell()
			return false, nil
		case b.use == nil:
			err = one.Refused
		default:
			tell()
			if err := b.pace.Wait(ctx); err != nil {
				return false, err
			}
			err = l.ReplaySelected(ctx, b.selected, one.Key, byOf(*b.use))
		}
		if err != nil && ctx.Err() != nil { // it is not known whether this one was replayed
			return false, ctx.Err()
		}
		if err := b.add(one.Problem, err); err != nil {
			return false, err
		}
		tried++
	}
	tell()
	return true, nil
}

// add notes what became of an effect. The error is one that ends the replay.
func (b *bulkReplay) add(p ledger.Problem, err error) error {
	r, result, failures := &b.report, replayResult{Class: p.Class}, 0
	why, refused := reasonOf(err)
	switch {
	case err == nil:
		result.Result = isReplayed
		r.Replayed++
	case errors.Is(err, ledger.ErrNotSelected):
		result.Result = isChanged
		r.Changed++
	case refused:
		result.Result, result.Reason = isRefused, why
		r.Refused++
	case errors.Is(err, ledger.ErrUnavailable) && b.inARow+1 < maxFailuresInARow:
		failures = b.inARow + 1
		result.Result, result.Reason = isFailed, err.Error()
		r.Failed++
	default:
		return err
	}
	b.inARow = failures
	if b.counts[result]++; b.counts[result] <= fewEffects && len(r.Effects) < maxResults && (b.use == nil || result.Result != isReplayed) {
		r.Effects = append(r.Effects, replayedEffect{p, result.Result})
	}
	return nil
}

// answer is the report for people, too.
func (b *bulkReplay) answer() operate.Answer {
	r := &b.report
	for result, n := range b.counts {
		result.Count = n
		r.Results = append(r.Results, result)
	}
	sorted.By(r.Results, func(x, y replayResult) int {
		return cmp.Or(cmp.Compare(y.Count, x.Count), strings.Compare(x.Class, y.Class), strings.Compare(x.Result, y.Result), strings.Compare(x.Reason, y.Reason))
	})
	r.Results = append([]replayResult{}, r.Results[:min(len(r.Results), maxResults)]...)
	r.Effects = append([]replayedEffect{}, r.Effects...)
	text := b.summary()
	a := operate.Answer{Value: r, Lines: []string{text}}
	if b.use == nil {
		r.Would = text
	}
	if r.Selected == 0 {
		return a
	}
	results := operate.Table{Columns: []string{"COUNT", "CLASS", "RESULT"}}
	for _, x := range r.Results[:min(len(r.Results), fewResults)] {
		results.Rows = append(results.Rows, []string{number(x.Count), x.Class, b.would() + strings.TrimSuffix(x.Result+", because "+x.Reason, ", because ")})
	}
	if more := len(r.Results) - len(results.Rows); more > 0 {
		results.Rows = append(results.Rows, []string{"…", "", fmt.Sprintf("and %d more", more)})
	}
	a.Tables = []operate.Table{results}
	if len(r.Effects) > 0 {
		few := operate.Table{Columns: []string{"GROUP", "ID", "SINCE", "CLASS", "RESULT", "ANSWER"}}
		for _, x := range r.Effects {
			few.Rows = append(few.Rows, []string{x.Group, x.ID, x.At.Format(time.RFC3339), x.Class, b.would() + x.Result, x.Error})
		}
		a.Tables = append(a.Tables, few)
	}
	return a
}

// would is what comes before a result.
func (b *bulkReplay) would() string {
	if b.use == nil {
		return "would be "
	}
	return ""
}

// summary has the counts in one sentence.
func (b *bulkReplay) summary() string {
	r := &b.report
	of := " of " + strings.TrimSpace(r.Kind+" "+r.Group)
	if r.Class != "" {
		of += " with the class " + r.Class
	}
	if r.Selected == 0 {
		return "No effect" + of + " is " + string(r.State) + ", so there is nothing to replay."
	}
	var parts []string
	for _, c := range []struct {
		n      int64
		result string
	}{{r.Replayed, isReplayed}, {r.Refused, isRefused}, {r.Changed, isChanged}, {r.Failed, isFailed}, {r.Left, "left"}} {
		if c.n > 0 {
			parts = append(parts, number(c.n)+" "+b.would()+c.result)
		}
	}
	text := app.Plural(r.Selected, string(r.State)+" effect") + of + ": " + strings.Join(parts, ", ")
	if b.use == nil {
		return text + "; nothing was changed."
	}
	return text + "."
}
