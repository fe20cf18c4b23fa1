package operate

import (
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDescriptorsAreFew(t *testing.T) {
	t.Parallel()
	require.Equal(t, Warn, descriptors(256, true).Level)
	require.Contains(t, descriptors(256, true).Remedy, "ulimit -n")
	require.Equal(t, OK, descriptors(fewDescriptors, true).Level)
	require.Equal(t, OK, descriptors(0, false).Level)
}

func TestMemoryLimits(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for name, tc := range map[string]struct {
		limit   int64
		limited bool
		goLimit int64
		level   Level
		text    string
	}{
		"no limit":              {0, false, math.MaxInt64, OK, "no memory limit"},
		"Go's alone":            {0, false, 100 * mib, OK, "GOMEMLIMIT is 100 MiB"},
		"the cgroup's alone":    {512 * mib, true, math.MaxInt64, Warn, "GOMEMLIMIT is not set"},
		"Go's above the cgroup": {512 * mib, true, 513 * mib, Fail, "the cgroup has only 512 MiB"},
		"no room for the rest":  {512 * mib, true, 500 * mib, Warn, "leaves little"},
		"both":                  {512 * mib, true, 450 * mib, OK, "450 MiB of the 512 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := memory(tc.limit, tc.limited, tc.goLimit)
			require.Equal(t, tc.level, c.Level, c)
			require.Contains(t, c.Text, tc.text)
			require.Equal(t, tc.level == OK, c.Remedy == "")
		})
	}
}

func TestMemoryOfTheCgroup(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		files   map[string]string
		limit   int64
		limited bool
	}{
		"none":             {nil, 0, false},
		"version 2, max":   {map[string]string{"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n"}, 0, false},
		"version 2":        {map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "2000\n"}, 2000, true},
		"of its parent":    {map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": "1000\n", "sys/fs/cgroup/a/b/memory.max": "2000\n"}, 1000, true},
		"of the container": {map[string]string{"proc/self/cgroup": "0::/host/path\n", "sys/fs/cgroup/memory.max": "3000\n"}, 3000, true},
		"version 1":        {map[string]string{"proc/self/cgroup": "5:cpu:/x\n4:memory:/a\n", "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "4000\n"}, 4000, true},
		"version 1, none":  {map[string]string{"proc/self/cgroup": "4:memory:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			for file, text := range tc.files {
				path := filepath.Join(root, file)
				require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o750))
				require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
			}
			limit, limited := cgroupMemory(root)
			require.Equal(t, tc.limit, limit)
			require.Equal(t, tc.limited, limited)
		})
	}
}

func TestClockAndToolchain(t *testing.T) {
	t.Parallel()
	require.Equal(t, Warn, clock(false, true).Level)
	require.Equal(t, OK, clock(true, true).Level)
	require.Equal(t, OK, clock(false, false).Level)
	modified := &debug.BuildInfo{Settings: []debug.BuildSetting{{Key: "vcs.modified", Value: "true"}}}
	require.Equal(t, Warn, toolchain("go1.26", modified).Level)
	require.Equal(t, OK, toolchain("go1.26", nil).Level)
}

func TestProcessIsExamined(t *testing.T) {
	t.Parallel()
	d := Diagnose(t.Context(), []Examination{Process()}, CheckLimit, nil)
	var names []string
	for _, c := range d.Checks {
		names = append(names, c.Name)
		require.NotEmpty(t, c.Text)
	}
	require.Equal(t, []string{"process descriptors", "process memory", "process clock", "process toolchain"}, names)
}
