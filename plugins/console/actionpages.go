package console

import (
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
)

const (
	actionsPath = "actions"

	refreshTime = 2 // seconds until the page of an action that runs is read again, also without scripts
)

// Steps of a form.
const (
	stepPreview = "preview"
	stepDo      = "do"
)

// actionView is what the template gets of an action. One of its parts is shown.
type actionView struct {
	Action  action
	Person  person
	Login   bool
	Problem string
	Field   string  // the one that is wrong
	Groups  []group // the list of all
	Ask     bool
	Form    []shownField // to be filled in, with Ask
	Command string       // that does the same; empty: not all is filled in
	Confirm *confirmation
	Use     *shownUse
}

type group struct {
	Plugin  string
	Actions []offered
}

// offered is an action as a link.
type offered struct {
	action
	Href    string
	Allowed bool
}

type shownField struct {
	operate.Field
	Kind  string
	Value string
	On    bool // of a switch
	Wrong bool
}

type confirmation struct {
	ID     string
	Fields []hiddenField
	Said   console.Answer // the preview
	Type   string         // what has to be typed; empty: nothing
	Why    string
}

type hiddenField struct{ Name, Value string }

type shownUse struct {
	ID, Who, Why string
	progress
	Answer  console.Answer
	Failed  bool
	Problem string
	MayStop bool
}

// offers returns the actions of a panel as links. What the address says about their fields is filled in.
func (s *server) offers(v visit, names []string) []offered {
	if s.plugin.config.ReadOnly {
		return nil
	}
	var links []offered
	for _, name := range names {
		a, found := s.findAction(strings.Join(strings.Fields(name), "/"))
		if !found {
			continue
		}
		values := url.Values{}
		for name, given := range v.values {
			if hasField(a, name) {
				values[name] = given
			}
		}
		links = append(links, offer(a, v.role, values))
	}
	return links
}

func offer(a action, role operate.Role, values url.Values) offered {
	link := actionsPath + "/" + a.Path
	if len(values) > 0 {
		link += "?" + values.Encode()
	}
	return offered{a, link, person{Role: role}.may(a)}
}

// showActions is the page with all actions.
func (s *server) showActions(w http.ResponseWriter, r *http.Request) {
	v := actionView{Person: personOf(r), Login: s.login != nil, Groups: []group{}}
	for _, a := range s.actions {
		i := slices.IndexFunc(v.Groups, func(g group) bool { return g.Plugin == a.Plugin })
		if i < 0 {
			i = len(v.Groups)
			v.Groups = append(v.Groups, group{Plugin: a.Plugin})
		}
		v.Groups[i].Actions = append(v.Groups[i].Actions, offer(a, v.Person.Role, nil))
	}
	s.renderAction(w, r, http.StatusOK, "Actions", v)
}

func (s *server) renderAction(w http.ResponseWriter, r *http.Request, status int, title string, av actionView) {
	v := s.view(title, actionsPath)
	v.Action = &av
	if av.Use != nil && av.Use.Running {
		v.Refresh, v.Script = refreshTime, assetPath(liveScript)
	}
	s.render(w, r, status, v)
}

// actionOf returns the action of a request by a person who may use it. Otherwise it has answered.
func (s *server) actionOf(w http.ResponseWriter, r *http.Request) (a action, v actionView, ok bool) {
	a, found := s.findAction(r.PathValue("path"))
	v = actionView{Action: a, Person: personOf(r), Login: s.login != nil}
	switch {
	case !found:
		v.Problem = "No action has this address. The page Actions has all of them."
		s.renderAction(w, r, http.StatusNotFound, "No such action", v)
		return a, v, false
	case !v.Person.may(a):
		v.Problem = "Not allowed: " + notAllowed(v.Person, a).Error() + "."
		s.renderAction(w, r, http.StatusForbidden, a.Name, v)
		return a, v, false
	}
	return a, v, true
}

// showForm is the form of an action, with what the address says about its fields.
func (s *server) showForm(w http.ResponseWriter, r *http.Request) {
	a, v, ok := s.actionOf(w, r)
	if !ok {
		return
	}
	in := operate.Input{}
	for name, values := range r.URL.Query() {
		in[name] = values
	}
	in = a.Complete(in)
	v.Ask, v.Form, v.Command = true, formOf(a, in, ""), s.commandOf(a, in, flagDryRun)
	s.renderAction(w, r, http.StatusOK, a.Name, v)
}

func formOf(a action, in operate.Input, wrong string) []shownField {
	form := []shownField{}
	for _, f := range a.Fields {
		value := in.Text(f.Name)
		if f.Type == operate.List {
			value = strings.Join(in.List(f.Name), "\n")
		}
		f.Help = a.words(f.Help)
		form = append(form, shownField{f, kindOfField(f), value, in.Switch(f.Name), f.Name == wrong})
	}
	return form
}

// postForm shows the preview of a form, or does what was confirmed.
func (s *server) postForm(w http.ResponseWriter, r *http.Request) {
	a, v, ok := s.actionOf(w, r)
	if !ok {
		return
	}
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/x-www-form-urlencoded" {
		http.Error(w, "The Content-Type must be application/x-www-form-urlencoded, as a browser sends a form.", http.StatusUnsupportedMediaType)
		return
	}
	if err := r.ParseForm(); err != nil {
		http.Error(w, "The form can't be read: "+err.Error(), statusOfBody(err))
		return
	}
	in, err := formInput(a, r.PostForm)
	if err == nil {
		err = a.Check(in)
	}
	one := &use{id: r.PostForm.Get("use"), action: a, person: v.Person, face: operate.FaceConsole, input: in}
	step := r.PostForm.Get("step")
	if err == nil && step == stepDo {
		err = s.uses.checkForm(one)
	}
	if err != nil {
		s.formAgain(w, r, v, in, err)
		return
	}
	if step == stepDo {
		s.confirmed(w, r, v, one)
		return
	}
	s.showPreview(w, r, http.StatusOK, v, one)
}

