package setting_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/setting"
)

// The names of groups are stored in lists with a line each.
func TestNamesOfGroups(t *testing.T) {
	t.Parallel()
	var p setting.Problems
	p.Groups("required_groups", []string{"good", "", "two\nlines"})
	require.EqualError(t, p.Err(), "required_groups[1]: must be the name of a consumer group, got \"\"\n"+
		"required_groups[2]: must be the name of a consumer group, got \"two\\nlines\"")
}
