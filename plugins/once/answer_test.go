package once_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/once"
)

func TestTheZeroAnswerIsUnclear(t *testing.T) {
	t.Parallel()
	var a once.Answer
	require.Equal(t, once.Unclear, a.Class)
	require.Equal(t, once.Answer{Class: once.Done, Receipt: "in_17"}, once.IsDone("in_17"))
	require.Equal(t, once.Answer{Class: once.Rejected, Code: "limit", Text: "too much"}, once.IsRejected("limit", "too much"))
}

// The names are in metrics, alerts and dead letters.
func TestTheNamesOfClasses(t *testing.T) {
	t.Parallel()
	var names []string
	for _, c := range once.Classes() {
		names = append(names, c.String())
	}
	require.Equal(t, []string{"unclear", "done", "not_sent", "throttled", "rejected", "misconfigured", "retry", "unrecognized", "not_done"}, names)
	require.Equal(t, once.NotDone, once.Classes()[len(names)-1])
	require.Equal(t, "Class(9)", once.Class(9).String())
}

func TestRepeatHasNoDefault(t *testing.T) {
	t.Parallel()
	var unset once.Repeat
	require.EqualError(t, unset.Validate(), "once: Repeat(0) says nothing about a second request: set ByKey, ByLookup, Never or Always")
	require.Error(t, once.Repeat(5).Validate())
	require.Error(t, once.Repeat(-1).Validate())
	for want, r := range map[string]once.Repeat{"key": once.ByKey, "lookup": once.ByLookup, "never": once.Never, "always": once.Always} {
		require.NoError(t, r.Validate())
		require.Equal(t, want, r.String())
	}
}
