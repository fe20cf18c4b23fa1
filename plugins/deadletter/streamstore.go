package deadletter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/migration"
	"github.com/millrace-io/millrace/pipeline/setting"
)

// copyBatch is the number of dead letters that are copied with one transaction.
const copyBatch = 500

// position is an entry of a dead-letter stream.
type position struct{ stream, entry string }

// streamStore is the store of a use when none is configured: a temporary copy of the dead-letter
// streams. At the end it deletes the entries whose dead letters were replayed or discarded. After a
// crash before that, they wait again.
type streamStore struct {
	plugin    *Plugin
	streams   []string
	positions map[string][]position // by id: a dead letter may be in a stream twice, and so may its message that failed again

	dir    string
	open   *store.Store
	copied bool
}

// shared is the streamStore of a process that runs one command: it is the store of the process.
type shared struct{ *streamStore }

func (s shared) Start(ctx context.Context) error {
	err := s.streamStore.Start(ctx)
	if err == nil {
		s.plugin.copyRead.Store(false)
		s.plugin.store.Store(s.open)
	}
	return err
}

func (s shared) Stop(ctx context.Context) error {
	s.plugin.store.Store(nil)
	return s.streamStore.Stop(ctx)
}

// newStreamStore returns the store of a use. The error says that there is nothing that it could copy.
func (p *Plugin) newStreamStore() (*streamStore, error) {
	streams := p.streamNames()
	switch {
	case len(streams) == 0:
		return nil, app.Usage("dead letters are not stored: %s is not set", storeSetting)
	case p.config.drivers == nil: // Validate has refused a DSN
		return nil, app.Usage("the dead letters of the stream %s need a store to be listed or replayed: %s", streams[0], noDrivers)
	}
	return &streamStore{plugin: p, streams: streams, positions: map[string][]position{}}, nil
}

// streamNames returns the dead-letter streams of the registered routes.
func (p *Plugin) streamNames() []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(p.sinks)) {
		if p.sinks[name] {
			names = append(names, name)
		}
	}
	return names
}

// Start copies the streams.
func (s *streamStore) Start(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Stop(ctx))
		}
	}()
	if s.dir, err = os.MkdirTemp("", "millrace-deadletter-"); err != nil {
		return err
	}
	dsn := setting.NewSecret("sqlite:" + filepath.Join(s.dir, "deadletters.db"))
	if err := migration.MigrateSchemas.Prepare(ctx, store.Schema(s.plugin.config.drivers, dsn, storeSetting, s.plugin.log), s.plugin.log); err != nil {
		return err
	}
	if s.open, err = store.Connect(ctx, s.plugin.config.drivers, dsn, s.plugin.log); err != nil {
		return err
	}
	for _, stream := range s.streams {
		if err := s.copy(ctx, stream); err != nil {
			return err
		}
	}
	s.copied = true
	return nil
}

func (s *streamStore) copy(ctx context.Context, stream string) error {
	var batch []store.DeadLetter
	put := func() error {
		defer func() { batch = batch[:0] }()
		return s.open.Put(ctx, batch...)
	}
	err := s.plugin.streams.Each(ctx, stream, func(entry string, m *message.Message) error {
		d := fromMessage(stream, m)
		before, _, _ := strings.Cut(d.Headers[pipeline.MetaReplay], "/")
		again := s.positions[before] != nil
		s.positions[d.ID] = append(s.positions[d.ID], position{stream, entry})
		if again { // a batch has no order, and the store must have the dead letter of the replay first
			if err := put(); err != nil {
				return err
			}
		}
		if batch = append(batch, d); !again && len(batch) < copyBatch {
			return nil
		}
		if err := put(); err != nil || !again {
			return err
		}
		return s.joinRows(ctx, d.ID, before)
	})
	if err == nil {
		err = put()
	}
	if err != nil {
		return fmt.Errorf("read the dead letters of %s: %w", stream, err)
	}
	return nil
}

// joinRows gives the entries of a message that failed again to the dead letter of its replay, which a crash has left in the
// stream, if the store has made one dead letter of both.
func (s *streamStore) joinRows(ctx context.Context, id, before string) error {
	switch _, _, err := s.open.Get(ctx, id); {
	case errors.Is(err, store.ErrNotFound):
		s.positions[before] = append(s.positions[before], s.positions[id]...)
		delete(s.positions, id)
		return nil
	default:
		return err
	}
}

// Stop deletes the entries of dead letters that no longer wait, and the copy.
func (s *streamStore) Stop(ctx context.Context) error {
	var err error
	if s.copied {
		err = s.deleteDone(ctx)
	}
	if s.open != nil {
		err = errors.Join(err, s.open.Close())
	}
	if s.dir != "" {
		err = errors.Join(err, os.RemoveAll(s.dir))
	}
	return err
}

func (s *streamStore) deleteDone(ctx context.Context) error {
	entries := map[string][]string{}
	for id, err := range s.open.Walk(ctx, store.Filter{States: []store.State{store.Replayed, store.Discarded}}) {
		if err != nil {
			return err
		}
		for _, at := range s.positions[id] {
			entries[at.stream] = append(entries[at.stream], at.entry)
		}
	}
	for stream, ids := range entries {
		if err := s.plugin.streams.Delete(ctx, stream, ids...); err != nil {
			return fmt.Errorf("delete dead letters that are done from %s: %w", stream, err)
		}
	}
	return nil
}
