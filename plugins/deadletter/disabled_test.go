package deadletter

import (
	"bytes"
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/deadletter/cli"
	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/sqldb"
)

// server is a broker in memory with a plugin of its own.
type server struct {
	*topics
	name   string
	starts int
}

func (s *server) Name() string { return s.name }

func (s *server) Register(r *pipeline.Registry) error {
	r.Service(s.name, s)
	return nil
}

func (s *server) Start(context.Context) error { s.starts++; return nil }
func (*server) Stop(context.Context) error    { return nil }

// The settings of a disabled plugin are not validated, so no command may open its servers.
func TestDisabledPluginsAreNotOpened(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		kafka, redis := &server{o.topics, "kafka", 0}, &server{o.streams, "redis", 0}
		run := func(code int, args ...string) cli.Report {
			p := New(kafka, redis).StoreIn(sqldb.Databases{})
			var out, said bytes.Buffer
			got := app.Main(t.Context(), app.Options{
				Name: "millrace", Plugins: []pipeline.Plugin{redis, kafka, p, ledgerOf{o.payouts}}, Args: append([]string{"deadletter"}, append(args, "--json")...),
				Environ: []string{"MILLRACE__PLUGINS__DEADLETTER__STORE__DSN=" + o.dsn, "MILLRACE__PLUGINS__REDIS__ENABLED=false", "MILLRACE__PLUGINS__PAYOUTS__ENABLED=false"},
				Stdout:  &out, Stderr: &said,
			})
			require.Equal(t, code, got, "%s%s", &out, &said)
			var r cli.Report
			require.NoError(t, json.Unmarshal(out.Bytes(), &r), "%s", &out)
			return r
		}
		stream := order(8)
		stream.ID, stream.Source = "stream", entryOf("scan:orders:1", "7-0")
		malformed := order(9) // of a route of the disabled plugin, without a payout: its retry topic is not known here
		malformed.ID, malformed.Handler = "malformed", "payouts.pay"
		o.put(order(1), payoutDeadLetter(5), stream, malformed)
		const redisOff, payoutsOff = "plugin redis is disabled in these settings", "plugin payouts is disabled in these settings"
		reasons := func(r cli.Report) map[string]string {
			m := map[string]string{}
			for _, l := range r.DeadLetters {
				m[l.ID] = l.Reason
			}
			return m
		}

		r := run(0, "replay", "--all", "--dry-run")
		require.Equal(t, []int{1, 3}, []int{r.Replayed, r.Refused}, "%+v", r)
		require.Equal(t, map[string]string{order(1).ID: "", payoutDeadLetter(5).ID: payoutsOff, "stream": redisOff, "malformed": payoutsOff}, reasons(r))

		r = run(app.ExitBad, "replay", "--all", "--why", "x")
		require.Equal(t, []int{1, 3}, []int{r.Replayed, r.Refused}, "%+v", r)
		require.Equal(t, map[string]string{payoutDeadLetter(5).ID: payoutsOff, "stream": redisOff, "malformed": payoutsOff}, reasons(r))
		require.Equal(t, []string{"order 1"}, o.topics.payloads("orders"))
		require.Equal(t, store.Open, o.state("stream"))
		require.Equal(t, store.Open, o.state(payoutDeadLetter(5).ID))

		require.Equal(t, 1, run(0, "discard", "malformed", "--why", "x").Discarded, "no ledger has it")
		r = run(app.ExitBad, "discard", payoutDeadLetter(5).ID, "--why", "x")
		require.Equal(t, map[string]string{payoutDeadLetter(5).ID: payoutsOff + ": use settings with this plugin, or --unsettled"}, reasons(r))
		require.Equal(t, 1, kafka.starts, "for the replay")
		require.Zero(t, redis.starts)
		require.Zero(t, o.streams.called())
		require.Empty(t, o.payouts.calls)
		require.Zero(t, o.payouts.looks)
	})
}
