package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/millrace-io/millrace/e2e/services/servers"
)

// campaign is one measurement of the complete path: a promotion, and the processes that pay it.
type campaign struct {
	label     string
	targets   int
	instances int            // of the binary; 0: one
	slots     int            // of each instance; 0: the default
	latency   time.Duration  // of the Money API
	joined    bool           // all instances join their groups before the records are published
	settings  map[string]any // further settings by their dotted paths
	peer      string         // bare or stock runs instead of the binary
	// watch is called while the campaign is paid, about once per second. Nil: not called.
	watch func(ctx context.Context, r *run) error
}

// run is a Money API and the processes that call it, on servers that were empty at the start.
type run struct {
	env       *environment
	dsn, url  string // of the ledger, and of the Money API
	api       *process
	processes []*process
	began     time.Time
}

// begin empties the servers, creates the topics and starts the Money API. The caller stops the run,
// also after an error.
func (e *environment) begin(ctx context.Context, partitions int32, latency time.Duration) (r *run, err error) {
	r = &run{env: e}
	if r.dsn, err = e.empty(ctx); err != nil {
		return r, fmt.Errorf("empty servers: %w", err)
	}
	if err := e.createCampaign(ctx, partitions); err != nil {
		return r, fmt.Errorf("topics: %w", err)
	}
	r.api, r.url, err = e.simulator(ctx, latency)
	return r, err
}

func (r *run) stop() {
	for _, p := range r.processes {
		p.stop()
	}
	if r.api != nil {
		r.api.stop()
	}
}

// result is the figures of one campaign.
type result struct {
	// Rate is payouts per second from the first accepted to the last settled.
	Rate float64
	// Middle is payouts per second from 20 % to 90 % settled.
	Middle float64
	// CPU is per payout: own (all instances together), and each server.
	CPU   map[string]time.Duration
	Peak  int64 // largest memory of a process, in bytes
	Redis int64 // largest memory of Redis, in bytes
}

func (r result) String() string {
	text := fmt.Sprintf("%.0f/s (20–90 %%: %.0f/s), CPU per payout in µs:", r.Rate, r.Middle)
	for _, name := range []string{"own", servers.Postgres, servers.Redis, servers.Kafka, "api"} {
		text += fmt.Sprintf(" %s %.1f,", name, micros(r.CPU[name]))
	}
	return text + fmt.Sprintf(" peak %d MB", r.Peak>>20)
}

const (
	promotion = 12345
	// leastAnnounced gives a smaller campaign the default slots of one with 100,000 targets.
	leastAnnounced = 100_000
)

// pay runs a campaign on empty servers. It refuses the figures if a payout is missing or was
// repeated.
func (e *environment) pay(ctx context.Context, c campaign) (res result, err error) {
	r, err := e.begin(ctx, 8, c.latency)
	defer r.stop()
	if err == nil && !c.joined {
		err = e.load(ctx, c.targets, promotion)
	}
	if err == nil {
		err = r.start(ctx, c)
	}
	if err == nil && c.joined {
		err = sleep(ctx, 5*time.Second)
	}
	if err != nil {
		return res, err
	}
	before := r.cpu()
	r.began = time.Now()
	if c.peer == "" {
		if err := e.announce(ctx, max(c.targets, leastAnnounced)); err != nil {
			return res, err
		}
	}
	if c.joined {
		if err := e.load(ctx, c.targets, promotion); err != nil {
			return res, err
		}
		r.began = time.Now()
	}
	if err := r.settled(ctx, c); err != nil {
		for _, p := range r.processes {
			_ = os.WriteFile(filepath.Join(e.dir, p.name+".log"), []byte(p.out.String()), 0o600)
		}
		return res, err
	}
	res.CPU = map[string]time.Duration{}
	for name, d := range r.cpu() {
		res.CPU[name] = (d - before[name]) / time.Duration(c.targets)
	}
	for _, p := range r.processes {
		peak, err := memory(p.cmd.Process.Pid, "VmHWM")
		if err != nil {
			return res, err
		}
		res.Peak = max(res.Peak, peak)
	}
	if res.Redis, err = e.redisInfo(ctx, "memory", "used_memory_peak:"); err != nil {
		return res, err
	}
	return res, r.check(ctx, c.targets, &res)
}

// start runs the processes until all are ready.
func (r *run) start(ctx context.Context, c campaign) error {
	e := r.env
	for range max(1, c.instances) {
		name := "instance" + strconv.Itoa(len(r.processes)+1)
		path, args := e.self, []string{c.peer, ""}
		ready := "running"
		if c.peer != "" {
			args[1] = peerConfig{
				Brokers: e.brokers(), Redis: e.fleet.Addr(servers.Redis), Postgres: r.dsn, API: r.url, Targets: c.targets,
			}.String()
		} else {
			file, err := r.settings(name, c)
			if err != nil {
				return err
			}
			path, args, ready = e.millrace, []string{"run", "--config", file}, `"msg":"running"`
		}
		p, err := start(name, path, args...)
		if p != nil {
			r.processes = append(r.processes, p)
		}
		if err != nil {
			return err
		}
		if err := p.await(ctx, ready); err != nil {
			return err
		}
	}
	return nil
}

