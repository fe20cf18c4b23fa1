package console_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace-io/millrace/internal/sqldbtest"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/plugins/deadletter"
	"github.com/millrace-io/millrace/plugins/kafka"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// kafkaProxy starts a proxy in front of a broker, in whose answers its own address takes the place of the broker's.
func kafkaProxy(t *testing.T, to string) *proxy {
	t.Helper()
	host, port, err := net.SplitHostPort(to)
	require.NoError(t, err)
	address := func(port string) []byte {
		number, err := strconv.ParseUint(port, 10, 16)
		require.NoError(t, err)
		return binary.BigEndian.AppendUint32([]byte(host), uint32(number))
	}
	var own []byte
	p := newProxy(t, to, func(r *bufio.Reader) ([]byte, error) {
		head, err := r.Peek(4)
		if err != nil {
			return nil, err
		}
		answer := make([]byte, 4+binary.BigEndian.Uint32(head))
		_, err = io.ReadFull(r, answer)
		return bytes.ReplaceAll(answer, address(port), own), err
	})
	_, ownPort, err := net.SplitHostPort(p.addr())
	require.NoError(t, err)
	own = address(ownPort)
	return p
}

// Of three real servers each freezes while the others answer.
func TestAFrozenServerLeavesTheOtherPanels(t *testing.T) {
	t.Parallel()
	tier.Rest(t)
	brokers, database := tier.Address(t, "kafka"), redistest.Server{Addr: tier.Address(t, "redis")}
	db, prefix := database.Database(t), "frozen-"+strings.ToLower(watermill.NewULID())+"-"
	dsn, err := url.Parse(sqldbtest.Schema(t))
	require.NoError(t, err)
	between := map[string]*proxy{"kafka": kafkaProxy(t, brokers), "redis": newProxy(t, database.Addr, nil), "postgres": newProxy(t, dsn.Host, nil)}
	dsn.Host = between["postgres"].addr()
	admin, err := kgo.NewClient(kgo.SeedBrokers(brokers))
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := kadm.NewClient(admin).DeleteTopics(context.Background(), prefix+"orders", prefix+"orders-dead", prefix+"mails", prefix+"mails-retry", prefix+"mails-dead")
		require.NoError(t, err)
		admin.Close()
	})
	servers := app.Environment{Start: func(context.Context, string, *slog.Logger) (map[string]any, func(context.Context) error, error) {
		return map[string]any{
				"plugins.kafka.brokers": []string{between["kafka"].addr()}, "plugins.kafka.partitions": 1, "plugins.kafka.replication_factor": 1,
				"plugins.redis.addrs": []string{between["redis"].addr()}, "plugins.redis.db": db,
				"plugins.deadletter.store.dsn": dsn.String(), "plugins.once.ledger.dsn": dsn.String(),
			}, func(context.Context) error {
				for _, p := range between {
					p.close()
				}
				return nil
			}, nil
	}}
	p := runProcess(t, prefix, servers, func(k *kafka.Plugin, dead *deadletter.Plugin) []pipeline.Plugin {
		o := once.NewPlugin(k, dead)
		return []pipeline.Plugin{o, newMailer(o, prefix+"mails")}
	})
	require.NoError(t, p.kafka.Sink(prefix+"mails").Publish(t.Context(), message.NewMessage("one", message.Payload(`{"id": "7"}`))))

	// The panels that read a server. All others read none, or several, of which each is named.
	reads := map[string]string{
		"topics groups": "kafka", "topics topics": "kafka",
		"streams streams": "redis", "instances instances": "redis", "audit routes": "redis", "audit levels": "redis",
		"effects groups": "postgres", "effects problems": "postgres", "dead-letters groups": "postgres",
		"audit dead-letters": "postgres", "audit dead-letter-prunes": "postgres", "audit effects": "postgres",
	}
	eventually := func(t *testing.T, what string, ok func() bool) {
		t.Helper()
		require.Eventually(t, ok, 2*time.Minute, 50*time.Millisecond, what)
	}
	// looks reads each page until each panel was read again, except for those of the frozen server, which are not read.
	looks := func(t *testing.T, frozen string) (panels int) {
		t.Helper()
		began := time.Now()
		for _, page := range []string{"home", "effects", "topics", "streams", "dead-letters", "instances", "settings", "audit", "route?route=shop.orders"} {
			for name := range p.panels(page) {
				panels++
				eventually(t, fmt.Sprintf("the panel %s of %s, without %s", name, page, frozen), func() bool {
					one := p.panels(page)[name]
					if frozen != "" && reads[page+" "+name] == frozen {
						return one.State != "ok"
					}
					return one.State == "ok" && one.At != nil && one.At.After(began)
				})
			}
		}
		return panels
	}
	unknown := func() (numbers []string) {
		for route, row := range rows(t, p.panels("home")["routes"].Value, "route") {
			for _, number := range []string{"waiting", "dead_letters"} {
				if row[number] == nil {
					numbers = append(numbers, route+" "+number)
				}
			}
		}
		slices.Sort(numbers)
		return numbers
	}
	eventually(t, "the dead letter", func() bool {
		return rows(t, p.panels("home")["routes"].Value, "route")["shop.orders"]["dead_letters"] == 1.0
	})
	all := looks(t, "")
	require.Greater(t, all, len(reads))

	for _, one := range []struct {
		server  string
		unknown []string // numbers of the home page
		drawn   string
	}{
		{"kafka", []string{"mail.accept waiting", "shop.orders waiting"}, "route shop.orders, fail: not known, because kafka does not answer; dead letters wait for a person; waiting unknown; retries 0; dead 1"},
		{"redis", []string{"shop.mails waiting"}, "route shop.mails, fail: not known, because redis-stream does not answer; waiting unknown; retries 0; dead 0"},
		{
			"postgres", []string{"mail.accept dead_letters", "shop.mails dead_letters", "shop.orders dead_letters"},
			"route shop.orders, warn: not known whether dead letters wait, because their store can&#39;t be read; waiting 0; retries 0; dead unknown",
		},
	} {
		t.Run(one.server, func(t *testing.T) {
			between[one.server].mu.Lock()
			defer between[one.server].mu.Unlock()
			require.Equal(t, all, looks(t, one.server))
			eventually(t, "the numbers of that server alone are not known", func() bool { return slices.Equal(one.unknown, unknown()) })
			eventually(t, "the drawing", func() bool { return strings.Contains(p.get("/"), "<title>"+one.drawn+"; done/s ") })
		})
		require.Equal(t, all, looks(t, ""), "%s answers again", one.server)
	}
}
