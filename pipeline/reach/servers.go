// Package reach examines the servers of HTTP clients for the command doctor, without sending them a request.
package reach

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/httpclient"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// Servers are those that the client of an HTTP API calls: the API, and what gives it tokens. It is an operate.Examined, which a
// plugin offers where it makes the client. Each server is connected to as its calls do, and gets no request.
type Servers struct {
	Name   string            // of the client, such as webhook; it begins the names of the checks
	URL    string            // of the API
	Client httpclient.Config // the settings of the client
	// Optional says that all work is done without them, so that one that is not reached is a warning.
	Optional bool
}

// Register adds the servers to the topology (pipeline.UseCalls) and to doctor. A plugin calls it in its own Register. One
// whose route declares the calls (pipeline.Route.Calls) only offers the Servers.
func (s Servers) Register(r *pipeline.Registry) {
	r.Endpoint(pipeline.UseCalls, pipeline.ServersOf(s.Client.Called(s.URL)...)...)
	r.Offer(s)
}

// Examinations implements operate.Examined. Each server is a place of its own, so what is away is named.
func (s Servers) Examinations() (places []operate.Examination) {
	for _, server := range pipeline.ServersOf(s.Client.Called(s.URL)...) {
		places = append(places, operate.Examination{
			Place: s.Name + " " + server.Name,
			Open: func(context.Context) ([]operate.Examine, func(), error) {
				return []operate.Examine{{What: "connection", Read: func(ctx context.Context) ([]operate.Check, error) {
					return s.reach(ctx, server.Name)
				}}}, nil, nil
			},
		})
	}
	return places
}

func (s Servers) reach(ctx context.Context, server string) ([]operate.Check, error) {
	text, err := s.connect(ctx, server)
	switch {
	case err == nil:
		return []operate.Check{{Level: operate.OK, Text: text}}, nil
	case s.Optional:
		c := operate.Check{Level: operate.Warn, Text: logs.OneLine(err.Error())}
		if r, ok := errors.AsType[operate.Remedied](err); ok {
			c.Remedy = r.Remedy()
		}
		return []operate.Check{c}, nil
	}
	return nil, err
}

// connect returns what it has found out.
func (s Servers) connect(ctx context.Context, server string) (text string, err error) {
	transport, err := httpclient.NewTransport(s.Client, nil, s.Name, nil)
	if err != nil {
		return "", remediedError{err, "correct ca_file, cert_file and key_file in the settings of the client" + ofTraces}
	}
	defer transport.CloseIdleConnections()
	proxy, err := transport.Reach(ctx, server)
	switch {
	case err != nil:
		return "", unreached(err, proxy)
	case proxy != "" && strings.HasPrefix(server, "http://"):
		return "called through the proxy " + proxy + ", which was reached and connects to the server only for a request", nil
	case proxy != "":
		return "opened through the proxy " + proxy + ", and no request sent", nil
	}
	return "opened, and no request sent", nil
}

// ofTraces names the settings of the exporter of traces, which are variables of OpenTelemetry.
const ofTraces = " (of traces: OTEL_EXPORTER_OTLP_CERTIFICATE, OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY)"

// unreached returns the error of a server that was not reached, with what to do about it.
func unreached(err error, proxy string) remediedError {
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
		return remediedError{err, "set ca_file to the authority of the server, or correct its address in the settings" + ofTraces}
	case noTLS:
		return remediedError{err, "begin the address in the settings with http://, or name the port that speaks TLS"}
	case httpclient.Refused(err):
		return remediedError{err, "set cert_file and key_file to a certificate that the server accepts; its log says why it refused the client" + ofTraces}
	case proxy != "":
		remedy = "correct HTTPS_PROXY, HTTP_PROXY or NO_PROXY, or let the proxy connect to the server"
	case unknown:
		remedy = "correct the address in the settings, or the name servers of this machine"
	default:
		remedy = "start the server, correct its address in the settings, or open the way to it (firewall, HTTPS_PROXY)"
	}
	return remediedError{fmt.Errorf("%w: %w", pipeline.ErrUnavailable, err), remedy}
}

// remediedError is an operate.Remedied.
type remediedError struct {
	error
	remedy string
}

func (e remediedError) Remedy() string { return e.remedy }
func (e remediedError) Unwrap() error  { return e.error }

var _ operate.Examined = Servers{}
