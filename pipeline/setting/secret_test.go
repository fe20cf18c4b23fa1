package setting_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/setting"
)

func TestSecret(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(file, []byte("from file\n"), 0o600))
	t.Setenv("MILLRACE_TEST_SECRET", "from env")
	for raw, want := range map[string]string{"literal": "literal", "env:MILLRACE_TEST_SECRET": "from env", "file:" + file: "from file", "": ""} {
		var s setting.Secret
		require.NoError(t, s.UnmarshalText([]byte(raw)))
		require.Equal(t, want, s.Reveal())
		shown, err := json.Marshal(struct{ S setting.Secret }{s})
		require.NoError(t, err)
		for _, text := range []string{fmt.Sprint(s), fmt.Sprintf("%#v %+v", s, struct{ P *setting.Secret }{&s}), string(shown)} {
			if want != "" {
				require.NotContains(t, text, want)
			}
		}
	}
	var s setting.Secret
	require.ErrorContains(t, s.UnmarshalText([]byte("env:MILLRACE_TEST_NOT_SET")), "MILLRACE_TEST_NOT_SET is not set")
	require.Error(t, s.UnmarshalText([]byte("file:/does/not/exist")))
}
