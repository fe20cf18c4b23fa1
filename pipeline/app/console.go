package app

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/millrace-io/millrace/configs"
	"github.com/millrace-io/millrace/internal/sorted"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// pages are those of the process itself: its settings, and what doctor finds.
type pages struct {
	settings []configs.Effective
	layers   []string
	disabled []string
}

// pagesOf reads the settings once, because they do not change while the process runs.
func pagesOf(l *Loaded) pages {
	p := pages{settings: l.Document.Effective("", &l.Settings), layers: l.Document.Layers(), disabled: l.Disabled}
	for _, plugin := range l.Plugins {
		if c, ok := plugin.(pipeline.Configurable); ok {
			p.settings = append(p.settings, l.Document.Effective(section(plugin), c.Settings())...)
		}
	}
	return p
}

// Console implements console.Contributor.
func (p pages) Console() []console.Page {
	return []console.Page{
		{Path: "settings", Title: "Settings", Order: 50, Panels: []console.Panel{
			{Name: "written", Title: "Written settings", Load: p.showWritten},
			{Name: "defaults", Title: "Defaults", Load: p.showDefaults},
		}},
		{Path: "doctor", Title: "Doctor", Order: 60, Panels: []console.Panel{
			{Name: "doctor", Title: "Servers and process", Asked: true, Load: showDoctor},
		}},
	}
}

func (p pages) showWritten(context.Context, console.Query) (console.Block, error) {
	t := console.Table{Columns: console.Columns("Setting", "Value", "Source"), Empty: "All settings have their defaults."}
	for _, s := range p.settings {
		if s.Source == "" {
			continue
		}
		source := s.Source
		if s.Line > 0 {
			source = fmt.Sprintf("%s, line %d", source, s.Line)
		}
		t.Rows = append(t.Rows, []console.Cell{console.Word(s.Path), console.Word(s.Value), console.Word(source)})
	}
	if len(p.layers) > 0 {
		t.Note = "The layers, of which each overrides those before it: " + strings.Join(p.layers, ", ") + ". An override is set by the program itself, such as the address of a server that it has started."
	}
	if len(p.disabled) > 0 {
		t.Note += " Plugins that are switched off: " + strings.Join(p.disabled, ", ") + "."
	}
	return t, nil
}

func (p pages) showDefaults(context.Context, console.Query) (console.Block, error) {
	t := console.Table{Columns: console.Columns("Setting", "Value"), Empty: "Every setting is written."}
	for _, s := range p.settings {
		if s.Source == "" {
			t.Rows = append(t.Rows, []console.Cell{console.Word(s.Path), console.Word(s.Value)})
		}
	}
	return t, nil
}

// examined returns all places that doctor examines.
func examined(reg *pipeline.Registry) []operate.Examination {
	return append([]operate.Examination{operate.Process()}, operate.Examinations(reg)...)
}

func showDoctor(ctx context.Context, q console.Query) (console.Block, error) {
	d := operate.Diagnose(ctx, examined(q.Registry), operate.CheckLimit, nil)
	rank := map[operate.Level]int{operate.Fail: 0, operate.Warn: 1, operate.OK: 2}
	sorted.By(d.Checks, func(a, b operate.Check) int { return cmp.Compare(rank[a.Level], rank[b.Level]) })
	return console.Blocks{console.Text(d.Summary()), console.Checks(d.Checks)}, nil
}

var _ console.Contributor = pages{}
