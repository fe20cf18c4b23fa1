package deadletter

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/deadletter/letters"
	"github.com/millrace-io/millrace/plugins/sqldb"
)

const (
	// countInterval is how often waiting letters are counted, countTimeout how long that may take.
	countInterval = 15 * time.Second
	countTimeout  = 10 * time.Second
	// maxClasses bounds the classes of the metric; the rest is counted as otherClass.
	maxClasses = 20
	otherClass = "other"
	// noClass stands for no letters: to Prometheus an empty label is none.
	noClass = "none"
)

// keep puts letters into the working copy, if there is one.
func (p *Plugin) keep(ctx context.Context, batch []letters.Letter) error {
	if p.config.Store.DSN.IsZero() {
		return nil
	}
	s := p.letters.Load()
	if s == nil {
		return errors.New("the working copy of dead letters is not open")
	}
	return s.Put(ctx, batch...)
}

// fromMessage reads the letter back from the form in which it travels.
func fromMessage(topic string, m *message.Message) letters.Letter {
	meta := m.Metadata
	d := pipeline.DeadLetter{
		Payload: m.Payload, Metadata: maps.Clone(map[string]string(meta)), Key: meta.Get(pipeline.MetaKey), Class: meta.Get(pipeline.MetaDeadClass),
		Error: meta.Get(pipeline.MetaDeadError), Handler: meta.Get(pipeline.MetaDeadHandler), Origin: meta.Get(pipeline.MetaDeadOrigin),
	}
	d.Attempts, _ = strconv.Atoi(meta.Get(pipeline.MetaDeadAttempts))
	d.FailedAt, _ = time.Parse(time.RFC3339Nano, meta.Get(pipeline.MetaDeadFailedAt))
	d.FirstFailedAt, _ = time.Parse(time.RFC3339Nano, meta.Get(pipeline.MetaDeadFirstFailedAt))
	maps.DeleteFunc(d.Metadata, func(name, _ string) bool { return name == pipeline.MetaKey || strings.HasPrefix(name, deadHeaders) })
	return letters.From("", letters.PluginOf(d.Handler), topic, meta.Get(pipeline.MetaDeadUUID), d)
}

// deadHeaders is how the names of the headers begin that say why a letter is dead.
const deadHeaders = "millrace-dead-"

// store is the life of the working copy. Without a DSN it does nothing.
type store struct {
	plugin  *Plugin
	schemas pipeline.SchemaPolicy
	count   bool // the letters that wait

	open *letters.Store
	end  context.CancelFunc
	done sync.WaitGroup
}

// Start opens the working copy, waiting for its database, once the tables are as the process needs them.
func (s *store) Start(ctx context.Context) error {
	p := s.plugin
	if p.config.Store.DSN.IsZero() {
		return nil
	}
	var err error
	if s.open, err = p.openStore(ctx, s.schemas); err != nil {
		return err
	}
	p.letters.Store(s.open)
	ctx, s.end = context.WithCancel(context.WithoutCancel(ctx))
	if s.count {
		s.done.Go(func() { p.countLetters(ctx, s.open) })
	}
	return nil
}

// Stop closes the database.
func (s *store) Stop(context.Context) error {
	if s.end == nil {
		return nil
	}
	s.end()
	s.done.Wait()
	s.end = nil
	s.plugin.letters.Store(nil)
	return s.open.Close()
}

// openStore opens the working copy, waiting for its database, once its tables are as the policy says. The caller closes it.
func (p *Plugin) openStore(ctx context.Context, schemas pipeline.SchemaPolicy) (*letters.Store, error) {
	if err := schemas.Prepare(ctx, p.schema(p.log), p.log); err != nil {
		return nil, err
	}
	return sqldb.Await(ctx, p.log, "dead letters", storeSetting, func() (*letters.Store, error) {
		return letters.Connect(ctx, p.config.Store.DSN, p.log)
	})
}

// storeSetting is the path of the setting that says where the working copy is.
const storeSetting = "plugins.deadletter.store.dsn"

func (p *Plugin) schema(log *slog.Logger) pipeline.Schema {
	return letters.Schema(p.config.Store.DSN, storeSetting, log)
}

// Schemas implements pipeline.Migratable.
func (p *Plugin) Schemas(env pipeline.Env) []pipeline.Schema {
	if p.config.Store.DSN.IsZero() {
		return nil
	}
	return []pipeline.Schema{p.schema(env.Logger)}
}

// countLetters keeps the metric of waiting letters up to date.
func (p *Plugin) countLetters(ctx context.Context, s *letters.Store) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for failing := false; ; {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		ask, cancel := context.WithTimeout(ctx, countTimeout)
		tallies, err := s.Tallies(ask)
		cancel()
		if err == nil {
			p.showTallies(tallies)
		} else if ctx.Err() == nil && !failing {
			p.log.WarnContext(ctx, "waiting dead letters can't be counted", slog.String(pipeline.LogComponent, "store"), pipeline.Err(err))
		}
		failing = err != nil
		timer.Reset(countInterval)
	}
}

// showTallies sets the metric. Tallies come with the largest first.
func (p *Plugin) showTallies(tallies []letters.Tally) {
	type labels struct{ class, state string }
	sums, classes := map[labels]float64{}, map[string]bool{}
	for _, t := range tallies {
		if !classes[t.Class] && len(classes) == maxClasses {
			t.Class = otherClass
		} else {
			classes[t.Class] = true
		}
		sums[labels{t.Class, string(t.State)}] += float64(t.Letters)
	}
	p.metrics.waiting.Reset()
	for _, state := range letters.Waiting() {
		p.metrics.waiting.WithLabelValues(noClass, string(state)) // so that none waiting is told from nobody counting
	}
	for l, n := range sums {
		p.metrics.waiting.WithLabelValues(l.class, l.state).Set(n)
	}
}

var (
	_ pipeline.Service    = (*store)(nil)
	_ pipeline.Migratable = (*Plugin)(nil)
)
