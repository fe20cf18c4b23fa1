package redis_test

import (
	"context"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/alicebob/miniredis/v2"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/entry"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

func TestConformance(t *testing.T) {
	pipelinetest.Conformance(t, func() []pipeline.Plugin { return []pipeline.Plugin{redis.New()} })
}

func TestTransport(t *testing.T) {
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		t.Parallel()
		c := s.Client(t)
		pipelinetest.Transport(t, pipelinetest.TransportTest{
			New: func() (pipeline.Topics, []pipeline.Plugin) {
				p := redis.New()
				cfg := p.Settings().(*redis.Config)
				cfg.Addrs = []string{s.Addr}
				cfg.PollInterval, cfg.InitialPollInterval = 20*time.Millisecond, time.Millisecond
				cfg.MinIdle, cfg.ReclaimInterval = 3*time.Second, 100*time.Millisecond
				return p, []pipeline.Plugin{p}
			},
			Topic: func(t testing.TB) string { return redistest.Prefix(t, c) },
		})
	})
}

// start starts the plugin alone and stops it at the end. The server has a minute to answer.
func start(t *testing.T, addr, instance string, log *slog.Logger) (*redis.Plugin, pipeline.Service, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return startWithin(ctx, t, addr, instance, log)
}

func startWithin(ctx context.Context, t *testing.T, addr, instance string, log *slog.Logger) (*redis.Plugin, pipeline.Service, error) {
	t.Helper()
	p := redis.New()
	cfg, ok := p.Settings().(*redis.Config)
	require.True(t, ok)
	reg, err := pipeline.NewRegistry(pipeline.Env{Instance: instance, Logger: log}, p)
	require.NoError(t, err)
	cfg.Addrs = []string{addr} // after Register, as the embedded environment does it
	cfg.PollInterval, cfg.InitialPollInterval = 20*time.Millisecond, time.Millisecond
	service := reg.Services()[0].Service
	err = service.Start(ctx)
	t.Cleanup(func() { require.NoError(t, service.Stop(context.Background())) })
	return p, service, err
}

func TestServiceLife(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		instance := "test-" + watermill.NewULID()
		p, service, err := start(t, s.Addr, instance, redistest.Logger(t))
		require.NoError(t, err)
		c := p.Client()
		require.NoError(t, c.Ping(t.Context()).Err())
		alive, err := redis.Alive(t.Context(), c, instance)
		require.NoError(t, err)
		require.True(t, alive[instance])
		require.Error(t, service.Start(t.Context()), "a second Start")
		require.NoError(t, service.Stop(t.Context()))
		require.ErrorIs(t, p.Client().Ping(t.Context()).Err(), goredis.ErrClosed, "a command of a plugin that still runs")
		require.ErrorIs(t, c.Ping(t.Context()).Err(), goredis.ErrClosed, "its owner closes the client")
		other := s.Client(t)
		alive, err = redis.Alive(t.Context(), other, instance)
		require.NoError(t, err)
		require.False(t, alive[instance])
	})
}

// writer is a function as io.Writer.
type writer func(line string)

func (w writer) Write(line []byte) (int, error) { w(string(line)); return len(line), nil }

func TestStartSaysWhichServerIsMissingAndWhy(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var lines redistest.Lines
	log := io.MultiWriter(&lines, writer(func(line string) {
		if strings.Contains(line, "waiting for redis") {
			cancel()
		}
	}))
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := ln.Addr().String()
	require.NoError(t, ln.Close())
	p, _, err := startWithin(ctx, t, addr, "i", slog.New(slog.NewTextHandler(log, nil)))
	require.ErrorIs(t, err, pipeline.ErrUnavailable)
	require.ErrorContains(t, err, addr)
	require.ErrorContains(t, err, "connection refused")
	require.Contains(t, lines.String(), "waiting for redis")
	require.Nil(t, p.Client())
}

