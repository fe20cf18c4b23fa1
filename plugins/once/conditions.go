package once

import (
	"fmt"
	"slices"
	"time"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once/ledger"
)

// placeOf is the endpoint of a kind, whose effects are in the ledger.
func placeOf(kind string) pipeline.Endpoint {
	return pipeline.Endpoint{Kind: kindLedger, Name: kind}
}

// Conditions implements operate.Conditioned: what the database refuses, what holds the calls of each kind up, and the
// effects that a person must decide about. They are those of the last measurement.
func (p *Plugin) Conditions() (all []operate.Condition) {
	l := p.ledger.Load()
	if l == nil {
		return nil
	}
	if c, refused := l.Refused(time.Now()); refused {
		c.Name = "ledger of effects"
		all = append(all, operate.Condition{Check: c, Page: effectsPage})
	}
	for _, w := range p.kinds {
		for _, r := range slices.Concat(w.reasons(time.Now()), w.left(), w.late()) {
			r.Name = "kind " + w.name
			all = append(all, operate.Condition{Check: r, Place: placeOf(w.name), Page: effectsPage})
		}
	}
	return all
}

// reasons says why effects of the kind are not called for, each in a sentence. There is none while they are.
func (w *worker) reasons(now time.Time) (all []operate.Check) {
	add := func(level operate.Level, remedy, text string) {
		all = append(all, operate.Check{Level: level, Text: text, Remedy: remedy})
	}
	if err := w.check(now); err != nil {
		add(operate.Fail, "", err.Error())
	}
	if !w.effects.ready() {
		add(operate.Warn, "", "calls nothing, because its client says that the far side would not be called now")
	}
	if why := w.trouble.reason(); why != "" {
		add(operate.Warn, "", why)
	}
	m := w.measured.Load()
	if m == nil {
		return all
	}
	if p := m.backlog.Paused; p != nil {
		add(operate.Warn, "resume it when its effects may take place ("+resumeKind(w.name)+")", sincePaused(*p))
	}
	if m.held > 0 {
		add(operate.Warn, "resume each when its effects may take place (once resume)", heldGroups(m.held)+" paused, which holds effects back")
	}
	return all
}

// heldGroups is the subject of a sentence about paused groups that hold effects back.
func heldGroups(n int) string {
	if n >= ledger.PausedLimit {
		return fmt.Sprintf("%d groups or more are", n)
	}
	return operate.Are(n, "group")
}

// left says how many effects wait for a person. Those that failed do not: they may stay as they are.
func (w *worker) left() (all []operate.Check) {
	m := w.measured.Load()
	if m == nil {
		return nil
	}
	if n := m.backlog.Unknown; n > 0 {
		all = append(all, operate.Check{
			Level: operate.Fail, Text: operate.Are(n, "effect") + " unknown: perhaps done, so none is sent again",
			Remedy: "look at the far side, then say for each whether it was done (once resolve)", Runbook: "configs/RUNBOOK.md, MillraceEffectsUnknown",
		})
	}
	return all
}

// resultsLateAfter is how long a result may wait until people are told.
const resultsLateAfter = time.Minute

// late says that results are not published.
func (w *worker) late() []operate.Check {
	m := w.measured.Load()
	if m == nil || m.resultsOldest < resultsLateAfter {
		return nil
	}
	results := operate.Are(int(m.results), "result")
	if m.results >= ledger.BacklogLimit {
		results = fmt.Sprintf("%d results or more are", ledger.BacklogLimit)
	}
	return []operate.Check{{
		Level: operate.Warn, Text: fmt.Sprintf("%s waiting to be published, the oldest for %s", results, m.resultsOldest.Round(time.Second)),
		Remedy: "see whether the topic " + w.config.Results + " exists and takes records (doctor, and the log)",
	}}
}

var _ operate.Conditioned = (*Plugin)(nil)
