package producer

import (
	"cmp"
	"context"
	_ "embed" // the script
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/handlers/eventrouter/event"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis"
)

// ErrFull means that a shard has max_len entries. Nothing is trimmed, because they may be unread.
// Publish the same events again later.
var ErrFull = errors.New("the shard is full")

// ErrShards means that the routers of the domain read another number of shards. Correct the
// configuration.
var ErrShards = errors.New("the domain has another number of shards")

var errOther = errors.New("another event was published with it, so this one was not added")

const (
	markerTTL  = 2 * time.Minute // within which an event is not added twice
	counterTTL = 3 * time.Hour   // of Producer.CounterTTL
	maxCall    = 100             // events in a call of the script
)

//go:embed lua/add.lua
var luaAdd string

// Producer adds events to the shards of one domain. Safe for concurrent use.
type Producer struct {
	// CounterTTL is how long the number of a job is kept after its last event. It must exceed
	// state_ttl and log_ttl of the routers, each plus max_watch of the gateways. New sets 3 hours,
	// which is enough for their defaults.
	CounterTTL time.Duration

	server  *redis.Server
	domain  redis.DomainConfig
	stages  event.Stages
	add     *redis.Script
	checked atomic.Bool // the number of shards
}

// New returns a producer. The caller starts and stops the server. It uses Prefix, Shards and MaxLen
// of domain.
func New(server *redis.Server, domain redis.DomainConfig, stages event.Stages) *Producer {
	domain.MaxLen = domain.EntryLimit()
	return &Producer{CounterTTL: counterTTL, server: server, domain: domain, stages: stages, add: redis.NewScript(luaAdd)}
}

// Publish adds events, those of a shard in their order. An event with Seq 0, except in a transient
// stage, gets the next number of its job. The numbers of a job come either all from its workers or
// all from Publish. They begin again at 1 when the job has had no event for CounterTTL.
//
// Publish sets EventID, Timestamp, Traceparent and Seq where they are empty. EventID is unique in
// the domain. After an error any of the events may be in the stream. Within two minutes the same
// events can be published again: each is added once. Another event needs another EventID. ErrFull
// and ErrShards are such errors. An event that is not valid has a class of package event, and
// nothing is added.
func (p *Producer) Publish(ctx context.Context, events ...*event.Event) error {
	if err := p.checkShards(ctx); err != nil {
		return err
	}
	shards := make([][]*event.Event, p.domain.Shards)
	for _, e := range events {
		if err := p.complete(ctx, e); err != nil {
			return fmt.Errorf("event of job %.128q: %w", e.JobID, err)
		}
		shard := event.Shard(e.JobID, p.domain.Shards)
		shards[shard] = append(shards[shard], e)
	}
	var failed []error
	for start := 0; ; start += maxCall {
		var calls []*redis.Call
		var parts [][]*event.Event
		for shard, all := range shards {
			if start < len(all) {
				part := all[start:min(start+maxCall, len(all))]
				calls, parts = append(calls, p.call(p.domain.Stream(shard), part)), append(parts, part)
			}
		}
		if len(calls) == 0 {
			return errors.Join(failed...)
		}
		_ = p.server.Do(ctx, calls...) // each call has its error
		for i, call := range calls {
			if err := p.takeReply(call, parts[i]); err != nil {
				shard := event.Shard(parts[i][0].JobID, p.domain.Shards)
				failed = append(failed, fmt.Errorf("publish to %s: %w", p.domain.Stream(shard), err))
				shards[shard] = nil // its later events must not overtake
			}
		}
	}
}

// complete sets what is empty, and checks the event.
func (p *Producer) complete(ctx context.Context, e *event.Event) error {
	e.EventID = cmp.Or(e.EventID, watermill.NewULID())
	if e.Timestamp == "" {
		e.Timestamp = time.Now().UTC().Format(time.RFC3339Nano)
	}
	if e.Traceparent == "" {
		trace := message.Metadata{}
		pipeline.InjectTrace(ctx, trace)
		e.Traceparent = trace.Get(pipeline.MetaTraceParent)
	}
	numbered := *e
	numbered.Seq = cmp.Or(e.Seq, 1)
	return p.stages.Check(numbered)
}

// CounterKey returns the key of the number that Publish has given last to a job of a domain. Without
// it the numbers begin again at 1.
func CounterKey(domain redis.DomainConfig, jobID string) string {
	return slotTag(domain.Stream(event.Shard(jobID, domain.Shards))) + ":seq:" + jobID
}

// slotTag begins the keys that have the slot of a stream.
func slotTag(stream string) string { return strings.TrimSuffix(redis.MetaKey(stream), ":meta") }

func (p *Producer) call(stream string, events []*event.Event) *redis.Call {
	tag := slotTag(stream)
	keys := []string{stream}
	args := []any{p.domain.MaxLen, markerTTL.Milliseconds(), p.CounterTTL.Milliseconds()}
	for _, e := range events {
		keys = append(keys, tag+":added:"+e.EventID, CounterKey(p.domain, e.JobID))
		seq := "?"
		switch {
		case p.stages.IsTransient(e.Stage):
			seq = ""
		case e.Seq > 0:
			seq = strconv.FormatInt(e.Seq, 10)
		}
		args = append(args, seq, e.JobID, e.Stage, e.Status, []byte(e.Data), e.Timestamp, e.Traceparent, e.EventID)
	}
	return p.add.Call(keys, args...)
}

// takeReply sets the numbers that the script gave.
func (p *Producer) takeReply(call *redis.Call, events []*event.Event) error {
	seqs, err := call.Texts()
	if err != nil {
		return err
	}
	for i, seq := range seqs {
		if seq == "" {
			continue
		}
		if seq == "!" {
			return fmt.Errorf("event_id %q: %w", events[i].EventID, errOther)
		}
		if events[i].Seq, err = strconv.ParseInt(seq, 10, 64); err != nil {
			return fmt.Errorf("seq of an event: %w", err)
		}
	}
	if len(seqs) < len(events) {
		return ErrFull
	}
	return nil
}

// checkShards compares the number of shards with the one that the first router stored.
func (p *Producer) checkShards(ctx context.Context) error {
	if p.checked.Load() {
		return nil
	}
	get := redis.Command("HGET", "millrace:domain:"+p.domain.Prefix, "shards")
	if err := p.server.Do(ctx, get); err != nil {
		return fmt.Errorf("publish to %s: %w", p.domain.Prefix, err)
	}
	if get.Missing() {
		return nil
	}
	stored, err := get.Int()
	if err != nil {
		return err
	}
	if int(stored) != p.domain.Shards {
		return fmt.Errorf("publish to %s: %w: it has %d, and the producer %d", p.domain.Prefix, ErrShards, stored, p.domain.Shards)
	}
	p.checked.Store(true)
	return nil
}
