package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace-io/millrace/e2e/services/servers"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

const theirPassword = "s3cret" // of the one user

// A campaign on servers with TLS only. Their one user has the rights of the READMEs: Redis
// with an ACL user, Kafka with SASL and ACLs.
func TestSecuredServers(t *testing.T) {
	tier.Rest(t, tier.Kafka, tier.Redis)
	w := onServers(t, servers.Redis, usual)
	cert, pair := pipelinetest.Certificate(t)
	guarded := guardedRedis(t, cert, pair)
	w.set("plugins.redis.addrs", []string{guarded.addr})
	w.set("plugins.redis.username", "millrace").set("plugins.redis.password", "env:THEIR_PASSWORD")
	w.set("plugins.redis.tls.enabled", true).set("plugins.redis.tls.ca_file", cert)
	w.set("plugins.kafka.brokers", []string{guardedKafka(t, cert)})
	w.set("plugins.kafka.sasl.user", "millrace").set("plugins.kafka.sasl.password", "env:THEIR_PASSWORD")
	w.set("plugins.kafka.tls.enabled", true).set("plugins.kafka.tls.ca_file", cert)
	w.set("plugins.promotion.stream.idle_timeout", "3s")
	t.Setenv("THEIR_PASSWORD", theirPassword)

	w.set("plugins.kafka.sasl.mechanism", "PLAIN")
	a := w.start()
	w.set("plugins.kafka.sasl.mechanism", "SCRAM-SHA-512")
	b := w.start()
	n := targets(t, 2_000)
	w.publish("POINT", n)
	w.awaitPaid("POINT", n/4, 2*time.Minute)
	a.terminate() // what it has in flight is released, and its readers are removed
	w.awaitSettled("POINT", n, 2*time.Minute)
	w.assertBalanced("POINT", n)
	guarded.empties()
	b.terminate()
	guarded.refusedNothing()
	for _, in := range []*instance{a, b} {
		for _, refused := range []string{"NOPERM", "uthoriz"} {
			require.False(t, in.log.has(refused), "%s was refused something:\n%s", in.name, in.log)
		}
	}
}

