package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/IBM/sarama"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/loop"
)

// progressEvery is how often a start that waits logs it.
const progressEvery = 5 * time.Second

// service owns the plugin's connection: the shared publisher and the client behind it.
type service struct{ plugin *Plugin }

// Start waits until a broker answers and opens the publisher. While it waits it logs the addresses
// and the reason. When ctx ends first, the error wraps pipeline.ErrUnavailable and names both.
func (s service) Start(ctx context.Context) error {
	p := s.plugin
	p.mu.Lock()
	running := p.live != nil
	p.mu.Unlock()
	if running {
		return nil
	}
	config := p.snapshot()
	if err := config.Validate(); err != nil {
		return fmt.Errorf("kafka: %w", err)
	}
	if err := p.checkStatic(config); err != nil {
		return fmt.Errorf("kafka: %w", err)
	}
	conf, err := adminConfig(config, p.log)
	if err != nil {
		return fmt.Errorf("kafka: %w", err)
	}
	client, err := s.wait(ctx, config, conf)
	if err != nil {
		return err
	}
	pub, err := openPublisher(config, p.metrics, p.log)
	if err != nil {
		return errors.Join(err, client.Close())
	}
	live := newConnection(config, client, pub, p.carriesMore)
	live.work.Add(1)
	go func() {
		defer live.work.Done()
		watch := endWatch{client: client, claims: p.metrics.claims, times: p.ends, busy: map[int32]bool{}}
		watch.run(live.ctx)
	}()
	p.mu.Lock()
	live.watchTopics(topicCheckInterval, p.metrics.open)
	p.live = live
	p.mu.Unlock()
	p.log.Info("kafka is ready", keyBrokers, config.Brokers)
	return nil
}

// wait tries until a broker answers or ctx ends.
func (s service) wait(ctx context.Context, config Config, conf *sarama.Config) (sarama.Client, error) {
	addresses := strings.Join(config.Brokers, ",")
	var told time.Time
	var last error // why no broker answered, not that ctx ended
	for attempt := 1; ; attempt++ {
		client, err := connect(ctx, config, conf)
		if err == nil {
			return client, nil
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		if ctx.Err() == nil && time.Since(told) >= progressEvery {
			told = time.Now()
			s.plugin.log.Warn("waiting for kafka", slog.String("address", addresses), logs.Err(err))
		}
		if ctx.Err() != nil || !loop.Sleep(ctx, config.ReconnectBackoff.Delay(attempt)) {
			return nil, fmt.Errorf("%w: no broker at %s answered: %w", errUnavailable, addresses, last)
		}
	}
}

// connect makes one attempt. sarama's client takes no context. So connect first dials with ctx, and
// shortens the client's own limits by the deadline of ctx.
func connect(ctx context.Context, config Config, conf *sarama.Config) (sarama.Client, error) {
	dialer := net.Dialer{Timeout: config.DialTimeout}
	var errs []error
	for _, addr := range config.Brokers {
		conn, err := dialer.DialContext(ctx, "tcp", addr)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		_ = conn.Close()
		errs = nil
		break
	}
	if errs != nil {
		return nil, errors.Join(errs...)
	}
	probe := *conf
	probe.Metadata.Retry.Max = 0
	if deadline, ok := ctx.Deadline(); ok {
		left := max(time.Until(deadline), 100*time.Millisecond)
		probe.Net.DialTimeout = min(probe.Net.DialTimeout, left)
		probe.Net.ReadTimeout = min(probe.Net.ReadTimeout, left)
		login := *probe.Net.Proxy.Dialer.(*loginDialer)
		login.netDialer, login.handshake = &net.Dialer{Timeout: probe.Net.DialTimeout}, probe.Net.ReadTimeout
		probe.Net.Proxy.Dialer = &login
	}
	first, err := sarama.NewClient(config.Brokers, &probe) // reads the cluster's metadata at once
	if err != nil {
		return nil, err
	}
	if err := first.Close(); err != nil {
		return nil, err
	}
	return sarama.NewClient(config.Brokers, conf)
}

// Stop flushes and closes the publisher and the client. Subscriptions are their openers' to close.
func (s service) Stop(ctx context.Context) error {
	p := s.plugin
	p.mu.Lock()
	live := p.live
	p.live = nil
	p.mu.Unlock()
	if live == nil {
		return nil
	}
	if err := live.close(ctx); err != nil {
		return fmt.Errorf("kafka: stop: %w", err)
	}
	return nil
}

var _ pipeline.Service = service{}
