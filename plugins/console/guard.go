package console

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/pipeline/setting"
)

// policy permits the script of the console, which is a file, and nothing inline, so that a mistake in a page
// can run nothing.
const policy = "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self'; img-src 'self' data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// guard sets the headers of all answers, and refuses requests that no page of the console sends.
func (s *server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("Cache-Control", "no-store")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("X-Content-Type-Options", "nosniff")
		switch {
		case s.login == nil && !setting.Loopback(r.Host):
			// A foreign page may make the name of its own site an address of this machine.
			http.Error(w, "The console has no login, so it answers at localhost and 127.0.0.1 only. Use this address, or set plugins.console.users_file or plugins.console.auth.", http.StatusMisdirectedRequest)
			return
		case isForeign(r), s.origins.Check(r) != nil:
			http.Error(w, "Pages of other origins may not use the console.", http.StatusForbidden)
			return
		}
		s.tellIdentity(h, r)
		p := person{Role: operate.Admin} // without a login, whoever is on this machine may do all
		if s.login != nil {
			var err error
			if p, err = s.login.person(r); err != nil {
				s.login.refuse(w, err)
				return
			}
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), personKey{}, p)))
	})
}

// isForeign reports whether a page of another origin reads one of the console. A link of another page is
// fine, because that page does not see the answer. A browser sets these headers, and a page can't. What
// changes something is for http.CrossOriginProtection to judge. The origin is compared with the host only for
// a browser that says nothing better, because a proxy may have changed the host.
func isForeign(r *http.Request) bool {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "same-origin", "none":
		return false
	case "":
		origin := r.Header.Get("Origin")
		u, err := url.Parse(origin)
		return origin != "" && (err != nil || u.Host == "" || !strings.EqualFold(u.Host, r.Host))
	}
	return r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Mode") != "navigate" || r.Header.Get("Sec-Fetch-Dest") != "document"
}

// below lets next answer with the prefix in the address, and without it for a proxy that has removed it.
func below(prefix string, next http.Handler) http.Handler {
	if prefix == "" {
		return next
	}
	stripped := http.StripPrefix(prefix, next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == prefix:
			http.Redirect(w, r, prefix+"/", http.StatusPermanentRedirect)
		case strings.HasPrefix(r.URL.Path, prefix+"/"):
			stripped.ServeHTTP(w, r)
		default:
			next.ServeHTTP(w, r)
		}
	})
}
