package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace-io/millrace/e2e/faults"
	"github.com/millrace-io/millrace/e2e/services/servers"
	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
)

// faultDeployment serves all cases: one set of servers and of instances. Each case has a
// promotion, or groups of effects, of its own.
type faultDeployment struct {
	*deployment
	business business
	dir      string // logs, kept when a case fails
	bin      string // built with the tag faults
	dsn      string
	redis    *faults.Proxy // between the instances and Redis
	kafka    *kgo.Client
	admin    *kadm.Client

	members [faults.Instances]*member
	all     []*member
	spares  map[string]*servers.Fleet // second servers by name
	flagOff bool
}

// The times of the suite: short, so that what a fault delays is seen within seconds.
const (
	faultCall    = time.Second
	faultLease   = 2 * time.Second // call_timeout + lease_margin
	faultMinIdle = 10 * time.Second
	faultRetry   = 300 * time.Millisecond
	attemptsMax  = 6
	faultSlots   = 4
)

// usualMoney is the Money API while nothing is wrong with it: slow enough that a fault meets
// payouts in flight.
var usualMoney = simulator.Faults{Latency: 15 * time.Millisecond, Jitter: 10 * time.Millisecond}

// onPromotions is the business of a deployment that pays campaigns.
func onPromotions(w *deployment) business {
	if w == nil {
		return promotions{}
	}
	return promotions{w.api}
}

func newFaultDeployment(t *testing.T, of func(*deployment) business) *faultDeployment {
	t.Helper()
	s := &faultDeployment{deployment: onServers(t, "redis", usualMoney), spares: map[string]*servers.Fleet{}}
	s.business = of(s.deployment)
	dir, err := os.MkdirTemp("", "millrace-faults-") //nolint:usetesting // it stays when a case fails
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755))
	s.dir, s.deployment.dir = dir, dir
	s.bin = armedBinary(t)
	s.dsn, _ = s.settings["plugins.promotion.ledger.dsn"].(string)
	s.redis, err = faults.NewProxy(s.fleet.server(t, servers.Redis))
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.redis.Close() })
	s.kafka, err = kgo.NewClient(kgo.SeedBrokers(s.fleet.server(t, servers.Kafka)), kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)),
		kgo.ProducerBatchMaxBytes(4<<20))
	require.NoError(t, err)
	t.Cleanup(s.kafka.Close)
	s.admin = kadm.NewClient(s.kafka)

	maps.Copy(s.settings, map[string]any{
		"log.level":                                           "info",
		"stop_timeout":                                        "15s",
		"command_wait":                                        "1m", // a command may come while a server is away
		"plugins.redis.addrs":                                 []string{s.redis.Addr()},
		"plugins.redis.dial_timeout":                          "1s",
		"plugins.redis.read_timeout":                          "1s",
		"plugins.redis.write_timeout":                         "1s",
		"plugins.kafka.session_timeout":                       "3s",
		"plugins.kafka.heartbeat_interval":                    "500ms",
		"plugins.kafka.commit_interval":                       "20ms",
		"plugins.kafka.nack_backoff.max":                      "1s",
		"plugins.reclaim.min_idle":                            faultMinIdle.String(),
		"plugins.reclaim.interval":                            "500ms",
		"plugins.reclaim.dead_check_interval":                 "1s",
		"plugins.promotion.stream.min_idle":                   faultMinIdle.String(),
		"plugins.promotion.stream.longest_hold":               "5s",
		"plugins.promotion.stream.idle_timeout":               "1s",
		"plugins.promotion.stream.reconcile_interval":         "300ms",
		"plugins.promotion.stream.min_consumers_per_instance": faultSlots,
		"plugins.promotion.stream.max_consumers_per_instance": faultSlots,
		"plugins.promotion.money_api.call_timeout":            faultCall.String(),
		"plugins.promotion.money_api.lease_margin":            (faultLease - faultCall).String(),
		"plugins.promotion.money_api.breaker.open_delay":      "500ms",
		"plugins.promotion.money_api.max_retry_after":         "2s",
		"plugins.promotion.ledger.retry.first":                faultRetry.String(),
		"plugins.promotion.ledger.retry.max":                  "2s",
		"plugins.promotion.feeder.interval":                   "300ms",
		"plugins.promotion.feeder.grace_period":               "1s",
		"plugins.promotion.feeder.sweep_interval":             "2s",
	})
	maps.Copy(s.settings, s.business.settings())
	t.Cleanup(s.close)
	return s
}

