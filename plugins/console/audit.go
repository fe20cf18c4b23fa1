package console

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// Addresses of the audit.
const (
	auditPath  = "audit"
	logPath    = "audit/log"
	exportPath = "audit.csv"
)

// shownChanges is the number of changes of a page, and of those of one log that the first page shows.
const (
	shownChanges = 50
	firstChanges = 20
)

// auditPages returns the page with the newest changes of all logs, and the one that goes through a log.
func (s *server) auditPages() []console.Page {
	filter := []string{"who", "action", "subject"}
	ofLog := append(slices.Clip(filter), "log")
	panels := []console.Panel{{Name: "find", Title: "Find changes", Values: filter, Load: s.showFilter}}
	for _, log := range s.auditLogs() {
		panels = append(panels, console.Panel{Name: log.Name, Title: log.Title, Still: true, Values: filter, Load: func(ctx context.Context, q console.Query) (console.Block, error) {
			f := filterOf(q.Input)
			f.Before = ""
			return showChanges(ctx, log, f, firstChanges)
		}})
	}
	panels = append(panels,
		console.Panel{Name: "uses", Title: "Actions at this instance", Values: filter, Load: s.showUses},
		console.Panel{Name: "elsewhere", Title: "What is not here", Load: s.showUnaudited},
	)
	return []console.Page{
		{Path: auditPath, Title: "Audit", Order: 55, Panels: panels},
		{Path: logPath, Title: "Audit of one place", Order: 56, Hidden: true, Panels: []console.Panel{
			{Name: "find", Title: "Find changes", Values: ofLog, Load: s.showFilter},
			{Name: "changes", Title: "Changes, newest first", Still: true, Values: append(slices.Clip(ofLog), "before"), Load: s.showLog},
		}},
	}
}

func (s *server) auditLogs() []operate.AuditLog {
	if s.registry == nil { // it was not registered
		return nil
	}
	var logs []operate.AuditLog
	for _, a := range pipeline.Offers[operate.Auditor](s.registry) {
		logs = append(logs, a.AuditLogs()...)
	}
	return logs
}

func filterOf(in operate.Input) operate.AuditFilter {
	return operate.AuditFilter{Who: in.Text("who"), Action: in.Text("action"), Subject: in.Text("subject"), Before: in.Text("before")}
}

// addressOf is the address of the changes that a filter selects. An empty log: those of all.
func addressOf(page, log string, f operate.AuditFilter) string {
	values := url.Values{}
	for name, value := range map[string]string{"log": log, "who": f.Who, "action": f.Action, "subject": f.Subject, "before": f.Before} {
		if value != "" {
			values.Set(name, value)
		}
	}
	if len(values) == 0 {
		return page
	}
	return page + "?" + values.Encode()
}

func (s *server) showFilter(_ context.Context, q console.Query) (console.Block, error) {
	f := filterOf(q.Input)
	f.Before = ""
	fields := []operate.Field{{Name: "who", Default: f.Who}, {Name: "action", Default: f.Action}, {Name: "subject", Default: f.Subject}}
	log, page := q.Text("log"), auditPath
	if log != "" {
		page = logPath
		fields = append(fields, operate.Field{Name: "log", Default: log})
	}
	links := console.Stats{{Name: "Download", Cell: console.Word("CSV").At(addressOf(exportPath, log, f))}}
	if log != "" || !f.Empty() {
		links = append(links, console.Stat{Name: "Without a filter", Cell: console.Word("all changes").At(auditPath)})
	}
	return console.Blocks{console.Find{Page: page, Fields: fields}, links}, nil
}

// showLog is one log, page by page.
func (s *server) showLog(ctx context.Context, q console.Query) (console.Block, error) {
	log, found := findLog(s.auditLogs(), q.Text("log"))
	if !found {
		return nil, console.ErrNothing
	}
	return showChanges(ctx, log, filterOf(q.Input), shownChanges)
}

func findLog(logs []operate.AuditLog, name string) (operate.AuditLog, bool) {
	i := slices.IndexFunc(logs, func(l operate.AuditLog) bool { return l.Name == name })
	if i < 0 {
		return operate.AuditLog{}, false
	}
	return logs[i], true
}

func showChanges(ctx context.Context, log operate.AuditLog, f operate.AuditFilter, limit int) (console.Block, error) {
	page, err := log.Recent(ctx, f, limit)
	if err != nil {
		return nil, err
	}
	t := changesTable("No change is recorded.")
	switch {
	case page.Next != "":
		t.Empty = "None of the newest changes matches. More rows goes on with older ones."
	case !f.Empty():
		t.Empty = "No change matches."
	case f.Before != "":
		t.Empty = "There is no older change."
	}
	t.Note = log.Note
	for _, c := range page.Changes {
		t.Rows = append(t.Rows, rowOf(c))
	}
	if page.Next != "" {
		f.Before = page.Next
		t.Next = addressOf(logPath, log.Name, f)
	}
	return t, nil
}

