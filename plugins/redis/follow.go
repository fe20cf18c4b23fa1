package redis

import (
	"context"
	_ "embed" // the script
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/loop"
)

//go:embed lua/follow.lua
var followSource string

const (
	followInterval    = 20 * time.Millisecond
	followMaxInterval = 100 * time.Millisecond
	followPage        = 200 // entries per stream and read
	followWarned      = 10 * time.Second
)

const textRefused = "a followed stream is not read, the others are: its key must be a stream that the user may read, so delete the key or correct the rights"

// errGone is the reason when the entry at the position no longer exists.
var errGone = errors.New("the entry that was read last is not in the stream any more")

// FollowOptions say what a Follower reads, and what it does with it. Calls of one stream follow
// each other; those of different nodes overlap. They must not block.
type FollowOptions struct {
	// Streams are the keys. They may not exist yet.
	Streams []string
	// Interval is the pause between two reads while entries come. Zero: 20 ms.
	Interval time.Duration
	// MaxInterval is the longest pause, while none come. Zero: 100 ms.
	MaxInterval time.Duration
	// Entries takes new entries, in the order of the stream.
	Entries func(stream string, entries []FollowedEntry)
	// Lost is called when entries of the stream may have been missed. The stream can be read again
	// then. Entries follow that are newer than the missed ones.
	Lost func(stream string, reason error)
	// Log is for streams that can't be read. Nil: that of the plugin.
	Log *slog.Logger
}

// FollowedEntry is an entry of a stream.
type FollowedEntry struct {
	ID     string
	Fields map[string]string
}

// Follower reads streams from their end, without a group and without blocking: all streams of a
// node in one pipeline. It is a pipeline.Service.
type Follower struct {
	server  *Server
	opts    FollowOptions
	script  *Script
	streams []*followed
	warn    *logs.Throttle
	loops   loop.Group
	parts   sync.WaitGroup // the loops of the nodes
}

// followed is a stream. One goroutine uses it at a time.
type followed struct {
	name    string
	at      string // the position; empty before it is known
	failed  error  // of the last read
	refused bool   // failed is an answer of the server, which is counted
	begun   bool   // the Follower has started: what is missed from now on is reported
}

// Follow returns a Follower of streams of the server. It is registered after the server.
func (s *Server) Follow(o FollowOptions) *Follower {
	if o.Interval == 0 {
		o.Interval = followInterval
	}
	if o.MaxInterval == 0 {
		o.MaxInterval = followMaxInterval
	}
	f := &Follower{server: s, opts: o, script: NewScript(followSource), warn: logs.NewThrottle(followWarned)}
	for _, name := range o.Streams {
		f.streams = append(f.streams, &followed{name: name})
	}
	return f
}

// Start notes the ends of all streams. It delivers the entries that are added after it has
// returned. It waits for servers; when ctx ends first, the error wraps pipeline.ErrUnavailable.
//
// It does not wait for a stream that the server refuses to read, because its key has another type
// or the user may not read it. Such a stream is logged, counted (millrace_redis_followed_refused)
// and tried again. Once it can be read, Lost is called.
func (f *Follower) Start(ctx context.Context) error {
	for left := f.streams; ; {
		f.read(ctx, left)
		var failed error
		var still []*followed
		for _, s := range left {
			if s.at == "" && !s.refused {
				failed, still = s.failed, append(still, s)
			}
		}
		if left = still; len(left) == 0 {
			break
		}
		if !loop.Sleep(ctx, waitStep) {
			for _, s := range f.streams {
				f.accept(s)
			}
			return fmt.Errorf("redis: %w: %d followed streams: %w", pipeline.ErrUnavailable, len(left), failed)
		}
	}
	for _, s := range f.streams {
		s.begun = true
	}
	return f.loops.Start(ctx, func(ctx context.Context) {
		f.parts.Go(func() { f.follow(ctx, f.streams) })
		f.parts.Wait()
		for _, s := range f.streams {
			f.accept(s)
		}
	})
}

// Stop ends the reads. It waits for those in flight until ctx ends.
func (f *Follower) Stop(ctx context.Context) error { return f.loops.Stop(ctx) }

// follow reads streams until ctx ends. Streams of other nodes get a loop of their own per node: a
// node that does not answer delays only its own streams.
func (f *Follower) follow(ctx context.Context, streams []*followed) {
	wait := f.opts.Interval
	loop.Repeat(ctx, 0, func(ctx context.Context) time.Duration {
		for _, other := range f.divide(ctx, &streams) {
			f.parts.Go(func() { f.follow(ctx, other) })
		}
		most := f.read(ctx, streams)
		switch {
		case most >= followPage:
			return 0
		case most > 0:
			wait = f.opts.Interval
		default:
			wait = min(2*wait, f.opts.MaxInterval)
		}
		return wait
	})
}