func (s *faultDeployment) close() {
	var all sync.WaitGroup
	for _, m := range s.all {
		all.Go(m.leave)
	}
	all.Wait()
	for name, f := range s.spares {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		f.Wipe(ctx, name)
		cancel()
	}
	if !s.t.Failed() {
		_ = os.RemoveAll(s.dir)
	}
}

// spare starts a second server of a kind; a second Kafka joins the cluster of the first.
func (s *faultDeployment) spare(ctx context.Context, name string, join *servers.Cluster) (*servers.Fleet, error) {
	if s.spares[name] == nil {
		addr, err := freePort()
		if err != nil {
			return nil, err
		}
		at, err := netip.ParseAddrPort(addr)
		if err != nil {
			return nil, err
		}
		f, err := servers.New(servers.Options{
			Dir: filepath.Join(s.dir, "spare-"+name), Cache: fleetCache(), Ports: map[string]int{name: int(at.Port())}, Join: join,
			EndWithProcess: true,
		})
		if err != nil {
			return nil, err
		}
		s.spares[name] = f
	}
	return s.spares[name], s.spares[name].Up(ctx, name)[0].Err
}

// member is one of the instances.
type member struct {
	name    string
	cmd     *exec.Cmd
	metrics string // URL
	log     string // file
	fault   string // file that arms it
	done    chan struct{}
	stained bool      // goroutines that never end were put into it
	asked   time.Time // when it was stopped; zero: it was not
	began   usage
}

// start runs an instance and returns when messages flow through it.
func (s *faultDeployment) start(ctx context.Context) (*member, error) {
	s.instances++
	m := &member{name: "i" + strconv.Itoa(s.instances)}
	m.log, m.fault = filepath.Join(s.dir, m.name+".log"), filepath.Join(s.dir, m.name+".fault")
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	m.metrics = "http://" + port + "/metrics"
	log, err := os.Create(m.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	m.cmd = exec.Command(s.bin, "run", "--config", s.config(m.name, map[string]any{
		"plugins.telemetry.listen": port, "plugins.kafka.client_id": m.name,
		"plugins.promotion.stream.enabled": !s.flagOff,
	}))
	m.cmd.Env = append(os.Environ(), "MILLRACE_FAULT_FILE="+m.fault)
	m.cmd.Stdout, m.cmd.Stderr = log, log
	if m.done, err = startBound(m.cmd); err != nil {
		return nil, err
	}
	s.all = append(s.all, m)
	return m, until(ctx, 60*time.Second, "instance "+m.name+" runs, its log is "+m.log, func() error {
		if m.ended() {
			return fmt.Errorf("it ended at once")
		}
		if !m.says(`"msg":"running"`) {
			return errors.New("not running yet")
		}
		return nil
	})
}

// fallen names the instances that have ended and should not have.
func (s *faultDeployment) fallen() error {
	var errs []error
	for _, m := range s.all {
		errs = append(errs, m.fell())
	}
	return errors.Join(errs...)
}

func (m *member) says(text string) bool {
	log, _ := os.ReadFile(m.log)
	return strings.Contains(string(log), text)
}

func (m *member) ended() bool {
	select {
	case <-m.done:
		return true
	default:
		return false
	}
}

func (m *member) signal(sig syscall.Signal) {
	if !m.ended() {
		if m.asked.IsZero() && (sig == syscall.SIGTERM || sig == syscall.SIGQUIT) {
			m.asked = time.Now()
		}
		_ = m.cmd.Process.Signal(sig)
	}
}

// fell reports an end without a signal of the suite and without a failpoint.
func (m *member) fell() error {
	if !m.ended() || !m.asked.IsZero() {
		return nil
	}
	if w, ok := m.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && w.Signaled() && w.Signal() == syscall.SIGKILL {
		return nil
	}
	why := "see " + m.log
	log, _ := os.ReadFile(m.log)
	if _, text, found := strings.Cut(string(log), "\npanic: "); found {
		why, _, _ = strings.Cut("panic: "+text, "\n")
	}
	return fmt.Errorf("%s ended: %s: %s", m.name, m.cmd.ProcessState, why)
}

func (m *member) kill() {
	m.signal(syscall.SIGKILL)
	<-m.done
}

func (m *member) leave() {
	m.signal(syscall.SIGCONT)
	m.signal(syscall.SIGTERM)
	select {
	case <-m.done:
	case <-time.After(2 * time.Minute):
		m.kill()
	}
}

// terminate sends SIGTERM and expects a good end.
func (m *member) terminate() error {
	m.signal(syscall.SIGTERM)
	select {
	case <-m.done:
	case <-time.After(2 * time.Minute):
		return fmt.Errorf("%s does not end after SIGTERM", m.name)
	}
	if code := m.cmd.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("%s ended with %d after SIGTERM", m.name, code)
	}
	return nil
}

