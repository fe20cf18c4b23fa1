package once

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/internal/failpoint"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/plugins/once/ledger"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/entry"
	"github.com/millrace-io/millrace/plugins/streams"
)

// Ways of KindConfig.Via.
const (
	// ViaLedger has instances look for effects in the ledger.
	ViaLedger = "ledger"
	// ViaStreams also tells an instance of each accepted effect by an entry in a Redis stream of its group.
	ViaStreams = "streams"
)

const (
	// spreadTimeout bounds the entries of effects that were accepted together, because their caller waits.
	spreadTimeout = time.Second
	// awayPause is how long no entry is added after that was too short, so that not each caller waits.
	awayPause = 5 * time.Second
)

// metaRow has the number of a row of the ledger, in an entry that carries the record of an effect. It is rowNamed if
// an entry before it names the row, because one is enough to claim all of its effects.
const metaRow, rowNamed = reservedPrefix + "row", "0"

// classForeign is the class of an entry that another program has added.
const classForeign = "foreign_entry"

// Outcomes of an entry, as a label.
const (
	entryAdded  = "added"
	entryFull   = "full"
	entryFailed = "failed"
)

// spread tells instances of effects of one kind by entries in Redis streams, one stream for each group. An entry
// has the number of a row of the ledger, and perhaps the record of an effect for other programs. The ledger alone
// decides about the effects, and finds them without an entry when their grace has ended.
type spread struct {
	worker  *worker
	names   Names
	manager *streams.Manager
	server  *redis.Server
	away    atomic.Int64 // Unix nanoseconds until which no entry is added
}

// newSpread returns the streams of the kind of w. It opens nothing.
func newSpread(w *worker, names Names, env pipeline.Env, m *streams.Metrics) *spread {
	shared, own := w.plugin.redis, w.config.Streams.Redis
	kind := streams.Kind{Type: w.name, StreamPrefix: names.Stream, GroupPrefix: names.StreamGroup}
	active, stream := activeSet{key: names.ActiveSet, most: int64(w.config.Streams.MaxActive)}, kind.Stream("0")
	s := &spread{worker: w, names: names, server: shared.Server(own, stream, streams.MetaKey(stream), kind.WakeKey(), active.key)}
	s.server.Commands = []string{"sadd", "srem", "scard", "smembers"}
	active.client = s.server.Client
	found := w.plugin.found
	if own != nil || !strings.HasPrefix(names.Stream, streamPrefix) {
		found = nil // a search of its own
	}
	s.manager = streams.NewManager(streams.Options{
		Kind: kind, Config: s.config, Client: s.server.Client, Connect: s.server.Connect, Found: found, Activations: active, Admit: active.admit, Instance: env.Instance,
		Fence: shared.Fence, Gate: w.effects.ready, Owner: s.owner, CallTimeout: w.callLimit, Logger: w.plugin.log, Metrics: m, ReaderMetrics: shared.ReaderMetrics(),
	})
	return s
}

// config has as many entries of each stream in flight as calls may run: the worker shares its places among groups.
func (s *spread) config() streams.Config {
	n := s.worker.config.Concurrency
	return streams.Config{Common: s.worker.config.Streams.Common, MinConsumers: n, MaxConsumers: n, Tiers: []streams.Tier{{Consumers: n}}}
}

func (s *spread) owner() string {
	if l := s.worker.plugin.ledger.Load(); l != nil {
		return l.ID()
	}
	return ""
}

// register adds the route from the streams, which hands rows to the worker. dead gets what other programs have added.
func (s *spread) register(r *pipeline.Registry, effects pipeline.Endpoint, dead pipeline.Sink) {
	r.Service(s.worker.name+".redis", s.server)
	r.Offer(s.manager.ReclaimTarget())
	r.Endpoint(pipeline.UseWrites, s.manager.Source().Describe())
	r.Route(pipeline.Route{
		Name: s.worker.name + ".stream", From: s.manager.Source(), Handle: s.handle, Activity: s.manager.Activity(), Calls: []pipeline.Endpoint{effects},
		Policy: pipeline.Policy{Timeout: s.worker.config.Grace + acceptTimeout, DeadLetter: dead},
		Flow:   pipeline.Flow{MaxInFlight: s.worker.config.Concurrency},
	})
}

// entryOf returns the entry of an effect, or with EntriesRows of all effects of its row.
func (s *spread) entryOf(group, row string, r *ledger.Record) entry.Entry {
	if !s.carriesRecords() {
		return entry.Entry{Key: group, UUID: row, Message: []byte(row)}
	}
	headers := map[string]string{}
	maps.Copy(headers, r.Headers)
	headers[metaRow] = row
	return entry.Entry{Key: r.RecordKey, UUID: s.worker.effects.keyOf(Key{Group: r.Group, ID: r.ID}), Message: r.Payload, Headers: headers}
}

