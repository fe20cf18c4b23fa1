package redis

import (
	"context"
	_ "embed" // the script
	"errors"
	"fmt"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis/entry"
)

//go:embed lua/capped.lua
var cappedSource string

// CappedSink publishes to a stream that no group reads. The oldest entries are removed when there are
// more than about atMost, or when all together have more than about atMostBytes of fields and values.
// The newest entry always stays.
func (p *Plugin) CappedSink(stream string, atMost, atMostBytes int) pipeline.Sink {
	return cappedSink{p.Server(nil), NewScript(cappedSource), stream, atMost, atMostBytes}
}

type cappedSink struct {
	server      *Server
	script      *Script
	stream      string
	atMost      int
	atMostBytes int
}

func (s cappedSink) Describe() pipeline.Endpoint {
	return pipeline.Endpoint{Kind: poll.Kind, Name: s.stream}
}

// Publish returns when all messages are in the stream. It is at least once.
func (s cappedSink) Publish(ctx context.Context, msgs ...*message.Message) error {
	calls := make([]*Call, len(msgs))
	for i, m := range msgs {
		calls[i] = s.script.Call([]string{s.stream}, entry.New(m).Values(s.atMost, s.atMostBytes)...)
	}
	if err := s.server.Do(ctx, calls...); err == nil || errors.Is(err, errNotStarted) {
		return err
	}
	errs := make([]error, len(calls))
	for i, c := range calls {
		errs[i] = c.Err()
	}
	return pipeline.PublishError(errs)
}

// Each calls each for the messages of a stream, oldest first, with the id of the entry. A stream
// that does not exist has none. The plugin need not be started.
func (p *Plugin) Each(ctx context.Context, stream string, each func(id string, m *message.Message) error) error {
	return p.withClient(ctx, func(c goredis.UniversalClient) error {
		for next := "-"; ; {
			page, err := c.XRangeN(ctx, stream, next, "+", tailPage).Result()
			if err != nil {
				return fmt.Errorf("redis: read %s: %w", stream, err)
			}
			for _, e := range page {
				m, _ := entry.Decode(e) // a malformed entry has its fields in the metadata
				if err := each(e.ID, m); err != nil {
					return err
				}
			}
			if len(page) < tailPage {
				return nil
			}
			if next, _ = entry.NextID(page[len(page)-1].ID); next == "" {
				return nil
			}
		}
	})
}

// Delete deletes entries of a stream. The plugin need not be started.
func (p *Plugin) Delete(ctx context.Context, stream string, ids ...string) error {
	return p.withClient(ctx, func(c goredis.UniversalClient) error {
		for part := range slices.Chunk(ids, tailPage) {
			if err := c.XDel(ctx, stream, part...).Err(); err != nil {
				return fmt.Errorf("redis: delete from %s: %w", stream, err)
			}
		}
		return nil
	})
}

// withClient calls do with a client of its own.
func (p *Plugin) withClient(ctx context.Context, do func(goredis.UniversalClient) error) error {
	c, err := NewClient(p.cfg.ClientConfig, p.env.Logger)
	if err != nil {
		return err
	}
	err = waitFor(ctx, c, p.cfg.address(), p.env.Logger)
	if err == nil {
		err = do(c)
	}
	return errors.Join(err, c.Close())
}
