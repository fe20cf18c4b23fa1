package console

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// revealField is the field of a form, or of a request to the API, that asks to see what a panel masks.
const revealField = "reveal"

// revealing is how a page offers to show what a panel masks.
type revealing struct {
	Masked   int
	Allowed  bool
	ReadOnly bool
	Needs    operate.Role
	Problem  string // why it was refused
	Done     bool   // nothing is masked now
}

var errRevealReadOnly = errors.New("this console only reads, so it reveals nothing (plugins.console.read_only)")

// reveal records that the person of a request sees what a panel masks through a face. The values may be shown if the error is
// nil, which comes with the status of the answer otherwise.
func (s *server) reveal(r *http.Request, p page, panel, face string) (status int, err error) {
	person := personOf(r)
	i := slices.IndexFunc(p.Panels, func(one console.Panel) bool { return one.Name == panel })
	switch {
	case s.plugin.config.ReadOnly:
		return http.StatusForbidden, errRevealReadOnly
	case !person.Role.Includes(s.plugin.config.RevealRole):
		return http.StatusForbidden, fmt.Errorf("seeing what is masked needs the role %s (plugins.console.reveal_role), and %s has the role %s", s.plugin.config.RevealRole, person.Name, person.Role)
	case i < 0 || p.Panels[i].Reveal == nil:
		return http.StatusNotFound, fmt.Errorf("the page has no panel %q that can be revealed", app.Printable(panel))
	}
	why, err := checkWhy(true, r.PostFormValue("why"))
	if err != nil {
		return http.StatusBadRequest, err
	}
	values := valuesOf(r)
	use := operate.Use{ID: watermill.NewULID(), Who: person.by(face), Why: why}
	query := p.Panels[i].QueryOf(operate.Input(values), s.registry)
	records := s.records
	records.shares = ofPerson(person.Name)
	result, late := s.loads.get(r.Context(), "reveal "+use.ID, records, func(ctx context.Context) (any, error) {
		return nil, p.Panels[i].Reveal(ctx, query, use)
	})
	switch {
	case late:
		return http.StatusServiceUnavailable, fmt.Errorf("the audit did not answer within %s, so nothing is shown", s.records.wait)
	case errors.Is(result.err, console.ErrNothing):
		return http.StatusNotFound, errors.New("there is no such thing any more, so nothing is shown")
	case result.err != nil:
		status = statusOf(result.err)
		return status, fmt.Errorf("it could not be recorded, so nothing is shown: %w", result.err)
	}
	s.plugin.log.InfoContext(r.Context(), "masked values were shown", slog.String("page", p.Path), slog.String("panel", panel),
		slog.String("of", app.Printable(values.Encode())), slog.String("who", use.Who), slog.String("why", why))
	return http.StatusOK, nil
}

// postPage answers a form of a page: a panel that is asked for, or one whose masked values are.
func (s *server) postPage(w http.ResponseWriter, r *http.Request) {
	panel := r.PostFormValue("panel")
	p, found := s.find(r.PathValue("path"))
	if !found || r.PostFormValue(revealField) == "" {
		s.answerPage(w, r, panel)
		return
	}
	status, err := s.reveal(r, p, panel, operate.FaceConsole)
	revealed := panel
	if err != nil {
		revealed = ""
	}
	v := s.visited(r.Context(), visitOf(r, p), selection{revealed: revealed})
	for i, one := range v.Panels {
		if one.Name != panel {
			continue
		}
		if err != nil {
			v.Panels[i].Reveal.Problem = s.masks.text(err.Error())
		} else {
			v.Panels[i].Reveal.Done = true
		}
	}
	s.render(w, r, status, v) // it reads nothing again, because the next read masks the values
}

// postJSON is postPage for a program.
func (s *server) postJSON(w http.ResponseWriter, r *http.Request) {
	if r.PostFormValue(revealField) == "" {
		s.answerJSON(w, r, selection{asked: r.FormValue("panel"), only: r.URL.Query().Get("panel")})
		return
	}
	panel := r.FormValue("panel")
	p, found := s.findJSON(w, r)
	if !found {
		return
	}
	if status, err := s.reveal(r, p, panel, operate.FaceAPI); err != nil {
		s.writeJSON(w, r, status, map[string]string{"error": s.masks.text(err.Error())})
		return
	}
	s.answerJSON(w, r, selection{only: panel, revealed: panel})
}

// dress adds what a page offers beside its panels.
func (s *server) dress(v visit, panels []shown) {
	for i := range panels {
		one := &panels[i]
		one.Offers = s.offers(v, one.Actions)
		of := slices.IndexFunc(v.page.Panels, func(panel console.Panel) bool { return panel.Name == one.Name })
		if of < 0 || v.page.Panels[of].Reveal == nil {
			continue
		}
		one.Reveal = revealing{
			Masked: one.hidden, Allowed: v.role.Includes(s.plugin.config.RevealRole), ReadOnly: s.plugin.config.ReadOnly, Needs: s.plugin.config.RevealRole,
		}
	}
}

// selection says what is read of a page, and how.
type selection struct {
	asked    string // the panel that a person has asked for
	only     string // the one panel that is read; empty: all
	revealed string // the panel whose values are not masked
	again    bool   // for somebody who has the page already
	who      string // reads it
}

// mask hides what a panel must not show. It counts what it hid of the block.
func (s *server) mask(one *shown) {
	counted := s.masks
	counted.count = &one.hidden
	if one.Block != nil {
		one.Block = counted.block(one.Block)
	}
	one.Problem = s.masks.text(one.Problem)
}

// recordWait is how long the audit of what is revealed is waited for.
const recordWait = 5 * time.Second
