package redis

import (
	"context"
	"errors"
	"fmt"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/loop"
	"github.com/millrace-io/millrace/plugins/redis/entry"
)

const (
	tailPage  = 100                    // entries per read
	tailPause = 250 * time.Millisecond // between two reads of a stream without new entries
)

// Tail implements app.Tailer. It reads a stream without a group and without the service, and never
// blocks. It does not create the stream.
func (p *Plugin) Tail(stream string, oldest bool) pipeline.Source {
	return p.TailAt(p.cfg.ClientConfig, stream, oldest)
}

// TailAt is Tail for a stream of another server.
func (p *Plugin) TailAt(at ClientConfig, stream string, oldest bool) pipeline.Source {
	return tail{p: p, at: at, stream: stream, oldest: oldest}
}

type tail struct {
	p      *Plugin
	at     ClientConfig
	stream string
	oldest bool
	ends   bool // after the last entry that is there at Open
}

// ToEnd implements app.Ender.
func (t tail) ToEnd() pipeline.Source {
	t.ends = true
	return t
}

func (t tail) Describe() pipeline.Endpoint {
	return pipeline.Endpoint{Kind: poll.Kind, Name: t.stream}
}

// Open connects, and fails when the stream does not exist.
func (t tail) Open(ctx context.Context, _ pipeline.Flow) (pipeline.Subscription, error) {
	c, err := NewClient(t.at, t.p.env.Logger)
	if err != nil {
		return nil, err
	}
	next, err := t.begin(ctx, c)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	s := &tailing{tail: t, c: c}
	if t.ends {
		last, err := c.XRevRangeN(ctx, t.stream, "+", "-", 1).Result()
		if err != nil {
			return nil, errors.Join(fmt.Errorf("redis: tail %s: %w", t.stream, err), c.Close())
		}
		s.last = "-" // an empty stream has ended
		if len(last) > 0 {
			s.last = last[0].ID
		}
	}
	s.Life = pipeline.NewLife(t.p.cfg.CloseTimeout, func(ctx context.Context) error {
		return errors.Join(s.run(ctx, next), c.Close())
	})
	return s, nil
}

// begin returns the id to begin at. It is empty when no entry can follow.
func (t tail) begin(ctx context.Context, c goredis.UniversalClient) (string, error) {
	if err := waitFor(ctx, c, t.at.address(), t.p.env.Logger); err != nil {
		return "", err
	}
	kind, err := c.Type(ctx, t.stream).Result()
	switch {
	case err != nil:
		return "", fmt.Errorf("redis: tail %s: %w", t.stream, err)
	case kind != "stream":
		return "", fmt.Errorf("redis: %s is no stream (TYPE: %s)", t.stream, kind)
	case t.oldest:
		return "-", nil
	}
	last, err := c.XRevRangeN(ctx, t.stream, "+", "-", 1).Result()
	if err != nil || len(last) == 0 {
		return "-", err
	}
	next, _ := entry.NextID(last[0].ID)
	return next, nil
}

type tailing struct {
	*pipeline.Life
	tail
	c    goredis.UniversalClient
	last string // the id to end after; "-": at once, "": never
}

func (s *tailing) run(ctx context.Context, next string) error {
	decode := entry.Decode
	if d, ok := domainOf(s.p.cfg.Domains, s.stream); ok && d.Fields {
		decode = entry.DecodeFields
	}
	to := "+"
	if s.last != "" {
		to = s.last
	}
	for s.Reading.Err() == nil && next != "" { // no entry follows the largest id of all
		page, err := s.c.XRangeN(s.Reading, s.stream, next, to, tailPage).Result()
		if err != nil && s.Reading.Err() == nil {
			s.Fail(fmt.Errorf("redis: tail %s: %w", s.stream, err))
			return nil
		}
		for _, m := range page {
			msg, _ := decode(m) // a malformed entry has its fields in the metadata
			msg.SetContext(pipeline.WithDelivery(ctx, pipeline.Delivery{Origin: pipeline.Origin{
				Kind: poll.Kind, Source: s.stream, Position: entry.Position(s.stream, m.ID), Key: msg.Metadata[pipeline.MetaKey],
			}}))
			select {
			case s.Out <- msg:
			case <-s.Reading.Done():
				return nil
			}
			next, _ = entry.NextID(m.ID)
		}
		switch {
		case len(page) > 0:
		case s.last != "":
			return nil // entries up to the last one may have been trimmed meanwhile
		default:
			loop.Sleep(s.Reading, tailPause)
		}
	}
	if s.last == "" {
		<-s.Reading.Done()
	}
	return nil
}

var (
	_ app.Tailer = (*Plugin)(nil)
	_ app.Ender  = tail{}
)
