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
	// A variable is read as a file is: a newline that an orchestrator or an editor has added is not part of a password, and
	// an empty one would silently be no password, or no database.
	t.Setenv("MILLRACE_TEST_NEWLINE", " from env \r\n\n")
	t.Setenv("MILLRACE_TEST_EMPTY", "")
	t.Setenv("MILLRACE_TEST_ONLY_NEWLINE", "\n")
	var read setting.Secret
	require.NoError(t, read.UnmarshalText([]byte("env:MILLRACE_TEST_NEWLINE")))
	require.Equal(t, " from env ", read.Reveal())
	for _, name := range []string{"MILLRACE_TEST_EMPTY", "MILLRACE_TEST_ONLY_NEWLINE"} {
		err := read.UnmarshalText([]byte("env:" + name))
		require.EqualError(t, err, "environment variable "+name+" is empty: it must contain the secret")
		require.True(t, setting.NotHere(err.Error()))
		var missing *setting.MissingError
		require.ErrorAs(t, err, &missing)
		require.Empty(t, read.Reveal())
		require.True(t, missing.Used())
	}

	var s setting.Secret
	require.ErrorContains(t, s.UnmarshalText([]byte("env:MILLRACE_TEST_NOT_SET")), "MILLRACE_TEST_NOT_SET is not set")
	require.Error(t, s.UnmarshalText([]byte("file:/does/not/exist")))
}