// Routers, a gateway and producers on a Redis with TLS only, with the user of the README.
func TestJobsOnASecuredRedis(t *testing.T) {
	t.Parallel()
	tier.Rest(t, tier.Kafka, tier.Redis)
	tier.Address(t, servers.Redis) // so the program is here
	cert, pair := pipelinetest.Certificate(t)
	guarded := guardedRedis(t, cert, pair)
	settings := filepath.Join(t.TempDir(), "redis.yaml")
	require.NoError(t, os.WriteFile(settings, fmt.Appendf(nil,
		"plugins: {redis: {addrs: [%q], username: millrace, password: %q, tls: {enabled: true, ca_file: %q}}}\n", guarded.addr, theirPassword, cert), 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	for _, args := range [][]string{
		{"jobs", "demo", "--json", "--jobs", "5", "--events", "10"}, {"jobs", "publish", "scan/42", "scan", "--profile", "router"},
		{"jobs", "status", "scan/42", "--profile", "router"}, {"jobs", "shards", "--profile", "router"},
		{"deadletter", "list", "--profile", "router"},
	} {
		out, err := exec.CommandContext(ctx, binary(t), append(args, "--config", settings)...).CombinedOutput()
		var exit *exec.ExitError
		if args[1] == "status" && errors.As(err, &exit) && exit.ExitCode() == 1 {
			err = nil // no router has handled the event
		}
		require.NoError(t, err, "%v: %s", args, out)
	}
	guarded.refusedNothing()
}

// A waiting room on a Redis with TLS only, with the user of both READMEs.
func TestARoomOnASecuredRedis(t *testing.T) {
	t.Parallel()
	tier.Rest(t, tier.Kafka, tier.Redis)
	tier.Address(t, servers.Redis) // so the program is here
	cert, pair := pipelinetest.Certificate(t)
	guarded := guardedRedis(t, cert, pair, roomRights(t)...)
	settings := filepath.Join(t.TempDir(), "redis.yaml")
	require.NoError(t, os.WriteFile(settings, fmt.Appendf(nil,
		"plugins: {redis: {addrs: [%q], username: millrace, password: %q, tls: {enabled: true, ca_file: %q}}}\n", guarded.addr, theirPassword, cert), 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	for _, args := range [][]string{
		{"demo", "--json", "--users", "30", "--seats", "10", "--concurrency", "5"}, {"open", "42", "--capacity", "5", "--why", "test"},
		{"message", "42", "we start at noon", "--why", "test"}, {"hold", "42", "--why", "test"}, {"close", "42", "--why", "test"}, {"audit", "42"},
	} {
		if args[0] != "demo" {
			args = append(args, "--profile", "dispatcher")
		}
		out, err := exec.CommandContext(ctx, binary(t), append([]string{"room"}, append(args, "--config", settings)...)...).CombinedOutput()
		require.NoError(t, err, "%v: %s", args, out)
	}
	guarded.refusedNothing()
}

// roomRights returns the rights of the README of the waiting room.
func roomRights(t *testing.T) []string {
	t.Helper()
	readme, err := os.ReadFile("../handlers/waitingroom/README.md")
	require.NoError(t, err)
	rights := regexp.MustCompile("(?s)```text\n(~WAITING.*?)```").FindSubmatch(readme)
	require.NotNil(t, rights)
	return strings.Fields(string(rights[1]))
}

// guardedRedis starts a Redis that speaks TLS only, with the user of redis's README and more rules,
// and returns it.
func guardedRedis(t *testing.T, cert string, pair tls.Certificate, more ...string) *node {
	t.Helper()
	authority := x509.NewCertPool()
	authority.AddCert(pair.Leaf)
	n := newNode(t, "redis-server", func(o *redis.Options) { o.TLSConfig = &tls.Config{RootCAs: authority, MinVersion: tls.VersionTLS12} })
	n.args = []string{"--port", "0", "--tls-port", n.port(), "--bind", "127.0.0.1", "--dir", t.TempDir(), "--save", "", "--tls-auth-clients", "no",
		"--tls-cert-file", cert, "--tls-key-file", cert, "--tls-ca-cert-file", cert}
	n.run()
	n.restrict(more...)
	return n
}

// guardedKafka starts a Kafka with a listener that requires TLS and SASL. It gives the user the
// rights of the kafka README and returns the listener's address.
func guardedKafka(t *testing.T, cert string) string {
	t.Helper()
	addr, admin, _ := startGuardedKafka(t, &servers.Guard{Keystore: cert})
	text, err := os.ReadFile("../plugins/kafka/README.md")
	require.NoError(t, err)
	commands := regexp.MustCompile(`(?m)^kafka-acls.sh (.*)$`).FindAllSubmatch(text, -1)
	require.NotEmpty(t, commands, "the README of kafka names the user's rights")
	for _, command := range commands {
		allow(t, admin, strings.Fields(string(command[1])))
	}
	return addr
}

// startGuardedKafka starts that Kafka, whose user has no rights yet, and returns the listener's address
// and a client of the listener without limits. restart starts it again, with what guard says then.
func startGuardedKafka(t *testing.T, guard *servers.Guard) (addr string, admin *kadm.Client, restart func()) {
	t.Helper()
	ports := map[string]int{}
	for _, name := range []string{servers.Kafka, "controller", "guard"} {
		addr, err := freePort()
		require.NoError(t, err)
		at, err := netip.ParseAddrPort(addr)
		require.NoError(t, err)
		ports[name] = int(at.Port())
	}
	guard.Port, guard.User, guard.Password = ports["guard"], "millrace", theirPassword
	f, err := servers.New(servers.Options{Dir: t.TempDir(), Cache: fleetCache(), Ports: ports, EndWithProcess: true, Guard: guard})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		f.Wipe(ctx, servers.Kafka)
	})
	for _, r := range f.Up(t.Context(), servers.Kafka) {
		require.NoError(t, r.Err)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(f.Addr(servers.Kafka)))
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return fmt.Sprintf("127.0.0.1:%d", ports["guard"]), kadm.NewClient(client), func() {
		for _, r := range f.Restart(t.Context(), servers.Kafka) {
			require.NoError(t, r.Err)
		}
	}
}

// allow does what kafka-acls.sh does with these arguments.
func allow(t *testing.T, admin *kadm.Client, args []string) {
	t.Helper()
	rights, may := kadm.NewACLs().AllowHosts("*"), []kadm.ACLOperation{}
	for i := 0; i < len(args); i++ {
		if args[i] == "--add" {
			continue
		}
		flag, value := args[i], args[i+1]
		i++
		switch flag {
		case "--allow-principal":
			rights.Allow(value)
		case "--resource-pattern-type":
			require.Equal(t, "prefixed", value)
			rights.ResourcePatternType(kadm.ACLPatternPrefixed)
		case "--topic":
			rights.Topics(value)
		case "--group":
			rights.Groups(value)
		case "--operation":
			op, err := kmsg.ParseACLOperation(value)
			require.NoError(t, err)
			may = append(may, op)
		default:
			require.FailNow(t, "what is "+flag+"?")
		}
	}
	results, err := admin.CreateACLs(t.Context(), rights.Operations(may...))
	require.NoError(t, err)
	require.Len(t, results, len(may))
	for _, r := range results {
		require.NoError(t, r.Err)
	}
	require.Eventually(t, func() bool { // the broker has them after the controller
		known, err := admin.DescribeACLs(t.Context(), rights)
		return err == nil && !slices.ContainsFunc(known, func(r kadm.DescribeACLsResult) bool { return len(r.Described) == 0 })
	}, 2*time.Minute, 10*time.Millisecond)
}
