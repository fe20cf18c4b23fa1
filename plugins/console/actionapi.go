package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// patience is how long requests wait for the end of an action before they answer that it still runs.
type patience struct{ page, api time.Duration }

// request is what a program sends to use an action.
type request struct {
	Input  map[string]any `json:"input"`
	Why    string         `json:"why"`
	DryRun bool           `json:"dry_run"`
	Use    string         `json:"use"` // empty: this use is unlike any other
}

var useShape = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// Types of fields in the API.
const (
	typeText   = "text"
	typeNumber = "number"
	typeSwitch = "switch"
	typeList   = "list"
)

type fieldJSON struct {
	Name     string `json:"name"`
	Type     string `json:"type"`
	Required bool   `json:"required"`
	Default  string `json:"default,omitempty"`
	Help     string `json:"help"`
}

type actionJSON struct {
	Action  string         `json:"action"` // the words of the command
	Path    string         `json:"path"`   // below /api/v1/actions/
	Plugin  string         `json:"plugin"`
	Short   string         `json:"short"`
	Long    string         `json:"long,omitempty"`
	Danger  operate.Danger `json:"danger"`
	Role    operate.Role   `json:"role"`
	Allowed bool           `json:"allowed"` // to the one who asks
	Audited bool           `json:"audited"` // why is required
	Fields  []fieldJSON    `json:"fields"`
}

// States of a use.
const (
	useRunning = "running"
	useDone    = "done"
	useFailed  = "failed" // with what was done before
)

type useJSON struct {
	Action  string `json:"action"`
	Use     string `json:"use,omitempty"` // none: a dry run
	DryRun  bool   `json:"dry_run"`
	State   string `json:"state"`
	Error   string `json:"error,omitempty"`
	Field   string `json:"field,omitempty"` // the one that is wrong
	Done    int64  `json:"done,omitempty"`
	Total   int64  `json:"total,omitempty"` // 0: the action does not say
	Said    string `json:"said,omitempty"`
	Outcome any    `json:"outcome"` // what the command writes with --json; null: nothing
}

func kindOfField(f operate.Field) string {
	return map[operate.FieldType]string{operate.Text: typeText, operate.Number: typeNumber, operate.Switch: typeSwitch, operate.List: typeList}[f.Type]
}

func (s *server) listActions(w http.ResponseWriter, r *http.Request) {
	list := []actionJSON{}
	for _, a := range s.actions {
		one := actionJSON{a.Name, a.Path, a.Plugin, a.Short, a.Long, a.Danger, a.Needs(), personOf(r).may(a), a.Audited, []fieldJSON{}}
		for _, f := range a.Fields {
			one.Fields = append(one.Fields, fieldJSON{f.Name, kindOfField(f), f.Required, f.Default, a.words(f.Help)})
		}
		list = append(list, one)
	}
	s.writeJSON(w, r, http.StatusOK, map[string]any{"actions": list})
}

// postAction previews or does an action for a program.
func (s *server) postAction(w http.ResponseWriter, r *http.Request) {
	a, found := s.findAction(r.PathValue("path"))
	if !found {
		s.writeJSON(w, r, http.StatusNotFound, map[string]string{"error": "no action has this path: GET /api/v1/actions lists them"})
		return
	}
	answer := useJSON{Action: a.Name, State: useFailed}
	fail := func(status int, err error) {
		answer.Error, answer.Field = s.problem(a, err), fieldOf(err, a)
		s.writeJSON(w, r, status, answer)
	}
	if !personOf(r).may(a) {
		fail(http.StatusForbidden, notAllowed(personOf(r), a))
		return
	}
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		fail(http.StatusUnsupportedMediaType, errors.New("the Content-Type must be application/json"))
		return
	}
	q, err := readRequest(r.Body)
	if err != nil {
		fail(statusOfBody(err), err)
		return
	}
	answer.DryRun = q.DryRun
	one, err := useOfRequest(a, q, personOf(r))
	if err != nil {
		fail(statusOf(err), err)
		return
	}
	if q.DryRun {
		seen, err := s.preview(r.Context(), one)
		s.answerUse(w, r, a, answer, progress{Answer: seen, Err: err})
		return
	}
	began, err := s.begin(one)
	if err != nil {
		fail(statusOf(err), err)
		return
	}
	answer.Use = began.id
	s.answerUse(w, r, a, answer, s.uses.wait(r.Context(), began, s.patience.api))
}

func notAllowed(p person, a action) error {
	return fmt.Errorf("%s needs the role %s, and %s has the role %s: an administrator can change it in plugins.console.roles or group_roles", a.Name, a.Needs(), p.Name, p.Role)
}

// readRequest reads the body of a request.
func readRequest(body io.Reader) (q request, err error) {
	d := json.NewDecoder(body)
	d.DisallowUnknownFields()
	d.UseNumber()
	if err := d.Decode(&q); err != nil {
		return q, fmt.Errorf("the body must be a JSON object such as {\"input\": {}, \"why\": \"…\", \"dry_run\": true}: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return q, errors.New("the body must be one JSON object, and has something behind it")
	}
	return q, nil
}

// statusOfBody is that of an error of reading a body.
func statusOfBody(err error) int {
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return http.StatusRequestEntityTooLarge
	}
	return http.StatusBadRequest
}

// useOfRequest returns the use that a request is about.
func useOfRequest(a action, q request, p person) (*use, error) {
	in, err := jsonInput(a, q.Input)
	if err != nil {
		return nil, err
	}
	if err := a.Check(in); err != nil {
		return nil, err
	}
	one := &use{id: q.Use, action: a, person: p, face: operate.FaceAPI, input: in}
	if q.DryRun {
		return one, nil
	}
	if one.why, err = checkWhy(a.Audited, q.Why); err != nil {
		return nil, err
	}
	if one.id == "" {
		one.id = watermill.NewULID()
	} else if !useShape.MatchString(one.id) {
		return nil, &operate.InputError{Problem: "use must be up to 64 letters, digits, _ and -, such as a UUID", Field: "use"}
	}
	return one, nil
}

