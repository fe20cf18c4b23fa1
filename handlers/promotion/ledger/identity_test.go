package ledger

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// A ledger has one id for all instances and migrations; two ledgers have different ids.
func TestALedgerHasAnID(t *testing.T) {
	t.Parallel()
	var ids sync.Map
	for range 2 {
		onEachDatabase(t, func(t *testing.T, h *testDB) {
			first := h.open(t)
			id, err := first.ID(t.Context())
			require.NoError(t, err)
			require.GreaterOrEqual(t, len(id), 32)
			require.NoError(t, first.Migrate(t.Context()))
			again, err := h.open(t, as("b")).ID(t.Context())
			require.NoError(t, err)
			require.Equal(t, id, again)
			_, known := ids.LoadOrStore(id, true)
			require.False(t, known)
		})
	}
}
