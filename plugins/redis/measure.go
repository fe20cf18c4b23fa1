package redis

import (
	"context"
	_ "embed" // the script
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/pipeline/logs"
)

//go:embed lua/measure.lua
var measureSource string

const (
	// largestID is the last possible id of an entry. A stream that has used it refuses every XADD.
	largestID = "18446744073709551615-18446744073709551615"
	// clockSteps is by how much ids may be ahead of the server's clock without a warning, because a
	// clock may be set back and a new primary may have another one.
	clockSteps = time.Minute
)

// Measured is the size and the end of a stream. The zero value is an absent stream.
type Measured struct {
	Entries int64
	LastID  string        // the last generated id
	Ahead   time.Duration // of the server's clock: by how much LastID is later, at most 31 years
}

// ErrNoStream is the error of MeasuredBy when the key has another type.
var ErrNoStream = errors.New("the key is no stream")

// Measure returns a call that measures a stream, for Server.Do and then MeasuredBy.
func Measure(stream string) *Call { return NewScript(measureSource).Call([]string{stream}) }

// MeasuredBy returns the reply of Measure, or the error of the call. For a key that is no stream it
// wraps ErrNoStream.
func MeasuredBy(c *Call) (m Measured, err error) {
	list, err := c.List()
	if err != nil && strings.Contains(err.Error(), "WRONGTYPE") { // behind a prefix of the server's version
		return m, fmt.Errorf("%w: %w", ErrNoStream, err)
	} else if err != nil {
		return m, err
	}
	if len(list) == 3 {
		entries, ok1 := list[0].(int64)
		last, ok2 := list[1].(string)
		millis, ok3 := list[2].(int64)
		if ok1 && ok2 && ok3 {
			return Measured{entries, last, time.Duration(millis) * time.Millisecond}, nil
		}
	}
	return m, c.unexpected("that of measure.lua")
}

// Problem says what is wrong with the ids of the stream. It is empty when they are in order. Ids
// come from the clock of the server, unless a producer sets the id of an entry: Redis then continues
// from that one.
func (m Measured) Problem() string {
	switch {
	case m.LastID == largestID:
		return "the last possible id is used, so every further entry is refused"
	case m.Ahead > clockSteps:
		return "the ids are ahead of the server's clock"
	}
	return ""
}

// measure counts the entries of all shards, also of domains without a route here. A shard that does
// not answer has no series.
func (t *trimmer) measure(ctx context.Context, c goredis.UniversalClient, log *slog.Logger) {
	bounded, cancel := context.WithTimeout(ctx, t.limit)
	defer cancel()
	var calls []*Call
	for _, d := range t.cfg.Domains {
		for shard := range d.Shards {
			calls = append(calls, Measure(d.Stream(shard)))
		}
	}
	sendAll(bounded, c, calls)
	if ctx.Err() != nil {
		return
	}
	for _, d := range t.cfg.Domains {
		for shard := range d.Shards {
			domain, label := nameOf(d.Prefix), strconv.Itoa(shard)
			t.metrics.maxLen.WithLabelValues(domain, label).Set(float64(d.EntryLimit()))
			m, err := MeasuredBy(calls[0])
			calls = calls[1:]
			if err != nil {
				t.metrics.entries.DeleteLabelValues(domain, label)
				t.sampler.Warn(log, "the entries of a shard were not counted", slog.String(logs.Stream, d.Stream(shard)), logs.Err(err))
				continue
			}
			t.metrics.entries.WithLabelValues(domain, label).Set(float64(m.Entries))
			if problem := m.Problem(); problem != "" {
				t.sampler.Warn(log, "a producer has set an id that stops or delays a shard", slog.String(logs.Stream, d.Stream(shard)),
					slog.String("id", m.LastID), slog.String("problem", problem), slog.Duration("ahead", m.Ahead),
					slog.String("remedy", "have producers add entries with the id *, and delete the stream's key when its group has handled all entries"))
			}
		}
	}
}
