package demo

import (
	"context"
	cryptorand "crypto/rand"
	"errors"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"

	"github.com/millrace-io/millrace/plugins/web"
)

// userCookie is the user of a browser.
const userCookie = "demo-user"

// Balancer returns the handler of a load balancer before brokers, each host:port. It signs each
// browser in as a user of its own. A broker that does not answer gets no request.
func Balancer(brokers ...string) http.Handler {
	var dialer net.Dialer
	transport := &http.Transport{
		DisableKeepAlives: true, // a connection to a killed broker must not be used again
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			var errs []error
			for _, i := range rand.Perm(len(brokers)) {
				c, err := dialer.DialContext(ctx, network, brokers[i])
				if err == nil {
					return c, nil
				}
				errs = append(errs, err)
			}
			return nil, errors.Join(errs...)
		},
	}
	proxy := &httputil.ReverseProxy{
		Transport: transport, ErrorLog: log.New(io.Discard, "", 0),
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = "http", "brokers", r.In.Host
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, _ error) {
			web.Refuse(w, r, web.Refusal{Status: http.StatusServiceUnavailable, Word: "unavailable", Message: "no broker answers"})
		},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(UserHeader) == "" {
			c, err := r.Cookie(userCookie)
			if err != nil {
				c = &http.Cookie{Name: userCookie, Value: "browser-" + strings.ToLower(cryptorand.Text()[:8]), Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode}
				http.SetCookie(w, c)
			}
			r.Header.Set(UserHeader, c.Value)
		}
		proxy.ServeHTTP(w, r)
	})
}
