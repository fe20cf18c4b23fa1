package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kfake"
	"go.yaml.in/yaml/v3"

	"github.com/millrace-io/millrace/configs/profiles"
)

// production returns the settings of the streams in the profile production, for streams that stay
// active without work.
func production(streams int) (map[string]any, error) {
	text, err := fs.ReadFile(profiles.Files(), "production.yaml")
	if err != nil {
		return nil, err
	}
	var profile struct {
		Plugins struct {
			Promotion struct {
				Stream map[string]any
			}
		}
	}
	if err := yaml.Unmarshal(text, &profile); err != nil {
		return nil, err
	}
	settings := map[string]any{
		"plugins.promotion.stream.idle_timeout":          "1h",
		"plugins.promotion.stream.max_active_promotions": streams + 10,
	}
	for key, value := range profile.Plugins.Promotion.Stream {
		settings["plugins.promotion.stream."+key] = value
	}
	return settings, nil
}

// promotions returns the numbers of n promotions.
func promotions(n int) []int64 {
	numbers := make([]int64, n)
	for i := range numbers {
		numbers[i] = promotion + int64(i)
	}
	return numbers
}

// compareIdle measures an instance whose active streams have no work.
func compareIdle(ctx context.Context, e *environment, s sizes) (map[string]pair, error) {
	dsn, err := e.empty(ctx)
	if err != nil {
		return nil, err
	}
	settings, err := production(s.streams)
	if err != nil {
		return nil, err
	}
	settings["plugins.telemetry.listen"] = "127.0.0.1:0"
	if err := errors.Join(e.createCampaign(ctx, 8), e.load(ctx, 1, 1, promotions(s.streams)...)); err != nil {
		return nil, err
	}
	api, url, err := e.simulator(ctx, 0)
	if err != nil {
		return nil, err
	}
	defer api.stop()
	r := &run{env: e}
	defer r.stop()
	c := campaign{targets: s.streams, settings: settings}
	if err := r.start(ctx, c, dsn, url); err != nil {
		return nil, err
	}
	if err := r.settled(ctx, c); err != nil {
		return nil, err
	}
	if err := sleep(ctx, s.quiet); err != nil { // the reads of idle streams become rare
		return nil, err
	}
	var active int
	if err := e.db.QueryRow(ctx, "SELECT count(*) FROM promotion_streams WHERE active").Scan(&active); err != nil {
		return nil, err
	}
	if active != s.streams {
		return nil, fmt.Errorf("refused: %d streams are active, %d were expected", active, s.streams)
	}
	instance := r.processes[0].cmd.Process.Pid
	commands, err := e.redisInfo(ctx, "stats", "total_commands_processed:")
	if err != nil {
		return nil, err
	}
	began, used := time.Now(), cpuTime(instance)
	if err := sleep(ctx, s.observed); err != nil {
		return nil, err
	}
	took, used := time.Since(began).Seconds(), cpuTime(instance)-used
	later, err := e.redisInfo(ctx, "stats", "total_commands_processed:")
	if err != nil {
		return nil, err
	}
	resident, err := memory(instance, "VmRSS")
	return map[string]pair{
		"idle-commands": {ours: float64(later-commands) / took},
		"idle-cpu":      {ours: 100 * used.Seconds() / took},
		"idle-memory":   {ours: float64(resident) / (1 << 20)},
	}, err
}

// compareWake measures how soon an instance begins an entry that another one has put into an idle
// stream. The first instance enqueues; its calls fail until its breaker is open. The second one
// pays. Its Kafka is another one, without records.
func compareWake(ctx context.Context, e *environment, s sizes) (map[string]pair, error) {
	dsn, err := e.empty(ctx)
	if err != nil {
		return nil, err
	}
	api, url, err := e.simulator(ctx, 0)
	if err != nil {
		return nil, err
	}
	defer api.stop()
	settings, err := production(s.woken)
	if err != nil {
		return nil, err
	}
	r := &run{env: e}
	defer r.stop()

	enqueues := campaign{settings: maps.Clone(settings)}
	enqueues.settings["plugins.promotion.money_api.breaker.open_delay"] = "1h"
	const broken = 1 // promotion whose calls open the breaker
	if err := errors.Join(e.createCampaign(ctx, 1), e.load(ctx, 60, 60, broken)); err != nil {
		return nil, err
	}
	unused, err := unusedAddress(ctx)
	if err != nil {
		return nil, err
	}
	if err := r.start(ctx, enqueues, dsn, "http://"+unused); err != nil {
		return nil, err
	}
	if err := r.processes[0].await(ctx, "breaker opened"); err != nil {
		return nil, err
	}
	elsewhere, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		return nil, err
	}
	defer elsewhere.Close()
	pays := campaign{settings: maps.Clone(settings)}
	pays.settings["plugins.kafka.brokers"] = elsewhere.ListenAddrs()
	pays.settings["instance_id"] = "payer"
	if err := r.start(ctx, pays, dsn, url); err != nil {
		return nil, err
	}
	send := func(target int, pause time.Duration) error {
		return e.send(ctx, func(send sender) error {
			for _, number := range promotions(s.woken) {
				value, err := pointRecord(number, target)
				if err != nil {
					return err
				}
				send(publishTopic, "", value)
				if err := sleep(ctx, pause); err != nil {
					return err
				}
			}
			return nil
		})
	}
	paid := func(n int) error {
		return until(ctx, 100*time.Millisecond, func() (bool, error) {
			var got int
			err := e.db.QueryRow(ctx, "SELECT count(*) FROM payouts WHERE promotion_id >= $1 AND state = 'SUCCESS'", promotion).Scan(&got)
			return got >= n, err
		})
	}
	if err := send(1, 0); err != nil {
		return nil, err
	}
	if err := paid(s.woken); err != nil {
		return nil, err
	}
	if err := sleep(ctx, s.quiet); err != nil {
		return nil, err
	}
	if err := send(2, 50*time.Millisecond); err != nil {
		return nil, err
	}
	if err := paid(2 * s.woken); err != nil {
		return nil, err
	}
	rows, err := e.db.Query(ctx, `SELECT extract(epoch FROM attempt_started_at - accepted_at)::float8 * 1000 FROM payouts
		WHERE promotion_id >= $1 AND target_id = 2 AND attempt_by = 'payer'`, promotion)
	if err != nil {
		return nil, err
	}
	waits, err := pgx.CollectRows(rows, pgx.RowTo[float64])
	if err != nil {
		return nil, err
	}
	if len(waits) != s.woken {
		return nil, fmt.Errorf("refused: the other instance paid %d of %d payouts", len(waits), s.woken)
	}
	slices.Sort(waits)
	return map[string]pair{"wake": {ours: waits[(len(waits)*99+99)/100-1]}}, nil
}

// unusedAddress returns an address of loopback without a listener.
func unusedAddress(ctx context.Context) (string, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
