package cli

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSummary(t *testing.T) {
	t.Parallel()
	for want, r := range map[string]Report{
		"No dead letters match.":                                                                            {},
		"1 dead letter: 1 replayed.":                                                                        {Selected: 1, Replayed: 1},
		"1 dead letter: 1 replayed before.":                                                                 {Selected: 1, Already: 1},
		"2 dead letters: 1 discarded, 1 refused.":                                                           {Selected: 2, Discarded: 1, Refused: 1},
		"3 dead letters: 1 replayed, 1 failed, 1 skipped.":                                                  {Selected: 3, Replayed: 1, Failed: 1, Skipped: 1},
		"2 dead letters: 2 replayed, 1 of an earlier replay that did not finish.":                           {Selected: 2, Replayed: 2, Resumed: 1},
		"1 dead letter: 1 would be replayed; nothing was changed.":                                          {DryRun: true, Selected: 1, Replayed: 1},
		"2 dead letters: 2 would be discarded; nothing was changed.":                                        {DryRun: true, Selected: 2, Discarded: 2},
		"3 dead letters: 1 would be replayed, 2 would be refused; nothing was changed.":                     {DryRun: true, Selected: 3, Replayed: 1, Refused: 2},
		"2 dead letters: 1 would have no effect, 1 unknown; nothing was changed.":                           {DryRun: true, Selected: 2, Already: 1, Unknown: 1},
		"6 dead letters: 2 would be replayed, 1 would be refused, 3 would be skipped; nothing was changed.": {DryRun: true, Selected: 6, Replayed: 2, Refused: 1, Skipped: 3},
	} {
		require.Equal(t, want, r.summary())
	}
	require.Equal(t, "No dead letters match.", (&Report{DryRun: true}).summary())
}

func TestTheLastRowSaysHowManyFatesAreLeftOut(t *testing.T) {
	t.Parallel()
	rows := wouldTable(make([]Would, maxNamed+3)).Rows
	require.Len(t, rows, maxNamed+1)
	require.Equal(t, []string{"…", "and 3 more", "", ""}, rows[maxNamed])
	require.Len(t, wouldTable(make([]Would, maxNamed)).Rows, maxNamed)
}
