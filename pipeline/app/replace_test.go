package app

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

// A binary that was compiled in a checkout has no release that the new module could have.
func TestOnlyABinaryWithoutAReleaseNeedsACopy(t *testing.T) {
	t.Parallel()
	const line, commit = "\tgo mod edit -replace github.com/millrace-io/millrace=", "v0.0.0-20260101000000-0123456789ab"
	main := func(version string, settings ...debug.BuildSetting) *debug.BuildInfo {
		return &debug.BuildInfo{Main: debug.Module{Path: framework, Version: version}, Settings: settings}
	}
	checkout := debug.BuildSetting{Key: "vcs.revision", Value: "0123456789ab"}
	for name, tt := range map[string]struct {
		source string
		info   *debug.BuildInfo
		want   string
	}{
		"its folder is known":        {"/src/millrace", main(commit, checkout), line + "/src/millrace\n"},
		"trimmed":                    {"", main(commit, checkout), line + "../millrace  # where your copy of it is\n"},
		"trimmed, with changes":      {"", main("v0.1.0+dirty", checkout), line + "../millrace  # where your copy of it is\n"},
		"without a version":          {"", main("(devel)"), line + "../millrace  # where your copy of it is\n"},
		"a release":                  {"", main("v0.1.0"), ""},
		"a release, in its checkout": {"", main("v0.1.0", checkout), ""},
		"go install of a commit":     {"", main(commit), ""},
		"another module":             {"", &debug.BuildInfo{Main: debug.Module{Path: "example.com/shop"}}, ""},
		"without build information":  {"", nil, ""},
	} {
		require.Equal(t, tt.want, replaceLine(tt.source, tt.info), name)
	}
}