func TestStartWaitsForTheServer(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	p := redistest.NewProxy(t, m.Addr())
	p.SetDown(true)
	timer := time.AfterFunc(700*time.Millisecond, func() { p.SetDown(false) })
	defer timer.Stop()
	_, _, err := start(t, p.Addr(), "i", redistest.Logger(t))
	require.NoError(t, err)
}

func TestStartDoesNotWaitForAWrongPasswordToBecomeRight(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	m.RequireAuth("secret")
	begin := time.Now()
	_, _, err := start(t, m.Addr(), "i", redistest.Logger(t))
	require.ErrorIs(t, err, pipeline.ErrUnavailable)
	require.ErrorContains(t, err, "NOAUTH")
	require.Less(t, time.Since(begin), 30*time.Second)
}

// onePlugin is a plugin of one route.
type onePlugin struct{ route pipeline.Route }

func (onePlugin) Name() string { return "toy" }

func (p onePlugin) Register(r *pipeline.Registry) error { r.Route(p.route); return nil }

// From sink to source through the real chain and Router.
func TestSourceAndSinkInAPipeline(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		admin := s.Client(t)
		in, out := redistest.Stream(t, admin), redistest.Stream(t, admin)
		p := redis.New()
		cfg := p.Settings().(*redis.Config)
		cfg.Addrs = []string{s.Addr}
		cfg.PollInterval, cfg.InitialPollInterval = 20*time.Millisecond, time.Millisecond
		dead := pipelinetest.NewRecorder("dead")
		pipelinetest.Start(t, p, onePlugin{pipeline.Route{
			Name: "copy", From: p.Source(in, group), To: p.Sink(out),
			Policy: pipeline.Policy{DeadLetter: dead},
			Handle: func(m *message.Message) ([]*message.Message, error) {
				return message.Messages{message.NewMessage(m.UUID, append([]byte("copy of "), m.Payload...))}, nil
			},
		}})
		require.NoError(t, admin.XAdd(t.Context(), &goredis.XAddArgs{Stream: in, Values: []any{"foo", "bar"}}).Err())
		require.NoError(t, p.Sink(in).Publish(t.Context(), message.NewMessage("u", []byte("it"))))
		require.Eventually(t, func() bool {
			es, err := admin.XRange(t.Context(), out, "-", "+").Result()
			return err == nil && len(es) == 1 && es[0].Values["message"] == "copy of it"
		}, patience, tick)
		require.Eventually(t, func() bool { return len(dead.Messages()) == 1 }, patience, tick)
		require.Equal(t, "missing_message", dead.Messages()[0].Metadata.Get(pipeline.MetaDeadClass))
		require.Eventually(t, func() bool {
			pending, err := admin.XPending(t.Context(), in, group).Result()
			return err == nil && pending.Count == 0
		}, patience, tick)
	})
}

// refusing is a client hook. It refuses the entries of one message.
type refusing struct{ uuid string }

func (refusing) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (refusing) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook { return next }

func (r refusing) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		var others []goredis.Cmder
		for _, cmd := range cmds {
			if slices.Contains(cmd.Args(), any(r.uuid)) {
				cmd.SetErr(errors.New("refused"))
				continue
			}
			others = append(others, cmd)
		}
		return next(ctx, others)
	}
}

