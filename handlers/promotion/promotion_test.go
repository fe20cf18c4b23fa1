package promotion_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion"
	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/deadletter"
	"github.com/millrace-io/millrace/plugins/embedded"
	"github.com/millrace-io/millrace/plugins/kafka"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/reclaim"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/sqldb"
)

// system is the plugin with its embedded servers, and a Money API whose charges can be read.
type system struct {
	t       *testing.T
	servers *embedded.Servers
	api     *simulator.Server
	kafka   *kafka.Plugin
	payouts *promotion.Plugin
	all     []pipeline.Plugin
	ledger  *ledger.Ledger
	redis   *goredis.Client
	letters setting.Secret // DSN of the working copy of dead letters
}

// plugins returns those of a process, with their default settings.
func plugins() (k *kafka.Plugin, p *promotion.Plugin, all []pipeline.Plugin) {
	k = kafka.New()
	shared := redis.New()
	dead := deadletter.New(k, shared).StoreIn(sqldb.Databases{})
	p = promotion.New(k, shared, dead)
	return k, p, []pipeline.Plugin{shared, k, dead, reclaim.New(shared), p}
}

func newSystem(t *testing.T, faults simulator.Faults, change func(*promotion.Config)) *system {
	t.Helper()
	sys := &system{t: t}
	var err error
	tier.Met(t, "embedded")
	sys.servers, err = embedded.Start(t.Context(), embedded.Config{}, pipelinetest.Logger(t))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sys.servers.Stop(context.Background())) })
	sys.api, err = simulator.New(simulator.Config{Faults: faults})
	require.NoError(t, err)
	require.NoError(t, sys.api.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, sys.api.Stop(context.Background())) })

	sys.kafka, sys.payouts, sys.all = plugins()
	sys.kafka.Settings().(*kafka.Config).Brokers = sys.servers.KafkaAddrs()
	sys.all[0].(*redis.Plugin).Settings().(*redis.Config).Addrs = []string{sys.servers.RedisAddr()}
	sys.letters = setting.NewSecret("sqlite:" + filepath.Join(t.TempDir(), "letters.db"))
	sys.all[2].(*deadletter.Plugin).Settings().(*deadletter.Config).Store.DSN = sys.letters
	cfg := sys.payouts.Settings().(*promotion.Config)
	cfg.Stream.Enabled = true
	cfg.Ledger.DSN = setting.NewSecret("sqlite:" + filepath.Join(t.TempDir(), "ledger.db"))
	cfg.MoneyAPI.URL = sys.api.URL()
	// A call that is not answered in time counts as perhaps charged.
	cfg.MoneyAPI.CallTimeout = 10 * time.Second
	cfg.Ledger.Retry = pipeline.Backoff{First: 50 * time.Millisecond, Max: 200 * time.Millisecond}
	cfg.Feeder.Interval, cfg.Feeder.GracePeriod = 100*time.Millisecond, time.Second
	if change != nil {
		change(cfg)
	}
	require.NoError(t, cfg.Validate())

	sys.ledger, err = ledger.Open(t.Context(), cfg.Ledger, ledger.Options{Instance: "watcher", Lease: time.Minute}, nil)
	require.NoError(t, err)
	require.NoError(t, sys.ledger.Migrate(t.Context()))
	_, err = store.Schema(sqldb.Databases{}, sys.letters, "", nil).Migrate(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sys.ledger.Close()) })
	sys.redis = goredis.NewClient(&goredis.Options{Addr: sys.servers.RedisAddr()})
	t.Cleanup(func() { _ = sys.redis.Close() })
	return sys
}

func (sys *system) start() *system {
	pipelinetest.Start(sys.t, sys.all...)
	return sys
}

func (sys *system) send(topic string, payloads ...string) {
	sys.t.Helper()
	for _, p := range payloads {
		msg := message.NewMessage("", []byte(p))
		msg.Metadata.Set(pipeline.MetaKey, "1")
		require.NoError(sys.t, sys.kafka.Sink(topic).Publish(sys.t.Context(), msg))
	}
}

func (sys *system) counts(kind payouts.Type) ledger.Counts {
	c, err := sys.status(kind)
	require.NoError(sys.t, err)
	return c
}

// status returns zero counts before the first record.
func (sys *system) status(kind payouts.Type) (ledger.Counts, error) {
	c, err := sys.ledger.Status(sys.t.Context(), payouts.Promotion{Type: kind, ID: 1})
	if errors.Is(err, ledger.ErrNotFound) {
		err = nil
	}
	return c, err
}

