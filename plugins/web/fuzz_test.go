package web_test

import (
	"bufio"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/web"
	"github.com/millrace-io/millrace/plugins/web/signin"
)

// No request of an untrusted address or of a foreign page reaches a handler that it may not use.
func FuzzRequests(f *testing.F) {
	id := newIdentity(f, "a")
	r := start(f, func(c *web.Config) {
		c.TrustedProxies, c.AllowedOrigins = []string{"10.0.0.0/8"}, []string{"https://shop.example"}
		c.Auth = signin.Config{Header: "X-User", JWKSFile: id.file("a"), Issuer: "https://id.example", Audience: "site"}
	}, func(s *site) {
		s.web.Handle("GET /users/{id}", text("secret"), web.Users(), web.AllowOrigins())
		s.web.Handle("/own", text("secret"))
	})
	for _, headers := range []string{
		"X-User: u1\r\n", "X-Forwarded-For: 10.0.0.1\r\nX-User: u1\r\n", "Authorization: Bearer a.b.c\r\n",
		"Origin: https://shop.example\r\nSec-Fetch-Site: cross-site\r\n", "Sec-Fetch-Site: none\r\n",
	} {
		f.Add("GET", "/users/1?token=a", headers)
		f.Add("OPTIONS", "/own", headers+"Access-Control-Request-Method: GET\r\n")
	}
	f.Fuzz(func(t *testing.T, method, target, headers string) {
		request, err := http.ReadRequest(bufio.NewReader(strings.NewReader(method + " " + target + " HTTP/1.1\r\nHost: own.example\r\n" + headers + "\r\n")))
		if err != nil {
			return
		}
		request.RemoteAddr = "192.0.2.1:1234"
		answer := httptest.NewRecorder()
		r.web.ServeHTTP(answer, request)
		require.False(t, strings.HasPrefix(request.URL.Path, "/users/") && answer.Body.String() == "secret", "it has no user")

		request = request.Clone(t.Context())
		request.Header["Sec-Fetch-Site"], request.Header["Sec-Fetch-Mode"] = []string{"cross-site"}, []string{"cors"}
		answer = httptest.NewRecorder()
		r.web.ServeHTTP(answer, request)
		require.NotEqual(t, "secret", answer.Body.String(), "a page of a foreign origin receives nothing")
	})
}
