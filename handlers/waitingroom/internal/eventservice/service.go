package eventservice

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/singleflight"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/loop"
)

const (
	capacityInterval = time.Second            // between two searches for rooms without a capacity
	maxFetches       = maxCalls / 2           // at the same time: newcomers have the other calls
	waitStep         = 100 * time.Millisecond // for a room that another instance creates
	warnEvery        = 10 * time.Second
)

// Options are the parts of a Service.
type Options struct {
	Config
	Rooms *room.Store
	// Confirm creates rooms for events that the Event Service has. Without it, or without a URL, no
	// event is confirmed.
	Confirm bool
	// Fetch fetches missing capacities in the background. One instance is enough for that.
	Fetch bool
	Log   *slog.Logger
	// Tracer makes the spans of the calls. Nil: none.
	Tracer trace.TracerProvider
}

// Service creates the rooms of events that the Event Service confirms, and fetches missing
// capacities. It is a pipeline.Service.
type Service struct {
	Options
	client  *client
	sampled *logs.Throttle
	flight  singleflight.Group
	loops   loop.Group

	known    []string // events of the last list
	reading  sync.Map // nodes whose tables are being read
	reads    sync.WaitGroup
	fetching sync.Map // events whose capacity is being fetched
	fetches  errgroup.Group
}

// New returns the service. It reads the files of its settings.
func New(o Options) (*Service, error) {
	client, err := newClient(o.Config, o.Log)
	if err != nil {
		return nil, err
	}
	if o.Tracer != nil {
		client.tracer = o.Tracer.Tracer("github.com/millrace-io/millrace/handlers/waitingroom/internal/eventservice")
	}
	s := &Service{Options: o, client: client, sampled: logs.NewThrottle(warnEvery)}
	s.fetches.SetLimit(maxFetches)
	return s, nil
}

// Collectors returns the metrics.
func (s *Service) Collectors() []prometheus.Collector { return []prometheus.Collector{s.client.calls} }

// hold is how long an instance has the right to call for an event: it may wait for other calls.
// After a failure it passes before the next call.
func (s *Service) hold() time.Duration { return 2*s.Timeout + time.Second }

// Confirm creates the room of an event that has none, if the Event Service has the event. All
// callers of all instances share one call. The error wraps ErrNoEvent, ErrUnavailable or
// room.ErrTooMany.
func (s *Service) Confirm(ctx context.Context, event string) error {
	if !s.Options.Confirm || s.URL == "" {
		return ErrNoEvent
	}
	result := s.flight.DoChan(event, func() (any, error) { return nil, s.confirm(context.WithoutCancel(ctx), event) })
	select {
	case r := <-result:
		return r.Err
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrUnavailable, ctx.Err())
	}
}

func (s *Service) confirm(ctx context.Context, event string) error {
	ctx, cancel := context.WithTimeout(ctx, s.hold())
	defer cancel()
	for {
		right, err := s.Rooms.Reserve(ctx, event, s.hold())
		switch {
		case errors.Is(err, room.ErrUnknown):
			return ErrNoEvent
		case err != nil:
			return fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		if _, err := s.Rooms.RoomStatus(ctx, event); err == nil { // another instance was first
			return nil
		}
		if err := s.Rooms.Full(ctx); errors.Is(err, room.ErrTooMany) {
			s.sampled.Warn(s.Log, "event refused, there are max_events rooms: open it (millrace room open) or raise max_events", slog.String("event", event))
			return err
		}
		if right {
			return s.create(ctx, event)
		}
		if !loop.Sleep(ctx, waitStep) {
			return fmt.Errorf("%w: no answer in %s", ErrUnavailable, s.hold())
		}
	}
}

func (s *Service) create(ctx context.Context, event string) error {
	seats, err := s.client.seats(ctx, event)
	if errors.Is(err, ErrNoEvent) {
		return errors.Join(err, s.Rooms.Deny(ctx, event, s.Cache))
	}
	if err != nil {
		s.sampled.Warn(s.Log, "event not confirmed", slog.String("event", event), logs.Err(err))
		return err
	}
	if err := s.Rooms.Create(ctx, event); errors.Is(err, room.ErrTooMany) {
		return err
	} else if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return s.store(ctx, event, seats)
}

// store sets the capacity of a room, unless it has one.
func (s *Service) store(ctx context.Context, event string, seats int64) error {
	if seats == unknownSeats {
		s.sampled.Warn(s.Log, "event service has no valid number of seats: users wait", slog.String("event", event))
		return nil
	}
	if err := s.Rooms.SetCapacity(ctx, event, seats); err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return nil
}

// Start starts the loop.
func (s *Service) Start(ctx context.Context) error {
	if !s.Fetch || s.URL == "" {
		return s.loops.Start(ctx)
	}
	return s.loops.Start(ctx, func(ctx context.Context) {
		defer func() {
			s.reads.Wait()
			_ = s.fetches.Wait() // each fetch logs its error
		}()
		loop.Every(ctx, capacityInterval, s.fetch)
	})
}

// Stop ends the loop and closes idle connections.
func (s *Service) Stop(ctx context.Context) error {
	err := s.loops.Stop(ctx)
	s.client.http.CloseIdleConnections()
	return err
}

// fetch begins to fetch the capacity of each room without one. A node of a Cluster that does not
// answer delays no room of another. The set of events is on one node: without it the last known
// events are used.
func (s *Service) fetch(ctx context.Context) {
	call, cancel := context.WithTimeout(ctx, capacityInterval)
	events, err := s.Rooms.Events(call)
	cancel()
	s.warn(ctx, err)
	if err == nil {
		s.known = events
	}
	for node, events := range s.Rooms.ByNode(ctx, s.known) {
		if _, waits := s.reading.LoadOrStore(node, true); !waits {
			s.reads.Go(func() {
				defer s.reading.Delete(node)
				s.fetchMissing(ctx, events)
			})
		}
	}
}

// fetchMissing begins to fetch the missing capacities of rooms of one node. A slow event delays no
// other.
func (s *Service) fetchMissing(ctx context.Context, events []string) {
	tables, err := s.Rooms.Tables(ctx, events)
	s.warn(ctx, err)
	for i, t := range tables {
		if t == nil || t.Capacity >= 0 {
			continue
		}
		if _, busy := s.fetching.LoadOrStore(events[i], true); !busy {
			s.fetches.Go(func() error {
				defer s.fetching.Delete(events[i])
				s.warn(ctx, s.fetchOne(ctx, events[i]))
				return nil
			})
		}
	}
}

func (s *Service) warn(ctx context.Context, err error) {
	if err != nil && ctx.Err() == nil {
		s.sampled.Warn(s.Log, "capacities not fetched", logs.Err(err))
	}
}

func (s *Service) fetchOne(ctx context.Context, event string) error {
	right, err := s.Rooms.Reserve(ctx, event, s.hold())
	if err != nil || !right {
		return err
	}
	seats, err := s.client.seats(ctx, event)
	if err != nil { // also ErrNoEvent: an operator has configured the event
		return fmt.Errorf("event %s: %w", event, err)
	}
	return s.store(ctx, event, seats)
}

var _ pipeline.Service = (*Service)(nil)