// settings writes the settings file of an instance.
func (r *run) settings(name string, c campaign) (path string, err error) {
	all := map[string]any{
		"environment": "external", "log.format": "json", "instance_id": name,
		"plugins.telemetry.listen":         "",
		"plugins.kafka.brokers":            r.env.brokers(),
		"plugins.redis.addrs":              []string{r.env.fleet.Addr(servers.Redis)},
		"plugins.promotion.stream.enabled": true,
		"plugins.promotion.ledger.dsn":     r.dsn,
		"plugins.promotion.money_api.url":  r.url,
	}
	if c.slots > 0 {
		all["plugins.promotion.stream.min_consumers_per_instance"] = c.slots
		all["plugins.promotion.stream.max_consumers_per_instance"] = c.slots
	}
	maps.Copy(all, c.settings)
	return r.env.writeSettings(name, all)
}

// writeSettings writes a settings file from settings by their dotted paths.
func (e *environment) writeSettings(name string, settings map[string]any) (path string, err error) {
	tree := map[string]any{}
	for key, value := range settings {
		at, names := tree, strings.Split(key, ".")
		for _, name := range names[:len(names)-1] {
			if _, ok := at[name]; !ok {
				at[name] = map[string]any{}
			}
			at, _ = at[name].(map[string]any)
		}
		at[names[len(names)-1]] = value
	}
	text, err := yaml.Marshal(tree)
	if err != nil {
		return "", err
	}
	path = filepath.Join(e.dir, name+".yaml")
	return path, os.WriteFile(path, text, 0o600)
}

// settled waits until all payouts are settled. Each peer prints a line then.
func (r *run) settled(ctx context.Context, c campaign) error {
	if c.peer != "" {
		return r.processes[0].await(ctx, "settled")
	}
	last := time.Now()
	return until(ctx, 100*time.Millisecond, func() (bool, error) {
		for _, p := range r.processes {
			select {
			case <-p.done:
				return false, fmt.Errorf("%s ended:\n%s", p.name, p.tail())
			default:
			}
		}
		if c.watch != nil && time.Since(last) > time.Second {
			last = time.Now()
			if err := c.watch(ctx, r); err != nil {
				return false, err
			}
		}
		n, err := r.env.settledCount(ctx)
		return n >= c.targets, err
	})
}

func (e *environment) settledCount(ctx context.Context) (n int, err error) {
	err = e.db.QueryRow(ctx, "SELECT coalesce(sum(paid + failed + unknown + cancelled), 0)::bigint FROM promotion_summaries").Scan(&n)
	return n, err
}

// cpu returns the CPU time of the processes and servers so far.
func (r *run) cpu() map[string]time.Duration {
	used := map[string]time.Duration{"api": cpuTime(r.api.cmd.Process.Pid)}
	for _, p := range r.processes {
		used["own"] += cpuTime(p.cmd.Process.Pid)
	}
	for _, name := range []string{servers.Kafka, servers.Redis, servers.Postgres} {
		used[name] = cpuTime(r.env.fleet.PID(name))
	}
	return used
}

// check verifies that each target was paid by exactly one call, in the ledger and in the journal of
// the Money API. It sets the rates, which are computed from the times in the ledger.
func (r *run) check(ctx context.Context, n int, res *result) error {
	var t totals
	var all, middle float64
	err := r.env.db.QueryRow(ctx, `
SELECT count(*), count(*) FILTER (WHERE state = 'SUCCESS'), coalesce(sum(attempts), 0)::bigint,
	extract(epoch FROM max(settled_at) - min(accepted_at))::float8,
	extract(epoch FROM percentile_disc(0.9) WITHIN GROUP (ORDER BY settled_at) - percentile_disc(0.2) WITHIN GROUP (ORDER BY settled_at))::float8
FROM payouts`).Scan(&t.Rows, &t.Paid, &t.Attempts, &all, &middle)
	if err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url+"/_sim/summary", nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if err := json.NewDecoder(answer.Body).Decode(&t); err != nil {
		return fmt.Errorf("journal of the Money API: %w", err)
	}
	res.Rate, res.Middle = float64(n)/all, 0.7*float64(n)/middle
	return t.balance(n)
}

// totals are the counts of the ledger and of the journal of the Money API.
type totals struct {
	Rows, Paid, Attempts int // of the ledger

	Charged       int `json:"charged"`
	Executions    int `json:"executions"`
	DoubleCharged int `json:"double_charged"`
}

// balance returns nil if each of n targets was paid by one attempt and one charge.
func (t totals) balance(n int) error {
	if expected := (totals{Rows: n, Paid: n, Attempts: n, Charged: n, Executions: n}); t != expected {
		return fmt.Errorf("refused: the ledger and the Money API have %+v, expected were %+v", t, expected)
	}
	return nil
}

// simulator starts the simulated Money API as a process.
func (e *environment) simulator(ctx context.Context, latency time.Duration) (p *process, url string, err error) {
	p, err = start("money-api", e.millrace, "money-simulator", "--listen", "127.0.0.1:0", "--json", "--interval", "1h", "--latency", latency.String())
	if err == nil {
		err = p.await(ctx, `"url":"`)
	}
	if err != nil {
		return p, "", err
	}
	found := regexp.MustCompile(`"url":"(http://[^"]+)"`).FindStringSubmatch(p.out.String())
	if found == nil {
		return p, "", fmt.Errorf("no address in %s", p.tail())
	}
	return p, found[1], nil
}

// redisInfo returns the number that follows prefix in a section of INFO.
func (e *environment) redisInfo(ctx context.Context, section, prefix string) (int64, error) {
	info, err := e.redis.Info(ctx, section).Result()
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(info, prefix)
	digits := rest[:max(0, strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' }))]
	return strconv.ParseInt(digits, 10, 64)
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