// stopped says whether the process has been stopped by SIGSTOP.
func (m *member) stopped() bool {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", m.cmd.Process.Pid))
	return strings.Contains(string(stat), ") T ")
}

// arm sets the failpoint of the running process; "" removes it.
func (m *member) arm(ctx context.Context, spec string) error {
	if m.ended() {
		return nil
	}
	if err := os.WriteFile(m.fault, []byte(spec), 0o600); err != nil {
		return err
	}
	m.signal(syscall.SIGUSR1)
	return until(ctx, 10*time.Second, m.name+" is armed with "+spec, func() error {
		if _, err := os.Stat(m.fault); err == nil && !m.ended() {
			return errors.New("it has not read it")
		}
		return nil
	})
}

// usage is what a process holds.
type usage struct{ goroutines, bytes float64 }

func (m *member) usage(ctx context.Context) (u usage, err error) {
	series, err := m.series(ctx)
	if err != nil {
		return u, err
	}
	u = usage{series["go_goroutines"], series["process_resident_memory_bytes"]}
	if u.goroutines == 0 || u.bytes == 0 {
		return u, errors.New("its metrics name no goroutines or no memory")
	}
	return u, nil
}

// series returns the metrics of the process: name and labels, and the value.
func (m *member) series(ctx context.Context) (map[string]float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, m.metrics, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	values := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if at := strings.LastIndexByte(line, ' '); at > 0 && line[0] != '#' {
			if n, err := strconv.ParseFloat(line[at+1:], 64); err == nil {
				values[line[:at]] = n
			}
		}
	}
	return values, nil
}

// fill starts instances until all are there, and waits until each has partitions of every group.
func (s *faultDeployment) fill(ctx context.Context) error {
	fresh := false
	var mu sync.Mutex
	for i, m := range s.members {
		if m != nil && !m.ended() {
			m.signal(syscall.SIGCONT)
			continue
		}
		n, err := s.start(ctx)
		if err != nil {
			return err
		}
		mu.Lock()
		s.members[i], fresh = n, true
		mu.Unlock()
	}
	return until(ctx, 60*time.Second, "every instance has partitions", func() error { return s.balanced(ctx, fresh) })
}

func (s *faultDeployment) balanced(ctx context.Context, _ bool) error {
	described, err := s.admin.DescribeGroups(ctx, s.business.groups()...)
	if err != nil {
		return err
	}
	for _, g := range described {
		members := 0
		for _, m := range g.Members {
			c, ok := m.Assigned.AsConsumer()
			if ok && len(c.Topics) > 0 {
				members++
			}
		}
		if g.State != "Stable" || members != faults.Instances || len(g.Members) != faults.Instances {
			return fmt.Errorf("group %s is %s with %d members, %d of them at work", g.Group, g.State, len(g.Members), members)
		}
	}
	return nil
}

// sql runs do on a connection of its own: what holds one over a fault would meet the fault.
func (s *faultDeployment) sql(ctx context.Context, do func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, s.dsn)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return do(conn)
}

// cli runs a command of the binary as a person would.
func (s *faultDeployment) cli(ctx context.Context, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.bin, append(args, "--config", s.config("person", nil))...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("millrace %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// until repeats a check until it passes; what describes it.
func until(ctx context.Context, atMost time.Duration, what string, ask func() error) error {
	ctx, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ask()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("waited %s for: %s: %w", atMost, what, err)
		}
	}
}

// wait lets time pass that is part of the fault itself.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
