// Package httpclient has what clients of HTTP APIs share: their certificates, tokens and proxy, how long an
// answer asks them to wait, and that they follow no redirect.
package httpclient

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
)

// NoRedirect is the CheckRedirect of an http.Client that sends a credential or trusts the answer: a
// redirect would send the credential to another server, or believe one that nobody has configured.
// The error names that server, without the path and the query of its address.
func NoRedirect(to *http.Request, _ []*http.Request) error {
	return fmt.Errorf("a redirect to %s://%s is not followed: configure the address that answers", to.URL.Scheme, to.URL.Host)
}

// WithoutURL returns the reason in an error of an http.Client or of http.NewRequest, without the address of the
// request: its user, path and query may be secret, while errors are kept in logs and records that more people read.
// A caller that wants to name the server takes it from pipeline.ServerOf.
func WithoutURL(err error) error {
	if failed, ok := errors.AsType[*url.Error](err); ok {
		return failed.Err
	}
	return err
}

// Unreached reports whether a request failed before its server was reached: nobody listens at the address, the name is
// unknown, or what listens there has no TLS or another certificate.
func Unreached(err error) bool {
	dial, ok := errors.AsType[*net.OpError](err)
	_, distrusted := errors.AsType[*tls.CertificateVerificationError](err)
	_, noTLS := errors.AsType[tls.RecordHeaderError](err)
	return ok && dial.Op == "dial" || distrusted || noTLS || errors.Is(err, http.ErrSchemeMismatch)
}