// jsonInput returns the fields of an action in JSON. The error is an *operate.InputError.
func jsonInput(a action, values map[string]any) (operate.Input, error) {
	in := operate.Input{}
	for _, f := range a.Fields {
		value, given := values[f.Name]
		if !given {
			continue
		}
		texts, ok := textsOf(f, value)
		if !ok {
			must := map[operate.FieldType]string{operate.Text: "a string", operate.Number: "a whole number", operate.Switch: "true or false", operate.List: "a list of strings"}
			return nil, &operate.InputError{Problem: fmt.Sprintf("%s must be %s, got %v", f.Name, must[f.Type], value), Field: f.Name}
		}
		in[f.Name] = texts
	}
	for name := range values {
		if !hasField(a, name) {
			return nil, unknownField(a, name)
		}
	}
	return a.Complete(in), nil
}

// textsOf returns a value of JSON as the values of a field.
func textsOf(f operate.Field, value any) (texts []string, ok bool) {
	switch f.Type {
	case operate.List:
		list, ok := value.([]any)
		for _, v := range list {
			text, is := v.(string)
			texts, ok = append(texts, text), ok && is
		}
		return texts, ok
	case operate.Switch:
		is, ok := value.(bool)
		return []string{strconv.FormatBool(is)}, ok
	case operate.Number:
		n, ok := value.(json.Number)
		whole, err := strconv.Atoi(n.String())
		return []string{strconv.Itoa(whole)}, ok && err == nil
	}
	text, ok := value.(string)
	return []string{text}, ok
}

// getUse answers what is known of a use.
func (s *server) getUse(w http.ResponseWriter, r *http.Request) {
	one, found := s.uses.get(r.PathValue("id"))
	if !found {
		s.writeJSON(w, r, http.StatusNotFound, map[string]string{"error": noUse})
		return
	}
	p := s.uses.state(one)
	s.writeJSON(w, r, http.StatusOK, s.usedJSON(one.action, useJSON{Action: one.action.Name, Use: one.id}, p))
}

// stopUse ends a use for a program.
func (s *server) stopUse(w http.ResponseWriter, r *http.Request) {
	one, found := s.uses.get(r.PathValue("id"))
	switch {
	case !found:
		s.writeJSON(w, r, http.StatusNotFound, map[string]string{"error": noUse})
	case !personOf(r).may(one.action):
		s.writeJSON(w, r, http.StatusForbidden, map[string]string{"error": notAllowed(personOf(r), one.action).Error()})
	default:
		s.uses.interrupt(one, personOf(r).by(operate.FaceAPI))
		s.answerUse(w, r, one.action, useJSON{Action: one.action.Name, Use: one.id}, s.uses.wait(r.Context(), one, s.patience.api))
	}
}

const noUse = "this instance does not know the id: it remembers the last 1000 uses since its start"

// answerUse answers a use with the status that fits to how it ended. 202: it still runs.
func (s *server) answerUse(w http.ResponseWriter, r *http.Request, a action, answer useJSON, p progress) {
	status := statusOf(failure(p))
	if p.Running {
		status = http.StatusAccepted
		w.Header().Set("Location", s.plugin.config.Prefix+"/api/v1/actions/"+usesPath+"/"+url.PathEscape(answer.Use))
	}
	s.writeJSON(w, r, status, s.usedJSON(a, answer, p))
}

// usedJSON fills the answer with what is known.
func (s *server) usedJSON(a action, answer useJSON, p progress) useJSON {
	answer.State, answer.Done, answer.Total, answer.Said, answer.Outcome = useDone, p.Done, p.Total, s.masks.text(app.Printable(p.Said)), s.masks.data(p.Answer.Value, false)
	switch err := failure(p); {
	case p.Running:
		answer.State = useRunning
	case err != nil:
		answer.State, answer.Error = useFailed, s.problem(a, err)
	case p.Forgotten:
		answer.Said = forgotten
	}
	return answer
}

const forgotten = "The answer is not kept any more, because 50 newer actions have ended since."

// preview returns what an action would do now.
func (s *server) preview(ctx context.Context, one *use) (operate.Answer, error) {
	return s.uses.look(ctx, func(ctx context.Context) (operate.Answer, error) {
		return one.action.Preview(ctx, s.registry, one.input)
	})
}

// begin starts a use, or returns the one that has begun with this id.
func (s *server) begin(one *use) (*use, error) {
	return s.uses.begin(one, func(ctx context.Context, of operate.Use) (operate.Answer, error) {
		answer, err := one.action.Do(ctx, s.registry, one.input, of)
		s.look(ctx) // also after an error, before which a part may have been done
		return answer, err
	})
}

// lookTime bounds what an action waits for its own effect to show.
const lookTime = 2 * time.Second

// look has everything measured again after an action, so that the next page shows what it did. Of actions that end
// while a measurement runs, the next one is for all.
func (s *server) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTime)
	defer cancel()
	mine := s.looks.asked.Add(1)
	s.looks.mu.Lock()
	defer s.looks.mu.Unlock()
	if s.looks.done >= mine {
		return
	}
	upTo := s.looks.asked.Load()
	operate.Remeasure(ctx, s.registry)
	s.loads.renew()
	s.copies.renew() // after the panels, so that no copy of older ones is taken for a new one
	s.looks.done = upTo
}

// looks are what actions want to be measured.
type looks struct {
	asked atomic.Int64
	mu    sync.Mutex
	done  int64 // of asked
}
