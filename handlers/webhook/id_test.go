package webhook_test

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/webhook"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/pipeline/setting"
)

// Whoever writes into the topic chooses the id, so one that no request can have says nothing about the receiver, and no
// retry makes it better.
func TestAnIDThatCanNotBeSentIsADeadLetterAtOnce(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ uuid, header, names string }{
		"a control character": {"order-1", "order\x01", "header webhook-id"},
		"two lines":           {"order-1", "order\r\nX-Admin: yes", "header webhook-id"},
		"another alphabet":    {"order-1", "Bestellung-ä", "header webhook-id"},
		"not UTF-8":           {"order-1", "order\xff", "header webhook-id"},
		"a space at the end":  {"order-1", "order ", "header webhook-id"},
		"too long":            {"order-1", strings.Repeat("a", 513), "header webhook-id"},
		"in the uuid":         {"order\x7f", "", "uuid"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var requests atomic.Int64
			receiver := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests.Add(1) }))
			defer receiver.Close()
			var topics pipelinetest.Topics
			p := webhook.New(&topics, &topics)
			config := p.Settings().(*webhook.Config)
			config.URL, config.Secret, config.MaxRetries = receiver.URL, setting.NewSecret(secret), 3
			registry, err := pipeline.NewRegistry(pipeline.Env{}, p)
			require.NoError(t, err)
			record := func() *message.Message {
				m := message.NewMessage(tc.uuid, []byte(`{"id":1}`))
				if tc.header != "" {
					m.Metadata.Set("webhook-id", tc.header)
				}
				return m
			}
			for range 3 { // as many failures as make a receiver look broken
				_, err = registry.Routes()[0].Handle(record())
				require.True(t, pipeline.IsPermanent(err), "%v", err)
				require.ErrorContains(t, err, tc.names)
			}
			require.Empty(t, operate.Conditions(registry), "the receiver was not called")
			require.Zero(t, requests.Load())
		})
	}
}

func TestARecordWithABadIDIsNotRetried(t *testing.T) {
	t.Parallel()
	receiver := httptest.NewServer(http.NotFoundHandler())
	defer receiver.Close()
	var topics pipelinetest.Topics
	p := webhook.New(&topics, &topics)
	config := p.Settings().(*webhook.Config)
	config.URL, config.Secret, config.MaxRetries = receiver.URL, setting.NewSecret(secret), 3
	pipelinetest.Start(t, p)
	m := message.NewMessage("order-1", []byte(`{"id":1}`))
	m.Metadata.Set("webhook-id", "order\x01")
	topics.Feed("webhook").Send(m)
	dead := waitFor(t, topics.Published("webhook-dead"))
	require.Equal(t, `{"id":1}`, string(dead.Payload))
	require.Contains(t, strings.Join(slices.Collect(maps.Values(dead.Metadata)), "\n"), "header webhook-id")
	require.Empty(t, topics.Published("webhook-retry").Messages())
}

func TestAnIDWithSpacesInsideIsSent(t *testing.T) {
	t.Parallel()
	got := make(chan string, 1)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- r.Header.Get("Webhook-Id") }))
	defer receiver.Close()
	p := webhook.New(&pipelinetest.Topics{}, &pipelinetest.Topics{})
	config := p.Settings().(*webhook.Config)
	config.URL, config.Secret = receiver.URL, setting.NewSecret(secret)
	registry, err := pipeline.NewRegistry(pipeline.Env{}, p)
	require.NoError(t, err)
	_, err = registry.Routes()[0].Handle(message.NewMessage("order 1", []byte(`{"id":1}`)))
	require.NoError(t, err)
	require.Equal(t, "order 1", <-got)
}
