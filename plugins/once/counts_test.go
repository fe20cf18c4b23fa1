package once

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/once/ledger"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// A late answer has a row beside the one of its call, so it is no call of its own.
func TestALateAnswerIsNoCallOfItsOwn(t *testing.T) {
	t.Parallel()
	calls := []rules.Attempt{{Kind: rules.CallSend}, {Kind: rules.CallSend}, {Kind: rules.CallSend, Late: true}, {Kind: rules.CallLookup}}
	sends, lookups := NewPlugin(nil, nil).countsOf(ledger.Explanation{Calls: calls})
	require.Equal(t, []int{2, 1}, []int{sends.Calls, lookups.Calls})
	require.Equal(t, []string{"send 1", "send 2", "late answer", "lookup 1"}, namesOf(calls))
}

func TestAnEffectUnderALeaseIsBeingCalled(t *testing.T) {
	t.Parallel()
	require.Equal(t, "is being called", nextCell(ledger.Waiting{Calling: true, At: time.Now()}).Text)
}
