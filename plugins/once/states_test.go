package once_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/once/oncetest"
)

// Strangers who ask for states wait for each other, and not for all connections of the ledger.
func TestQuestionsLeaveConnections(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		p := newInvoices(w.Once, once.ByKey, nil)
		w.Start(p)
		_, err := p.effects.Enqueue(t.Context(), one)
		require.NoError(t, err)
		require.Equal(t, rules.Success, oncetest.Settled(t, p.effects, one.key()).State)

		free := w.Once.AskAll()
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		for _, ask := range []func() (once.State, error){
			func() (once.State, error) { return w.Once.StateOf(ctx, "invoice", one.key()) },
			func() (once.State, error) { return p.effects.State(ctx, one.key()) },
		} {
			_, err = ask()
			require.ErrorIs(t, err, pipeline.ErrUnavailable)
			require.ErrorContains(t, err, "too many ask for states")
		}
		free()
		s, err := w.Once.StateOf(t.Context(), "invoice", one.key())
		require.NoError(t, err)
		require.Equal(t, rules.Success, s.State)
	})
}
