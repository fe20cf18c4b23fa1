package web

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/millrace-io/millrace/pipeline/httpserver"
)

// User is a signed-in user.
type User struct {
	ID      string    // 1 to 128 printable characters
	Expires time.Time // the end of the token; zero with a user of a trusted proxy
}

const (
	maxUserID = 128 // characters
	maxLogged = 64  // bytes of a header
)

type userKey struct{}

// UserOf returns the user of the request with this context.
func UserOf(ctx context.Context) (User, bool) {
	u, ok := ctx.Value(userKey{}).(User)
	return u, ok
}

// Bearer returns the token of a request, or "". It is in the header Authorization, or in the query
// token, because an EventSource sends no headers.
func Bearer(r *http.Request) string {
	scheme, raw, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if strings.EqualFold(scheme, "Bearer") {
		return strings.TrimSpace(raw)
	}
	return r.URL.Query().Get("token")
}

// badUserError says what is wrong with the id of a user that a proxy or the sign-in has named.
type badUserError struct{ problem string }

func (e *badUserError) Error() string {
	return fmt.Sprintf("the user id of the sign-in %s; a user id has 1 to %d printable characters", e.problem, maxUserID)
}

// checkUser returns a *badUserError for an id that no User has.
func checkUser(id string) error {
	switch n := utf8.RuneCountInString(id); {
	case n == 0, n > maxUserID:
		return &badUserError{fmt.Sprintf("has %d characters", n)}
	case !utf8.ValidString(id):
		return &badUserError{"is not UTF-8"}
	case strings.ContainsFunc(id, func(r rune) bool { return !unicode.IsPrint(r) }):
		return &badUserError{"has a character that is not printable"}
	}
	return nil
}

// visitor is what the server finds out about the sender of a request.
type visitor struct {
	address netip.Addr
	user    User
	known   bool // it has a user
}

// slot is what the streams of one visitor share.
func (v visitor) slot() string {
	if v.known {
		return userSlot(v.user.ID)
	}
	if network := httpserver.Network(v.address); network.IsValid() {
		return network.String()
	}
	return "unknown address"
}

func userSlot(id string) string { return "user " + id }

func (p *Plugin) trusted(a netip.Addr) bool {
	return slices.ContainsFunc(p.proxies, func(n netip.Prefix) bool { return n.Contains(a) })
}

// visitor returns the address and the user of a request. It fails with errUnavailable while the
// keys of the sign-in are missing, and with a *badUserError for a user whose id is not valid. A token
// that is no token of the sign-in gives no user: it may be for the handler.
func (p *Plugin) visitor(r *http.Request) (visitor, error) {
	peer, _ := peerOf(r)
	v := visitor{address: peer}
	if p.trusted(peer) {
		v.address = p.forwarded(peer, r.Header.Values("X-Forwarded-For"))
		// A second value may be that of the client.
		if ids := r.Header.Values(p.config.Auth.Header); p.config.Auth.Header != "" && len(ids) == 1 && ids[0] != "" {
			if err := checkUser(ids[0]); err != nil {
				return v, err
			}
			v.user, v.known = User{ID: ids[0]}, true
			return v, nil
		}
	}
	raw := Bearer(r)
	if p.signIn == nil || raw == "" {
		return v, nil
	}
	user, err := p.signIn.user(r.Context(), raw)
	if errors.Is(err, errNoUser) {
		return v, nil
	}
	v.user, v.known = user, err == nil
	return v, err
}

func peerOf(r *http.Request) (netip.Addr, error) {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}, err
	}
	a, err := netip.ParseAddr(host)
	return a.Unmap().WithZone(""), err
}

// forwarded returns the last address of the header that no trusted proxy has. Addresses before it
// may be written by the client. If a proxy has written none that is understood, the address is that
// of the proxy, and a warning says so: its clients then share the limits of one address.
func (p *Plugin) forwarded(peer netip.Addr, headers []string) netip.Addr {
	last := peer
	if len(headers) == 0 {
		return last
	}
	for _, text := range slices.Backward(strings.Split(strings.Join(headers, ","), ",")) {
		a, ok := parseForwarded(text)
		if !ok {
			p.sampled.Warn(p.log, "X-Forwarded-For of a trusted proxy not understood",
				slog.String("proxy", last.String()), slog.String("value", text[:min(len(text), maxLogged)]))
			break
		}
		if last = a; !p.trusted(last) {
			break
		}
	}
	return last
}

// parseForwarded reads one address of X-Forwarded-For. Some proxies add the port, brackets or quotes.
func parseForwarded(text string) (netip.Addr, bool) {
	text = strings.Trim(strings.TrimSpace(text), `"`)
	if withPort, err := netip.ParseAddrPort(text); err == nil {
		return withPort.Addr().Unmap().WithZone(""), true
	}
	if inner, ok := strings.CutPrefix(text, "["); ok {
		text = strings.TrimSuffix(inner, "]")
	}
	a, err := netip.ParseAddr(text)
	return a.Unmap().WithZone(""), err == nil
}