func changesTable(empty string) console.Table {
	return console.Table{Columns: console.Columns("When", "Action", "Subject", "Who", "From", "Role", "Why", "Outcome", "Detail", "ID"), Empty: empty}
}

func rowOf(c operate.Change) []console.Cell {
	by := operate.AuthorOf(c.Who)
	return []console.Cell{
		moment(c.At), console.Word(c.Action), orNone(c.Subject), orNone(by.Name), orNone(by.Face), orNone(string(by.Role)), orNone(c.Why), orNone(c.Outcome), console.Word(c.Detail), console.Word(c.ID),
	}
}

// moment is a time in full, because an audit is compared with other logs.
func moment(at time.Time) console.Cell {
	at = at.UTC()
	return console.Cell{Text: at.Format("2006-01-02 15:04:05") + "Z", Data: at.Format(time.RFC3339Nano)}
}

// orNone is a word that may not be recorded, which is null in the JSON.
func orNone(text string) console.Cell {
	if text == "" {
		return console.Cell{Text: "–"}
	}
	return console.Word(text)
}

// showUses has what was done here since the start, also what no audit records.
func (s *server) showUses(_ context.Context, q console.Query) (console.Block, error) {
	if s.plugin.config.ReadOnly {
		return nil, console.ErrNothing
	}
	t := changesTable("Nobody has used an action of this instance since it started.")
	t.Columns = t.Columns[:len(t.Columns)-1]
	t.Note = fmt.Sprintf("The console and the API of this instance remember their last %d uses until it stops, and its log has all of them. Of these, up to %d are here.", maxUses, shownChanges)
	f := filterOf(q.Input)
	for _, c := range s.uses.newest() {
		if f.Matches(c.Change) && len(t.Rows) < shownChanges {
			row := rowOf(c.Change)[:len(t.Columns)]
			row[1] = row[1].At(actionsPath + "/" + usesPath + "/" + c.id)
			row[7] = row[7].In(c.level)
			t.Rows = append(t.Rows, row)
		}
	}
	return t, nil
}

// used is a use as a change.
type used struct {
	operate.Change
	id    string
	level operate.Level
}

// newest returns the uses that are remembered, the newest first.
func (u *uses) newest() []used {
	u.mu.Lock()
	defer u.mu.Unlock()
	all := make([]used, 0, len(u.order))
	for _, one := range slices.Backward(u.order) {
		c := used{id: one.id, Change: operate.Change{
			At: one.begun, Who: one.person.by(one.face), Why: one.why, Action: one.action.Name, Subject: inputText(one), Outcome: "done",
		}}
		switch {
		case one.now.Running:
			c.Outcome = "runs"
		case one.now.failed():
			c.Outcome, c.level = "failed", operate.Warn
		}
		all = append(all, c)
	}
	return all
}

// maxSubject bounds the fields of a use in the audit, in bytes.
const maxSubject = 200

// inputText writes the fields that differ from their defaults.
func inputText(one *use) string {
	var parts []string
	for _, f := range one.action.Fields {
		if given := strings.Join(one.input.List(f.Name), ","); given != f.Default && given != "" && (f.Type != operate.Switch || given != "false") {
			parts = append(parts, f.Name+"="+given)
		}
	}
	text := strings.Join(parts, " ")
	if len(text) > maxSubject {
		text = strings.ToValidUTF8(text[:maxSubject], "") + "…"
	}
	return text
}

// showUnaudited names the actions whose changes are in no log of the page.
func (s *server) showUnaudited(context.Context, console.Query) (console.Block, error) {
	keeps := map[string]bool{} // the plugins with a log
	for _, a := range pipeline.Offers[operate.Auditor](s.registry) {
		if p, ok := a.(pipeline.Plugin); ok && len(a.AuditLogs()) > 0 {
			keeps[p.Name()] = true
		}
	}
	t := console.Table{Columns: console.Columns("Action", "Plugin", "Recorded"), Empty: "All actions of this instance are recorded in a place above."}
	recorded := len(pipeline.Offers[operate.Recorder](s.registry)) > 0
	for _, a := range s.actions {
		where := ""
		switch {
		case a.Recorded && recorded:
		case !a.Audited:
			where = "in the log of the instance that does it, and no reason is asked for"
		case !keeps[a.Plugin]:
			where = "by its plugin, which offers no audit to the console, and in the log of the instance"
		}
		if where != "" {
			t.Rows = append(t.Rows, []console.Cell{console.Word(a.Name).At(actionsPath + "/" + a.Path), console.Word(cmp.Or(a.Plugin, "–")), console.Word(where)})
		}
	}
	if s.plugin.config.ReadOnly {
		for i := range t.Rows {
			t.Rows[i][0].Link = ""
		}
	}
	t.Note = "A command records the name of --who, which its user may choose. Changes that somebody makes in a server without Millrace are in none of these places."
	return t, nil
}
