package ledger

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// A refused request has used the key. After the ttl a lookup precedes any send. Only a call of
// which no byte left the process has not used the key.
func TestTheKeysAgeCountsFromItsFirstUse(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t, func(c *Config, _ *Options) { c.IdempotencyTTL = 24 * time.Hour })
		target := int64(0)
		call := func(r payouts.Record, want rules.Next, o rules.Outcome) rules.State {
			t.Helper()
			b := mustBegin(t, l, r)
			require.Equal(t, want, b.Next)
			s := mustSettle(t, l, payouts.CallResult{Key: r.Key, CallResult: rules.CallResult{Epoch: b.Epoch, Outcome: o, Class: "c", Receipt: "tx"}})
			h.advance(s.RetryIn)
			return s.State
		}
		for _, refused := range []rules.Outcome{rules.Throttled, rules.TryAgain, rules.Misconfigured, rules.Unrecognized} {
			target++
			r := record(1, target)
			mustAccept(t, l, r)
			call(r, rules.Send, refused)
			h.advance(23 * time.Hour)
			require.Equal(t, rules.Ambiguous, call(r, rules.Send, rules.Unclear), "charged, and the answer is lost")
			h.advance(2 * time.Hour)
			require.Equal(t, rules.Ambiguous, call(r, rules.Lookup, rules.NotDone), "the API has deleted the key")
			h.advance(time.Hour)
			call(r, rules.Lookup, rules.NotDone)
		}
		for _, unsent := range []rules.Outcome{rules.NotSent, rules.Interrupted} {
			target++
			r := record(1, target)
			mustAccept(t, l, r)
			call(r, rules.Send, unsent)
			require.Zero(t, mustExplain(t, l, r.Key).KeyFirstUsedAt)
			h.advance(25 * time.Hour)
			require.Equal(t, rules.Success, call(r, rules.Send, rules.Done))
		}
		target++
		r := record(1, target)
		mustAccept(t, l, r)
		call(r, rules.Send, rules.Throttled)
		first := mustExplain(t, l, r.Key).KeyFirstUsedAt
		call(r, rules.Send, rules.NotSent)
		require.Equal(t, first, mustExplain(t, l, r.Key).KeyFirstUsedAt, "an earlier call has used it")
		h.advance(25 * time.Hour)
		require.Equal(t, rules.Errored, call(r, rules.Lookup, rules.NotDone), "certainly not charged, so it may be sent after a lookup")
		require.True(t, mustExplain(t, l, r.Key).NotDoneSeen)
		require.Equal(t, rules.Errored, call(r, rules.Send, rules.NotSent))
		require.Equal(t, rules.Errored, call(r, rules.Send, rules.Throttled), "the lookup before still holds")
		require.Equal(t, rules.Errored, call(r, rules.Lookup, rules.NotDone), "before each send that reaches the API")
		require.Equal(t, rules.Success, call(r, rules.Send, rules.Done))
	})
}
