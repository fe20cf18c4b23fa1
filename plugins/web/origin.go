package web

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// foreign reports whether a page of another origin has sent the request. A browser sets these
// headers, and a page can't change them.
func foreign(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "same-origin", "none":
		return false
	case "": // an older browser, or no browser
		origin := r.Header.Get("Origin")
		if origin == "" {
			return false
		}
		u, err := url.Parse(origin)
		return err != nil || u.Host == "" || !strings.EqualFold(u.Host, r.Host)
	}
	return true
}

// followsLink reports whether a user follows a link of another page. That page sees nothing of the
// answer.
func followsLink(r *http.Request) bool {
	return (r.Method == http.MethodGet || r.Method == http.MethodHead) && r.Header.Get("Origin") == "" &&
		r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
}

// permits reports whether the mount answers the request, and sets the headers that let an allowed
// page read the answer.
func (p *Plugin) permits(m *mount, w http.ResponseWriter, r *http.Request) bool {
	if m.origins {
		w.Header().Add("Vary", "Origin")
	}
	if !foreign(r) || followsLink(r) && !m.stream && !m.noLinks {
		return true
	}
	origin := r.Header.Get("Origin")
	if !m.origins || !slices.Contains(p.config.AllowedOrigins, origin) {
		return false
	}
	w.Header().Set("Access-Control-Allow-Origin", origin)
	w.Header().Set("Access-Control-Expose-Headers", "Retry-After")
	return true
}

// preflight answers the question of a browser whether a page of another origin may send a request.
func (p *Plugin) preflight(w http.ResponseWriter, r *http.Request) {
	request := r.Clone(r.Context())
	request.Method = r.Header.Get("Access-Control-Request-Method")
	_, pattern := p.mux.Handler(request)
	m := p.mounts[pattern]
	if m == nil || !p.permits(m, w, r) {
		Refuse(w, r, refusedOrigin())
		return
	}
	w.Header().Set("Access-Control-Allow-Methods", request.Method)
	w.Header().Set("Access-Control-Allow-Headers", "Authorization, Content-Type, Last-Event-ID")
	w.Header().Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
}

func isPreflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header.Get("Origin") != "" && r.Header.Get("Access-Control-Request-Method") != ""
}

func refusedOrigin() Refusal {
	return Refusal{Status: http.StatusForbidden, Word: "foreign_origin", Message: "pages of this origin may not use this address"}
}
