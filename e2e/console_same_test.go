package e2e

import (
	"encoding/json"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// shownPage is what a page says to somebody who reads it: its headings, the cells of its tables and lists with their links,
// and its forms with what is filled in.
type shownPage struct {
	Headings []string
	Tables   []shownTable
	Forms    []shownForm
}

type shownTable struct {
	Section string
	Rows    [][]string
}

type shownForm struct {
	Action, Method string
	Fields         [][]string // kind, name, value and label
}

// readShown returns what a page says. Three kinds of cells are not compared, because they say something else a moment later
// although nothing has happened: how long ago or how far away a time is (the elements time, and the column that says when an
// instance has read last), how fast the routes were in the last seconds, and the numbers of a chart, whose steps move on.
const readShown = `(() => {
  const moving = ["Done/s", "Failed/s", "Promoted per minute", "Read the promotions"];
  const text = (element) => {
    const copy = element.cloneNode(true);
    copy.querySelectorAll("time").forEach((time) => { time.textContent = "a time"; });
    return [copy.textContent.replace(/\s+/g, " ").trim(), ...[...copy.querySelectorAll("a")].map((link) => link.getAttribute("href"))].join(" -> ");
  };
  const rowsOf = (table) => {
    const titles = [...table.rows[0].cells].map((cell) => cell.innerText);
    const moves = (cell) => moving.includes(titles[cell.cellIndex]) || table.closest(".chart") !== null && cell.tagName === "TD";
    return [...table.rows].map((row, i) => [...row.cells].map((cell) => i > 0 && moves(cell) ? "moves" : text(cell)));
  };
  const fieldsOf = (list) => [...list.querySelectorAll("dt")].map((name) =>
    [text(name), moving.includes(name.innerText) ? "moves" : text(name.nextElementSibling)]);
  const sectionOf = (element) => element.closest("section")?.id ?? "";
  return {
    Headings: [...document.querySelectorAll("main h1, main h2")].map(text),
    Tables: [...document.querySelectorAll("main table, main dl")].map((one) => ({Section: sectionOf(one), Rows: one.tagName === "DL" ? fieldsOf(one) : rowsOf(one)})),
    Forms: [...document.querySelectorAll("main form")].map((form) => ({
      Action: form.getAttribute("action"), Method: form.method,
      Fields: [...form.elements].map((field) => [field.type, field.name, field.value, field.labels?.[0]?.innerText ?? field.innerText]),
    })),
  };
})()`

// linksShown are the addresses that the content of a page leads to, also those of the boxes of a drawing.
const linksShown = `[...document.querySelectorAll("main a")].map((link) => new URL(link.getAttribute("href"), location.href).href)`

// seesThePagesPlain walks through a console, to one address of each page: from those that are given, and of those in the
// navigation, along the links in their contents. Each says the same to a browser that runs no scripts and to one that does,
// where the script has read the page again. The console must stand still, and what has not settled yet is read once more.
// within names the first words of the addresses that it walks to; none: all. It returns the addresses by path.
func (b *browser) seesThePagesPlain(t *testing.T, console string, from []string, within ...string) map[string]string {
	t.Helper()
	plain, scripted := b.open(t, console+"/", desktop, withoutScripts()), b.open(t, console+"/", desktop)
	pathOf := func(address string) (path string, inside bool) {
		parsed, err := url.Parse(address)
		require.NoError(t, err)
		path, isConsole := strings.CutPrefix(parsed.Scheme+"://"+parsed.Host+parsed.Path, console+"/")
		first, _, _ := strings.Cut(path, "/")
		if strings.HasPrefix(path, "actions/uses/") { // the pages of all uses are alike
			path = "actions/uses"
		}
		return path, isConsole && (len(within) == 0 || slices.Contains(within, first)) && path != "audit.csv"
	}
	waiting := slices.Clone(from)
	for i := range waiting {
		waiting[i] = console + waiting[i]
	}
	waiting = append(waiting, value[[]string](plain, `[...document.querySelectorAll("nav a")].map((link) => link.href)`)...)
	walked := map[string]string{}
	walk := func() {
		for len(waiting) > 0 {
			address := waiting[0]
			waiting = waiting[1:]
			path, inside := pathOf(address)
			if _, known := walked[path]; known || !inside {
				continue
			}
			walked[path] = address
			saysTheSame(t, address, plain, scripted)
			waiting = append(waiting, value[[]string](plain, linksShown)...)
		}
	}
	walk()
	for _, path := range pagesOf(t, console) { // those that nothing leads to in this state say so
		if _, inside := pathOf(console + "/" + path); inside && walked[path] == "" {
			waiting = append(waiting, console+"/"+path)
		}
	}
	walk()
	t.Logf("%d pages", len(walked))
	return walked
}

// pagesOf returns the paths of the pages that a console has.
func pagesOf(t *testing.T, console string) (paths []string) {
	t.Helper()
	answer, err := http.Get(console + "/api/v1/") //nolint:gosec // an address of the test
	require.NoError(t, err)
	defer answer.Body.Close()
	var list struct{ Pages []struct{ Page string } }
	require.NoError(t, json.NewDecoder(answer.Body).Decode(&list))
	require.NotEmpty(t, list.Pages)
	for _, p := range list.Pages {
		paths = append(paths, strings.TrimSuffix(p.Page, "home"))
	}
	return paths
}

// saysTheSame compares what a page says without and with scripts.
func saysTheSame(t *testing.T, address string, plain, scripted *tab) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; pause(t, glance) {
		plain.opens(address)
		scripted.opens(address)
		if value[bool](scripted, `document.querySelector("main > section[data-live]") !== null`) {
			scripted.moves("#read span") // the script has replaced what it replaces
			scripted.rests()
		}
		without, with := value[shownPage](plain, readShown), value[shownPage](scripted, readShown)
		if same := reflect.DeepEqual(without, with); !same && time.Now().Before(end) {
			continue
		}
		require.Equal(t, without, with, "without and with scripts: %s", address)
		require.NotEmpty(t, without.Headings, address)
		return
	}
}

// seesEachPagePlain walks to everything that the console of a shop shows, whose dead letters still wait.
func seesEachPagePlain(t *testing.T, b *browser, s *shop) {
	s.invoiced("still", 1)
	walked := b.seesThePagesPlain(t, s.url, []string{"/part?plugin=webhook", "/effects/effect?kind=invoice&group=still&id=1", "/audit/log?log=dead-letters", "/actions/deadletter/replay?handler=webhook"})
	for _, item := range []string{"route", "effects/group", "effects/effect", "dead-letters/group", "dead-letters/letter", "dead-letters/compare", "audit/log"} {
		require.Contains(t, walked[item], "?", "no link leads to one: %s", item)
	}
	require.Contains(t, walked, "settings")
}
