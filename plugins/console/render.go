package console

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/console/graph"
)

//go:embed templates/*.html assets/style.css assets/live.js
var files embed.FS

// Assets of all pages.
const (
	styleSheet = "style.css"
	liveScript = "live.js"
)

// asset returns a file of the console and its path, which changes with the content, so that browsers may keep
// it.
func asset(name string) (text []byte, path string) {
	text, _ = files.ReadFile("assets/" + name) // it is embedded
	sum := sha256.Sum256(text)
	base, extension, _ := strings.Cut(name, ".")
	return text, "assets/" + base + "-" + hex.EncodeToString(sum[:6]) + "." + extension
}

// serveAsset adds the address of a file.
func serveAsset(mux *http.ServeMux, name, contentType string) {
	text, path := asset(name)
	mux.HandleFunc("GET /"+path, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("Cache-Control", "private, max-age=31536000, immutable")
		_, _ = w.Write(text) // a client that has gone needs no answer
	})
}

func assetPath(name string) string {
	_, path := asset(name)
	return path
}

func parsed(c *Config) *template.Template {
	at := func(path string) string { return c.Prefix + "/" + path }
	return template.Must(template.New("page.html").Funcs(template.FuncMap{
		"plain": plain, "lines": plainLines, "age": age, "levelText": levelText, "at": at,
		"href": func(link string) string {
			if link = inside(link); link == "" {
				return ""
			}
			return at(link)
		},
		"kind": kindOf, "cells": cellsOf, "chart": chartOf, "classes": classes, "exactTime": exactTime, "traceLink": c.traceLink,
		"help": func(text string) string { return plain(strings.ReplaceAll(text, "`", "")) },
	}).ParseFS(files, "templates/*.html"))
}

// view is what the template gets.
type view struct {
	Style    string
	Script   string // empty: the page is read once
	Title    string
	Path     string
	Query    string // of the address, with its question mark
	Instance string
	Time     string
	Pages    []page
	Actions  bool // there are some
	Panels   []shown
	Action   *actionView
	Refresh  int // seconds; 0: no
}

func (s *server) mux() http.Handler {
	mux := http.NewServeMux()
	s.templates = parsed(&s.plugin.config)
	serveAsset(mux, styleSheet, "text/css; charset=utf-8")
	serveAsset(mux, liveScript, "text/javascript; charset=utf-8")
	mux.HandleFunc("GET /api/v1/{$}", s.listPages)
	mux.HandleFunc("GET /api/v1/"+openAPIPath, s.serveOpenAPI)
	mux.HandleFunc("GET /api/v1/{path...}", func(w http.ResponseWriter, r *http.Request) {
		s.answerJSON(w, r, selection{only: r.URL.Query().Get("panel")})
	})
	mux.HandleFunc("POST /api/v1/{path...}", s.postJSON)
	mux.HandleFunc("GET /{path...}", func(w http.ResponseWriter, r *http.Request) { s.answerPage(w, r, "") })
	mux.HandleFunc("POST /{path...}", s.postPage)
	mux.HandleFunc("GET /"+exportPath, s.exportAudit)
	s.routeActions(mux)
	return mux
}

// valuesOf returns the values of the address that panels get. panel is for the console itself.
func valuesOf(r *http.Request) url.Values {
	values := r.URL.Query()
	values.Del("panel")
	return values
}

// view returns what all pages have.
func (s *server) view(title, path string) view {
	return view{
		Style: assetPath(styleSheet), Title: title, Path: path, Instance: s.registry.Env().Instance, Time: time.Now().UTC().Format(time.TimeOnly),
		Pages: s.pages, Actions: len(s.actions) > 0 && !s.plugin.config.ReadOnly,
	}
}

func (s *server) answerPage(w http.ResponseWriter, r *http.Request, asked string) {
	p, found := s.find(r.PathValue("path"))
	title, absent := "No such page", "No page has this address. The navigation has all pages."
	if found {
		title, absent = "Nothing of this name", s.noThing(p, r)
		if absent == "" {
			title, absent = "No such panel", p.noPanel(asked, r.URL.Query().Get("panel"))
		}
	}
	if absent != "" {
		v := s.view(title, "")
		v.Script = assetPath(liveScript)
		v.Panels = []shown{{State: stateOK, Block: console.Text(absent)}}
		s.render(w, r, http.StatusNotFound, v)
		return
	}
	visit := visitOf(r, p)
	if asked == "" && s.answerCopy(w, r, visit) {
		return
	}
	s.render(w, r, http.StatusOK, s.livePage(r.Context(), visit, selection{asked: asked}))
}

