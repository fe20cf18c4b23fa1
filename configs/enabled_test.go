package configs_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/configs"
)

type onSettings struct {
	URL string `yaml:"url"`
}

type offSettings struct {
	URL string `yaml:"url"`
}

func (*offSettings) EnabledByDefault() bool { return false }

func TestAPluginsSettingsDecideWhetherItIsOnByDefault(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		text    string
		on, off bool // the plugin that is on by default, and the other one
	}{
		"nothing written": {"plugins: {on: {url: x}, off: {url: x}}", true, false},
		"true":            {"plugins: {on: {enabled: true}, off: {enabled: true}}", true, true},
		"false":           {"plugins: {on: {enabled: false}, off: {enabled: false}}", false, false},
		"empty":           {"plugins: {on: {enabled: }, off: {enabled: }}", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "settings.yaml")
			require.NoError(t, os.WriteFile(file, []byte(c.text), 0o600))
			doc, err := configs.Load(configs.Options{File: file})
			require.NoError(t, err)
			on, err := doc.Enabled("plugins.on", &onSettings{})
			require.NoError(t, err)
			require.Equal(t, c.on, on)
			off, err := doc.Enabled("plugins.off", &offSettings{})
			require.NoError(t, err)
			require.Equal(t, c.off, off)
			require.NoError(t, doc.Decode("plugins.on", &onSettings{}))
			require.NoError(t, doc.Decode("plugins.off", &offSettings{}))
			require.NoError(t, doc.Unclaimed())
		})
	}
	text, err := configs.Schema("x", nil, map[string]any{"plugins.on": &onSettings{}, "plugins.off": &offSettings{}})
	require.NoError(t, err)
	require.Regexp(t, `(?s)"off": \{.*?"default": false`, string(text))
}

// The keys that belong to the file itself are known, too.
func TestAMisspeltSectionOfTheFile(t *testing.T) {
	t.Parallel()
	file := write(t, "plugin: {shop: {}}\nprofil: local\nplugins: {shop: {enable: false}}\n")
	d := load(t, configs.Options{File: file})
	var top struct{}
	require.Equal(t, []string{
		`settings.yaml:1: plugin: unknown setting; did you mean "plugins"?`,
		`settings.yaml:2: profil: unknown setting; did you mean "profile"?`,
	}, problems(d.Decode("", &top)))
	require.Equal(t, []string{`settings.yaml:3: plugins.shop.enable: unknown setting; did you mean "enabled"?`}, problems(d.Decode("plugins.shop", &top)))
}
