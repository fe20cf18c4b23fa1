package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/millrace-io/millrace/e2e/services/servers"
	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// deployment is one scenario: empty servers of its own, a Money API whose journal the test reads,
// and the ledger.
type deployment struct {
	t         *testing.T
	fleet     *fleet
	api       *simulator.Server
	ledger    *ledger.Ledger
	redis     *redis.Client
	settings  map[string]any // dotted path to value, for every instance
	promotion int64
	dir       string
	instances int
}

// onServers makes a deployment on real servers. redisName is redis or valkey.
func onServers(t *testing.T, redisName string, faults simulator.Faults) *deployment {
	t.Helper()
	f := borrow(t)
	kafkaAddr, redisAddr, dsn := f.server(t, servers.Kafka), f.server(t, redisName), f.server(t, servers.Postgres)
	dsn = clean(t, kafkaAddr, redisAddr, dsn)

	w := &deployment{t: t, fleet: f, promotion: 12345, dir: t.TempDir()}
	api, err := simulator.New(simulator.Config{Faults: faults})
	require.NoError(t, err)
	require.NoError(t, api.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, api.Stop(context.Background())) })
	w.api = api

	cfg := ledger.DefaultConfig()
	cfg.DSN = setting.NewSecret(dsn)
	w.ledger, err = ledger.Open(t.Context(), cfg, ledger.Options{Instance: "e2e", Lease: time.Minute}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.ledger.Close()) })
	require.NoError(t, w.ledger.Migrate(t.Context()))
	w.redis = redis.NewClient(&redis.Options{Addr: redisAddr})
	t.Cleanup(func() { _ = w.redis.Close() })

	w.settings = map[string]any{
		"environment":                      "external",
		"log.format":                       "json",
		"stop_timeout":                     "20s",
		"command_wait":                     "1m", // of a machine that is busy with other scenarios
		"plugins.telemetry.listen":         "",
		"plugins.kafka.brokers":            []string{kafkaAddr},
		"plugins.kafka.heartbeat_interval": "300ms", // so that a member joins a group soon
		"plugins.redis.addrs":              []string{redisAddr},
		"plugins.promotion.stream.enabled": true,
		"plugins.promotion.stream.max_len": 100_000,
		// As many slots as a large campaign has, though these are small.
		"plugins.promotion.stream.min_consumers_per_instance": 16,
		"plugins.promotion.ledger.dsn":                        dsn,
		"plugins.promotion.money_api.url":                     api.URL(),
		"plugins.promotion.feeder.grace_period":               "3s",
		"plugins.promotion.feeder.interval":                   "500ms",
		// A lease that ends soon lets a killed instance's payouts be taken over within the test.
		"plugins.promotion.money_api.call_timeout": "1s",
		"plugins.promotion.money_api.lease_margin": "2s",
	}
	return w
}

func (w *deployment) set(path string, value any) *deployment {
	w.settings[path] = value
	return w
}

// patient gives calls and leases enough time for a process that gets no CPU for seconds. It is for
// scenarios without a kill, in which no payout may be attempted twice.
func (w *deployment) patient() *deployment {
	return w.set("plugins.promotion.money_api.call_timeout", "11s").set("plugins.promotion.money_api.lease_margin", "8s")
}

// config writes a settings file for a process.
func (w *deployment) config(name string, more map[string]any) string {
	w.t.Helper()
	tree := map[string]any{}
	put := func(path string, value any) {
		at := tree
		keys := strings.Split(path, ".")
		for _, k := range keys[:len(keys)-1] {
			next, ok := at[k].(map[string]any)
			if !ok {
				next = map[string]any{}
				at[k] = next
			}
			at = next
		}
		at[keys[len(keys)-1]] = value
	}
	for k, v := range w.settings {
		put(k, v)
	}
	put("instance_id", name)
	for k, v := range more {
		put(k, v)
	}
	text, err := yaml.Marshal(tree)
	require.NoError(w.t, err)
	path := filepath.Join(w.dir, name+".yaml")
	require.NoError(w.t, os.WriteFile(path, text, 0o600))
	return path
}

// instance is a running process of the service.
type instance struct {
	t    *testing.T
	name string
	cmd  *exec.Cmd
	log  *processLog
	done chan struct{} // closed when the process has ended
}

// start runs an instance and returns when messages flow.
func (w *deployment) start() *instance {
	w.t.Helper()
	return w.startOf(binary(w.t))
}

// startOf is start of another version of the service.
func (w *deployment) startOf(path string) *instance {
	w.t.Helper()
	in := w.launchOf(path, nil)
	require.Eventually(w.t, func() bool { return in.log.has(`"msg":"running"`) || in.ended() }, 2*time.Minute, 20*time.Millisecond, "instance %s runs", in.name)
	require.False(w.t, in.ended(), "instance %s ended at once:\n%s", in.name, in.log)
	return in
}

