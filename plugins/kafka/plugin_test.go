package kafka

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"go.uber.org/goleak"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/loop"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/pipeline/setting"
)

func TestConformance(t *testing.T) {
	pipelinetest.Conformance(t, func() []pipeline.Plugin { return []pipeline.Plugin{New()} })
}

func TestTransport(t *testing.T) {
	onEach(t, func(t *testing.T, brokers []string) {
		admin := start(t, brokers)
		pipelinetest.Transport(t, pipelinetest.TransportTest{
			New: func() (pipeline.Topics, []pipeline.Plugin) {
				p := New()
				quick(&p.config)
				p.config.Brokers = brokers
				return p, []pipeline.Plugin{p}
			},
			Topic: func(t testing.TB) string {
				topic := topicFor(t, admin)
				t.Cleanup(func() { deleteTopics(t, admin, topic+"-retry") })
				require.NoError(t, admin.ensureTopics(context.Background(), topic, topic+"-retry"))
				return topic
			},
		})
	})
}

func TestConfigReportsEveryMistake(t *testing.T) {
	t.Parallel()
	for path, spoil := range map[string]func(*Config){
		"brokers":            func(c *Config) { c.Brokers = nil },
		"brokers[1]":         func(c *Config) { c.Brokers = []string{"a:1", "b"} },
		"client_id":          func(c *Config) { c.ClientID = "" },
		"version":            func(c *Config) { c.Version = "2.7.0" },
		"initial_offset":     func(c *Config) { c.InitialOffset = "first" },
		"balance":            func(c *Config) { c.Balance = nil },
		"balance[0]":         func(c *Config) { c.Balance = []string{"fair"} },
		"balance[1]":         func(c *Config) { c.Balance = []string{"range", "range"} },
		"compression":        func(c *Config) { c.Compression = "zip" },
		"window":             func(c *Config) { c.Window = 0 },
		"window_bytes":       func(c *Config) { c.WindowBytes = -1 },
		"max_message_bytes":  func(c *Config) { c.MaxMessageBytes = 0 },
		"partitions":         func(c *Config) { c.Partitions = 0 },
		"replication_factor": func(c *Config) { c.ReplicationFactor = 0 },
		"dial_timeout":       func(c *Config) { c.DialTimeout = 0 },
		"request_timeout":    func(c *Config) { c.RequestTimeout = -time.Second },
		"heartbeat_interval": func(c *Config) { c.HeartbeatInterval = c.SessionTimeout },
		"drain_timeout":      func(c *Config) { c.DrainTimeout = c.RebalanceTimeout },
		"close_timeout":      func(c *Config) { c.CloseTimeout = 0 },
		"publish_timeout":    func(c *Config) { c.PublishTimeout = 0 },
		"tls.cert_file":      func(c *Config) { c.TLS.CertFile = "cert.pem" },
		"sasl.mechanism":     func(c *Config) { c.SASL.Mechanism = "GSSAPI" },
		"sasl.user":          func(c *Config) { c.SASL.Mechanism = "PLAIN" },
		"sasl.token":         func(c *Config) { c.SASL.Mechanism = "OAUTHBEARER" },
		"sasl.password":      func(c *Config) { c.SASL.Mechanism, c.SASL.User = "PLAIN", "u" },
	} {
		t.Run(path, func(t *testing.T) {
			c := defaultConfig()
			require.NoError(t, c.Validate())
			spoil(&c)
			require.Contains(t, paths(c.Validate()), path)
		})
	}
	var zero Config
	require.Greater(t, len(paths(zero.Validate())), 10, "all at once")
}

// paths returns the settings that err complains about.
func paths(err error) (all []string) {
	var many interface{ Unwrap() []error }
	if !errors.As(err, &many) {
		return nil
	}
	for _, one := range many.Unwrap() {
		var f *setting.FieldError
		if errors.As(one, &f) {
			all = append(all, f.Path)
		}
	}
	return all
}

