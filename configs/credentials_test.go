package configs_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/configs"
)

// files are settings that name files, as plugins have them.
type files struct {
	Password hidden   `yaml:"password"`
	Other    hidden   `yaml:"other"`
	KeyFile  string   `yaml:"key_file"`
	Keys     []string `yaml:"keys"`
	Greeting string   `yaml:"greeting"`
}

func TestPathsBelowTheFolderOfCredentials(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "settings.yaml")
	require.NoError(t, os.WriteFile(file, []byte(`plugins:
  shop:
    password: file:$CREDENTIALS_DIRECTORY/kafka-password
    other: env:$CREDENTIALS_DIRECTORY/other
    key_file: $CREDENTIALS_DIRECTORY/kafka.key
    keys: [$CREDENTIALS_DIRECTORY/one, /etc/two]
    greeting: $CREDENTIALS_DIRECTORY2/ or $CREDENTIALS_DIRECTORY/
`), 0o600))
	load := func(environ ...string) (got files, err error) {
		doc, err := configs.Load(configs.Options{File: file, EnvPrefix: "MILLRACE", Environ: environ})
		require.NoError(t, err)
		err = doc.Decode("plugins.shop", &got)
		return got, err
	}
	got, err := load("CREDENTIALS_DIRECTORY=/run/credentials/millrace.service")
	require.NoError(t, err)
	require.Equal(t, files{
		Password: hidden{"file:/run/credentials/millrace.service/kafka-password"},
		Other:    hidden{"env:$CREDENTIALS_DIRECTORY/other"},
		KeyFile:  "/run/credentials/millrace.service/kafka.key",
		Keys:     []string{"/run/credentials/millrace.service/one", "/etc/two"},
		Greeting: "$CREDENTIALS_DIRECTORY2/ or $CREDENTIALS_DIRECTORY/",
	}, got)

	_, err = load("CREDENTIALS_DIRECTORY=", "MILLRACE__PLUGINS__SHOP__GREETING=$CREDENTIALS_DIRECTORY/greeting")
	found := configs.Flatten(err)
	require.Len(t, found, 4)
	for i, path := range []string{"plugins.shop.password", "plugins.shop.key_file", "plugins.shop.keys[0]", "plugins.shop.greeting"} {
		require.Equal(t, path, found[i].Path)
		require.Equal(t, "environment variable CREDENTIALS_DIRECTORY, which systemd sets for a unit with LoadCredential, and root for a command beside it (CREDENTIALS_DIRECTORY=/etc/credstore), is not set", found[i].Problem)
	}
}
