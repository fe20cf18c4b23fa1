package main

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
	"github.com/millrace-io/millrace/plugins/streams"
)

// sample is the state of a campaign at one time.
type sample struct {
	at      time.Duration
	settled int
	lag     int64 // records after the committed offsets
	pending int64 // entries delivered and not acknowledged
	entries int64 // of the stream
	memory  int64 // of the process, in bytes
	redis   int64 // of Redis, in bytes
}

// compareMillion pays the largest campaign and plots it. pay refuses a campaign that lost or
// repeated a payout.
func compareMillion(ctx context.Context, e *environment, s sizes) (map[string]pair, error) {
	var samples []sample
	watch := func(ctx context.Context, r *run) error {
		one, err := e.sample(ctx, r, s.million)
		samples = append(samples, one)
		return err
	}
	r, err := e.campaigns(ctx, campaign{label: "1,000,000 targets", targets: s.million, latency: 5 * time.Millisecond, watch: watch})
	if err != nil {
		return nil, err
	}
	var longest int64
	for _, one := range samples {
		longest = max(longest, one.entries)
	}
	if e.plots, err = plot(samples); err != nil {
		return nil, err
	}
	return map[string]pair{
		"million-paid":   {float64(s.million), float64(s.million)},
		"million-memory": {ours: float64(r[0].Peak) / (1 << 20)},
		"million-stream": {float64(longest), float64(streams.DefaultConfig().MaxLen)},
	}, nil
}

func (e *environment) sample(ctx context.Context, r *run, records int) (s sample, err error) {
	point, _ := promotiontype.ByName("POINT")
	s.at = time.Since(r.began)
	if s.settled, err = e.settledCount(ctx); err != nil {
		return s, err
	}
	offsets, err := e.kafka.FetchOffsets(ctx, point.Group())
	if err != nil {
		return s, err
	}
	s.lag = int64(records)
	offsets.Each(func(o kadm.OffsetResponse) { s.lag -= max(0, o.At) })
	stream := point.StreamPrefix() + "12345"
	if s.entries, err = e.redis.XLen(ctx, stream).Result(); err != nil {
		return s, err
	}
	// Before the first entry there is no group, and nothing is pending.
	if pending, err := e.redis.XPending(ctx, stream, point.GroupPrefix()+"12345").Result(); err == nil {
		s.pending = pending.Count
	}
	if s.memory, err = memory(r.processes[0].cmd.Process.Pid, "VmRSS"); err != nil {
		return s, err
	}
	s.redis, err = e.redisInfo(ctx, "memory", "used_memory:")
	return s, err
}
