package web

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/millrace-io/millrace/pipeline/httpserver"
	"github.com/millrace-io/millrace/plugins/web/signin"
)

// User is a signed-in user.
type User = signin.User

const maxLogged = 64 // bytes of a header

type userKey struct{}

// UserOf returns the user of the request with this context.
func UserOf(ctx context.Context) (User, bool) {
	u, ok := ctx.Value(userKey{}).(User)
	return u, ok
}

// Bearer returns the token of a request, or "". It is in the header Authorization, or in the query
// token, because an EventSource sends no headers.
func Bearer(r *http.Request) string {
	if token, found := signin.Bearer(r.Header); found {
		return token
	}
	return r.URL.Query().Get("token")
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
	return p.proxies.Contain(a)
}

// visitor returns the address and the user of a request. It fails with signin.ErrUnavailable while the
// keys of the sign-in are missing, and with a *signin.BadUserError for a user whose id is not valid. A token
// that is no token of the sign-in gives no user: it may be for the handler.
func (p *Plugin) visitor(r *http.Request) (visitor, error) {
	peer := signin.Peer(r)
	v := visitor{address: peer}
	if p.trusted(peer) {
		v.address = p.forwarded(peer, r.Header.Values("X-Forwarded-For"))
		user, named, err := p.config.Auth.Named(r.Header)
		if named || err != nil {
			v.user, v.known = user, named
			return v, err
		}
	}
	raw := Bearer(r)
	if p.signIn == nil || raw == "" {
		return v, nil
	}
	user, err := p.signIn.User(r.Context(), raw)
	if errors.Is(err, signin.ErrNoUser) {
		return v, nil
	}
	v.user, v.known = user, err == nil
	return v, err
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