// formAgain shows the form with an error, and with what was filled in.
func (s *server) formAgain(w http.ResponseWriter, r *http.Request, v actionView, in operate.Input, err error) {
	v.Problem, v.Field = s.problem(v.Action, err), fieldOf(err, v.Action)
	v.Ask, v.Form, v.Command = true, formOf(v.Action, in, v.Field), s.commandOf(v.Action, in, flagDryRun)
	s.renderAction(w, r, statusOf(err), v.Action.Name, v)
}

// showPreview shows what the action would do, and asks for a confirmation. v may have a problem already.
func (s *server) showPreview(w http.ResponseWriter, r *http.Request, status int, v actionView, one *use) {
	answer, err := s.preview(r.Context(), one)
	if err != nil && answer.Value == nil {
		s.formAgain(w, r, v, one.input, err)
		return
	}
	if err != nil { // what is known is shown, too
		answer.Checks = append(answer.Checks, operate.Check{Name: "preview", Level: operate.Fail, Text: err.Error()})
	}
	c := &confirmation{ID: s.uses.formID(one), Said: console.Answer(s.masks.answer(v.Action.answer(answer), false)), Why: one.why}
	if v.Action.Danger != operate.Safe {
		c.Type = v.Action.Name
	}
	for _, f := range v.Action.Fields {
		for _, value := range one.input.List(f.Name) {
			c.Fields = append(c.Fields, hiddenField{fieldPrefix + f.Name, value})
		}
	}
	v.Confirm, v.Command = c, s.commandOf(v.Action, one.input, whyWords(v.Action, one.why)...)
	s.renderAction(w, r, status, v.Action.Name, v)
}

// confirmed does what was confirmed, and leads to the page of the outcome, so that a reload does nothing.
func (s *server) confirmed(w http.ResponseWriter, r *http.Request, v actionView, one *use) {
	var err error
	if one.why, err = checkWhy(v.Action.Audited, r.PostForm.Get("why")); err == nil && v.Action.Danger != operate.Safe && strings.TrimSpace(r.PostForm.Get("confirm")) != v.Action.Name {
		err = &operate.InputError{Problem: "confirm must be " + v.Action.Name + ": type these words, because the action can't be undone", Field: "confirm"}
	}
	if err == nil {
		_, err = s.begin(one)
	}
	if err != nil {
		v.Problem, v.Field = s.problem(v.Action, err), fieldOf(err, v.Action)
		s.showPreview(w, r, statusOf(err), v, one)
		return
	}
	http.Redirect(w, r, s.plugin.config.Prefix+"/"+actionsPath+"/"+usesPath+"/"+one.id, http.StatusSeeOther)
}

// showUse is the page of what an action does, or has done.
func (s *server) showUse(w http.ResponseWriter, r *http.Request) {
	one, found := s.uses.get(r.PathValue("id"))
	v := actionView{Person: personOf(r), Login: s.login != nil}
	if !found {
		v.Problem = app.Printable("No such use: " + noUse + ". The audit and the log have earlier ones.")
		s.renderAction(w, r, http.StatusNotFound, "No such use", v)
		return
	}
	p := s.uses.wait(r.Context(), one, s.patience.page)
	p.Said = s.masks.text(p.Said)
	v.Action = one.action
	v.Use = &shownUse{
		ID: one.id, Who: one.person.by(one.face), Why: one.why, progress: p, Answer: console.Answer(s.masks.answer(one.action.answer(p.Answer), false)), Failed: p.failed(),
		MayStop: p.Running && p.StoppedBy == "" && v.Person.may(one.action),
	}
	if p.Err != nil {
		v.Use.Problem = s.problem(one.action, p.Err)
	}
	s.renderAction(w, r, http.StatusOK, one.action.Name, v)
}

// postStop ends a use that runs.
func (s *server) postStop(w http.ResponseWriter, r *http.Request) {
	one, found := s.uses.get(r.PathValue("id"))
	switch {
	case !found:
		s.showUse(w, r)
	case !personOf(r).may(one.action):
		http.Error(w, "Not allowed: "+notAllowed(personOf(r), one.action).Error(), http.StatusForbidden)
	default:
		s.uses.interrupt(one, personOf(r).by(operate.FaceConsole))
		http.Redirect(w, r, s.plugin.config.Prefix+"/"+actionsPath+"/"+usesPath+"/"+one.id, http.StatusSeeOther)
	}
}

// routeActions adds the addresses of the actions. A console that only reads has none of them.
func (s *server) routeActions(mux *http.ServeMux) {
	if s.plugin.config.ReadOnly {
		return
	}
	mux.HandleFunc("GET /"+actionsPath, s.showActions)
	mux.HandleFunc("GET /"+actionsPath+"/{path...}", s.showForm)
	mux.HandleFunc("POST /"+actionsPath+"/{path...}", s.postForm)
	mux.HandleFunc("GET /"+actionsPath+"/"+usesPath+"/{id}", s.showUse)
	mux.HandleFunc("POST /"+actionsPath+"/"+usesPath+"/{id}/stop", s.postStop)
	mux.HandleFunc("GET /api/v1/"+actionsPath, s.listActions)
	mux.HandleFunc("POST /api/v1/"+actionsPath+"/{path...}", s.postAction)
	mux.HandleFunc("GET /api/v1/"+actionsPath+"/"+usesPath+"/{id}", s.getUse)
	mux.HandleFunc("POST /api/v1/"+actionsPath+"/"+usesPath+"/{id}/stop", s.stopUse)
}
