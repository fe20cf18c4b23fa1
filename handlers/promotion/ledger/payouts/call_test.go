package payouts

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// The tables of running deployments and the scripts of operators have these words, whatever the rules
// call an outcome.
func TestThePromotionKeepsItsWords(t *testing.T) {
	t.Parallel()
	for outcome, word := range map[rules.Outcome]Outcome{
		rules.Done: "paid", rules.Unclear: "perhaps_charged", rules.Throttled: "not_charged", rules.NotDone: "no_charge",
		rules.Misconfigured: "own_fault", rules.NotSent: "not_sent", rules.TryAgain: "try_again", rules.Unrecognized: "unrecognized",
		rules.Rejected: "rejected", rules.Interrupted: "interrupted", "": "",
	} {
		require.Equal(t, word, OutcomeOf(outcome))
	}
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for want, attempt := range map[string]rules.Attempt{
		`{"epoch":1,"number":1,"kind":"send","instance":"a","started_at":"2026-03-01T12:00:00Z"}`: {Epoch: 1, Number: 1, Kind: rules.CallSend, Instance: "a", StartedAt: at},
		`{"epoch":2,"number":1,"kind":"ask","instance":"a","ended_at":"2026-03-01T12:00:00Z","outcome":"no_charge","class":"no_charge","answer":"none","status":404}`: {
			Epoch: 2, Number: 1, Kind: rules.CallLookup, Instance: "a", EndedAt: at, Outcome: rules.NotDone, Class: "no_charge", Answer: "none", Status: 404,
		},
		`{"epoch":3,"late":true,"number":0,"kind":"send","instance":"a","ended_at":"2026-03-01T12:00:00Z","outcome":"paid","answer":"transaction key T-1"}`: {
			Epoch: 3, Late: true, Kind: rules.CallSend, Instance: "a", EndedAt: at, Outcome: rules.Done, Receipt: "T-1", Answer: "ok",
		},
	} {
		of := AttemptOf(attempt)
		got, err := json.Marshal(of)
		require.NoError(t, err)
		require.JSONEq(t, want, string(got))
		require.Equal(t, attempt.Receipt, of.PaidLate())
	}
}

func TestAPostponedCallKeepsItsEvidence(t *testing.T) {
	t.Parallel()
	key := Key{Type: "POINT", Promotion: 1, Target: 2}
	paid := CallResult{Key: key, CallResult: rules.CallResult{Epoch: 1, Outcome: rules.Done, Receipt: "T-1", Answer: "ok"}}.Postponed(false)
	require.NoError(t, paid.Validate())
	require.Equal(t, rules.Unrecognized, paid.Outcome)
	require.Equal(t, "the database refused to store the end of this call (paid, transaction key T-1): ok", paid.Answer)
	slow := CallResult{Key: key, CallResult: rules.CallResult{Epoch: 1, Outcome: rules.Throttled, Answer: "slow"}}.Postponed(false)
	require.Equal(t, "the database refused to store the end of this call (not_charged): slow", slow.Answer)
}

func TestAResultOfNoPayoutIsInvalid(t *testing.T) {
	t.Parallel()
	valid := CallResult{Key: Key{Type: "POINT", Promotion: 1, Target: 2}, CallResult: rules.CallResult{Epoch: 1, Outcome: rules.Done}}
	require.NoError(t, valid.Validate())
	nobody, never := valid, valid
	nobody.Key.Target, never.Epoch = 0, 0
	require.ErrorIs(t, nobody.Validate(), rules.ErrInvalid)
	err := never.Validate()
	require.ErrorIs(t, err, rules.ErrInvalid)
	require.ErrorContains(t, err, "payout POINT:1:2: ")
}
