package deadletter

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestWhatIsTooLongLosesItsMiddle(t *testing.T) {
	t.Parallel()
	whole := "promotion: pay: Post \"http://127.0.0.1:18089/v1/payouts\": read tcp 127.0.0.1:52282->127.0.0.1:18089: read: connection reset by peer"
	for name, c := range map[string]struct {
		text string
		most int
		want string
	}{
		"short":        {"as it is", 8, "as it is"},
		"odd":          {"0123456789", 7, "012…789"},
		"even":         {"0123456789", 6, "01…789"},
		"one":          {"0123456789", 1, "…"},
		"characters":   {"äöüäöüäöü", 5, "äö…öü"},
		"one line":     {"a\n\tb  c", 10, "a b c"},
		"no commands":  {"a\x1b[2Jb", 10, "a\uFFFD[2Jb"},
		"an error":     {whole, errorWidth, whole},
		"a long error": {strings.Repeat("x", 500) + ": connection reset by peer", 60, strings.Repeat("x", 29) + "…" + "xxxx: connection reset by peer"},
	} {
		got := line(c.text, c.most)
		require.Equal(t, c.want, got, name)
		require.LessOrEqual(t, utf8.RuneCountInString(got), c.most)
	}
}

func TestCountsAreSentences(t *testing.T) {
	t.Parallel()
	for want, r := range map[string]Report{
		"No letter is meant.":                                                            {},
		"1 letter: 1 replayed.":                                                          {Selected: 1, Replayed: 1},
		"1 letter: 1 replayed before.":                                                   {Selected: 1, Already: 1},
		"2 letters: 1 discarded, 1 refused.":                                             {Selected: 2, Discarded: 1, Refused: 1},
		"3 letters: 1 replayed, 1 failed, 1 skipped.":                                    {Selected: 3, Replayed: 1, Failed: 1, Skipped: 1},
		"No letter is meant; nothing was done.":                                          {DryRun: true},
		"1 letter is meant; nothing was done.":                                           {DryRun: true, Selected: 1, Replayed: 1},
		"2 letters are meant; nothing was done.":                                         {DryRun: true, Selected: 2, Discarded: 2},
		"1 letter is meant, 2 would be refused; nothing was done.":                       {DryRun: true, Selected: 3, Replayed: 1, Refused: 2},
		"No letter is meant, 1 would have no effect, 1 can't be told; nothing was done.": {DryRun: true, Selected: 2, Already: 1, NotAsked: 1},
		"2 letters are meant, 1 would be refused, 3 would be skipped; nothing was done.": {DryRun: true, Selected: 6, Replayed: 2, Refused: 1, Skipped: 3},
	} {
		require.Equal(t, want, r.summary())
	}
	cause := errors.New("too large")
	require.EqualError(t, &PublishError{Failed: map[int]error{0: cause}, Size: 1}, "1 of 1 dead letter not published: too large")
	require.EqualError(t, &PublishError{Failed: map[int]error{1: cause}, Size: 3}, "1 of 3 dead letters not published: too large")
}
