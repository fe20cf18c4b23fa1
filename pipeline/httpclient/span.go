package httpclient

import (
	"net/url"
	"strconv"

	"go.opentelemetry.io/otel/attribute"
)

// SpanAttributes returns what the client span of a request begins with, by the conventions of OpenTelemetry. Path and
// query stay out, because they may name people.
func SpanAttributes(method string, address *url.URL) []attribute.KeyValue {
	attrs := []attribute.KeyValue{attribute.String("http.request.method", method), attribute.String("server.address", address.Hostname())}
	if port, err := strconv.Atoi(address.Port()); err == nil {
		attrs = append(attrs, attribute.Int("server.port", port))
	}
	return attrs
}
