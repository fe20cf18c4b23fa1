// Package oncetest tests kinds of effects with a real ledger in a SQLite file, real workers, and a far side
// in memory. It needs no server:
//
//	w := oncetest.New(t)
//	p := invoice.New(w.Once)
//	w.Start(p)
//	got, err := p.Invoices.Enqueue(t.Context(), one, one) // Fresh, Known
//	require.Equal(t, rules.Success, oncetest.Settled(t, p.Invoices, key).State)
package oncetest

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// World is the plugin once with a ledger of its own, and topics in memory.
type World struct {
	Once   *once.Plugin
	Topics *pipelinetest.Topics

	t testing.TB
}

// New returns a World whose ledger is a SQLite file in a folder of the test.
func New(t testing.TB) *World {
	t.Helper()
	return On(t, "sqlite:"+filepath.Join(t.TempDir(), "once.db"))
}

// On is New with the ledger in the database of dsn.
func On(t testing.TB, dsn string) *World {
	t.Helper()
	topics := &pipelinetest.Topics{}
	w := &World{Once: once.NewPlugin(topics, topics), Topics: topics, t: t}
	config := w.Once.Settings().(*once.Config)
	config.Ledger.DSN = setting.NewSecret(dsn)
	require.NoError(t, config.Validate())
	return w
}

// Start runs the plugins that have kinds, until the test ends.
func (w *World) Start(plugins ...pipeline.Plugin) {
	w.t.Helper()
	pipelinetest.Start(w.t, append([]pipeline.Plugin{w.Once}, plugins...)...)
}

// Turn moves the clock of the ledger forward: leases end, and retries are due.
func (w *World) Turn(d time.Duration) { w.Once.TurnClock(d) }

// patience is how long the functions of the package wait for what happens at once on a free machine.
const patience = time.Minute

// Settled waits until an effect is settled and returns its state. It turns no clock, so an effect that waits
// for a retry ends only if the test turns it, or when the time has really passed.
func Settled[T any](t testing.TB, e *once.Effects[T], k once.Key) (s once.State) {
	t.Helper()
	require.Eventually(t, func() bool {
		var err error
		s, err = e.State(t.Context(), k)
		return err == nil && s.State.Settled()
	}, patience, 2*time.Millisecond, "%s is not settled", k)
	return s
}

// TurnTo turns the clock to the time for which an effect waits, and never while a call may run: no lease ends early, and
// no key is older than its retries make it.
func (w *World) TurnTo(s once.State) {
	if s.State != rules.Sending && s.NextIn > 0 {
		w.Turn(s.NextIn)
	}
}

// SettledInTurns is Settled with a clock that TurnTo turns.
func SettledInTurns[T any](t testing.TB, w *World, e *once.Effects[T], k once.Key) (s once.State) {
	t.Helper()
	require.Eventually(t, func() bool {
		var err error
		s, err = e.State(t.Context(), k)
		w.TurnTo(s)
		return err == nil && s.State.Settled()
	}, patience, 5*time.Millisecond, "%s is not settled", k)
	return s
}

// StartUntil is Start with the stop in the caller's hand.
func (w *World) StartUntil(plugins ...pipeline.Plugin) (stop func() error) {
	w.t.Helper()
	return pipelinetest.StartUntil(w.t, middleware.Options{}, append([]pipeline.Plugin{w.Once}, plugins...)...)
}
