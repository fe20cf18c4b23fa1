package operate

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/httpclient"
)

// Servers are those that the client of an HTTP API calls: the API, and what gives it tokens. It is an Examined, which a
// plugin offers where it makes the client. Each server is connected to as its calls do, and gets no request.
type Servers struct {
	Name   string            // of the client, such as webhook; it begins the names of the checks
	URL    string            // of the API
	Client httpclient.Config // the settings of the client
	// Optional says that all work is done without them, so that one that is not reached is a warning.
	Optional bool
}

// Examinations implements Examined. Each server is a place of its own, so what is away is named.
func (s Servers) Examinations() (places []Examination) {
	for _, server := range pipeline.ServersOf(s.Client.Called(s.URL)...) {
		places = append(places, Examination{
			Place: s.Name + " " + server.Name, Remedy: "correct ca_file, cert_file and key_file in the settings of the client",
			Open: func(context.Context) ([]Examine, func(), error) {
				transport, err := httpclient.NewTransport(s.Client, nil, s.Name, nil)
				if err != nil {
					return nil, nil, err
				}
				return []Examine{{What: "connection", Read: func(ctx context.Context) ([]Check, error) {
					return s.reach(ctx, transport, server.Name)
				}}}, transport.CloseIdleConnections, nil
			},
		})
	}
	return places
}

func (s Servers) reach(ctx context.Context, transport *httpclient.Transport, server string) ([]Check, error) {
	proxy, err := transport.Reach(ctx, server)
	switch {
	case err != nil && s.Optional:
		c := failedCheck("", unreached(err, proxy))
		c.Level = Warn
		return []Check{c}, nil
	case err != nil:
		return nil, unreached(err, proxy)
	case proxy != "":
		return []Check{{Level: OK, Text: "opened through the proxy " + proxy + ", and no request sent"}}, nil
	}
	return []Check{{Level: OK, Text: "opened, and no request sent"}}, nil
}

// unreached returns the error of a server that was not reached, with what to do about it.
func unreached(err error, proxy string) error {
	if proxy != "" {
		err = fmt.Errorf("through the proxy %s: %w", proxy, err)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("no answer in time: %w", err)
	}
	_, distrusted := errors.AsType[*tls.CertificateVerificationError](err)
	_, noTLS := errors.AsType[tls.RecordHeaderError](err)
	_, unknown := errors.AsType[*net.DNSError](err)
	var remedy string
	switch {
	case distrusted:
		return remediedError{err, "set ca_file (of traces: OTEL_EXPORTER_OTLP_CERTIFICATE) to the authority of the server, or correct its address in the settings"}
	case noTLS:
		return remediedError{err, "begin the address in the settings with http://, or name the port that speaks TLS"}
	case httpclient.Refused(err):
		return remediedError{err, "set cert_file and key_file to a certificate that the server accepts; its log says why it refused the client"}
	case proxy != "":
		remedy = "correct HTTPS_PROXY, HTTP_PROXY or NO_PROXY, or let the proxy connect to the server"
	case unknown:
		remedy = "correct the address in the settings, or the name servers of this machine"
	default:
		remedy = "start the server, correct its address in the settings, or open the way to it (firewall, HTTPS_PROXY)"
	}
	return remediedError{fmt.Errorf("%w: %w", pipeline.ErrUnavailable, err), remedy}
}

// remediedError is an error of an Examine.Read whose check says what to do.
type remediedError struct {
	error
	remedy string
}

func (e remediedError) Unwrap() error { return e.error }

var _ Examined = Servers{}
