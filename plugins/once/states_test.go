package once

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/once/ledger"
)

// Strangers who ask for states wait for each other, and not for all connections of the ledger.
func TestQuestionsLeaveConnections(t *testing.T) {
	t.Parallel()
	p := NewPlugin(nil, nil)
	for range statesAtOnce {
		p.states <- struct{}{}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := p.stateOf(ctx, nil, ledger.Key{}) // it does not reach the ledger
	require.ErrorIs(t, err, pipeline.ErrUnavailable)
}
