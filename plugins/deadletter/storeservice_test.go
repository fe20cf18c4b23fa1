package deadletter

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/internal/sqldbtest"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/sqldb"
)

// toy is a plugin whose route refuses everything.
type toy struct {
	in   *pipelinetest.Feed
	dead *Plugin
}

func (toy) Name() string { return "toy" }

func (y toy) Register(r *pipeline.Registry) error {
	r.Route(pipeline.Route{
		Name: "toy.take", From: y.in,
		Handle: func(m *message.Message) ([]*message.Message, error) {
			return nil, pipeline.WithClass(pipeline.Permanent(fmt.Errorf("can't take %s", m.Payload)), "rejected")
		},
		Policy: pipeline.Policy{DeadLetter: y.dead.Sink("toy-dead")},
	})
	return nil
}

func (o *office) all() []store.DeadLetter {
	o.t.Helper()
	list, _, err := o.store.List(o.t.Context(), store.Filter{}, 1000)
	require.NoError(o.t, err)
	return list
}

// Dead letters of a route without a ledger are stored before they are published. A replay that
// fails again is parked, although it is another record.
func TestADeadLetterOfTheChain(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		p := o.plugin()
		y := toy{pipelinetest.NewFeed("orders"), p}
		o.topics.setDown(errors.New("no broker"))
		pipelinetest.Start(t, p, y)
		m := message.NewMessage("the-uuid", []byte("order 1"))
		m.Metadata.Set("own", "header")
		y.in.Send(m)
		require.Eventually(t, func() bool { return o.topics.called() > 1 }, 2*time.Minute, time.Millisecond, "it is nacked and comes again")
		require.Len(t, o.all(), 1, "as one letter")
		o.topics.setDown(nil)
		require.Eventually(t, func() bool { return len(o.topics.payloads("toy-dead")) == 1 }, 2*time.Minute, time.Millisecond)
		l := o.all()[0]
		require.Equal(t, []any{"toy", "toy.take", "rejected", "can't take order 1", "toy-dead", "the-uuid", store.Open},
			[]any{l.Plugin, l.Handler, l.Class, l.Error, l.Topic, l.UUID, l.State})
		require.Equal(t, "header", l.Headers["own"])
		for name := range l.Headers {
			require.NotRegexp(t, "^millrace-dead-", name, "its own headers only")
		}

		// As if the message had come back by its topic.
		again := message.NewMessage(l.UUID, []byte("order 1"))
		again.Metadata.Set(pipeline.MetaReplay, l.ReplayHeader())
		lease, err := o.store.Begin(t.Context(), l.ID, store.By{Who: "ann", Why: "x"}, false)
		require.NoError(t, err)
		require.NoError(t, o.store.Finish(t.Context(), lease, store.Outcome{Result: store.OutcomeReplayed}))
		y.in.Send(again)
		require.Eventually(t, func() bool { return len(o.topics.payloads("toy-dead")) == 2 }, 2*time.Minute, time.Millisecond)
		require.Len(t, o.all(), 1)
		require.Equal(t, store.Parked, o.state(l.ID))

		p = o.plugin()
		service := &storeService{plugin: p, count: true}
		require.NoError(t, service.Start(t.Context()))
		t.Cleanup(func() { require.NoError(t, service.Stop(context.Background())) })
		require.Eventually(t, func() bool {
			return testutil.ToFloat64(p.metrics.stored.WithLabelValues("rejected", "parked")) == 1
		}, 2*time.Minute, 10*time.Millisecond, "it is counted")
	})
}

// A dead letter that its topic refuses is cut for the topic. The store and a replay have all of it.
func TestADeadLetterThatIsTooLargeForItsTopic(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ limit, published, unpublished int }{
		"it is cut":               {10_000, 1, 0},
		"not even the least fits": {1, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBoth(t, func(t *testing.T, o *office) {
				p := o.plugin()
				service := &storeService{plugin: p}
				require.NoError(t, service.Start(t.Context()))
				t.Cleanup(func() { require.NoError(t, service.Stop(context.Background())) })
				o.topics.limit = tt.limit
				payload := strings.Repeat("p", 20_000)
				letter := pipeline.DeadLetter{Payload: []byte(payload), Metadata: map[string]string{"own": "header"}, Handler: "toy.take", SourceKind: "kafka", Source: "orders", Origin: "orders/3@7", UUID: "u"}
				for range 2 { // delivered again after a crash
					require.NoError(t, p.Sink("toy-dead").Publish(t.Context(), letter.Message()))
				}
				require.InDelta(t, 2*tt.published, testutil.ToFloat64(p.metrics.published.WithLabelValues("toy-dead")), 0)
				require.InDelta(t, 2*tt.unpublished, testutil.ToFloat64(p.metrics.unpublished.WithLabelValues("toy-dead")), 0)
				for _, text := range o.topics.payloads("toy-dead") {
					require.Len(t, text, 8<<10)
				}
				require.Len(t, o.all(), 1)
				o.topics.limit = 0
				require.Equal(t, 1, o.report(0, "replay", o.all()[0].ID, "--why", "x").Replayed)
				require.Equal(t, []string{payload}, o.topics.payloads("orders"))
			})
		})
	}
	to := newTopics()
	to.limit = 1
	err := New(to).Sink("toy-dead").Publish(t.Context(), pipeline.DeadLetter{Payload: []byte("x")}.Message())
	require.True(t, pipeline.IsPermanent(err), "without a store it would be lost: %v", err)
}

