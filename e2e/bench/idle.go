package main

import (
	"context"
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
	settings, err := production(s.streams)
	if err != nil {
		return nil, err
	}
	settings["plugins.telemetry.listen"] = "127.0.0.1:0"
	r, err := e.begin(ctx, 8, 0)
	defer r.stop()
	c := campaign{targets: s.streams, settings: settings}
	for _, step := range []func() error{
		func() error { return err },
		func() error { return e.load(ctx, 1, promotions(s.streams)...) },
		func() error { return r.start(ctx, c) },
		func() error { return r.settled(ctx, c) },
		func() error { return sleep(ctx, s.quiet) }, // the reads of idle streams become rare
	} {
		if err := step(); err != nil {
			return nil, err
		}
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
	settings, err := production(s.woken)
	if err != nil {
		return nil, err
	}
	unused, err := unusedAddress(ctx)
	if err != nil {
		return nil, err
	}
	enqueues := campaign{settings: maps.Clone(settings)}
	enqueues.settings["plugins.promotion.money_api.url"] = "http://" + unused
	enqueues.settings["plugins.promotion.money_api.breaker.open_delay"] = "1h"
	elsewhere, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		return nil, err
	}
	defer elsewhere.Close()
	pays := campaign{settings: maps.Clone(settings)}
	pays.settings["plugins.kafka.brokers"] = elsewhere.ListenAddrs()
	pays.settings["instance_id"] = "payer"

	r, err := e.begin(ctx, 1, 0)
	defer r.stop()
	const broken = 1 // promotion whose calls open the breaker
	for _, step := range []func() error{
		func() error { return err },
		func() error { return e.load(ctx, 60, broken) },
		func() error { return r.start(ctx, enqueues) },
		func() error { return r.processes[0].await(ctx, "breaker opened") },
		func() error { return r.start(ctx, pays) },
		func() error { return e.sendEach(ctx, s.woken, 1, 0) },
		func() error { return e.awaitPaid(ctx, s.woken) },
		func() error { return sleep(ctx, s.quiet) },
		func() error { return e.sendEach(ctx, s.woken, 2, 50*time.Millisecond) },
		func() error { return e.awaitPaid(ctx, 2*s.woken) },
	} {
		if err := step(); err != nil {
			return nil, err
		}
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

// sendEach publishes a record of one target to each of n promotions, with a pause after each.
func (e *environment) sendEach(ctx context.Context, n, target int, pause time.Duration) error {
	return e.send(ctx, func(send sender) error {
		for _, number := range promotions(n) {
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

// awaitPaid waits until n payouts are paid.
func (e *environment) awaitPaid(ctx context.Context, n int) error {
	return until(ctx, 100*time.Millisecond, func() (bool, error) {
		var paid int
		err := e.db.QueryRow(ctx, "SELECT count(*) FROM payouts WHERE promotion_id >= $1 AND state = 'SUCCESS'", promotion).Scan(&paid)
		return paid >= n, err
	})
}

// unusedAddress returns an address of loopback without a listener.
func unusedAddress(ctx context.Context) (string, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