func (s *server) render(w http.ResponseWriter, r *http.Request, status int, v view) {
	if format, wanted := wantsText(r); wanted && v.Action == nil {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(status)
		_, _ = w.Write(format.page(v))
		return
	}
	text, err := s.html(v)
	if err != nil {
		s.plugin.log.ErrorContext(r.Context(), "page not rendered", logs.Err(err))
		http.Error(w, "The page could not be made; the log of this instance has the reason.", http.StatusInternalServerError)
		return
	}
	writeHTML(w, status, text)
}

// html is a page as a browser gets it. An error of the template must not be half a page.
func (s *server) html(v view) ([]byte, error) {
	var b bytes.Buffer
	err := s.templates.Execute(&b, v)
	return b.Bytes(), err
}

func writeHTML(w http.ResponseWriter, status int, text []byte) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(text) // a client that has gone needs no answer
}

// pageJSON and panelJSON are what the API answers.
type pageJSON struct {
	Page     string      `json:"page"`
	Title    string      `json:"title"`
	Instance string      `json:"instance"`
	Panels   []panelJSON `json:"panels"`
}

type panelJSON struct {
	Panel   string     `json:"panel"`
	Title   string     `json:"title"`
	State   string     `json:"state"`
	Problem string     `json:"problem,omitempty"`
	Masked  int        `json:"masked,omitempty"` // values that are not shown
	At      *time.Time `json:"at"`               // when the value was read; null: it was not
	Value   any        `json:"value"`            // null: it is not known
}

func nameOf(p page) string {
	if p.Path == "" {
		return homeName
	}
	return p.Path
}

func (s *server) listPages(w http.ResponseWriter, r *http.Request) {
	type entry struct {
		Page   string   `json:"page"`
		Title  string   `json:"title"`
		Panels []string `json:"panels"`
	}
	list := []entry{}
	for _, p := range s.pages {
		list = append(list, entry{nameOf(p), p.Title, p.names})
	}
	s.writeJSON(w, r, http.StatusOK, map[string]any{"pages": list})
}

// noPanel says that the page has no panel with one of these names, if so. An empty name is none.
func (p page) noPanel(names ...string) string {
	for _, name := range names {
		if name != "" && !slices.Contains(p.names, name) {
			return fmt.Sprintf("The page %s has no panel %q; it has %s.", nameOf(p), app.Printable(name), strings.Join(p.names, ", "))
		}
	}
	return ""
}

// noThing says that this process does not have what the page is about, if so: a route, a plugin or an audit.
func (s *server) noThing(p page, r *http.Request) string {
	q := console.Query{Input: operate.Input(valuesOf(r)), Registry: s.registry}
	name, absent := "", ""
	switch p.Path {
	case routePage:
		if _, found := (readings{}).find(q); !found {
			name, absent = q.Text("route"), "No route has the name %q. The page Pipeline has all routes."
		}
	case partPage:
		if name = q.Text("plugin"); len(graph.Of(app.NewTopology(s.registry)).Part(name).Boxes) == 0 {
			absent = "No plugin %q has a route here. The page Pipeline has all routes."
		}
	case logPath:
		if _, found := findLog(s.auditLogs(), q.Text("log")); !found {
			name, absent = q.Text("log"), "No audit has the name %q. The page Audit has all of them."
		}
	}
	if absent == "" {
		return ""
	}
	return fmt.Sprintf(absent, app.Printable(name))
}

// findJSON returns the page of a request, which has panels with these names. Otherwise it has answered.
func (s *server) findJSON(w http.ResponseWriter, r *http.Request, panels ...string) (page, bool) {
	path := r.PathValue("path")
	p, found := s.find(strings.TrimSuffix(path, homeName))
	if !found || nameOf(p) != path {
		s.writeJSON(w, r, http.StatusNotFound, map[string]string{"error": "no page has this path: GET /api/v1/ lists them"})
		return page{}, false
	}
	if absent := cmp.Or(s.noThing(p, r), p.noPanel(panels...)); absent != "" {
		s.writeJSON(w, r, http.StatusNotFound, map[string]string{"error": absent})
		return page{}, false
	}
	return p, true
}

