package deadletter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/deadletter/letters"
)

const (
	// openTimeout bounds opening a working copy that is not open in this process.
	openTimeout = 10 * time.Second
	// maxAbout bounds the letters that About returns.
	maxAbout = 1000
)

// Settled discards the letter that waits for a person about a subject of a plugin's ledger, because it was dealt with
// otherwise, and records who did that and why; both are required. It returns the ids of what it discarded: none when
// nothing waits, or when there is no working copy. A letter about a record that came second waits on: it says
// nothing about what became of the first. Settled takes the turn that replays and discards take, waiting for it up to 25 s. It may
// be called whether or not the plugin is started, and concurrently. The error wraps pipeline.ErrUnavailable when the
// database can't be reached.
func (p *Plugin) Settled(ctx context.Context, plugin, subject string, by letters.By) (ids []string, err error) {
	if strings.TrimSpace(by.Who) == "" || strings.TrimSpace(by.Why) == "" {
		return nil, fmt.Errorf("dead letters about %s: who settled it and why are recorded, got %q and %q", subject, by.Who, by.Why)
	}
	err = p.withSubject(ctx, plugin, subject, func(s *letters.Store) error {
		one := discardOne(s, by, nil) // who calls has settled it
		j := &job{
			store: s, by: by, filter: letters.Filter{Lineage: letters.LineageOf(plugin, subject), States: letters.Waiting()},
			one: func(ctx context.Context, turn *letters.Turn, id string) (Line, error) {
				line, err := one(ctx, turn, id)
				if err == nil && line.Result == resultDiscarded {
					ids = append(ids, id)
				}
				return line, err
			},
			say: func(format string, args ...any) {
				p.log.InfoContext(ctx, "waiting for the turn to work on dead letters", slog.String("reason", fmt.Sprintf(format, args...)))
			},
		}
		if n, err := s.Count(ctx, j.filter); n == 0 || err != nil {
			return err // nobody is waited for when there is nothing to do
		}
		_, err := j.run(ctx)
		return err
	})
	return ids, err
}

// About returns the letters about a subject of a plugin's ledger, whatever their state, newest first, without payloads, at most
// 1000; none when there is no working copy. It may be called whether or not the plugin is started, and concurrently. The
// error wraps pipeline.ErrUnavailable when the database can't be reached.
func (p *Plugin) About(ctx context.Context, plugin, subject string) (list []letters.Letter, err error) {
	err = p.withSubject(ctx, plugin, subject, func(s *letters.Store) error {
		list, _, err = s.List(ctx, letters.Filter{Plugin: plugin, Subject: subject}, maxAbout)
		return err
	})
	return list, err
}

// withSubject calls do with the working copy, if there is one: this process's, or one opened for it.
func (p *Plugin) withSubject(ctx context.Context, plugin, subject string, do func(*letters.Store) error) (err error) {
	if plugin == "" || subject == "" {
		return fmt.Errorf("dead letters about %q of plugin %q: both must be named", subject, plugin)
	}
	if p.config.Store.DSN.IsZero() {
		return nil
	}
	s := p.letters.Load()
	if s == nil {
		open, cancel := context.WithTimeout(ctx, openTimeout)
		defer cancel()
		if s, err = p.openStore(open, pipeline.MatchSchemas); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.Close()) }()
	}
	return do(s)
}
