package ledger

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A refused request has used the key. After the ttl a lookup precedes any send. Only a call of
// which no byte left the process has not used the key.
func TestTheKeysAgeCountsFromItsFirstUse(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t, func(c *Config, _ *Options) { c.IdempotencyTTL = 24 * time.Hour })
		target := int64(0)
		call := func(r Record, want Next, o Outcome) State {
			t.Helper()
			b := mustBegin(t, l, r)
			require.Equal(t, want, b.Next)
			s := mustSettle(t, l, CallResult{Key: r.Key, Epoch: b.Epoch, Outcome: o, Class: "c", TransactionKey: "tx"})
			h.advance(s.RetryIn)
			return s.State
		}
		for _, refused := range []Outcome{NotCharged, TryAgain, Misconfigured, Unrecognized} {
			target++
			r := record(1, target)
			mustAccept(t, l, r)
			call(r, Send, refused)
			h.advance(23 * time.Hour)
			require.Equal(t, Ambiguous, call(r, Send, PerhapsCharged), "charged, and the answer is lost")
			h.advance(2 * time.Hour)
			require.Equal(t, Ambiguous, call(r, Lookup, NoCharge), "the API has deleted the key")
			h.advance(time.Hour)
			call(r, Lookup, NoCharge)
		}
		for _, unsent := range []Outcome{NotSent, Interrupted} {
			target++
			r := record(1, target)
			mustAccept(t, l, r)
			call(r, Send, unsent)
			require.Zero(t, mustExplain(t, l, r.Key).KeyFirstUsedAt)
			h.advance(25 * time.Hour)
			require.Equal(t, Success, call(r, Send, Paid))
		}
		target++
		r := record(1, target)
		mustAccept(t, l, r)
		call(r, Send, NotCharged)
		first := mustExplain(t, l, r.Key).KeyFirstUsedAt
		call(r, Send, NotSent)
		require.Equal(t, first, mustExplain(t, l, r.Key).KeyFirstUsedAt, "an earlier call has used it")
		h.advance(25 * time.Hour)
		require.Equal(t, Errored, call(r, Lookup, NoCharge), "certainly not charged, so it may be sent after a lookup")
		require.True(t, mustExplain(t, l, r.Key).NoChargeSeen)
		require.Equal(t, Errored, call(r, Send, NotSent))
		require.Equal(t, Errored, call(r, Send, NotCharged), "the lookup before still holds")
		require.Equal(t, Errored, call(r, Lookup, NoCharge), "before each send that reaches the API")
		require.Equal(t, Success, call(r, Send, Paid))
	})
}
