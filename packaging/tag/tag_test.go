package tag_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/packaging/tag"
)

func TestAVersionBecomesATag(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{
		"v1.2.3":      "v1.2.3",
		"v1.2.3-rc.1": "v1.2.3-rc.1",
		"v0.0.0-20261129053738-0c7f28a3abcd+dirty": "v0.0.0-20261129053738-0c7f28a3abcd-dirty",
		"(devel)": "v0.0.0-devel",
		"":        "v0.0.0-devel",
	} {
		require.Equal(t, want, tag.Of(version), version)
	}
}