// Without its store nothing is published: a reader of the topic finds each dead letter in the
// store.
func TestTheStoreComesFirst(t *testing.T) {
	t.Parallel()
	o := newOffice(t, "sqlite:"+t.TempDir()+"/letters.db")
	p := o.plugin() // its store is not started
	m := pipeline.DeadLetter{Payload: []byte("x"), Handler: "toy.take"}.Message()
	require.ErrorContains(t, p.Sink("toy-dead").Publish(t.Context(), m), "not open")
	require.ErrorContains(t, p.publishEntries(t.Context(), "toy", entriesTo("a", 2)), "not open")
	require.Zero(t, o.topics.called())
	p.config.Store.DSN = setting.Secret{} // no store is configured
	require.NoError(t, p.Sink("toy-dead").Publish(t.Context(), m))
	require.NoError(t, p.publishEntries(t.Context(), "toy", entriesTo("a", 2)))
	require.Equal(t, 2, o.topics.called())
}

// The start waits for an unavailable database. A wrong DSN ends it at once.
func TestTheStartWaitsForTheDatabase(t *testing.T) {
	t.Parallel()
	start := func(t *testing.T, within time.Duration, dsn string) error {
		t.Helper()
		p := New(newTopics()).StoreIn(sqldb.Databases{})
		p.config.Store.DSN = setting.NewSecret(dsn)
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		return (&storeService{plugin: p}).Start(ctx)
	}
	refused := func(t *testing.T, dsn string) {
		t.Helper()
		err := start(t, 30*time.Second, dsn)
		require.ErrorContains(t, err, "plugins.deadletter.store.dsn: ")
		require.NotContains(t, err.Error(), "hunter2")
		// A login that the server refuses is exit code 3, another mistake is 1.
		var pg *pgconn.PgError
		login := errors.As(err, &pg) && pg.Code != "42501"
		require.Equal(t, login, errors.Is(err, pipeline.ErrUnavailable), "%v", err)
	}
	for code, what := range map[string]string{"28P01": "password", "28000": "user", "3D000": "database", "42501": "privilege"} {
		t.Run("refused: "+what, func(t *testing.T) {
			t.Parallel()
			refused(t, "postgres://ann:hunter2@"+sqldbtest.Refusing(t, code)+"/letters?sslmode=disable")
		})
	}
	for code, what := range map[string]string{"57P03": "starting", "53300": "too many clients"} {
		t.Run("waited for: "+what, func(t *testing.T) {
			t.Parallel()
			require.ErrorIs(t, start(t, time.Second/2, "postgres://ann:hunter2@"+sqldbtest.Refusing(t, code)+"/letters?sslmode=disable"), pipeline.ErrUnavailable)
		})
	}
	t.Run("a stop is no fault of the DSN", func(t *testing.T) {
		t.Parallel()
		p := New(newTopics()).StoreIn(sqldb.Databases{})
		p.config.Store.DSN = setting.NewSecret("postgres://ann:hunter2@" + sqldbtest.Refusing(t, "57P03") + "/letters?sslmode=disable")
		stopped, stop := context.WithCancel(t.Context())
		stop()
		err := (&storeService{plugin: p}).Start(stopped)
		require.ErrorIs(t, err, context.Canceled)
		require.NotContains(t, err.Error(), "plugins.deadletter.store.dsn")
	})
	t.Run("refused: no such database", func(t *testing.T) {
		t.Parallel()
		dsn, err := url.Parse(sqldbtest.Schema(t))
		require.NoError(t, err)
		dsn.Path = "/there_is_none"
		refused(t, dsn.String())
	})
	t.Run("refused: no database", func(t *testing.T) {
		t.Parallel()
		file := filepath.Join(t.TempDir(), "letters.db")
		require.NoError(t, os.WriteFile(file, []byte(strings.Repeat("no database ", 1000)), 0o600))
		refused(t, "sqlite:"+file)
	})
}

// An outbox that is relayed again, as after a crash, has each dead letter once in the store.
func TestTheRelayStoresEachDeadLetterOnce(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		p := o.plugin()
		p.config.Interval = time.Millisecond
		service := &storeService{plugin: p}
		require.NoError(t, service.Start(t.Context()))
		t.Cleanup(func() { require.NoError(t, service.Stop(context.Background())) })
		batch := entriesTo("payouts-dead", 3)
		for i := range batch {
			batch[i].ID, batch[i].Subject, batch[i].Handler = fmt.Sprint("entry-", i), "P:1", "payouts.pay"
		}
		batch[1].Detached = true // a conflict
		batch[2].Subject = "P:2"
		o.topics.setDown(errors.New("no broker"))
		for range 3 {
			require.Error(t, p.publishEntries(t.Context(), "payouts", batch))
		}
		o.topics.setDown(nil)
		require.NoError(t, p.publishEntries(t.Context(), "payouts", batch))
		require.Len(t, o.topics.payloads("payouts-dead"), 3)
		stored := o.all()
		require.Len(t, stored, 3)
		for _, l := range stored {
			require.Equal(t, store.Open, l.State)
			require.Equal(t, "payouts", l.Plugin)
		}
	})
}

func TestTheMetricIsBounded(t *testing.T) {
	t.Parallel()
	p := New(newTopics())
	var tallies []store.Tally
	for n := range 50 {
		tallies = append(tallies, store.Tally{Class: fmt.Sprint("class-", n), State: store.Open, Count: 2})
	}
	p.metrics.setStored(append(tallies, store.Tally{Class: "class-0", State: store.Parked, Count: 1}))
	none := len(store.Waiting()) // the series of no class
	require.Equal(t, maxClasses+2+none, testutil.CollectAndCount(p.metrics.stored))
	require.InDelta(t, 60, testutil.ToFloat64(p.metrics.stored.WithLabelValues(otherClass, "open")), 0)
	p.metrics.setStored(nil)
	require.Equal(t, none, testutil.CollectAndCount(p.metrics.stored), "classes without dead letters are gone")
}