// A profile may have a login that an operator switches off. The error is then about what is left of it, and with it the
// place where that is set.
func TestALoginIsSetOrNot(t *testing.T) {
	t.Parallel()
	c := defaultConfig()
	c.SASL.Password = setting.NewSecret("of the profile")
	require.Equal(t, []string{"sasl.password"}, paths(c.Validate()))
	c.SASL.User, c.SASL.Token = "u", setting.NewSecret("t")
	require.ElementsMatch(t, []string{"sasl.user", "sasl.password", "sasl.token"}, paths(c.Validate()))
}

func TestNothingWorksBeforeTheStart(t *testing.T) {
	t.Parallel()
	p := New()
	require.Equal(t, pipeline.Endpoint{Kind: "kafka", Name: "t", Group: "g"}, p.Source("t", "g").Describe())
	require.Equal(t, pipeline.Endpoint{Kind: "kafka", Name: "t"}, p.Broadcast("t").Describe())
	require.Equal(t, pipeline.Endpoint{Kind: "kafka", Name: "t"}, p.Sink("t").Describe())
	_, err := p.Source("t", "g").Open(t.Context(), pipeline.Flow{})
	require.ErrorIs(t, err, errNotStarted)
	_, err = p.Broadcast("t").Open(t.Context(), pipeline.Flow{})
	require.ErrorIs(t, err, errNotStarted)
	require.ErrorIs(t, p.Sink("t").Publish(t.Context(), texts("x")...), errNotStarted)
	require.ErrorIs(t, p.ensureTopics(t.Context(), "t"), errNotStarted)
	require.ErrorIs(t, p.healthy(t.Context()), errNotStarted)
}

// freePort returns an address where no server listens.
func freePort(t *testing.T) (string, int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().(*net.TCPAddr)
	require.NoError(t, l.Close())
	return addr.String(), addr.Port
}

// logged returns a registered plugin on addr and what it logs.
func logged(t *testing.T, addr string) (*Plugin, *pipelinetest.Buffer) {
	t.Helper()
	p, log := New(), &pipelinetest.Buffer{}
	c := p.Settings().(*Config)
	quick(c)
	_, err := pipeline.NewRegistry(pipeline.Env{Logger: slog.New(slog.NewTextHandler(log, nil))}, p)
	require.NoError(t, err)
	c.Brokers = []string{addr} // after Register, as the embedded environment does it
	return p, log
}

func TestStartEndsWithItsContext(t *testing.T) {
	t.Parallel()
	closed, _ := freePort(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts, by its backlog, and never answers
	require.NoError(t, err)
	defer func() { require.NoError(t, silent.Close()) }()
	for name, addr := range map[string]string{"no listener": closed, "no answer": silent.Addr().String()} {
		t.Run(name, func(t *testing.T) {
			p, log := logged(t, addr)
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			if addr == closed { // it ends after the first line, however long the first try takes
				cancel()
				ctx, cancel = context.WithCancel(t.Context())
				go func() {
					for ctx.Err() == nil && !strings.Contains(log.String(), "waiting for kafka") {
						loop.Sleep(ctx, time.Millisecond)
					}
					cancel()
				}()
			}
			defer cancel()
			err := service{p}.Start(ctx)
			require.ErrorIs(t, err, errUnavailable)
			require.ErrorIs(t, err, pipeline.ErrUnavailable)
			require.ErrorContains(t, err, addr)
			if addr == closed {
				require.ErrorContains(t, err, "connection refused")
				require.Equal(t, 1, strings.Count(log.String(), "waiting for kafka"))
			}
			require.NoError(t, service{p}.Stop(t.Context()))
		})
	}
}

// The last try is cut by the end of the start. The error has the reason of the try before.
func TestAStartThatIsCutSaysWhyNoBrokerAnswered(t *testing.T) {
	t.Parallel()
	addr, _ := freePort(t)
	p, log := logged(t, addr)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	started := make(chan error, 1)
	go func() { started <- service{p}.Start(ctx) }()
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "connection refused") }, 2*time.Minute, time.Millisecond)
	l, err := net.Listen("tcp", addr)
	require.NoError(t, err)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			cancel()
			_ = conn.Close()
		}
	}()
	err = <-started
	require.NoError(t, l.Close())
	require.ErrorIs(t, err, errUnavailable)
	require.ErrorContains(t, err, "connection refused")
}