// launch runs an instance without waiting.
func (w *deployment) launch(settings map[string]any) *instance {
	w.t.Helper()
	return w.launchOf(binary(w.t), settings)
}

func (w *deployment) launchOf(path string, settings map[string]any) *instance {
	w.t.Helper()
	w.instances++
	name := "i" + strconv.Itoa(w.instances)
	in := &instance{t: w.t, name: name, log: &processLog{}}
	in.cmd = exec.Command(path, "run", "--config", w.config(name, settings))
	in.cmd.Stderr = in.log
	done, err := startBound(in.cmd)
	require.NoError(w.t, err)
	in.done = done
	w.t.Cleanup(func() {
		in.leave()
		if w.t.Failed() {
			w.t.Logf("log of %s:\n%s", name, in.log)
		}
	})
	return in
}

func (in *instance) ended() bool {
	select {
	case <-in.done:
		return true
	default:
		return false
	}
}

// kill is kill -9.
func (in *instance) kill() {
	if !in.ended() {
		_ = in.cmd.Process.Kill()
		<-in.done
	}
}

// leave ends the process however it can; in order, if it can, so that its consumer groups are free
// at once.
func (in *instance) leave() {
	if in.ended() {
		return
	}
	_ = in.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-in.done:
	case <-time.After(2 * time.Minute):
		in.kill()
	}
}

// terminate sends SIGTERM and expects a good end.
func (in *instance) terminate() {
	in.t.Helper()
	require.NoError(in.t, in.cmd.Process.Signal(syscall.SIGTERM))
	in.endsWell("SIGTERM")
}

// endsWell waits for a good end. A stop that takes longer than stop_timeout has another exit code, so the time here only
// bounds a process that hangs.
func (in *instance) endsWell(after string) {
	in.t.Helper()
	select {
	case <-in.done:
	case <-time.After(2 * time.Minute):
		require.FailNow(in.t, "the instance does not end", "%s:\n%s", in.name, in.log)
	}
	require.Equal(in.t, 0, in.cmd.ProcessState.ExitCode(), "exit code of %s after %s:\n%s", in.name, after, in.log)
}

// peakMemory returns the most resident memory the process has had so far, in bytes.
func (in *instance) peakMemory() int64 {
	in.t.Helper()
	peak, err := peakMemory(in.cmd.Process.Pid)
	require.NoError(in.t, err)
	return peak
}

// command runs a command of the binary to its end and returns its standard output and exit code.
func (w *deployment) command(args ...string) (string, int) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary(w.t), append(args, "--config", w.config("command", nil))...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	if cmd.ProcessState == nil {
		require.NoError(w.t, err)
	}
	if code := cmd.ProcessState.ExitCode(); code != 0 {
		return out.String() + errOut.String(), code
	}
	return out.String(), 0
}

// mustCommand runs a command that must end with 0 and decodes its JSON into v, unless v is nil.
func (w *deployment) mustCommand(v any, args ...string) {
	w.t.Helper()
	out, code := w.command(append(args, "--json")...)
	require.Equal(w.t, 0, code, "millrace %s: %s", strings.Join(args, " "), out)
	if v != nil {
		require.NoError(w.t, json.Unmarshal([]byte(out), v), "%s", out)
	}
}

// publish publishes n generated targets of a type, with the started event.
func (w *deployment) publish(kind string, n int, more ...string) {
	w.t.Helper()
	w.mustCommand(nil, append([]string{"campaign", "publish", "--promotion", strconv.FormatInt(w.promotion, 10), "--type", kind, "--targets", strconv.Itoa(n)}, more...)...)
}

func (w *deployment) id(kind string) payouts.Promotion {
	return payouts.Promotion{Type: payouts.Type(kind), ID: w.promotion}
}

// counts returns the promotion's counts; zero before the first record.
func (w *deployment) counts(kind string) ledger.Counts {
	c, _ := w.ledger.Status(w.t.Context(), w.id(kind))
	return c
}

func settled(c ledger.Counts) int64 { return c.Paid + c.Failed + c.Unknown + c.Cancelled }

// awaitPaid waits until at least n payouts are paid.
func (w *deployment) awaitPaid(kind string, n int, within time.Duration) {
	w.t.Helper()
	require.Eventually(w.t, func() bool { return w.counts(kind).Paid >= int64(n) }, within, 50*time.Millisecond,
		"%d payouts of %s paid", n, w.id(kind))
}

// awaitSettled waits until n payouts are settled.
func (w *deployment) awaitSettled(kind string, n int, within time.Duration) {
	w.t.Helper()
	ok := func() bool { c := w.counts(kind); return settled(c) >= int64(n) && c.Pending == 0 }
	deadline := time.Now().Add(within)
	for !ok() {
		if time.Now().After(deadline) {
			require.FailNow(w.t, "not all payouts were settled in time", "%s: %+v", w.id(kind), w.counts(kind))
		}
		pause(w.t, 50*time.Millisecond)
	}
}