// settle waits until n payouts are settled and returns the counts. A read may fail meanwhile,
// because a test may take the server away.
func (sys *system) settle(kind payouts.Type, n int64) ledger.Counts {
	sys.t.Helper()
	var c ledger.Counts
	require.EventuallyWithT(sys.t, func(t *assert.CollectT) {
		var err error
		c, err = sys.status(kind)
		require.NoError(t, err)
		require.True(t, c.Accepted >= n && c.Pending == 0, "%d payouts settled: %+v", n, c)
	}, 2*time.Minute, 20*time.Millisecond)
	return c
}

func points(from, to int) (all []string) {
	for target := from; target <= to; target++ {
		all = append(all, fmt.Sprintf(`{"promotionId":1,"promotionSummaryId":9,"targetId":%d,"amount":%d}`, target, 10*target))
	}
	return all
}

const publish = "campaign-promotion-point-publish"

func TestPaysThroughTheStream(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{FailRate: 0.2, TimeoutRate: 0.1, Seed: 3}, func(c *promotion.Config) { c.MoneyAPI.CallTimeout = time.Second }).start()
		sys.send(publish, points(1, 60)...)
		c := sys.settle("POINT", 60)
		require.EqualValues(t, 60, c.Paid)
		sum := sys.api.Summary()
		require.Equal(t, 60, sum.Executed)
		require.EqualValues(t, 10*60*61/2, sum.Sum)
		require.Zero(t, sum.Doubled)
	})
}

func TestPaysAtOnceWithoutTheFlag(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{FailRate: 0.2, Seed: 4}, func(c *promotion.Config) { c.Stream.Enabled = false }).start()
		sys.send(publish, points(1, 30)...)
		require.EqualValues(t, 30, sys.settle("POINT", 30).Paid)
		require.Equal(t, 30, sys.api.Summary().Executed)
	})
}

func TestRefusedForGoodIsFailedAndDead(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{RejectRate: 1}, nil).start()
		sys.send(publish, points(1, 3)...)
		c := sys.settle("POINT", 3)
		require.EqualValues(t, 3, c.Failed)
		require.EqualValues(t, 3, c.Dead)
		require.Zero(t, sys.api.Summary().Executed)
	})
}

// An expired credential must not turn a campaign FAILED: nothing is spent, and all is paid when it
// is fixed.
func TestAMisconfiguredAnswerCountsNoAttempt(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{Unauthorized: true}, func(c *promotion.Config) { c.MoneyAPI.Breaker.OpenDelay = 200 * time.Millisecond }).start()
		sys.send(publish, points(1, 10)...)
		require.Eventually(t, func() bool { return sys.counts("POINT").Accepted == 10 }, 2*time.Minute, 10*time.Millisecond)
		require.Eventually(t, func() bool { return sys.api.Summary().Requests["unauthorized"] > 2 }, 2*time.Minute, 10*time.Millisecond, "%v", sys.api.Summary().Requests)
		require.NoError(t, sys.api.SetFaults(simulator.Faults{}))
		require.EqualValues(t, 10, sys.settle("POINT", 10).Paid)
		require.NoError(t, sys.ledger.EachPayout(t.Context(), payouts.Promotion{Type: "POINT", ID: 1}, func(e ledger.Payout) error {
			require.Equal(t, 1, e.Attempts, "an attempt was spent on our own fault")
			return nil
		}))
	})
}

// Perhaps charged to the last attempt, and the lookups show nothing: it is UNKNOWN, never FAILED.
func TestNeverAnsweredIsUnknown(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet { // a lookup
				w.WriteHeader(http.StatusGone)
				_, _ = io.WriteString(w, `{"code":"gone","message":"no lookups here"}`)
				return
			}
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		}))
		t.Cleanup(api.Close)
		sys := newSystem(t, simulator.Faults{}, func(c *promotion.Config) {
			c.MoneyAPI.URL = api.URL
			c.Ledger.MaxRetries = 1
			c.MoneyAPI.CallTimeout, c.MoneyAPI.Breaker.MinCalls = 100*time.Millisecond, 1000
		}).start()
		sys.send(publish, points(1, 2)...)
		require.EqualValues(t, 2, sys.settle("POINT", 2).Unknown)
	})
}

