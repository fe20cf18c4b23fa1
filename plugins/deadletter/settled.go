package deadletter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline/migration"
)

const (
	// openTimeout bounds opening a store that is not open in this process.
	openTimeout = 10 * time.Second
	// maxAbout bounds the dead letters that About returns.
	maxAbout = 1000
)

// Settled discards the waiting dead letter about a subject of a plugin's ledger. Call it when the
// subject was settled in another way. It records by, whose fields are both required. It returns the
// ids of the discarded ones: none when nothing waits, or without a store. A detached dead letter of
// the subject stays, as it says nothing about the subject's state. While a replay holds the dead
// letter, Settled waits for it, for up to 25 s. The plugin need not be started. Settled is safe for
// concurrent use. The error wraps pipeline.ErrUnavailable when the database is unreachable.
func (p *Plugin) Settled(ctx context.Context, plugin, subject string, by store.By) (ids []string, err error) {
	if strings.TrimSpace(by.Who) == "" || strings.TrimSpace(by.Why) == "" {
		return nil, fmt.Errorf("dead letters about %s: person and reason are recorded, got %q and %q", subject, by.Who, by.Why)
	}
	s, closeStore, err := p.storeOf(ctx, plugin, subject)
	if s == nil || err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeStore()) }()
	list, _, err := s.List(ctx, store.Filter{Lineage: store.LineageOf(plugin, subject), States: store.Waiting()}, maxAbout)
	for _, d := range list {
		var done bool
		if done, err = p.discardSettled(ctx, s, d.ID, by); err != nil {
			break
		}
		if done {
			ids = append(ids, d.ID)
		}
	}
	return ids, err
}

// discardSettled discards a dead letter, after the replay that holds it. It reports whether it did:
// a dead letter that was replayed or discarded meanwhile stays.
func (p *Plugin) discardSettled(ctx context.Context, s *store.Store, id string, by store.By) (bool, error) {
	err := s.Discard(ctx, id, by)
	if held, ok := errors.AsType[*store.HeldError](err); ok {
		p.log.InfoContext(ctx, "waiting for the replay of a dead letter", slog.String("id", id), slog.String("held_by", held.Who))
		if err := s.AwaitRelease(ctx, id); err != nil {
			return false, err
		}
		err = s.Discard(ctx, id, by)
	}
	if _, ok := errors.AsType[*store.StateError](err); ok || errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// About returns the dead letters about a subject of a plugin's ledger in all states, newest first.
// They have no payloads and are at most 1000; none without a store. The plugin need not be started.
// About is safe for concurrent use. The error wraps pipeline.ErrUnavailable when the database is
// unreachable.
func (p *Plugin) About(ctx context.Context, plugin, subject string) (list []store.DeadLetter, err error) {
	s, closeStore, err := p.storeOf(ctx, plugin, subject)
	if s == nil || err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeStore()) }()
	list, _, err = s.List(ctx, store.Filter{Plugin: plugin, Subject: subject}, maxAbout)
	return list, err
}

// Waiting returns the dead letters of a plugin's ledger that wait for a person, newest first and at most limit of them, and
// their number: those about a subject, and about the subjects that begin with it and a colon. It is false without a store. The plugin need not be started. Waiting is safe
// for concurrent use. The error wraps pipeline.ErrUnavailable when the database is unreachable.
func (p *Plugin) Waiting(ctx context.Context, plugin, subject string, limit int) (list []store.DeadLetter, n int64, stored bool, err error) {
	s, closeStore, err := p.storeOf(ctx, plugin, subject)
	if s == nil || err != nil {
		return nil, 0, false, err
	}
	defer func() { err = errors.Join(err, closeStore()) }()
	list, n, err = s.List(ctx, store.Filter{Plugin: plugin, Under: subject, States: store.Waiting()}, limit)
	return list, n, true, err
}

// storeOf returns the store, if one is configured, and what closes it: that of this process, which
// stays open, or one that it opens.
func (p *Plugin) storeOf(ctx context.Context, plugin, subject string) (s *store.Store, closeStore func() error, err error) {
	if plugin == "" || subject == "" {
		return nil, nil, fmt.Errorf("dead letters about %q of plugin %q: both must be named", subject, plugin)
	}
	if p.config.Store.DSN.IsZero() {
		return nil, nil, nil
	}
	if s := p.store.Load(); s != nil {
		return s, func() error { return nil }, nil
	}
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	if s, err = p.openStore(ctx, migration.MatchSchemas); err != nil {
		return nil, nil, err
	}
	return s, s.Close, nil
}
