package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
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

// The binary under test and the servers of the scenarios are made once, on first use.
var (
	plainBuild, armedBuild build

	fleetOnce sync.Once
	fleet     *servers.Fleet
	fleetErrs = map[string]error{}
)

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "millrace-e2e-")
	if err == nil {
		err = os.Chmod(dir, 0o755) // PostgreSQL runs as a user of its own
	}
	if err != nil {
		panic(err)
	}
	workDir = dir
	code := m.Run()
	if fleet != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		fleet.Wipe(ctx)
		cancel()
	}
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

var workDir string

// startBound starts a process that is killed when this one ends, however it ends. done is closed
// when the process has ended.
func startBound(cmd *exec.Cmd) (done chan struct{}, err error) {
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	release, err := servers.SignalOnExit(cmd.Process.Pid, syscall.SIGKILL)
	if err != nil {
		_ = cmd.Process.Kill()
		release = func() {}
	}
	done = make(chan struct{})
	go func() {
		_ = cmd.Wait()
		release()
		close(done)
	}()
	return done, err
}

// build is a binary of the service.
type build struct {
	once sync.Once
	path string
	err  error
}

// binary builds the service once.
func binary(t *testing.T) string {
	t.Helper()
	return plainBuild.get(t, "millrace")
}

// armedBinary builds the service with failpoints once.
func armedBinary(t *testing.T) string {
	t.Helper()
	return armedBuild.get(t, "millrace-faults", "-tags", "faults")
}

func (b *build) get(t *testing.T, name string, flags ...string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("builds and starts the binary")
	}
	b.once.Do(func() {
		b.path = filepath.Join(workDir, name)
		args := append(append([]string{"build"}, flags...), "-o", b.path, "../cmd/millrace")
		if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
			b.err = fmt.Errorf("%w: %s", err, out)
		}
	})
	require.NoError(t, b.err)
	return b.path
}

// ports are those of servers that belong to these scenarios alone: they are killed, restarted and
// wiped here. MILLRACE_SERVICES_PORT_OFFSET moves them, for a second run on the same machine.
func ports() (map[string]int, error) {
	offset, err := strconv.Atoi(cmp.Or(os.Getenv("MILLRACE_SERVICES_PORT_OFFSET"), "0"))
	if err != nil {
		return nil, fmt.Errorf("MILLRACE_SERVICES_PORT_OFFSET: %w", err)
	}
	return map[string]int{
		servers.Kafka: 29092 + offset, "controller": 29093 + offset,
		servers.Redis: 26379 + offset, servers.Valkey: 26380 + offset, servers.Postgres: 25432 + offset,
	}, nil
}

// The ports that freePort returns are below those of outgoing connections. Such a connection could
// take a port before its server listens, or while that is down.
const firstFree, lastFree = 10_240, 14_999

var nextFree atomic.Int64

// freePort returns an address of loopback without a listener, and each address only once.
func freePort() (string, error) {
	for range lastFree - firstFree {
		// Another run on the same machine begins elsewhere.
		port := firstFree + (int64(os.Getpid())*97+nextFree.Add(1))%(lastFree-firstFree)
		ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			return "", err
		}
		return ln.Addr().String(), ln.Close()
	}
	return "", fmt.Errorf("no free port from %d to %d", firstFree, lastFree)
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
		if _, err := os.Stat(dir); err == nil {
			old, err := servers.New(servers.Options{Dir: filepath.Join(dir, "services")})
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			for _, r := range old.Wipe(ctx) {
				if r.Err != nil {
					return r.Err
				}
			}
			if err := os.RemoveAll(dir); err != nil {
				return err
			}
		}
	}
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err = f.WriteAt([]byte(workDir), 0)
	return err
}

var sweepLock *os.File // kept open, and so locked

// server returns the address of a server that belongs to the scenarios. The test is skipped if it
// can't be started; in CI the summary reports that as a failure.
func server(t *testing.T, name string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("starts servers")
	}
	fleetOnce.Do(func() {
		at, err := ports()
		require.NoError(t, err)
		require.NoError(t, sweep(filepath.Join(filepath.Dir(fleetCache()), fmt.Sprintf("e2e-%d", at[servers.Kafka]))))
		fleet, err = servers.New(servers.Options{
			Dir: filepath.Join(workDir, "services"), Cache: fleetCache(), Ports: at, EndWithProcess: true,
		})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		for _, r := range fleet.Up(ctx) {
			fleetErrs[r.Name] = r.Err
		}
	})
	if err := fleetErrs[name]; err != nil {
		// A run of the fault suite needs its servers.
		require.Empty(t, os.Getenv(faultsSeed), "%s can't be had: %v", name, err)
		t.Skipf("%s: no server of its own can be started: %v", servers.EnvVar(name), err)
	}
	tier.Met(t, name)
	return fleet.Addr(name)
}

// restart stops a server in order and starts it again, with its data.
func restart(t *testing.T, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for _, r := range fleet.Restart(ctx, name) {
		require.NoError(t, r.Err)
	}
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
		if strings.HasPrefix(g, "prepay-admin-campaign-") {
			require.Eventually(t, func() bool { return admin.DeleteConsumerGroup(g) == nil }, time.Minute, 200*time.Millisecond, "delete group %s", g)
		}
	}
	topics, err := admin.ListTopics()
	require.NoError(t, err)
	for topic := range topics {
		if strings.HasPrefix(topic, "campaign-promotion-") {
			require.NoError(t, admin.DeleteTopic(topic))
		}
	}
	require.Eventually(t, func() bool {
		left, err := admin.ListTopics()
		for topic := range left {
			if strings.HasPrefix(topic, "campaign-promotion-") {
				return false
			}
		}
		return err == nil
	}, time.Minute, 100*time.Millisecond, "topics deleted")

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