// The other messages of a batch are published once and acked. A stream that refuses all entries
// fails no message for another one.
func TestARefusedEntryFailsItsMessageOnly(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		p, _, err := start(t, s.Addr, "a", pipelinetest.Logger(t))
		require.NoError(t, err)
		admin := s.Client(t)
		good, bad := redistest.Stream(t, admin), redistest.Stream(t, admin)
		require.NoError(t, admin.Set(t.Context(), bad, "a string", 0).Err())
		p.Client().AddHook(refusing{"refused"})
		feed := pipelinetest.NewFeed("in")
		feed.RedeliveryDelay = 10 * time.Millisecond
		pipelinetest.Start(t, onePlugin{pipeline.Route{
			Name: "copy", From: feed, To: p.Sink(good), Flow: pipeline.Flow{Window: 3}, Policy: pipeline.Policy{DeadLetter: pipelinetest.NewRecorder("dead")},
			Batch: pipeline.Batch{MaxRecords: 3, Linger: 100 * time.Millisecond},
			HandleBatch: func(_ context.Context, msgs []*message.Message) []pipeline.BatchResult {
				results := make([]pipeline.BatchResult, len(msgs))
				for i, m := range msgs {
					results[i].Out = []*message.Message{m.Copy()}
				}
				return results
			},
		}})
		msgs := []*message.Message{message.NewMessage("first", nil), message.NewMessage("refused", nil), message.NewMessage("last", nil)}
		feed.Send(msgs...)
		acked := 0
		for range 3 {
			if s := <-feed.Settled(); s.Acked {
				acked++
			}
		}
		require.Equal(t, 2, acked)
		require.EqualValues(t, 2, admin.XLen(t.Context(), good).Val())

		partial, ok := errors.AsType[*pipeline.PartialError](p.Sink(bad).Publish(t.Context(), msgs...))
		require.True(t, ok)
		require.Len(t, partial.Failed, 3)
		require.EqualError(t, p.Sink(good).Publish(t.Context(), msgs...),
			"publish to "+good+": 1 of 3 not published: message refused: refused")
	})
}

func TestSinkCarriesTheTrace(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		p, _, err := start(t, s.Addr, "test-"+watermill.NewULID(), redistest.Logger(t))
		require.NoError(t, err)
		stream := redistest.Stream(t, s.Client(t))
		ctx := trace.ContextWithSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}}))
		m := message.NewMessage("u", nil)
		require.NoError(t, p.Sink(stream).Publish(ctx, m))
		require.Empty(t, m.Metadata, "the caller's message must not be changed")
		es, err := p.Client().XRange(t.Context(), stream, "-", "+").Result()
		require.NoError(t, err)
		got, err := entry.Decode(es[0])
		require.NoError(t, err)
		require.Contains(t, got.Metadata.Get(pipeline.MetaTraceParent), "01000000000000000000000000000000-0200000000000000")
	})
}

func TestBeforeTheServiceIsStarted(t *testing.T) {
	t.Parallel()
	p := redis.New()
	require.Nil(t, p.Client())
	_, err := p.Source("s", group).Open(t.Context(), pipeline.Flow{})
	require.ErrorContains(t, err, "not been started")
	require.ErrorContains(t, p.Sink("s").Publish(t.Context(), message.NewMessage("u", nil)), "not been started")
	require.Equal(t, pipeline.Endpoint{Kind: "redis-stream", Name: "s", Group: group}, p.Source("s", group).Describe())
	require.Equal(t, pipeline.Endpoint{Kind: "redis-stream", Name: "s"}, p.Sink("s").Describe())
}

// A route's order and window decide how many messages are in flight.
func TestSourceSlots(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		p, _, err := start(t, s.Addr, "test-"+watermill.NewULID(), redistest.Logger(t))
		require.NoError(t, err)
		tests := []struct {
			name string
			flow pipeline.Flow
			want int
		}{
			{"the plugin's default", pipeline.Flow{}, 16},
			{"window", pipeline.Flow{Window: 3}, 3},
			{"most in flight", pipeline.Flow{Window: 8, MaxInFlight: 2}, 2},
			{"ordered by key", pipeline.Flow{Window: 8, Order: pipeline.OrderKey}, 1},
			{"ordered", pipeline.Flow{Order: pipeline.OrderPartition}, 1},
		}
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				r := redistest.NewRig(t, s)
				r.Add(0, 20)
				sub, err := p.Source(r.Stream, group).Open(t.Context(), tt.flow)
				require.NoError(t, err)
				out, err := sub.Subscribe(t.Context(), "")
				require.NoError(t, err)
				_, err = sub.Subscribe(t.Context(), "")
				require.Error(t, err, "a second Subscribe")
				var inFlight []*message.Message
				for range tt.want {
					inFlight = append(inFlight, redistest.Receive(t, out))
				}
				select { // not Never: its last look may come when there are free slots again
				case <-out:
					require.FailNow(t, "more in flight than there are slots")
				case <-time.After(50 * time.Millisecond):
				}
				for _, m := range inFlight {
					m.Ack()
				}
				require.NoError(t, sub.Drain(t.Context()))
				_, open := <-out
				require.False(t, open, "Drain closes the channel")
				require.NoError(t, sub.Close())
				require.Len(t, r.Pending(), min(10-tt.want%10, 20-tt.want)%10)
			})
		}
	})
}

