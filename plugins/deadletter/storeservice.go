package deadletter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/loop"
	"github.com/millrace-io/millrace/pipeline/migration"
)

// storeSetting is the path of the setting with the store's DSN.
const storeSetting = "plugins.deadletter.store.dsn"

// noDrivers says what a binary lacks.
const noDrivers = "this binary has no drivers for it: its main calls StoreIn(sqldb.Databases{}) on the plugin deadletter to have them"

// storeService opens and closes the store. Without a DSN it does nothing.
type storeService struct {
	plugin   *Plugin
	schemas  migration.Policy
	count    bool               // export the metric of waiting dead letters
	registry *pipeline.Registry // of the process; nil in a command

	open  *store.Store
	hide  func() // the open store from the metrics; nil: it is not shown
	loops loop.Group
}

// registerStore registers the service of a command.
func (p *Plugin) registerStore(r *pipeline.Registry) error {
	p.log = r.Env().Logger
	if p.config.Store.DSN.IsZero() {
		streams, err := p.newStreamStore()
		if err == nil {
			p.copyWithin = r.Env().StartTimeout
			r.Service("deadletter.command", shared{streams})
		}
		return err
	}
	r.Service("deadletter.command", &storeService{plugin: p, schemas: r.Env().Schemas})
	return nil
}

// openForUse returns the store of the process, which stays open, or a copy of the dead-letter streams,
// which end deletes. There is one copy at a time, so that two uses in a process replay a dead letter once. A command
// has made a copy at its start, and one that reads again (--watch) makes another one.
func (p *Plugin) openForUse(ctx context.Context) (s *store.Store, end func(context.Context) error, err error) {
	s = p.store.Load()
	if s != nil && (!p.config.Store.DSN.IsZero() || p.copyRead.CompareAndSwap(false, true)) {
		return s, func(context.Context) error { return nil }, nil
	}
	if !p.config.Store.DSN.IsZero() {
		return nil, nil, fmt.Errorf("%w: the store of dead letters is not open in this process", pipeline.ErrUnavailable)
	}
	streams, err := p.newStreamStore()
	if err != nil {
		return nil, nil, err
	}
	select {
	case p.copying <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	if s != nil {
		bounded, cancel := context.WithTimeout(ctx, p.copyWithin)
		defer cancel()
		ctx = bounded
	}
	if err := streams.Start(ctx); err != nil {
		<-p.copying
		return nil, nil, err
	}
	return streams.open, func(ctx context.Context) error {
		defer func() { <-p.copying }()
		return streams.Stop(context.WithoutCancel(ctx))
	}, nil
}

// Start waits for the database, and opens the store when the schema policy accepts its tables.
func (s *storeService) Start(ctx context.Context) error {
	p := s.plugin
	if err := s.checkTopics(); err != nil {
		return err
	}
	p.serving.Store(s.count)
	if p.config.Store.DSN.IsZero() {
		return nil
	}
	var err error
	if s.open, err = p.openStore(ctx, s.schemas); err != nil {
		return err
	}
	p.store.Store(s.open)
	if !s.count {
		return nil
	}
	s.hide = s.open.Show(p.metrics.database)
	return s.loops.Start(ctx, func(ctx context.Context) { p.countStored(ctx, s.open) })
}

// checkTopics returns an error when routes have dead-letter topics and the plugin of the topics is not
// registered. A plugin need not have a service, such as a transport whose topics are folders.
func (s *storeService) checkTopics() error {
	topics, ok := s.plugin.topics.(pipeline.Plugin)
	if !ok || s.registry == nil || s.registry.Has(topics.Name()) {
		return nil
	}
	disabled := slices.Contains(s.registry.Env().Disabled, topics.Name())
	for _, name := range slices.Sorted(maps.Keys(s.plugin.sinks)) {
		switch {
		case s.plugin.sinks[name]: // a stream
		case !disabled:
			return app.Usage("the dead-letter topic %s needs plugin %s, which this binary does not have: add it to app.Options.Plugins", name, topics.Name())
		default:
			return app.Usage("the dead-letter topic %s needs plugin %s: set plugins.%s.enabled: true, or disable the plugin of the route", name, topics.Name(), topics.Name())
		}
	}
	return nil
}

func (s *storeService) Stop(ctx context.Context) error {
	err := s.loops.Stop(ctx)
	s.plugin.serving.Store(false)
	s.plugin.store.Store(nil)
	if s.open == nil {
		return err
	}
	if s.hide != nil {
		s.hide()
	}
	return errors.Join(err, s.open.Close())
}

// openStore waits for the database, and opens the store when the policy accepts its tables. The
// caller closes it.
func (p *Plugin) openStore(ctx context.Context, schemas migration.Policy) (s *store.Store, err error) {
	if p.config.drivers == nil { // Validate was not asked
		return nil, fmt.Errorf("%s: %s", storeSetting, noDrivers)
	}
	if err := schemas.Prepare(ctx, p.schema(p.log), p.log); err != nil {
		return nil, err
	}
	err = p.config.drivers.Await(ctx, p.log, "dead letters", storeSetting, func() (err error) {
		s, err = store.Connect(ctx, p.config.drivers, p.config.Store.DSN, p.log)
		return err
	})
	return s, err
}

func (p *Plugin) schema(log *slog.Logger) migration.Schema {
	return store.Schema(p.config.drivers, p.config.Store.DSN, storeSetting, log)
}