func TestStartWaitsForTheBroker(t *testing.T) {
	t.Parallel()
	addr, port := freePort(t)
	p, log := logged(t, addr)
	started := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		started <- service{p}.Start(ctx)
	}()
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "waiting for kafka") }, 2*time.Minute, 5*time.Millisecond)
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(port))
	require.NoError(t, err)
	defer cluster.Close()
	require.NoError(t, <-started)
	require.NoError(t, p.healthy(t.Context()))
	require.NoError(t, service{p}.Start(t.Context()), "again")
	require.NoError(t, service{p}.Stop(t.Context()))
	require.NoError(t, service{p}.Stop(t.Context()), "again")
	require.ErrorIs(t, p.Sink("t").Publish(t.Context(), texts("x")...), errNotStarted)
}

func TestEnsureTopics(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		p, other := start(t, brokers), start(t, brokers, func(c *Config) { c.Partitions = 9 })
		a, b := topicFor(t, p), topicFor(t, p)
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() { require.NoError(t, p.ensureTopics(t.Context(), a, b)) })
		}
		all.Wait()
		require.NoError(t, other.ensureTopics(t.Context(), a, b), "what exists is left alone")
		partitions, err := other.live.client.Partitions(a)
		require.NoError(t, err)
		require.Len(t, partitions, 4)
		require.NoError(t, p.ensureTopics(t.Context()))
	})
}

func TestTopicsWithImpossibleNames(t *testing.T) {
	t.Parallel()
	t.Run("kafka", func(t *testing.T) { // kfake takes any name
		p := start(t, realServer().brokers(t))
		require.ErrorIs(t, p.ensureTopics(t.Context(), "not/a/topic"), sarama.ErrInvalidTopic)
	})
}

func TestTopicsAreCreatedOnlyWithTheSetting(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		p := start(t, brokers, func(c *Config) { c.CreateTopics = false })
		topic := topicFor(t, p)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		err := p.Sink(topic).Publish(ctx, texts("x")...)
		require.ErrorIs(t, err, sarama.ErrUnknownTopicOrPartition)
		require.ErrorContains(t, err, `the command "topics create" leaves this topic out, because no route and no plugin declares it`)
		sub, out := subscribe(t, p.Source(topic, topic), pipeline.Flow{})
		nothing(t, out, 200*time.Millisecond)
		require.NoError(t, p.ensureTopics(ctx, topic), "a request")
		publish(t, p, topic, texts("x")...)
		next(t, out).Ack()
		require.NoError(t, sub.Close())
	})
}

func TestSubscriptionLife(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		p := start(t, brokers)
		topic := topicFor(t, p)
		_, err := p.Source(topic, "").Open(t.Context(), pipeline.Flow{})
		require.Error(t, err, "a source needs a group")
		for name, src := range map[string]pipeline.Source{"group": p.Source(topic, topic), "broadcast": p.Broadcast(topic)} {
			unused, err := src.Open(t.Context(), pipeline.Flow{})
			require.NoError(t, err, name)
			require.NoError(t, unused.Drain(t.Context()), name)
			require.NoError(t, unused.Close(), name)
			require.NoError(t, unused.Close(), name)
			_, err = unused.Subscribe(t.Context(), "")
			require.ErrorIs(t, err, loop.ErrStarted, name)

			sub, err := src.Open(t.Context(), pipeline.Flow{})
			require.NoError(t, err, name)
			ctx, cancel := context.WithCancel(t.Context())
			out, err := sub.Subscribe(ctx, "")
			require.NoError(t, err, name)
			_, err = sub.Subscribe(ctx, "")
			require.ErrorIs(t, err, loop.ErrStarted, name)
			cancel()
			_, open := <-out
			require.False(t, open, name)
			require.NoError(t, sub.Drain(t.Context()), name)
			require.NoError(t, sub.Close(), name)
		}
	})
}

