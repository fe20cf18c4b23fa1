package console

import (
	"context"
	"net/http"
	"net/url"

	"github.com/millrace-io/millrace/pipeline/operate"
)

// visit is all that a page depends on beside what its panels read. A page gets no more of a request than this, so
// tabs with equal visits may get copies of one page, and nobody gets what only somebody else may see.
type visit struct {
	page   page
	values url.Values // of the address
	role   operate.Role
	who    string // for what one person may read at once, and not for what the page shows
}

func visitOf(r *http.Request, p page) visit {
	return visit{p, valuesOf(r), personOf(r).Role, personOf(r).Name}
}

// key tells visits that differ apart.
func (v visit) key() string { return string(v.role) + " " + v.page.Path + v.query() }

// query is that of the address, with its question mark.
func (v visit) query() string {
	if len(v.values) == 0 {
		return ""
	}
	return "?" + v.values.Encode()
}

// visited returns the page with its panels.
func (s *server) visited(ctx context.Context, of visit, which selection) view {
	v := s.view(of.page.Title, of.page.Path)
	v.Query = of.query()
	which.who = of.who
	v.Panels = s.load(ctx, of.page, of.values, which)
	s.dress(of, v.Panels)
	return v
}

// livePage is a page that reads itself again.
func (s *server) livePage(ctx context.Context, of visit, which selection) view {
	v := s.visited(ctx, of, which)
	v.Script = assetPath(liveScript)
	return v
}

// refreshHeader is in the requests with which the script of a page reads the page again. Whatever a person does is
// answered with a page of its own.
const refreshHeader = "Millrace-Refresh"

// maxCopies is the number of pages that are kept, each for a second.
const maxCopies = 32

// answerCopy answers a refresh with a page that was made for another tab less than a second ago, or is made for both, because
// fifty tabs would cost fifty pages otherwise. It returns false if a page of its own is needed.
func (s *server) answerCopy(w http.ResponseWriter, r *http.Request, of visit) bool {
	if _, text := wantsText(r); text || r.Header.Get(refreshHeader) == "" {
		return false
	}
	made, late := s.copies.get(r.Context(), of.key(), s.refresh, func(ctx context.Context) (any, error) {
		return s.html(s.livePage(ctx, of, selection{again: true}))
	})
	if late || made.err != nil {
		return false
	}
	html, ok := made.value.([]byte)
	if ok {
		writeHTML(w, http.StatusOK, html)
	}
	return ok
}