// pause waits between two looks at another process.
func pause(t *testing.T, d time.Duration) {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
		require.FailNow(t, "the test was ended")
	}
}

// charges returns the promotion's charges from the Money API's journal, by target.
func (w *deployment) charges(id payouts.Promotion) map[int64][]simulator.Entry {
	charges := map[int64][]simulator.Entry{}
	for q := (simulator.Query{Type: string(id.Type), PromotionID: id.ID, Limit: 10_000}); ; {
		page, err := w.api.Page(q)
		require.NoError(w.t, err)
		for _, e := range page.Entries {
			charges[e.TargetID] = append(charges[e.TargetID], e)
		}
		if page.Next == "" {
			return charges
		}
		q.After = page.Next
	}
}

// assertBalanced compares the Money API's journal with the ledger: n payouts, each paid, and one
// charge per payout with the accepted amount.
func (w *deployment) assertBalanced(kind string, n int) {
	w.t.Helper()
	charged := w.charges(w.id(kind))
	for _, charges := range charged {
		require.Len(w.t, charges, 1, "a target was charged under several keys")
		require.Equal(w.t, 1, charges[0].Executions, "%s was charged more than once", charges[0].Key)
	}
	rows := 0
	require.NoError(w.t, w.ledger.EachPayout(w.t.Context(), w.id(kind), func(row ledger.Payout) error {
		rows++
		charges := charged[row.Target]
		require.Equal(w.t, rules.Success, row.State, "row %s: %s", row.Key, row.LastError)
		require.Len(w.t, charges, 1, "row %s is SUCCESS, and the Money API has no charge", row.Key)
		e := charges[0]
		require.Equal(w.t, e.Receipt, row.Receipt, "row %s", row.Key)
		request, err := promotionType(kind).Decode(row.Request)
		require.NoError(w.t, err)
		require.Equal(w.t, request.Value, e.Value, "row %s", row.Key)
		return nil
	}))
	require.Equal(w.t, n, rows, "rows in the ledger")
	require.Len(w.t, charged, n, "charges in the Money API's journal")
	require.Zero(w.t, w.api.Summary().Doubled)
}

func promotionType(name string) promotiontype.Type {
	t, _ := promotiontype.ByName(name)
	return t
}

// attemptedOnce asserts by the ledger's attempts that no payout was sent more than once.
func (w *deployment) attemptedOnce(kind string) {
	w.t.Helper()
	require.NoError(w.t, w.ledger.EachPayout(w.t.Context(), w.id(kind), func(row ledger.Payout) error {
		require.Equal(w.t, 1, row.Attempts, "row %s was attempted %d times: %s", row.Key, row.Attempts, row.LastError)
		require.Zero(w.t, row.Interruptions, "row %s was interrupted", row.Key)
		return nil
	}))
}

func (w *deployment) stream(kind string) string {
	return fmt.Sprintf("campaign-promotion-stream:%s:%d", kind, w.promotion)
}

// keys returns the Redis keys of the promotion's stream that exist.
func (w *deployment) keys(kind string) []string {
	w.t.Helper()
	found, err := w.redis.Keys(w.t.Context(), "*"+w.stream(kind)+"*").Result()
	require.NoError(w.t, err)
	slices.Sort(found)
	return found
}

// processLog is the output of a process. It prints its end.
type processLog struct{ pipelinetest.Buffer }

func (l *processLog) has(text string) bool { return strings.Contains(l.Buffer.String(), text) }

func (l *processLog) String() string {
	text := l.Buffer.String()
	return text[max(0, len(text)-8_000):]
}

// usual are the faults of a Money API on a usual day.
var usual = simulator.Faults{Latency: 5 * time.Millisecond, FailRate: 0.02, TimeoutRate: 0.01, Seed: 1}

// targets is the size of a scenario's campaign: n, or what MILLRACE_E2E_TARGETS says, for the full
// runs.
func targets(t *testing.T, n int) int {
	t.Helper()
	if v := os.Getenv("MILLRACE_E2E_TARGETS"); v != "" {
		all, err := strconv.Atoi(v)
		require.NoError(t, err, "MILLRACE_E2E_TARGETS")
		return all
	}
	return n
}

func (w *deployment) redisPeak() int64 {
	w.t.Helper()
	return w.redisInfo("memory", "used_memory_peak:")
}

// redisInfo returns the number that follows prefix in a section of INFO; 0 when it isn't there.
func (w *deployment) redisInfo(section, prefix string) int64 {
	w.t.Helper()
	info, err := w.redis.Info(w.t.Context(), section).Result()
	require.NoError(w.t, err)
	for line := range strings.Lines(info) {
		if rest, ok := strings.CutPrefix(line, prefix); ok {
			digits, _, _ := strings.Cut(strings.TrimSpace(rest), ",")
			n, err := strconv.ParseInt(digits, 10, 64)
			require.NoError(w.t, err)
			return n
		}
	}
	return 0
}