// divide leaves the streams of one node, and returns those of the others per node.
func (f *Follower) divide(ctx context.Context, streams *[]*followed) (others map[*goredis.Client][]*followed) {
	cluster, ok := f.server.Client().(*goredis.ClusterClient)
	if !ok {
		return nil
	}
	var first *goredis.Client
	var stay []*followed
	for _, s := range *streams {
		node, err := cluster.MasterForKey(ctx, s.name)
		if first == nil {
			first = node
		}
		if err != nil || node == first {
			stay = append(stay, s)
			continue
		}
		if others == nil {
			others = map[*goredis.Client][]*followed{}
		}
		others[node] = append(others[node], s)
	}
	*streams = stay
	return others
}

// read reads the next entries of each stream. It returns the most entries that a stream had.
func (f *Follower) read(ctx context.Context, streams []*followed) (most int) {
	calls := make([]*Call, len(streams))
	for i, s := range streams {
		// A call that the client sends again would hide that the connection broke.
		calls[i] = f.script.Call([]string{s.name}, s.at, followPage).Once()
	}
	_ = f.server.Do(ctx, calls...) // each call has its own error
	var failed []error
	for i, s := range streams {
		at, missed, entries, err := followReply(calls[i])
		if err != nil {
			s.failed = err
			if refused := refusedKey(err); !refused {
				failed = append(failed, err)
			} else if f.refuse(s) {
				f.log().ErrorContext(ctx, textRefused, slog.String(logs.Stream, s.name), logs.Err(err))
			} else {
				f.warn.Warn(f.log(), textRefused, slog.String(logs.Stream, s.name), logs.Err(err))
			}
			continue
		}
		reason := s.failed
		if reason == nil && missed {
			reason = errGone
		}
		known := s.at != "" || s.begun
		s.at, s.failed = at, nil
		f.accept(s)
		if reason != nil && known {
			f.opts.Lost(s.name, reason)
		}
		if len(entries) > 0 {
			f.opts.Entries(s.name, entries)
		}
		most = max(most, len(entries))
	}
	if len(failed) > 0 && ctx.Err() == nil {
		f.warn.Warn(f.log(), "followed streams not read, tried again", slog.Int("streams", len(failed)), logs.Err(failed[0]))
	}
	return most
}

// refuse counts a stream that the server refuses to read. It returns false if it is counted
// already.
func (f *Follower) refuse(s *followed) bool {
	if s.refused {
		return false
	}
	s.refused = true
	f.server.p.refused.Inc()
	return true
}

// accept ends the count of a stream that the server has refused to read.
func (f *Follower) accept(s *followed) {
	if s.refused {
		s.refused = false
		f.server.p.refused.Dec()
	}
}

// refusedKey reports whether err is an answer of a server that works, so that only this key is
// affected: it has another type, for example.
func refusedKey(err error) bool {
	if !poll.IsReply(err) {
		return false
	}
	for _, passing := range []string{"LOADING", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN", "MOVED", "ASK", "BUSY", "READONLY", "NOAUTH", "max number of clients"} {
		if goredis.HasErrorPrefix(err, passing) {
			return false
		}
	}
	return true
}

func (f *Follower) log() *slog.Logger {
	if f.opts.Log != nil {
		return f.opts.Log
	}
	return f.server.log()
}

// followReply returns the reply of follow.lua.
func followReply(c *Call) (at string, missed bool, entries []FollowedEntry, err error) {
	list, err := c.List()
	if err != nil {
		return "", false, nil, err
	}
	if len(list) == 3 {
		at, _ = list[0].(string)
	}
	if at == "" {
		return "", false, nil, c.unexpected("that of follow.lua")
	}
	rows, _ := list[2].([]any)
	for _, row := range rows {
		pair, _ := row.([]any)
		if len(pair) != 2 {
			return "", false, nil, c.unexpected("that of follow.lua")
		}
		e := FollowedEntry{Fields: map[string]string{}}
		e.ID, _ = text(pair[0])
		flat, _ := pair[1].([]any)
		for i := 0; i+1 < len(flat); i += 2 {
			name, _ := text(flat[i])
			e.Fields[name], _ = text(flat[i+1])
		}
		entries = append(entries, e)
	}
	return at, list[1] == int64(1), entries, nil
}
