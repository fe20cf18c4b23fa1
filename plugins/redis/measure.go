package redis

import (
	"context"
	"log/slog"
	"strconv"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/pipeline"
)

// measure counts the entries of all shards, also of domains without a route here. A shard that does
// not answer has no series.
func (t *trimmer) measure(ctx context.Context, c goredis.UniversalClient, log *slog.Logger) {
	bounded, cancel := context.WithTimeout(ctx, t.limit)
	defer cancel()
	var calls []*Call
	for _, d := range t.cfg.Domains {
		for shard := range d.Shards {
			calls = append(calls, Command("XLEN", d.Stream(shard)))
		}
	}
	sendAll(bounded, c, calls)
	if ctx.Err() != nil {
		return
	}
	for _, d := range t.cfg.Domains {
		for shard := range d.Shards {
			domain, label := nameOf(d.Prefix), strconv.Itoa(shard)
			t.metrics.maxLen.WithLabelValues(domain, label).Set(float64(d.maxLen()))
			length, err := calls[0].Int()
			calls = calls[1:]
			if err != nil {
				t.metrics.entries.DeleteLabelValues(domain, label)
				t.sampler.Warn(log, "the entries of a shard were not counted", slog.String(pipeline.LogStream, d.Stream(shard)), pipeline.Err(err))
				continue
			}
			t.metrics.entries.WithLabelValues(domain, label).Set(float64(length))
		}
	}
}
