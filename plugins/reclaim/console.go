package reclaim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// found is what this instance knows of a target after its last round.
type found struct {
	domain     string
	at         time.Time
	streams    int
	dead, idle int64 // entries that were claimed since the start, by reason
	lost       int64 // pending entries that were found deleted
	gone       []string
	unfinished []string
	failing    []string
	problem    string // the last error of the round
}

// tell publishes what the round has found. It belongs to the goroutine of the domain.
func (d *domain) tell(streams int) {
	f := &found{domain: d.target.Domain(), at: time.Now(), streams: streams, dead: d.claimed[claimDead], idle: d.claimed[claimIdle], lost: d.deleted}
	for instance, since := range d.gone {
		f.gone = append(f.gone, fmt.Sprintf("%s for %s", instance, console.Short(time.Since(since))))
	}
	for stream := range d.unfinished {
		f.unfinished = append(f.unfinished, stream)
	}
	for stream := range d.failing {
		f.failing = append(f.failing, stream)
	}
	if len(f.failing) > 0 {
		f.problem = d.problem
	}
	for _, names := range [][]string{f.gone, f.unfinished, f.failing} {
		slices.Sort(names)
	}
	d.found.Store(f)
}

// Console implements console.Contributor: what this instance took over from others.
func (p *Plugin) Console() []console.Page {
	return []console.Page{{Path: "reclaim", Title: "Reclaim", Order: 25, Panels: []console.Panel{
		{Name: "reclaim", Title: "Entries that are taken over from other instances", Load: p.show},
	}}}
}

func (p *Plugin) show(context.Context, console.Query) (console.Block, error) {
	t := console.Table{
		Columns: console.Columns("Domain", "Checked", "Streams", "Claimed from dead instances", "Claimed as idle", "Lost", "Gone instances", "Without room here", "Failing"),
		Empty:   "This instance has looked at no stream yet, or reads none.",
		Note: "Each instance takes over for itself, so these are the numbers of this one since its start. Entries of a gone instance are claimed " +
			p.config.PresenceTimeout.String() + " after it was missed. What this instance has no room for is claimed by another one, or later.",
	}
	var r *Reclaimer
	if p.service != nil {
		r = p.service.reclaimer()
	}
	if r == nil {
		return t, nil
	}
	for _, d := range r.domains {
		f := d.found.Load()
		if f == nil {
			continue
		}
		lost, gone, failing := console.Count(f.lost), console.Word(some(f.gone)), console.Word(some(f.failing))
		if f.lost > 0 {
			lost = lost.In(operate.Warn)
		}
		if len(f.gone) > 0 {
			gone = gone.In(operate.Warn)
		}
		if len(f.failing) > 0 {
			failing = console.Word(some(f.failing) + ": " + f.problem).In(operate.Fail)
		}
		t.Rows = append(t.Rows, []console.Cell{
			console.Word(f.domain), console.Moment(f.at), console.Count(f.streams), console.Count(f.dead), console.Count(f.idle), lost, gone,
			console.Word(some(f.unfinished)), failing,
		})
	}
	return t, nil
}

// some returns the first names, and how many more there are.
func some(names []string) string {
	const most = 3
	if len(names) == 0 {
		return "–"
	}
	text := strings.Join(names[:min(most, len(names))], ", ")
	if more := len(names) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

var _ console.Contributor = (*Plugin)(nil)
