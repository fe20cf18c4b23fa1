package console

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// identityHeader of an answer says which instance has the console, to a command on the same machine.
const identityHeader = "Millrace-Identity"

// tellIdentity writes it, unless the client may be elsewhere.
func (s *server) tellIdentity(h http.Header, r *http.Request) {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return
	}
	from, wrong := netip.ParseAddrPort(r.RemoteAddr)
	at, err := netip.ParseAddrPort(local.String())
	if wrong != nil || err != nil || from.Addr().Unmap() != at.Addr().Unmap() || s.login != nil && s.login.proxies.Contain(from.Addr().Unmap()) {
		return
	}
	i := operate.IdentityOf(s.registry)
	h.Set(identityHeader, url.Values{"instance": {i.Instance}, "environment": {i.Environment}, "process": {i.Process}}.Encode())
}

// checkIdentity returns an error when what has answered at an address is no console, or that of another deployment.
func (p *Plugin) checkIdentity(ctx context.Context, address string, answer http.Header) error {
	told, err := url.ParseQuery(answer.Get(identityHeader))
	switch {
	case err != nil || len(told) == 0 && answer.Get("Content-Security-Policy") != policy:
		return fmt.Errorf("%w: what answers at %s is no console: stop it, or choose another plugins.console.listen", pipeline.ErrUnavailable, address)
	case len(told) == 0: // behind a proxy, or in a container
		return nil
	}
	who := operate.Identity{Instance: told.Get("instance"), Environment: told.Get("environment"), Process: told.Get("process"), Running: true}
	if why := who.Foreign(ctx, p.server.registry); why != "" {
		return fmt.Errorf("%w: no console of this deployment answers at %s, but that of the instance %s of another one: %s: "+
			"give the command the settings of that instance, or choose another plugins.console.listen for this deployment", pipeline.ErrUnavailable, address, who.Instance, why)
	}
	return nil
}
