package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// action is an action of a plugin.
type action struct {
	operate.Action
	Plugin string
	Path   string // deadletter/replay for the command deadletter replay
}

// usesPath is the address of what was done below that of the actions.
const usesPath = "uses"

// collectActions returns the actions of the plugins that offer themselves, in their order.
func collectActions(reg *pipeline.Registry) ([]action, error) {
	var all []action
	var errs []error
	for _, operated := range pipeline.Offers[operate.Operated](reg) {
		p, ok := operated.(pipeline.Plugin)
		if !ok { // its commands are not found either
			continue
		}
		for _, a := range operated.Operations().Actions {
			one := action{a, p.Name(), strings.Join(strings.Fields(a.Name), "/")}
			switch {
			case a.Preview == nil || a.Do == nil:
				errs = append(errs, fmt.Errorf("action %q of plugin %s: Preview and Do must be set", a.Name, p.Name()))
			case one.Path == "" || strings.HasPrefix(one.Path+"/", usesPath+"/"):
				errs = append(errs, fmt.Errorf("action %q of plugin %s: the console itself uses this name", a.Name, p.Name()))
			case slices.ContainsFunc(all, func(other action) bool { return other.Path == one.Path }):
				errs = append(errs, fmt.Errorf("action %q of plugin %s: another one has this name", a.Name, p.Name()))
			default:
				all = append(all, one)
			}
		}
	}
	return all, errors.Join(errs...)
}

func (s *server) findAction(path string) (action, bool) {
	i := slices.IndexFunc(s.actions, func(a action) bool { return a.Path == path })
	if i < 0 {
		return action{}, false
	}
	return s.actions[i], true
}

// person is who sends a request.
type person struct {
	Name string // empty: nobody signs in
	Role operate.Role
}

type personKey struct{}

// personOf returns the person whom guard has let in.
func personOf(r *http.Request) person {
	p, _ := r.Context().Value(personKey{}).(person)
	return p
}

// by is the person in an audit.
func (p person) by(face string) string {
	if p.Name == "" { // nobody signs in, so nobody has a role
		return operate.Author{Name: "anonymous", Face: face}.String()
	}
	return operate.Author{Name: p.Name, Face: face, Role: p.Role}.String()
}

// may reports whether the person may use the action.
func (p person) may(a action) bool { return p.Role.Includes(a.Role) }

// Needs returns the role that the action needs.
func (a action) Needs() operate.Role {
	for _, r := range []operate.Role{operate.Viewer, operate.Operator} {
		if r.Includes(a.Role) {
			return r
		}
	}
	return operate.Admin
}

// encoded writes an input so that equal ones are equal.
func encoded(in operate.Input) string { return url.Values(in).Encode() }

// fieldPrefix is before the name of a field of an action in a form, whose own fields have none.
const fieldPrefix = "in."

// formInput returns the fields of an action in a form. The error is an *operate.InputError.
func formInput(a action, values url.Values) (operate.Input, error) {
	in := operate.Input{}
	for _, f := range a.Fields {
		given, sent := values[fieldPrefix+f.Name]
		var clean []string
		for _, text := range given {
			for line := range strings.Lines(text) {
				if line = strings.TrimSpace(line); line != "" {
					clean = append(clean, line)
				}
			}
		}
		if i := slices.IndexFunc(clean, func(text string) bool { return text != app.Printable(text) || !utf8.ValidString(text) }); i >= 0 {
			return in, &operate.InputError{Problem: f.Name + " has a character that can't be shown, such as a control character", Field: f.Name}
		}
		switch {
		case f.Type == operate.List:
			in[f.Name] = clean
		case f.Type == operate.Switch:
			in[f.Name] = []string{fmt.Sprint(slices.Contains(clean, "true"))}
		case len(clean) > 1:
			return in, &operate.InputError{Problem: f.Name + " must be one line", Field: f.Name}
		case len(clean) == 1:
			in[f.Name] = clean
		case sent && f.Type == operate.Text:
			in[f.Name] = []string{""}
		}
	}
	for name := range values {
		if field, ours := strings.CutPrefix(name, fieldPrefix); ours && !hasField(a, field) {
			return in, unknownField(a, field)
		}
	}
	return a.Complete(in), nil
}

func hasField(a action, name string) bool {
	return slices.ContainsFunc(a.Fields, func(f operate.Field) bool { return f.Name == name })
}

func unknownField(a action, name string) error {
	var names []string
	for _, f := range a.Fields {
		names = append(names, f.Name)
	}
	text := fmt.Sprintf("%s has no field %q", a.Name, name)
	switch near := app.Nearest(name, names); {
	case near != "":
		text += ": did you mean " + near + "?"
	case len(names) > 0:
		text += "; its fields are " + strings.Join(names, ", ")
	}
	return &operate.InputError{Problem: text, Field: name}
}

// maxWhy bounds a reason, in bytes.
const maxWhy = 1000

// checkWhy returns the reason without white space around it, and reports one that is missing.
func checkWhy(required bool, why string) (string, error) {
	why = strings.TrimSpace(why)
	switch {
	case why == "" && required:
		return why, &operate.InputError{Problem: "why is required, for the audit: write the reason", Field: "why"}
	case len(why) > maxWhy:
		return why, &operate.InputError{Problem: fmt.Sprintf("why must have at most %d bytes, got %d", maxWhy, len(why)), Field: "why"}
	case !utf8.ValidString(why) || why != app.Printable(why):
		return why, &operate.InputError{Problem: "why must be one line without control characters", Field: "why"}
	}
	return why, nil
}

var flagFirst = regexp.MustCompile(`^--([a-z0-9-]+)\b`)

// fieldOf returns the field that an error is about, or "".
func fieldOf(err error, a action) string {
	if wrong, ok := errors.AsType[*operate.InputError](err); ok && wrong.Field != "" {
		return wrong.Field
	}
	if found := flagFirst.FindStringSubmatch(err.Error()); found != nil && hasField(a, found[1]) {
		return found[1]
	}
	return ""
}

// statusOf returns the status of an answer with this error, by what the exit code of the command would be.
func statusOf(err error) int {
	_, input := errors.AsType[*operate.InputError](err)
	exit, named := errors.AsType[*app.ExitError](err)
	var marked interface{ Unavailable() bool }
	switch {
	case err == nil:
		return http.StatusOK
	case input, named && exit.Code == app.ExitUsage:
		return http.StatusBadRequest
	case errors.Is(err, errOtherUse), errors.Is(err, errOldForm), errors.Is(err, errInterrupted), named && exit.Code == app.ExitBad:
		return http.StatusConflict
	case errors.Is(err, errFull), errors.Is(err, errLooking):
		return http.StatusTooManyRequests
	case errors.Is(err, errEnding), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, pipeline.ErrUnavailable), errors.As(err, &marked) && marked.Unavailable():
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// failure returns the error of a use, or of the checks of its answer.
func failure(p progress) error {
	if p.Err != nil || !p.Answer.Failed() {
		return p.Err
	}
	var failed []error
	for _, c := range p.Answer.Checks {
		if c.Level == operate.Fail {
			failed = append(failed, app.Bad("%s", c.String()))
		}
	}
	return errors.Join(failed...)
}
