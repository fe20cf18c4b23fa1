package console_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/kafka"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// shipped is a plugin with a route of Kafka.
type shipped struct{ kafka *kafka.Plugin }

func (shipped) Name() string { return "shipped" }

func (s shipped) Register(r *pipeline.Registry) error {
	r.Route(pipeline.Route{
		Name: "parcels", From: s.kafka.Source("parcels", "g"), Policy: pipeline.Policy{DeadLetter: pipeline.Drop},
		Handle: func(*message.Message) ([]*message.Message, error) { return nil, nil },
	})
	return nil
}

// startShipped starts a console with the route, and its topic with 30 records in one partition. No member is in the group.
func startShipped(t *testing.T, further ...pipeline.Plugin) *rig {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	require.NoError(t, cluster.CreateTopic("parcels", 1, nil))
	server := kafka.New()
	config := server.Settings().(*kafka.Config)
	config.Brokers = cluster.ListenAddrs()
	r := start(t, nil, append([]pipeline.Plugin{server, shipped{server}}, further...)...)
	var records []*message.Message
	for i := range 30 {
		records = append(records, message.NewMessage(fmt.Sprint(i), []byte("x")))
	}
	require.NoError(t, server.Sink("parcels").Publish(t.Context(), records...))
	return r
}

// A person resets the group of a route with the form of its page, sees the numbers first, and has to type what it is. A
// program does the same, and the audit of the routes has both.
func TestARouteIsResetInTheConsole(t *testing.T) {
	t.Parallel()
	orders := redis.New()
	orders.Settings().(*redis.Config).Addrs = []string{redistest.Mini(t).Addr}
	r := startShipped(t, orders)
	require.Contains(t, r.get("/route?route=parcels"), `<a href="/actions/routes/reset?route=parcels">routes reset</a>`)

	answer, text := r.post("/actions/routes/reset", url.Values{"step": {"preview"}, "in.route": {"parcels"}, "in.to": {"noon"}})
	require.Equal(t, http.StatusBadRequest, answer.StatusCode)
	require.Regexp(t, `<input id="in-to"[^>]* aria-invalid="true">`, text)

	confirm, text := r.previewed("/actions/routes/reset", url.Values{"in.route": {"parcels"}, "in.to": {"12"}})
	require.Contains(t, text, "Would set the group g of topic parcels to the given offsets: 0 records are handled again, and 12 records are skipped.")
	confirm.Set("why", "they were sent twice")
	answer, text = r.post("/actions/routes/reset", confirm)
	require.Equal(t, http.StatusBadRequest, answer.StatusCode)
	require.Contains(t, text, "confirm must be routes reset: type these words, because the action can&#39;t be undone")
	confirm, _ = r.previewed("/actions/routes/reset", url.Values{"in.route": {"parcels"}, "in.to": {"12"}})
	confirm.Set("why", "they were sent twice")
	confirm.Set("confirm", "routes reset")
	answer, text = r.post("/actions/routes/reset", confirm)
	require.Equal(t, http.StatusSeeOther, answer.StatusCode, text)
	require.Contains(t, r.get(answer.Header.Get("Location")), "Set the group g of topic parcels to the given offsets")

	status, done := r.send("routes/reset", `{"input":{"route":"parcels","to":"oldest"},"dry_run":true}`)
	require.Equal(t, http.StatusOK, status)
	outcome := done["outcome"].(map[string]any)
	require.Equal(t, []any{"parcels", true, true, 12.0, 0.0}, []any{outcome["route"], outcome["dry_run"], outcome["changed"], outcome["handled_again"], outcome["skipped"]})
	status, _ = r.send("routes/reset", `{"input":{"route":"parcels","to":"oldest"}}`)
	require.Equal(t, http.StatusBadRequest, status, "why is required")
	status, done = r.send("routes/reset", `{"input":{"route":"parcels","to":"oldest"},"why":"they were not"}`)
	require.Equal(t, http.StatusOK, status)
	require.EqualValues(t, 12, done["outcome"].(map[string]any)["handled_again"])

	audit := r.get("/audit")
	for _, part := range []string{
		">reset<", ">parcels<", "they were sent twice", "they were not",
		"group g of parcels, 0 again, 12 skipped, 0: - to 12", "group g of parcels, 12 again, 0 skipped, 0: 12 to 0",
	} {
		require.Contains(t, audit, part)
	}
	_, elsewhere, _ := strings.Cut(audit, "What is not here")
	require.NotContains(t, elsewhere, "routes reset")
}

// Without a plugin that keeps an audit of routes, the answer and the page say that only the log has it.
func TestAResetWithoutAnAuditSaysSo(t *testing.T) {
	t.Parallel()
	r := startShipped(t)
	_, elsewhere, _ := strings.Cut(r.get("/audit"), "What is not here")
	require.Contains(t, elsewhere, `routes reset</a></td><td>kafka</td><td>by its plugin, which offers no audit to the console, and in the log of the instance`)
	confirm, _ := r.previewed("/actions/routes/reset", url.Values{"in.route": {"parcels"}, "in.to": {"newest"}})
	confirm.Set("why", "they were sent twice")
	confirm.Set("confirm", "routes reset")
	answer, text := r.post("/actions/routes/reset", confirm)
	require.Equal(t, http.StatusSeeOther, answer.StatusCode, text)
	require.Contains(t, r.get(answer.Header.Get("Location")), "No plugin of this binary keeps an audit of routes")
	require.Regexp(t, `msg="kafka consumer group reset by an operator".* route=parcels .*group=g who="anonymous \(console\)" why="they were sent twice" offsets="group g of parcels, 0 again, 30 skipped, 0: - to 30"`, r.log.String())
}
