package ledger

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// updates counts the transactions of portable SQL.
type updates struct {
	store
	n int
}

func (s *updates) update(ctx context.Context, lock groupLock, fn func(querier, time.Time) error) error {
	s.n++
	return s.store.update(ctx, lock, fn)
}

// told returns the states of the results that are to be published, and takes them for published.
func told(t *testing.T, l *Ledger) (states []rules.State) {
	t.Helper()
	_, err := l.RelayResults(t.Context(), "invoice", 100, func(_ context.Context, all []Result) error {
		for _, r := range all {
			states = append(states, r.State)
		}
		return nil
	})
	require.NoError(t, err)
	return states
}

// Whether results are published is decided by the programs that call, and not by the settings of a command, nor by a
// program that does not know the kind.
func TestACommandWritesTheResultsOfTheKind(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		kind := Kind{Name: "invoice", Policy: policyOf("invoice"), Results: true}
		l := h.open(t)
		require.NoError(t, l.Register(t.Context(), kind))
		mustAccept(t, l, record("acme", 1), record("zeta", 1), record("brot", 1))
		other := kind
		other.Results = false
		command := h.open(t, func(_ *Config, o *Options) { o.Command = true })
		require.NoError(t, command.Register(t.Context(), other))
		cfg := DefaultConfig()
		cfg.DSN = setting.NewSecret(h.dsn)
		stranger, err := Open(t.Context(), cfg, Options{Instance: "s", Command: true})
		require.NoError(t, err)
		t.Cleanup(func() { _ = stranger.CloseContext(context.Background()) })
		for _, c := range []struct {
			by    *Ledger
			group string
		}{{command, "acme"}, {stranger, "zeta"}} {
			_, err := c.by.Cancel(t.Context(), Group{"invoice", c.group}, By{Who: "ann", Why: "wrong"})
			require.NoError(t, err)
			require.Equal(t, []rules.State{rules.Cancelled}, told(t, l), c.group)
		}
		require.NoError(t, l.Register(t.Context(), other), "an instance without results")
		_, err = l.Cancel(t.Context(), Group{"invoice", "brot"}, By{Who: "ann", Why: "wrong"})
		require.NoError(t, err)
		require.Empty(t, told(t, l))
	})
}

// A look at a table without results writes nothing, because each instance looks every second.
func TestALookForResultsWritesNothing(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		require.NoError(t, l.Register(t.Context(), Kind{Name: "invoice", Policy: policyOf("invoice"), Results: true}))
		mustAccept(t, l, record("acme", 1))
		mustSettle(t, l, end(claimAll(t, l, "invoice")[0], rules.Done))
		counted := &updates{store: l.store}
		l.store = counted
		require.Equal(t, []rules.State{rules.Success}, told(t, l))
		require.Equal(t, 2, counted.n, "taken and deleted")
		require.Empty(t, told(t, l))
		require.Equal(t, 2, counted.n)
	})
}
