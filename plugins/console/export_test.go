package console

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/plugins/web/signin"
)

// Impatient makes requests answer at once that an action still runs.
func (p *Plugin) Impatient() { p.server.patience = patience{} }

// Patient makes pages wait for their panels, and for actions, while the machine stands still. Call it before the start.
func (p *Plugin) Patient() {
	s := p.server
	for _, p := range []*pace{&s.panels, &s.sources} {
		p.wait, p.run = time.Minute, time.Minute
	}
	s.patience.page = time.Minute
}

// PatientButForSources makes panels wait for a server as long as in production, and pages for these panels.
func (p *Plugin) PatientButForSources() { p.Patient(); p.server.sources.wait = 400 * time.Millisecond }

// Hurried makes requests wait only a moment for a part of a download, and for the record of what is revealed.
func (p *Plugin) Hurried() {
	p.server.export.wait, p.server.records.wait = 200*time.Millisecond, 200*time.Millisecond
}

// Stalls makes downloads end whose client takes nothing for so long. Call it before the start.
func (p *Plugin) Stalls(limit time.Duration) { p.server.stall = limit }

// Masks are those of a console.
type Masks struct{ masks }

// NewMasks returns the masks of these fields.
func NewMasks(fields ...string) Masks { return Masks{newMasks(fields)} }

// Payload returns what is shown of a payload.
func (m Masks) Payload(b []byte) string { return m.payload("", b).Text }

// Text returns what is shown of a text.
func (m Masks) Text(text string) string { return m.text(text) }

// SameShape reports how masked JSON differs from the JSON, other than by values that are masked.
func SameShape(in, out string) error {
	if !json.Valid([]byte(in)) || strings.IndexByte("{[", strings.TrimLeft(in, " \t\r\n")[0]) < 0 {
		return nil // it is not shown
	}
	var before, after any
	if err := json.Unmarshal([]byte(in), &before); err != nil {
		return fmt.Errorf("%s: %w", in, err)
	}
	if err := json.Unmarshal([]byte(out), &after); err != nil {
		return fmt.Errorf("%s: %w", out, err)
	}
	return sameShape(before, after, "")
}

func sameShape(before, after any, name string) error {
	if after == masked {
		return nil
	}
	if strings.Contains(simple(name), "password") && before != nil {
		return fmt.Errorf("%s is not masked: %v", name, after)
	}
	switch b := before.(type) {
	case map[string]any:
		a, ok := after.(map[string]any)
		if !ok || len(a) != len(b) {
			return fmt.Errorf("%v is not %v", after, before)
		}
		for name := range b {
			if err := sameShape(b[name], a[name], name); err != nil {
				return err
			}
		}
	case []any:
		a, ok := after.([]any)
		if !ok || len(a) != len(b) {
			return fmt.Errorf("%v is not %v", after, before)
		}
		for i := range b {
			if err := sameShape(b[i], a[i], ""); err != nil {
				return err
			}
		}
	case string: // its own text may be masked
	default:
		if before != after {
			return fmt.Errorf("%v is not %v", after, before)
		}
	}
	return nil
}

// Exempt reports whether an address may have any number of connections.
func Exempt(proxies []string, addr netip.Addr) bool {
	networks, _ := signin.NewNetworks(proxies)
	return (&server{login: &login{proxies: networks}}).isExempt(addr)
}

// TextOf returns a page with one panel for a terminal.
func TextOf(title string, b console.Block, width int) string {
	return string(textFormat{width: width}.page(view{Title: title, Instance: "rig", Time: "12:00:00", Panels: []shown{{Title: title, Block: b, At: time.Now()}}}))
}

// Cells are those of the audit's file.
func Cells(cells ...string) []string { return (&server{}).cells(cells...) }