func TestBroadcastReachesEveryone(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		p := start(t, brokers)
		topic := topicFor(t, p)
		publish(t, p, topic, texts("before anyone listens")...)
		var outs []<-chan *message.Message
		var subs []pipeline.Subscription
		for range 2 {
			sub, out := subscribe(t, p.Broadcast(topic), pipeline.Flow{})
			subs, outs = append(subs, sub), append(outs, out)
		}
		keyed := texts("now")[0]
		keyed.Metadata.Set(pipeline.MetaKey, "k")
		publish(t, p, topic, keyed)
		foreign(t, brokers, &sarama.ProducerMessage{Topic: topic})
		for _, out := range outs {
			got := map[string]*message.Message{}
			for range 3 { // two records, one of them twice
				m := next(t, out)
				_, again := got[string(m.Payload)]
				got[string(m.Payload)] = m
				o := pipeline.DeliveryFrom(m.Context())
				require.Equal(t, topic, o.Source)
				require.Empty(t, o.Group)
				require.Equal(t, o.Key, m.Metadata.Get(pipeline.MetaKey))
				if string(m.Payload) == "now" && !again {
					require.Equal(t, "k", o.Key)
					m.Nack()
					continue
				}
				m.Ack()
			}
			require.Contains(t, got, "now")
			require.Contains(t, got, "")
		}

		// Drain waits for what is in flight, whose context lives on.
		publish(t, p, topic, texts("in flight")...)
		m := next(t, outs[0])
		drained := make(chan error, 1)
		go func() { drained <- subs[0].Drain(t.Context()) }()
		select {
		case <-drained:
			require.Fail(t, "drained with a message in flight")
		case <-time.After(1500 * time.Millisecond): // closing the reader alone takes half a second
		}
		require.NoError(t, m.Context().Err())
		m.Ack()
		require.NoError(t, <-drained)
		<-m.Context().Done()
		_, open := <-outs[0]
		require.False(t, open)
	})
}

// restartable returns an address and a function that boots a broker there, with the data of the one
// before.
func restartable(t *testing.T) (addr string, boot func(more ...kfake.Opt) *kfake.Cluster) {
	t.Helper()
	addr, port := freePort(t)
	dir := t.TempDir()
	return addr, func(more ...kfake.Opt) (cluster *kfake.Cluster) {
		_ = os.Remove(filepath.Join(dir, "sasl.json")) // the passwords are those of the options
		require.Eventually(t, func() (ok bool) {       // its port may not be free at once
			c, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1), kfake.Ports(port), kfake.DataDir(dir), kfake.SyncWrites()}, more...)...)
			cluster = c
			return err == nil
		}, 2*time.Minute, 20*time.Millisecond)
		return cluster
	}
}

// TestReconnect restarts the broker under a subscription and a publisher. (On a real broker this is
// the e2e scenarios' to do: it is shared here.)
func TestReconnect(t *testing.T) {
	t.Parallel()
	t.Run("kfake", func(t *testing.T) {
		addr, boot := restartable(t)
		cluster := boot()
		p, log := logged(t, addr)
		require.NoError(t, service{p}.Start(t.Context()))
		_, out := subscribe(t, p.Source("t", "g"), pipeline.Flow{})
		publish(t, p, "t", texts("before")...)
		next(t, out).Ack()
		for round := range 2 {
			cluster.Close()
			published := make(chan error, 1)
			go func() { published <- p.Sink("t").Publish(t.Context(), texts("during")...) }()
			require.Eventually(t, func() bool { return strings.Count(log.String(), "in trouble") > round }, 2*time.Minute, 10*time.Millisecond)
			cluster = boot()
			require.NoError(t, <-published, "a restart is ridden out")
			for text := ""; text != "during"; { // what was not committed before may come again
				m := next(t, out)
				text = string(m.Payload)
				m.Ack()
			}
			require.Contains(t, log.String(), "has recovered")
			publish(t, p, "t", texts("after")...)
		}
		require.LessOrEqual(t, strings.Count(log.String(), "in trouble"), 6, "once a change of state, not once an attempt")
		require.NoError(t, service{p}.Stop(t.Context()))
		cluster.Close()
	})
}

