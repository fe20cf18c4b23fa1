package configs_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/configs"
)

// Effective has each value with the layer that set it, and never a secret.
func TestEffectiveValues(t *testing.T) {
	t.Parallel()
	type inner struct {
		Prefix string `yaml:"prefix"`
		Key    hidden `yaml:"key"`
	}
	type section struct {
		Wait   time.Duration `yaml:"wait"`
		Hosts  []string      `yaml:"hosts"`
		URL    string        `yaml:"url"`
		Broken string        `yaml:"broken"`
		DSN    hidden        `yaml:"dsn"`
		Empty  hidden        `yaml:"empty"`
		List   []inner       `yaml:"list"`
		Keys   []hidden      `yaml:"keys"`
		Left   int           `yaml:"left"`
	}
	file := filepath.Join(t.TempDir(), "settings.yaml")
	require.NoError(t, os.WriteFile(file, []byte(`plugins:
  shop:
    wait: 90s
    url: https://ann:hidden@example.com/x
    broken: "https://ann:hid%%den@example.com"
    dsn: hidden
    keys: [hidden]
    list:
      - {prefix: a, key: hidden}
`), 0o600))
	doc, err := configs.Load(configs.Options{File: file, EnvPrefix: "MINE", Environ: []string{"MINE__PLUGINS__SHOP__HOSTS=a,b"}})
	require.NoError(t, err)
	target := section{Left: 7}
	require.NoError(t, doc.Decode("plugins.shop", &target))
	list := doc.Effective("plugins.shop", &target)
	require.Equal(t, []configs.Effective{
		{Path: "plugins.shop.wait", Value: "1m30s", Source: file, Line: 3},
		{Path: "plugins.shop.hosts", Value: "[a, b]", Source: "environment variable MINE__PLUGINS__SHOP__HOSTS"},
		{Path: "plugins.shop.url", Value: "https://ann@example.com/x", Source: file, Line: 4},
		{Path: "plugins.shop.broken", Value: "set", Source: file, Line: 5},
		{Path: "plugins.shop.dsn", Value: "set", Source: file, Line: 6},
		{Path: "plugins.shop.empty"},
		{Path: "plugins.shop.list[0].prefix", Value: "a", Source: file, Line: 9},
		{Path: "plugins.shop.list[0].key", Value: "set", Source: file, Line: 9},
		{Path: "plugins.shop.keys[0]", Value: "set", Source: file, Line: 7},
		{Path: "plugins.shop.left", Value: "7"},
	}, list)
}