func TestResultEvents(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{}, func(c *promotion.Config) { c.Results.Enabled = true }).start()
		sys.send(publish, points(1, 5)...)
		sys.settle("POINT", 5)
		require.Eventually(t, func() bool {
			n, err := sys.redis.XLen(t.Context(), "campaign-promotion-results").Result()
			return err == nil && n >= 5
		}, 2*time.Minute, 20*time.Millisecond)
		entries, err := sys.redis.XRange(t.Context(), "campaign-promotion-results", "-", "+").Result()
		require.NoError(t, err)
		targets := map[int64]bool{}
		for _, e := range entries {
			var event ledger.OutcomeEvent
			require.NoError(t, json.Unmarshal([]byte(e.Values["payload"].(string)), &event))
			require.Equal(t, rules.Success, event.State)
			require.NotEmpty(t, event.TransactionKey)
			targets[event.TargetID] = true
		}
		require.Len(t, targets, 5)
	})
}

// The same target with another amount: the first wins, the other is a dead letter.
// A required group that has read its events frees the stream.
func TestResultsDoNotGrowWithoutEnd(t *testing.T) {
	t.Parallel()
	t.Run("embedded", func(t *testing.T) {
		t.Parallel() // it is all waiting
		const stream = "campaign-promotion-results"
		sys := newSystem(t, simulator.Faults{}, func(c *promotion.Config) { c.Results.Enabled, c.Results.RequiredGroups = true, []string{"books"} })
		require.NoError(t, sys.redis.XGroupCreateMkStream(t.Context(), stream, "books", "0").Err())
		sys.start()
		sys.send(publish, points(1, 5)...)
		sys.settle("POINT", 5)
		read := 0
		require.Eventually(t, func() bool {
			got, err := sys.redis.XReadGroup(t.Context(), &goredis.XReadGroupArgs{Group: "books", Consumer: "c", Streams: []string{stream, ">"}, Block: -1}).Result()
			if err == nil {
				for _, m := range got[0].Messages {
					read++
					require.NoError(t, sys.redis.XAck(t.Context(), stream, "books", m.ID).Err())
				}
			}
			return read >= 5 && sys.redis.XLen(t.Context(), stream).Val() == 0
		}, 2*time.Minute, 20*time.Millisecond)
	})
}

func TestConflict(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{}, nil).start()
		sys.send(publish, points(1, 1)...)
		sys.settle("POINT", 1)
		sys.send(publish, `{"promotionId":1,"promotionSummaryId":9,"targetId":1,"amount":999}`)
		require.Eventually(t, func() bool { return sys.counts("POINT").Conflict == 1 }, 2*time.Minute, 20*time.Millisecond)
		require.EqualValues(t, 10, sys.api.Summary().Sum)
	})
}

// The feeder refills a stream that holds little, and one that was wiped.
func TestTheFeederRefills(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{Latency: 2 * time.Millisecond}, func(c *promotion.Config) { c.Stream.MaxLen = 20 }).start()
		sys.send(publish, points(1, 300)...)
		require.Eventually(t, func() bool { return sys.counts("POINT").Paid > 50 }, 2*time.Minute, 5*time.Millisecond)
		require.NoError(t, sys.redis.FlushAll(t.Context()).Err())
		require.EqualValues(t, 300, sys.settle("POINT", 300).Paid)
		require.Equal(t, 300, sys.api.Summary().Executed)
		require.Zero(t, sys.api.Summary().Doubled)
	})
}

// With the setting the sweep finds a stream that was not activated, and its entries are paid.
func TestAnUnknownStreamIsFound(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{}, func(c *promotion.Config) {
			c.AcceptUnannounced = true
			c.Feeder.SweepInterval, c.Feeder.GracePeriod = 100*time.Millisecond, 200*time.Millisecond
		}).start()
		const stream = "campaign-promotion-stream:VOUCHER:1"
		require.NoError(t, sys.redis.XGroupCreateMkStream(t.Context(), stream, "campaign-promotion-group:VOUCHER:1", "0").Err())
		for target := 1; target <= 3; target++ {
			require.NoError(t, sys.redis.XAdd(t.Context(), &goredis.XAddArgs{Stream: stream, Values: []string{
				"message", `{"promotionId":1,"promotionSummaryId":9,"targetId":` + strconv.Itoa(target) + `,"voucherId":"V"}`,
			}}).Err())
		}
		require.EqualValues(t, 3, sys.settle("VOUCHER", 3).Paid)
	})
}

// A full stream and the feeder keep every queue location right: no payout here is found as lost.
func TestAFullStreamStrandsNothing(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{Latency: 2 * time.Millisecond}, func(c *promotion.Config) {
			c.Stream.MaxLen, c.Feeder.GracePeriod = 5, time.Hour
		}).start()
		sys.send(publish, points(1, 60)...)
		require.Eventually(t, func() bool { c := sys.counts("POINT"); return c.Accepted == 60 && c.Pending == 0 }, 2*time.Minute, 20*time.Millisecond)
	})
}