// TestMissingPermissionIsFatal: waiting does not help, so the subscription fails.
func TestMissingPermissionIsFatal(t *testing.T) {
	t.Parallel()
	t.Run("kfake", func(t *testing.T) {
		cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.EnableSASL(), kfake.EnableACLs(), kfake.SeedTopics(1, "t"),
			kfake.Superuser("PLAIN", "root", "secret"), kfake.User("PLAIN", "guest", "secret"))
		require.NoError(t, err)
		defer cluster.Close()
		p := New()
		c := p.Settings().(*Config)
		quick(c)
		c.Brokers, c.CreateTopics = cluster.ListenAddrs(), false
		c.SASL = SASL{Mechanism: "PLAIN", User: "guest", Password: setting.NewSecret("secret")}
		// The service can't even open its publisher, so the subscription is opened by hand.
		sub, err := openGroup(*c, "t", "g", "", pipeline.Flow{}, slog.New(slog.DiscardHandler), p.metrics)
		require.NoError(t, err)
		out, err := sub.Subscribe(t.Context(), "")
		require.NoError(t, err)
		select {
		case err := <-sub.Failed():
			require.True(t, fatal(err), "%v", err)
			require.ErrorContains(t, err, "t (g)")
		case <-time.After(2 * time.Minute):
			require.Fail(t, "no failure")
		}
		_, open := <-out
		require.False(t, open)
		require.NoError(t, sub.Close())
	})
}

func TestHealthNoticesALostMembership(t *testing.T) {
	t.Parallel()
	t.Run("kfake", func(t *testing.T) {
		cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
		require.NoError(t, err)
		p := start(t, cluster.ListenAddrs(), func(c *Config) { c.RebalanceTimeout, c.DrainTimeout = 500*time.Millisecond, 100*time.Millisecond })
		_, out := subscribe(t, p.Source("t", "g"), pipeline.Flow{})
		publish(t, p, "t", texts("x")...)
		next(t, out).Ack()
		require.NoError(t, p.healthy(t.Context()))
		cluster.Close()
		require.Eventually(t, func() bool { return p.healthy(t.Context()) != nil }, 2*time.Minute, 20*time.Millisecond)
		require.ErrorContains(t, p.healthy(t.Context()), "not a member")
		require.Eventually(t, func() bool {
			err := p.healthy(t.Context())
			return err != nil && strings.Contains(err.Error(), "connection refused")
		}, 2*time.Minute, 20*time.Millisecond, "and why")
	})
}

// TestNothingIsLeftRunning opens and closes everything and looks for goroutines. Not parallel: it
// counts the whole process.
func TestNothingIsLeftRunning(t *testing.T) {
	ignore := []goleak.Option{goleak.IgnoreCurrent(), goleak.IgnoreAnyFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick")}
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	require.NoError(t, err)
	p, _ := logged(t, cluster.ListenAddrs()[0])
	require.NoError(t, service{p}.Start(t.Context()))
	gate := pipeline.Flow{Gate: func() bool { return true }}
	var subs []pipeline.Subscription
	for _, src := range []pipeline.Source{p.Source("t", "g"), p.Broadcast("t")} {
		sub, err := src.Open(t.Context(), gate)
		require.NoError(t, err)
		out, err := sub.Subscribe(t.Context(), "")
		require.NoError(t, err)
		publish(t, p, "t", texts("x")...)
		next(t, out) // and never answered
		subs = append(subs, sub)
	}
	large := message.NewMessage(watermill.NewUUID(), make([]byte, batchBytes+1))
	publish(t, p, "t", large)
	for _, sub := range subs {
		require.NoError(t, sub.Close())
	}
	require.NoError(t, service{p}.Stop(t.Context()))
	cluster.Close()
	goleak.VerifyNone(t, ignore...)
}
