package web_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The picture of the README has each refusal of its table: what the server answers itself.
func TestTheReadmeShowsEachRefusal(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	_, rest, _ := strings.Cut(string(text), "```text\n")
	picture, rest, found := strings.Cut(rest, "```")
	require.True(t, found)
	_, rest, _ = strings.Cut(rest, "## Failure behaviour")
	rows := regexp.MustCompile("(?m)^\\| (\\d{3}) \\| `(\\w+)` \\|").FindAllStringSubmatch(rest, -1)
	require.NotEmpty(t, rows)
	for _, row := range rows {
		require.Regexp(t, row[1]+" `"+row[2]+"`", picture)
	}
}
