package e2e

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/e2e/services/servers"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// fleet is a Kafka, a Redis, a Valkey and a PostgreSQL that one scenario at a time has: it kills,
// restarts and wipes them.
type fleet struct {
	*servers.Fleet
	ports map[string]int
	errs  map[string]error // of servers that can't be started
}

// fleets start on first use and stay until the end of the run. Two scenarios can have one.
var fleets = struct {
	places chan struct{} // has an element for each scenario with a fleet
	mu     sync.Mutex
	all    []*fleet
	idle   []*fleet
}{places: make(chan struct{}, 2)}

// borrow waits for a fleet, which the scenario has until it ends. The test is skipped if it is a
// short run.
func borrow(t *testing.T) *fleet {
	t.Helper()
	if testing.Short() {
		t.Skip("starts servers")
	}
	began := time.Now()
	select {
	case fleets.places <- struct{}{}:
	case <-t.Context().Done():
		require.FailNow(t, "the test was ended")
	}
	tier.Waited(t, time.Since(began))
	t.Cleanup(func() { <-fleets.places })
	fleets.mu.Lock()
	defer fleets.mu.Unlock()
	if len(fleets.idle) == 0 {
		f, err := newFleet(len(fleets.all))
		require.NoError(t, err)
		fleets.all, fleets.idle = append(fleets.all, f), append(fleets.idle, f)
	}
	last := len(fleets.idle) - 1
	f := fleets.idle[last]
	fleets.idle = fleets.idle[:last]
	t.Cleanup(func() {
		fleets.mu.Lock()
		defer fleets.mu.Unlock()
		fleets.idle = append(fleets.idle, f)
	})
	return f
}

// newFleet starts the servers. MILLRACE_SERVICES_PORT_OFFSET moves their ports, for a second run on
// the same machine.
func newFleet(number int) (*fleet, error) {
	offset, err := strconv.Atoi(cmp.Or(os.Getenv("MILLRACE_SERVICES_PORT_OFFSET"), "0"))
	if err != nil {
		return nil, fmt.Errorf("MILLRACE_SERVICES_PORT_OFFSET: %w", err)
	}
	offset += 10 * number
	f := &fleet{errs: map[string]error{}, ports: map[string]int{
		servers.Kafka: 29092 + offset, "controller": 29093 + offset,
		servers.Redis: 26379 + offset, servers.Valkey: 26380 + offset, servers.Postgres: 25432 + offset,
	}}
	if number == 0 {
		if err := sweep(filepath.Join(filepath.Dir(fleetCache()), fmt.Sprintf("e2e-%d", f.ports[servers.Kafka]))); err != nil {
			return nil, err
		}
	}
	f.Fleet, err = servers.New(servers.Options{
		Dir: filepath.Join(workDir, fmt.Sprintf("services-%d", number)), Cache: fleetCache(), Ports: f.ports, EndWithProcess: true,
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	for _, r := range f.Up(ctx) {
		f.errs[r.Name] = r.Err
	}
	return f, nil
}

// wipeFleets ends all servers.
func wipeFleets() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, f := range fleets.all {
		f.Wipe(ctx)
	}
}

// server returns the address of a server. The test is skipped if it can't be started; in CI the
// summary reports that as a failure.
func (f *fleet) server(t *testing.T, name string) string {
	t.Helper()
	if err := f.errs[name]; err != nil {
		// A run of the fault suite needs its servers.
		require.Empty(t, os.Getenv(faultsSeed), "%s can't be had: %v", name, err)
		t.Skipf("%s: no server of its own can be started: %v", servers.EnvVar(name), err)
	}
	tier.Met(t, name)
	return f.Addr(name)
}

// restart stops a server in order and starts it again, with its data.
func (f *fleet) restart(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for _, r := range f.Restart(ctx, name) {
		if r.Err != nil {
			return r.Err
		}
	}
	return nil
}

// fleetCache is where Kafka's jars are, shared with `make services`.
func fleetCache() string {
	dir, err := filepath.Abs("../.services/cache")
	if err != nil {
		panic(err)
	}
	return dir
}

// sweep ends the servers of a run that was killed, whose folder is written in the file, and writes
// down this one's. The file is locked for as long as this process lives.
func sweep(file string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	sweepLock = f
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("another run of the scenarios has their ports (MILLRACE_SERVICES_PORT_OFFSET moves them): lock %s: %w", file, err)
	}
	left, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	if dir := string(left); dir != "" {
		if err := wipe(dir); err != nil {
			return err
		}
	}
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err = f.WriteAt([]byte(workDir), 0)
	return err
}

var sweepLock *os.File // kept open, and so locked

// wipe ends the servers of a run whose folder is still there, and removes the folder.
func wipe(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	left, err := filepath.Glob(filepath.Join(dir, "services-*"))
	if err != nil {
		return err
	}
	for _, services := range left {
		old, err := servers.New(servers.Options{Dir: services})
		if err != nil {
			return err
		}
		for _, r := range old.Wipe(ctx) {
			if r.Err != nil {
				return r.Err
			}
		}
	}
	return os.RemoveAll(dir)
}

// ofScenarios reports whether a topic or consumer group is one that scenarios leave behind.
func ofScenarios(name string) bool {
	return slices.ContainsFunc([]string{"prepay-admin-campaign-", "campaign-promotion-", "millrace-invoice-", invoicesTopic}, func(begin string) bool {
		return strings.HasPrefix(name, begin)
	})
}

// clean gives a scenario a Kafka without the plugin's topics and groups, an empty Redis, and a
// schema of its own, whose DSN it returns.
func clean(t *testing.T, kafkaAddr, redisAddr, dsn string) (schemaDSN string) {
	t.Helper()
	ctx := t.Context()
	cfg := sarama.NewConfig()
	cfg.Version = sarama.V2_8_0_0
	admin, err := sarama.NewClusterAdmin([]string{kafkaAddr}, cfg)
	require.NoError(t, err)
	defer func() { _ = admin.Close() }()
	groups, err := admin.ListConsumerGroups()
	require.NoError(t, err)
	for g := range groups {
		if ofScenarios(g) {
			require.Eventually(t, func() bool { return admin.DeleteConsumerGroup(g) == nil }, 2*time.Minute, 200*time.Millisecond, "delete group %s", g)
		}
	}
	topics, err := admin.ListTopics()
	require.NoError(t, err)
	for topic := range topics {
		if ofScenarios(topic) {
			require.NoError(t, admin.DeleteTopic(topic))
		}
	}
	require.Eventually(t, func() bool {
		left, err := admin.ListTopics()
		for topic := range left {
			if ofScenarios(topic) {
				return false
			}
		}
		return err == nil
	}, 2*time.Minute, 100*time.Millisecond, "topics deleted")

	client := redis.NewClient(&redis.Options{Addr: redisAddr})
	defer func() { _ = client.Close() }()
	require.NoError(t, client.FlushAll(ctx).Err())

	conn, err := pgx.Connect(ctx, dsn)
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	schema := fmt.Sprintf("e2e_%d", time.Now().UnixNano())
	_, err = conn.Exec(ctx, "CREATE SCHEMA "+schema)
	require.NoError(t, err)
	return dsn + "&search_path=" + schema
}
