package redisstream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/entry"
)

// Source reads the stream topic with watermill-redisstream's own subscriber, one message at a time.
// Without a group, each subscription receives all messages from now on (the library's fan-out). It
// sends blocking commands, on its own client. The Source of plugins/redis reads the same entries
// without blocking.
func (p *Plugin) Source(topic, group string) pipeline.Source {
	return source{p, pipeline.Endpoint{Kind: Kind, Name: topic, Group: group}}
}

type source struct {
	p  *Plugin
	at pipeline.Endpoint
}

// Describe returns the stream and the group.
func (s source) Describe() pipeline.Endpoint { return s.at }

// Open opens a client with the settings of the plugin "redis". One message at a time is within each
// window and order.
func (s source) Open(_ context.Context, f pipeline.Flow) (pipeline.Subscription, error) {
	settings, ok := s.p.redis.Settings().(*redis.Config)
	if !ok {
		return nil, fmt.Errorf("open %s: the settings of the plugin redis are of another type", s.at)
	}
	c, err := redis.NewClient(settings.ClientConfig)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", s.at, err)
	}
	instance := s.p.env.Instance
	if instance == "" {
		instance = watermill.NewULID()
	}
	watch := &watch{}
	c.AddHook(watch)
	sub := &subscription{
		at: s.at, cfg: s.p.cfg, shared: s.p.redis.Client, watch: watch, consumer: fmt.Sprintf("%s-bridge-%d", instance, s.p.opens.Add(1)-1),
		gate: f.Gate, log: s.p.env.Logger,
	}
	sub.Life = pipeline.NewLife(s.p.cfg.CloseTimeout, sub.run)
	sub.inner, err = redisstream.NewSubscriber(redisstream.SubscriberConfig{
		Client:                        c,
		Unmarshaller:                  tolerant{},
		Consumer:                      sub.consumer,
		ConsumerGroup:                 s.at.Group,
		NackResendSleep:               redisstream.NoSleep, // run waits instead
		BlockTime:                     s.p.cfg.BlockTime,
		ClaimInterval:                 s.p.cfg.ClaimInterval,
		MaxIdleTime:                   s.p.cfg.MaxIdle,
		DisableIndefiniteInitialBlock: true,
	}, s.p.logger())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", s.at, err), c.Close())
	}
	// The library reads until this context ends, so it is not the context of Open.
	sub.in, err = sub.inner.Subscribe(context.Background(), s.at.Name)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", s.at, err), sub.inner.Close())
	}
	if s.at.Group != "" {
		sub.stopTrimming = s.p.redis.TrimFor(s.at.Name, s.at.Group)
		sub.unmark = s.p.redis.MarkSubscription(s.at.Name, s.at.Group, sub.consumer)
	}
	return sub, nil
}

// entryID is the field in which watch stores the id of an entry, for tolerant.
const entryID = "_millrace_entry_id"

// tolerant decodes all entries. It never fails, because that ends the library's subscription.
type tolerant struct{}

// Unmarshal implements redisstream.Unmarshaller.
func (tolerant) Unmarshal(values map[string]any) (*message.Message, error) {
	id, _ := values[entryID].(string)
	delete(values, entryID)
	msg, _ := entry.Decode(goredis.XMessage{ID: id, Values: values}) // marked when it is malformed
	msg.Metadata.Set(entryID, id)
	return msg, nil
}

// watch is a hook of the source's client. It stores the id of each entry that is read, and reports
// the replies to XACK, because the library does neither. It can stop the reading, because the
// library's Close does not wait for it.
type watch struct {
	mu      sync.Mutex
	id      string        // whose acknowledgement is awaited
	acked   chan struct{} // closed when it was answered
	stopped bool          // reads are refused
	reading sync.WaitGroup
}

var errReadsStopped = errors.New("the subscription is closing")

// stopReads refuses further reads and waits for those in progress.
func (w *watch) stopReads() {
	w.mu.Lock()
	w.stopped = true
	w.mu.Unlock()
	w.reading.Wait()
}

// beginRead returns false when reads are stopped.
func (w *watch) beginRead() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.stopped {
		w.reading.Add(1)
	}
	return !w.stopped
}

// expect returns a channel that is closed when the XACK of id was answered. One id at a time.
func (w *watch) expect(id string) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.id, w.acked = id, make(chan struct{})
	return w.acked
}

func (w *watch) answered(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.acked != nil && w.id == id {
		close(w.acked)
		w.acked = nil
	}
}

// DialHook does nothing of its own.
func (w *watch) DialHook(next goredis.DialHook) goredis.DialHook { return next }

// ProcessPipelineHook does nothing of its own.
func (w *watch) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return next
}

// ProcessHook looks at replies.
func (w *watch) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		switch cmd.Name() {
		case "xreadgroup", "xread", "xclaim":
			if !w.beginRead() {
				cmd.SetErr(errReadsStopped)
				return errReadsStopped
			}
			defer w.reading.Done()
		}
		err := next(ctx, cmd)
		if err != nil {
			return err
		}
		switch cmd := cmd.(type) {
		case *goredis.XStreamSliceCmd:
			for _, s := range cmd.Val() {
				noteIDs(s.Messages)
			}
		case *goredis.XMessageSliceCmd:
			noteIDs(cmd.Val())
		case *goredis.IntCmd:
			if args := cmd.Args(); cmd.Name() == "xack" && len(args) > 3 {
				w.answered(fmt.Sprint(args[3]))
			}
		}
		return nil
	}
}

func noteIDs(entries []goredis.XMessage) {
	for i := range entries {
		if entries[i].Values == nil {
			entries[i].Values = map[string]any{}
		}
		entries[i].Values[entryID] = entries[i].ID
	}
}

// commandTimeout bounds renewing and releasing.
const commandTimeout = 10 * time.Second
