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

// What handlers and services call is shown: the far side of each kind of payout or effect, receivers, APIs.
func TestTheTopologyHasWhatIsCalled(t *testing.T) {
	t.Parallel()
	const effects, room, money = "MILLRACE__PLUGINS__EFFECTS__KINDS__NOTICE__", "MILLRACE__PLUGINS__WAITINGROOM__", "MILLRACE__PLUGINS__PROMOTION__MONEY_API__"
	environ := []string{
		effects + "REPEAT=never", effects + "KEY=id", effects + "GROUP=group", effects + "REQUEST__PATH=/notices", effects + "ANSWERS__RECEIPT=id",
		effects + "API__URL=https://notices.example/secret", effects + "EFFECTS__TOPIC=notices",
		room + "ENABLED=true", room + "EVENT_SERVICE__URL=https://events.example/secret", room + "ADMIN_TOKENS__ANN=the-token-of-operators",
		"MILLRACE__PLUGINS__WEB__AUTH__HEADER=X-User", "MILLRACE__PLUGINS__WEB__TRUSTED_PROXIES=127.0.0.1",
		"MILLRACE__PLUGINS__WEBHOOK__ENABLED=true", "MILLRACE__PLUGINS__WEBHOOK__URL=https://hooks.example/secret",
		"MILLRACE__PLUGINS__WEBHOOK__SECRET=of-at-least-thirty-two-characters-1",
	}
	blocks := func(environ []string) map[string]string {
		all := map[string]string{}
		for block := range strings.SplitSeq(topologyOf(t, wire.New().Plugins(), environ...), "\n\n") {
			name, rest, _ := strings.Cut(block, "\n")
			all[name] = rest
		}
		return all
	}
	found := blocks(environ)
	for name, called := range map[string]string{
		"promotion.point.stream": "server simulated Money API", "promotion.voucher.retry": "server simulated Money API",
		"notice.accept": "ledger notice", "plugin effects": "server https://notices.example", "plugin waitingroom": "server https://events.example",
		"webhook": "server https://hooks.example", "webhook.retry": "server https://hooks.example",
	} {
		require.Contains(t, found[name]+"\n", "  calls        "+called+"\n", name)
	}
	require.NotContains(t, found["promotion.point.accept"], "calls", "it only stores the payout")
	found = blocks([]string{money + "SIMULATOR__ENABLED=false", money + "URL=https://money.example/v1", money + "TOKEN=x"})
	require.Contains(t, found["promotion.point.stream"], "  calls        server https://money.example\n")
}
