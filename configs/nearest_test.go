package configs_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millrace-io/millrace/configs"
)

func TestNearest(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]string{
		"sned": "send", "snd": "send", "sendd": "send", "sand": "send", "esndd": "send", "dnes": "", "größe": "grösse", "grösen": "grösse",
		"sitten": "kitten", "sittin": "kitten", "sitting": "", "": "", "k": "", "production": "",
	} {
		require.Equal(t, want, configs.Nearest(word, []string{"send", "grösse", "kitten"}), word)
	}
	require.Equal(t, "b", configs.Nearest("bb", []string{"c", "b", "a"}))
	require.Empty(t, configs.Nearest("send", nil))

	// Two edits are less than a third of a long word.
	rapid.Check(t, func(t *rapid.T) {
		candidate := []rune(rapid.StringMatching("[a-mä]{9,20}").Draw(t, "candidate"))
		other := rapid.StringMatching("[n-zö]{9,20}").Draw(t, "other")
		word := slices.Clone(candidate)
		for range rapid.IntRange(0, 2).Draw(t, "edits") {
			at := rapid.IntRange(0, len(word)-1).Draw(t, "at")
			switch rapid.IntRange(0, 2).Draw(t, "edit") {
			case 0:
				word = slices.Delete(word, at, at+1)
			case 1:
				word = slices.Insert(word, at, 'é')
			case 2:
				word[at] = 'è'
			}
		}
		require.Equal(t, string(candidate), configs.Nearest(string(word), []string{other, string(candidate)}))
		require.Empty(t, configs.Nearest(string(word), []string{other}))
	})
}
