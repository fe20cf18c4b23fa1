package once_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/once/oncetest"
)

// sends is a transport to whose topics the command send publishes.
type sends struct{ *pipelinetest.Topics }

func (sends) Name() string                      { return "sends" }
func (sends) Register(*pipeline.Registry) error { return nil }

func (s sends) Send(topic string) (app.Sending, error) {
	return app.Sending{Sink: s.Sink(topic), Register: func(*pipeline.Registry) error { return nil }}, nil
}

// A record that an operator sends to the topic of a kind asks for an effect: it needs a reason, and the audit has it before the
// record is published.
func TestASentRecordIsAudited(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		ofTopic := func(_ *once.Kind[invoice], c *once.KindConfig) { c.Topic, c.Group = "invoices", "millrace-invoice" }
		p := newInvoices(w.Once, once.ByKey, ofTopic)
		w.Start(p)
		o := operator{t, w}
		dsn := w.Once.Settings().(*once.Config).Ledger.DSN.Reveal()
		config := filepath.Join(t.TempDir(), "mill.yaml")
		require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, "log: {level: error}\nplugins: {once: {ledger: {dsn: %q}}}\n", dsn), 0o600))
		send := func(want int, args ...string) (stdout, stderr string, published int) {
			t.Helper()
			own := oncetest.On(t, dsn)
			var out, errs bytes.Buffer
			code := app.Main(t.Context(), app.Options{
				Name: "mill", Plugins: []pipeline.Plugin{sends{own.Topics}, own.Once, newInvoices(own.Once, once.ByKey, ofTopic)},
				Args: append(append([]string{"send"}, args...), "--config", config), Environ: []string{}, Stdout: &out, Stderr: &errs,
			})
			require.Equal(t, want, code, out.String()+errs.String())
			for _, topic := range []string{"invoices", "others"} {
				published += len(own.Topics.Published(topic).Messages())
			}
			return out.String(), errs.String(), published
		}
		_, stderr, published := send(app.ExitUsage, "invoices", one.payload())
		require.Contains(t, stderr, "--why REASON required, for the audit: a record of invoices asks for a side effect")
		require.Zero(t, published)
		_, _, published = send(app.ExitOK, "others", one.payload())
		require.Equal(t, 1, published, "a topic that no kind reads")
		stdout, stderr, published := send(app.ExitOK, "invoices", one.payload(), "no JSON", "--why", "ticket 8")
		require.Equal(t, "2 records sent to invoices.\n", stdout)
		require.Empty(t, stderr, "a route reads it")
		require.Equal(t, 2, published)

		_, err := p.effects.Enqueue(t.Context(), one) // here the topic is another one, in memory
		require.NoError(t, err)
		require.Equal(t, rules.Success, oncetest.Settled(t, p.effects, one.key()).State)
		var x struct {
			Audit []struct{ Action, Why, Detail string }
		}
		value, err := json.Marshal(o.must("once explain", input(one.Number)).Value)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(value, &x))
		require.Equal(t, []struct{ Action, Why, Detail string }{{"send", "ticket 8", "to invoices"}}, x.Audit)
	})
}
