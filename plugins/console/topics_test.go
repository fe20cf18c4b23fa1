package console_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/kafka"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// The audit of the routes has who created a topic by a command and in the console, and why.
func TestTopicsThatAreCreatedAreInTheAudit(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
		require.NoError(t, err)
		t.Cleanup(cluster.Close)
		db := s.Database(t)
		code, out, errs := createTopics(t, cluster.ListenAddrs(), s.Addr, db)
		require.Equal(t, app.ExitOK, code, errs)
		require.Contains(t, out, "Created parcels: 8 partitions")
		require.NotContains(t, out, "audit")

		server, orders := kafka.New(), redis.New()
		server.Settings().(*kafka.Config).Brokers = cluster.ListenAddrs()
		c := orders.Settings().(*redis.Config)
		c.Addrs, c.DB = []string{s.Addr}, db
		r := start(t, nil, server, orders, routed{"parcels", server.Source("parcels", "g")}, routedMore{routed{"letters", server.Source("letters", "g")}})
		status, _ := r.send("topics/create", `{}`)
		require.Equal(t, http.StatusBadRequest, status, "why is required")
		status, done := r.send("topics/create", `{"why":"letters are new"}`)
		require.Equal(t, http.StatusOK, status, done)
		rows, _, _ := strings.Cut(r.get("/audit"), "Actions at this instance")
		for _, part := range []string{"Routes, topics and instances", ">create topic<", ">parcels<", "ann", "ticket 7", ">letters<", "letters are new", "8 partitions, replication factor 1"} {
			require.Contains(t, rows, part)
		}
	})
}

type routedMore struct{ routed }

func (routedMore) Name() string { return "more" }

// createTopics runs the command in a binary whose route reads a topic.
func createTopics(t *testing.T, brokers []string, addr string, db int) (code int, out, errs string) {
	t.Helper()
	server := kafka.New()
	var stdout, stderr bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	code = app.Main(ctx, app.Options{
		Name: "mill", Plugins: []pipeline.Plugin{server, redis.New(), routed{"parcels", server.Source("parcels", watermill.NewShortUUID())}},
		Args: []string{"topics", "create", "--who", "ann", "--why", "ticket 7"}, Stdout: &stdout, Stderr: &stderr,
		Environ: []string{
			"MILL__COMMAND_WAIT=3s", "MILL__PLUGINS__KAFKA__BROKERS=" + strings.Join(brokers, ","),
			"MILL__PLUGINS__REDIS__ADDRS=" + addr, fmt.Sprint("MILL__PLUGINS__REDIS__DB=", db),
		},
	})
	require.NoError(t, ctx.Err(), "it waits for the audit no longer than command_wait")
	return code, stdout.String(), stderr.String()
}

// A missing topic needs the audit before it is created. When nothing is missing, no Redis is needed.
func TestTopicsAreNotCreatedWithoutTheirAudit(t *testing.T) {
	t.Parallel()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	silent, err := net.Listen("tcp", "127.0.0.1:0") // it never answers
	require.NoError(t, err)
	t.Cleanup(func() { _ = silent.Close() })
	address := silent.Addr().String()
	code, out, errs := createTopics(t, cluster.ListenAddrs(), address, 0)
	require.Equal(t, app.ExitUnavailable, code, out)
	require.Contains(t, errs, "record the creation of topic parcels, so it was not created: ")
	require.Contains(t, errs, address)
	require.NotContains(t, out, "Created")
	require.Nil(t, cluster.TopicInfo("parcels"))

	require.NoError(t, cluster.CreateTopic("parcels", 8, nil))
	code, out, errs = createTopics(t, cluster.ListenAddrs(), address, 0)
	require.Equal(t, app.ExitOK, code, "%s%s", out, errs)
}
