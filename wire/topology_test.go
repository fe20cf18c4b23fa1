package wire_test

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/kafka"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/wire"
)

func TestTheTopologyFits100Columns(t *testing.T) {
	t.Parallel()
	out := topologyOf(t, wire.New().Plugins())
	require.Contains(t, out, "campaign-promotion-group:VOUCHER:<id>\n")
	for line := range strings.Lines(out) {
		require.LessOrEqual(t, utf8.RuneCountInString(line)-1, 100, line)
	}
}

// topologyOf returns what the command topology writes about plugins.
func topologyOf(t *testing.T, plugins []pipeline.Plugin, environ ...string) string {
	t.Helper()
	var out, errs bytes.Buffer
	require.Zero(t, app.Main(t.Context(), app.Options{
		Name: "millrace", Plugins: plugins, Environments: wire.Environments(), Profiles: wire.Profiles(), DefaultProfile: "embedded",
		Args: []string{"topology"}, Environ: append([]string{}, environ...), Stdout: &out, Stderr: &errs,
	}), errs.String())
	return out.String()
}

// audited is a plugin whose handler writes a topic and a stream.
type audited struct {
	kafka *kafka.Plugin
	redis *redis.Plugin
}

func (audited) Name() string { return "audited" }

func (a audited) Register(r *pipeline.Registry) error {
	r.Route(pipeline.Route{
		Name: "audited", From: a.kafka.Source("in", "audited"), To: a.kafka.Sink("out"),
		Handle:  func(*message.Message) ([]*message.Message, error) { return nil, nil },
		Outputs: map[string]pipeline.Sink{"audit": a.redis.Sink("audit-stream")},
		Policy:  pipeline.Policy{DeadLetter: a.kafka.Sink("in-dead"), Retry: pipeline.RetryVia(a.kafka, "in-retry", "audited-retry", 1, pipeline.Backoff{})},
	})
	return nil
}

// All outputs of a route are shown, of whichever transport, and so are those of its retry route.
func TestTheTopologyHasAllOutputs(t *testing.T) {
	t.Parallel()
	plugins := wire.New().Plugins()
	var a audited
	for _, p := range plugins {
		switch p := p.(type) {
		case *kafka.Plugin:
			a.kafka = p
		case *redis.Plugin:
			a.redis = p
		}
	}
	out := topologyOf(t, append(plugins, a))
	for _, route := range []string{
		"audited\n  from         kafka in\n    group      audited\n",
		"audited.retry\n  from         kafka in-retry\n    group      audited-retry\n",
	} {
		require.Contains(t, out, route+`  to           kafka out
  output       redis-stream audit-stream
    name       audit
  retry        kafka in-retry
  dead letter  kafka in-dead
`)
	}
}

// What a service of a plugin writes outside of its routes is shown, too.
func TestTheTopologyHasTheResultsOfPromotions(t *testing.T) {
	t.Parallel()
	const line = "  writes       watermill-redisstream campaign-promotion-results\n"
	require.NotContains(t, topologyOf(t, wire.New().Plugins()), line, "they are not enabled by default")
	require.Contains(t, topologyOf(t, wire.New().Plugins(), "MILLRACE__PLUGINS__PROMOTION__RESULTS__ENABLED=true"), line)
}