func TestValidateReportsEverything(t *testing.T) {
	t.Parallel()
	cfg := redis.DefaultConfig()
	require.NoError(t, cfg.Validate())
	cfg.Addrs = []string{"a:1", "nowhere"}
	cfg.DB, cfg.ReadTimeout, cfg.Concurrency, cfg.AckBatchSize = -1, 0, 0, 5000
	cfg.TLS.CertFile = "x"
	err := cfg.Validate()
	for _, path := range []string{"addrs[1]", "addrs", "db", "read_timeout", "concurrency", "ack_batch_size", "tls.cert_file"} {
		require.ErrorContains(t, err, path+": must be")
	}
	var field *setting.FieldError
	require.ErrorAs(t, err, &field)
	_, err = redis.NewClient(cfg.ClientConfig, nil)
	require.Error(t, err)
}

func TestClientKinds(t *testing.T) {
	t.Parallel()
	kind := func(change func(*redis.ClientConfig)) goredis.UniversalClient {
		cfg := redis.DefaultClientConfig()
		change(&cfg)
		c, err := redis.NewClient(cfg, nil)
		require.NoError(t, err)
		require.NoError(t, c.Close())
		return c
	}
	require.IsType(t, &goredis.Client{}, kind(func(*redis.ClientConfig) {}))
	cluster, ok := kind(func(c *redis.ClientConfig) { c.Cluster = true }).(*goredis.ClusterClient)
	require.True(t, ok)
	require.LessOrEqual(t, cluster.Options().ClusterStateReloadInterval, 5*time.Second, "a minute of errors after a failover")
	require.IsType(t, &goredis.Client{}, kind(func(c *redis.ClientConfig) { c.MasterName, c.Addrs = "m", []string{"a:1", "b:1"} }))
	plain, ok := kind(func(*redis.ClientConfig) {}).(*goredis.Client)
	require.True(t, ok)
	require.True(t, plain.Options().ContextTimeoutEnabled)
	require.Equal(t, 2, plain.Options().Protocol)
}

func TestTLS(t *testing.T) {
	t.Parallel()
	web := httptest.NewTLSServer(nil)
	defer web.Close()
	m := miniredis.NewMiniRedis()
	require.NoError(t, m.StartTLS(web.TLS))
	defer m.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: web.Certificate().Raw}), 0o600))

	ping := func(change func(*setting.TLS)) error {
		cfg := redis.DefaultClientConfig()
		cfg.Addrs, cfg.MaxRetries = []string{m.Addr()}, -1
		cfg.TLS = setting.TLS{Enabled: true, CAFile: ca}
		change(&cfg.TLS)
		c, err := redis.NewClient(cfg, nil)
		if err != nil {
			return err
		}
		return errors.Join(c.Ping(t.Context()).Err(), c.Close())
	}
	require.NoError(t, ping(func(*setting.TLS) {}))
	require.Error(t, ping(func(c *setting.TLS) { c.CAFile = "" }), "an unknown authority must be refused")
	require.NoError(t, ping(func(c *setting.TLS) { c.CAFile, c.InsecureSkipVerify = "", true }))
	require.ErrorContains(t, ping(func(c *setting.TLS) { c.CAFile = "/nowhere" }), "tls.ca_file")
	empty := filepath.Join(t.TempDir(), "empty.pem")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	require.ErrorContains(t, ping(func(c *setting.TLS) { c.CAFile = empty }), "contains no certificate")
	require.ErrorContains(t, ping(func(c *setting.TLS) { c.CertFile, c.KeyFile = empty, empty }), "tls.cert_file")
}
