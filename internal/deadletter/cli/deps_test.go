package cli

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline"
)

// stopping counts its stops.
type stopping struct {
	Replayer
	stops int
}

func (s *stopping) Stop(context.Context) error { s.stops++; return nil }

// The console goes on after a panic of a plugin, and the next use of an action waits for the end of this one.
func TestAUseThatPanicsIsEnded(t *testing.T) {
	t.Parallel()
	ends, replayer := 0, &stopping{}
	e := Deps{
		Open: func(context.Context) (*store.Store, func(context.Context) error, error) {
			return nil, func(context.Context) error { ends++; return nil }, nil
		},
		Replayer: func(*pipeline.Registry) Replayer { return replayer },
	}
	require.Panics(t, func() {
		_ = e.with(t.Context(), nil, func(*store.Store, Replayer) error { panic("no such ledger") })
	})
	require.Equal(t, []int{1, 1}, []int{ends, replayer.stops})
	require.NoError(t, e.with(t.Context(), nil, func(*store.Store, Replayer) error { return nil }))
	require.Equal(t, []int{2, 2}, []int{ends, replayer.stops})
}
