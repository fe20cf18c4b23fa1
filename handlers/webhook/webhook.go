// Package webhook posts each record of a Kafka topic to an HTTP address, signed as the Standard
// Webhooks specification describes (standardwebhooks.com).
package webhook

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/httpclient"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/pipeline/reach"
	"github.com/millrace-io/millrace/pipeline/setting"
)

// metaID is the metadata key of the id that the receiver gets. All retries of a record have it.
const metaID = "webhook-id"

// maxID limits the bytes of the id. A record without one is named after its topic, partition and offset, which have
// less than 300.
const maxID = 512

// maxRetryAfter is the longest wait that an answer can ask for.
const maxRetryAfter = 24 * time.Hour

// Plugin posts records. Build it with New.
type Plugin struct {
	config Config
	secret *setting.Live
	topics pipeline.Topics
	dead   pipeline.DeadLetters
	client *http.Client
	calls  operate.Calls
}

// New returns the plugin with default settings. It opens nothing.
func New(topics pipeline.Topics, dead pipeline.DeadLetters) *Plugin {
	return &Plugin{config: defaultConfig(), topics: topics, dead: dead}
}

// Name is the plugin's name and the key of its settings.
func (p *Plugin) Name() string { return "webhook" }

// Needs returns the plugins that this one does not work without.
func (p *Plugin) Needs() []string { return pipeline.Names(p.topics, p.dead) }

// Settings returns the plugin's *Config.
func (p *Plugin) Settings() any { return &p.config }

// Register adds the route of the topic, and with it the route of the retry topic.
func (p *Plugin) Register(r *pipeline.Registry) error {
	c := p.config
	p.secret = c.Secret.Live("plugins.webhook.secret", r.Env().Logger, nil)
	transport, err := httpclient.NewTransport(c.Config, nil, "plugins.webhook", r.Env().Logger)
	if err != nil {
		return err
	}
	p.client = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	p.calls.Name, p.calls.Place, p.calls.Then = "webhook receiver", pipeline.ServerOf(c.URL), "each record waits for its retry"
	r.Offer(&p.calls) // the graph and the routes say when the receiver does not work
	r.Offer(reach.Servers{Name: p.Name(), URL: c.URL, Client: c.Config})
	r.Route(pipeline.Route{
		Name: "webhook", From: p.topics.Source(c.Topic, "millrace-webhook"), Handle: p.post, Calls: pipeline.ServersOf(c.Called(c.URL)...),
		Policy: pipeline.Policy{
			Timeout:    c.Timeout,
			Retry:      pipeline.RetryVia(p.topics, c.Topic+"-retry", "millrace-webhook-retry", c.MaxRetries, c.Retry),
			DeadLetter: p.dead.Sink(c.Topic + "-dead"),
		},
	})
	return nil
}

// post sends one record. nil acknowledges it. An error is retried, one marked by pipeline.Permanent
// makes a dead letter at once.
func (p *Plugin) post(m *message.Message) ([]*message.Message, error) {
	req, err := http.NewRequestWithContext(m.Context(), http.MethodPost, p.config.URL, bytes.NewReader(m.Payload))
	if err != nil {
		return nil, pipeline.Permanent(httpclient.WithoutURL(err))
	}
	from := "header " + metaID
	if m.Metadata.Get(metaID) == "" {
		from = "uuid"
		m.Metadata.Set(metaID, m.UUID) // a retry record has a new UUID
	}
	id, at := m.Metadata.Get(metaID), strconv.FormatInt(time.Now().Unix(), 10)
	if !canBeSent(id) { // no retry changes it, and the receiver is not to blame
		return nil, pipeline.Permanent(fmt.Errorf("webhook: the %s of the record can't be sent as Webhook-Id: it must be 1 to %d printable ASCII characters without spaces around them",
			from, maxID))
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Webhook-Id", id)
	req.Header.Set("Webhook-Timestamp", at)
	req.Header.Set("Webhook-Signature", sign(p.secret.Value(m.Context()), id, at, m.Payload))
	ended := p.calls.Began(m.Context())
	defer ended()
	resp, err := p.do(req)
	if err != nil {
		err = httpclient.WithoutURL(err)
		switch {
		case errors.Is(m.Context().Err(), context.Canceled): // this process has given up
		case httpclient.Unreached(err):
			p.calls.Unreached(err.Error())
		default:
			p.calls.Failed(err.Error())
		}
		return nil, fmt.Errorf("webhook: %w", err)
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10)) // the connection is used again
	_ = resp.Body.Close()
	switch code := resp.StatusCode; {
	case code >= 200 && code < 300:
		p.calls.Answered()
		return nil, nil
	case code >= 500, code == http.StatusRequestTimeout, code == http.StatusTooManyRequests,
		code == http.StatusUnauthorized: // the token or the key of the signature is wrong, such as while it is rotated, and not the record
		p.calls.Failed("answered " + resp.Status)
		err := p.refused(resp)
		if wait, ok := httpclient.RetryAfter(resp.Header, time.Now()); ok {
			failed, _ := strconv.Atoi(m.Metadata.Get(pipeline.MetaAttempt))
			// No sooner than the receiver asks, and not sooner than without its answer: zero seconds from
			// a proxy would spend all retries at once.
			return nil, pipeline.RetryAfter(err, max(min(wait, maxRetryAfter), p.config.Retry.Delay(failed+1)))
		}
		return nil, err
	default:
		p.calls.Answered()
		return nil, pipeline.Permanent(p.refused(resp))
	}
}

// refused returns the error of an answer. It is kept in logs, retry records and dead letters, so of the address it has
// only the server.
func (p *Plugin) refused(resp *http.Response) error {
	return fmt.Errorf("webhook: %s answered %s", pipeline.ServerOf(p.config.URL).Name, resp.Status)
}

// canBeSent reports whether an id arrives as it is signed: net/http refuses control characters and cuts spaces off, and
// servers refuse long headers.
func canBeSent(id string) bool {
	return id != "" && len(id) <= maxID && strings.TrimSpace(id) == id && !strings.ContainsFunc(id, func(c rune) bool { return c < ' ' || c > '~' })
}

// do sends a request in a span of its own, which the receiver continues. The span has no text of an error, because it may
// name people.
func (p *Plugin) do(req *http.Request) (*http.Response, error) {
	provider := trace.SpanFromContext(req.Context()).TracerProvider()
	ctx, span := provider.Tracer("github.com/millrace-io/millrace/handlers/webhook").
		Start(req.Context(), "webhook POST", trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(httpclient.SpanAttributes(req.Method, req.URL)...))
	defer span.End()
	resp, err := p.client.Do(req.WithContext(ctx))
	kind := ""
	switch {
	case err != nil:
		kind = pipeline.Class(err)
	case resp.StatusCode >= http.StatusBadRequest:
		kind = strconv.Itoa(resp.StatusCode)
	}
	if err == nil {
		span.SetAttributes(attribute.Int("http.response.status_code", resp.StatusCode))
	}
	if kind != "" {
		span.SetAttributes(attribute.String("error.type", kind))
		span.SetStatus(codes.Error, kind)
	}
	return resp, err //nolint:wrapcheck // the caller names the receiver
}

// sign returns the signature of a payload: HMAC-SHA256 over "id.timestamp.payload".
func sign(secret, id, timestamp string, payload []byte) string {
	mac := hmac.New(sha256.New, []byte(secret))
	fmt.Fprintf(mac, "%s.%s.%s", id, timestamp, payload)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

var _ pipeline.Configurable = (*Plugin)(nil)