func (s *spread) carriesRecords() bool { return s.worker.config.Streams.Entries == EntriesRecords }

// rowOf returns what an entry says of its row, whatever Entries was when it was added.
func rowOf(m *message.Message) string {
	if row := m.Metadata.Get(metaRow); row != "" || m.UUID != string(m.Payload) {
		return row
	}
	return m.UUID
}

var errForeign = errors.New("once: an entry that another program has added to a stream asks for no effect, because it names no row of the ledger")

// handle hands the row of an entry to the worker. The entry is acknowledged when the row has been claimed, and at once
// if it names none.
func (s *spread) handle(m *message.Message) ([]*message.Message, error) {
	text := rowOf(m)
	if text == rowNamed {
		return nil, nil
	}
	row, err := strconv.ParseInt(text, 10, 64)
	if err != nil || row <= 0 {
		return nil, pipeline.WithClass(pipeline.Permanent(errForeign), classForeign)
	}
	return nil, s.worker.hints.offer(m.Context(), row, s.worker.config.Grace, s.worker.wake)
}

// isAway says whether Redis was away a short time ago, so no entry is added.
func (s *spread) isAway() bool { return time.Now().UnixNano() < s.away.Load() }

// publish adds the entries of effects that were accepted. It has no error, because an effect without an entry is
// found when its grace has ended.
func (s *spread) publish(ctx context.Context, records []ledger.Record, results []ledger.AcceptResult) {
	entries, rows, n := map[string][]entry.Entry{}, map[int64]bool{}, 0
	for i, r := range results {
		if r.Row == 0 || rows[r.Row] && !s.carriesRecords() {
			continue
		}
		row := rowNamed
		if !rows[r.Row] {
			row = strconv.FormatInt(r.Row, 10)
		}
		rows[r.Row] = true
		group := encode(records[i].Group)
		entries[group] = append(entries[group], s.entryOf(group, row, &records[i]))
		n++
	}
	if n == 0 {
		return
	}
	if s.isAway() {
		s.count(entryFailed, n)
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.worker.spreadLimit)
	defer cancel()
	var adding sync.WaitGroup
	for group, all := range entries {
		adding.Go(func() { s.add(ctx, group, all) })
	}
	adding.Wait()
	failpoint.Hit(failpoint.AfterXADD)
}

func (s *spread) add(ctx context.Context, group string, all []entry.Entry) {
	added, _, err := s.manager.EnqueueBatch(ctx, group, all)
	s.count(entryAdded, added)
	if err == nil {
		s.count(entryFull, len(all)-added)
		return
	}
	s.count(entryFailed, len(all)-added)
	if !errors.Is(err, streams.ErrRefused) && !errors.Is(err, streams.ErrForeign) && !errors.Is(err, streams.ErrVanishing) {
		s.away.Store(time.Now().Add(awayPause).UnixNano())
	}
	s.worker.plugin.sampled.Warn(s.worker.plugin.log, "entries of effects were not added to a stream, so the effects are called for when their grace has ended",
		slog.String("kind", s.worker.name), slog.String(logs.Stream, s.manager.Kind().Stream(group)), slog.Duration("grace", s.worker.config.Grace), logs.Err(err))
}

func (s *spread) count(outcome string, n int) {
	s.worker.plugin.metrics.entries.WithLabelValues(s.worker.name, outcome).Add(float64(n))
}

// activeSet is the set of groups that have a stream. It is in Redis, unlike that of promotions, because what is lost
// with it is only a hint.
type activeSet struct {
	key    string
	most   int64 // groups
	client func() goredis.UniversalClient
}

// Active implements streams.Activations.
func (a activeSet) Active(ctx context.Context) ([]streams.Activation, error) {
	ids, err := a.client().SMembers(ctx, a.key).Result()
	all := make([]streams.Activation, len(ids))
	for i, id := range ids {
		all[i].ID = id
	}
	return all, err
}

// Activate implements streams.Activations.
func (a activeSet) Activate(ctx context.Context, id string) error {
	return a.client().SAdd(ctx, a.key, id).Err()
}

// Deactivate implements streams.Activations.
func (a activeSet) Deactivate(ctx context.Context, id string) error {
	return a.client().SRem(ctx, a.key, id).Err()
}

// admit implements streams.Options.Admit.
func (a activeSet) admit(ctx context.Context, id string) (bool, error) {
	if err := a.Activate(ctx, id); err != nil {
		return false, err
	}
	n, err := a.client().SCard(ctx, a.key).Result()
	if err != nil || n <= a.most {
		return err == nil, err
	}
	return false, a.Deactivate(ctx, id)
}

// errNoStreams says how a kind via streams gets them.
func errNoStreams(kind string) error {
	return fmt.Errorf("once: kind %q has via: %s, and the plugin once has no Redis: give it one with UseStreams, or set via: %s", kind, ViaStreams, ViaLedger)
}

var _ streams.Activations = activeSet{}