func (s *server) answerJSON(w http.ResponseWriter, r *http.Request, which selection) {
	p, found := s.findJSON(w, r, which.only, which.asked)
	if !found {
		return
	}
	which.who = personOf(r).Name
	answer := pageJSON{Page: nameOf(p), Title: p.Title, Instance: s.registry.Env().Instance, Panels: []panelJSON{}}
	for _, one := range s.load(r.Context(), p, valuesOf(r), which) {
		panel := panelJSON{Panel: one.Name, Title: one.Title, State: one.State, Problem: one.Problem, Masked: one.hidden}
		if one.Block != nil {
			at := one.At.UTC()
			panel.Value, panel.At = one.Block.JSON(), &at
		}
		answer.Panels = append(answer.Panels, panel)
	}
	s.writeJSON(w, r, http.StatusOK, answer)
}

func (s *server) writeJSON(w http.ResponseWriter, r *http.Request, status int, v any) {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		s.plugin.log.ErrorContext(r.Context(), "answer not encoded", logs.Err(err))
		http.Error(w, "The answer could not be encoded; the log of this instance has the reason.", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n'))
}

// plain makes foreign text safe to show in one line.
func plain(text string) string {
	if len(text) > maxShown {
		text = strings.ToValidUTF8(text[:maxShown], "") + "…"
	}
	return app.Printable(strings.NewReplacer("\r\n", " ", "\n", " ", "\t", " ").Replace(text))
}

// maxShown bounds a text on a page, in bytes. The JSON has all of it.
const maxShown = 64 << 10

// plainLines makes foreign text of several lines safe to show.
func plainLines(text string) string {
	more := ""
	if len(text) > maxShown {
		more = fmt.Sprintf("\n… %d more bytes; the JSON of this page has all of them.", len(text)-maxShown)
		text = strings.ToValidUTF8(text[:maxShown], "")
	}
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = plain(strings.TrimSuffix(line, "\r"))
	}
	return strings.Join(lines, "\n") + more
}

// age says how old a value is, if it is old enough to matter.
func age(at time.Time) string {
	if at.IsZero() || time.Since(at) < 2*time.Second {
		return ""
	}
	return console.Short(time.Since(at)) + " old"
}

func levelText(level operate.Level) string {
	return map[operate.Level]string{operate.OK: "ok", operate.Warn: "warning", operate.Fail: "failure"}[level]
}

// classes returns those of a cell.
func classes(c console.Cell) string {
	var names []string
	if c.Level != "" {
		names = append(names, "level", string(c.Level))
	}
	if c.Right {
		names = append(names, "number")
	}
	return strings.Join(names, " ")
}

// exactTime returns the time of a cell that says how far away it is, and "" for any other.
func exactTime(c console.Cell) string {
	at, _ := c.Data.(string)
	if _, err := time.Parse(time.RFC3339, at); err != nil || strings.Replace(at, "T", " ", 1) == strings.Replace(c.Text, "T", " ", 1) {
		return ""
	}
	return at
}

// inside returns a link to a page of the console, and "" for anything else.
func inside(link string) string {
	if u, err := url.Parse(link); link == "" || err != nil || u.IsAbs() || u.Host != "" || strings.HasPrefix(link, "/") {
		return ""
	}
	return link
}

// kindOf names the template of a block.
func kindOf(b console.Block) string {
	switch b.(type) {
	case console.Table:
		return "table"
	case console.Stats:
		return "stats"
	case console.Series:
		return "series"
	case console.Record:
		return "record"
	case console.Text:
		return "text"
	case console.Checks:
		return "checks"
	case console.Answer:
		return "answer"
	case console.Find:
		return "find"
	case console.HTML:
		return "html"
	case console.Blocks:
		return "blocks"
	}
	return ""
}

// cellsOf returns the table of a report for the template of tables.
func cellsOf(t operate.Table) console.Table {
	table := console.Table{Columns: console.Columns(t.Columns...), Empty: t.Empty}
	for i, c := range table.Columns {
		lower := strings.ToLower(c.Title)
		if lower != "" && !strings.Contains(lower, ".") { // the name of a setting stays as it is
			lower = strings.ToUpper(lower[:1]) + lower[1:]
		}
		table.Columns[i].Title = lower
	}
	for _, row := range t.Rows {
		cells := make([]console.Cell, len(row))
		for i, text := range row {
			cells[i] = console.Word(text)
		}
		table.Rows = append(table.Rows, cells)
	}
	return table
}
