package httpclient

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// Reach connects to the server of an address as a request does, with the proxy and the certificates that apply at this
// moment, and closes the connection. The server gets no request, and no token is fetched, so nothing can happen there.
// proxy is what is in between, without its credential, and empty without one. An http:// server behind a proxy is not
// reached itself, because the proxy connects to it for a request.
//
// A server may refuse the certificate of the client only after the handshake. Reach therefore waits until the server
// closes the connection, for a second at most. A server that refuses it by its answer to a request is not noticed.
func (t *Transport) Reach(ctx context.Context, address string) (proxy string, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody) // which is not sent
	if err != nil {
		return "", err
	}
	through, err := t.base.Proxy(r)
	if err != nil {
		return "", err
	}
	if through != nil {
		proxy = (&url.URL{Scheme: through.Scheme, Host: through.Host}).String()
	}
	one := t.transport(ctx).Clone()
	one.Proxy, one.Protocols = http.ProxyURL(through), new(http.Protocols)
	one.Protocols.SetHTTP1(true) // HTTP/2 begins with frames of the client
	one.TLSClientConfig.NextProtos = nil
	dial, raw := one.DialContext, net.Conn(nil)
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	one.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		raw = c
		return c, err
	}
	conn, err := one.NewClientConn(ctx, r.URL.Scheme, net.JoinHostPort(r.URL.Hostname(), portOf(r.URL)))
	if err != nil {
		return proxy, err
	}
	defer func() { _ = conn.Close() }()
	if r.URL.Scheme != "https" {
		return proxy, nil
	}
	return proxy, refusal(ctx, conn, raw)
}

// refusal ends what the client sends, so that the server closes the connection, and returns its alert if it sends one.
func refusal(ctx context.Context, conn *http.ClientConn, raw net.Conn) error {
	half, ok := raw.(interface{ CloseWrite() error })
	if !ok {
		return nil
	}
	_ = half.CloseWrite() // it fails when the connection has ended already
	closed := make(chan struct{})
	var once sync.Once
	conn.SetStateHook(func(c *http.ClientConn) {
		if c.Err() != nil {
			once.Do(func() { close(closed) })
		}
	})
	enough := time.NewTimer(refusalTime)
	defer enough.Stop()
	select {
	case <-closed:
	case <-enough.C:
	case <-ctx.Done():
	}
	if alert, ok := errors.AsType[*net.OpError](conn.Err()); ok && alert.Op == opAlert {
		return alert
	}
	return nil
}

// refusalTime is how long a server may take to refuse a certificate after the handshake, which it does at once.
const refusalTime = time.Second

// opAlert is the operation of an error of crypto/tls that the other side has sent.
const opAlert = "remote error"

// Refused reports whether an error of Reach is the alert of a server that does not accept the certificate of the client,
// or wants one.
func Refused(err error) bool {
	alert, ok := errors.AsType[*net.OpError](err)
	return ok && alert.Op == opAlert && (strings.Contains(alert.Error(), "certificate") || strings.Contains(alert.Error(), "access denied"))
}

func portOf(u *url.URL) string {
	switch port := u.Port(); {
	case port != "":
		return port
	case u.Scheme == "https":
		return "443"
	}
	return "80"
}
