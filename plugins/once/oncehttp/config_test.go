package oncehttp_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/once/oncehttp"
)

func TestConfig(t *testing.T) {
	t.Parallel()
	t.Run("the defaults lack only a url", func(t *testing.T) {
		cfg := oncehttp.DefaultConfig()
		require.EqualError(t, cfg.Validate(), "url: must be set")
		cfg.URL = "https://billing.example/base/"
		require.NoError(t, cfg.Validate())
	})
	t.Run("every mistake at once, with its path", func(t *testing.T) {
		err := (&oncehttp.Config{Token: setting.NewSecret("two\nlines")}).Validate()
		for _, path := range []string{
			"url:", "call_timeout:", "connect_timeout:", "idle_conn_timeout:", "max_retry_after:",
			"default_retry_after:", "concurrency:", "token:", "breaker.failure_ratio:", "breaker.min_calls:",
			"breaker.window:", "breaker.open_delay:", "breaker.half_open_successes:",
		} {
			require.ErrorContains(t, err, path)
		}
	})
	for _, bad := range []string{"billing.example", "ftp://billing.example", "http://", "http://u:secret@host", "http://host?x=1", "http://host#f", "http://%zz"} {
		t.Run("url "+bad, func(t *testing.T) {
			cfg := oncehttp.DefaultConfig()
			cfg.URL = bad
			err := cfg.Validate()
			require.ErrorContains(t, err, "url: ")
			require.NotContains(t, err.Error(), "secret")
			require.Error(t, oncehttp.New(&cfg, billing()).Open(nil))
		})
	}
	t.Run("from yaml", func(t *testing.T) {
		cfg := oncehttp.DefaultConfig()
		d := yaml.NewDecoder(strings.NewReader("url: https://h\ncall_timeout: 500ms\ntoken: s3cret\nbreaker: {open_delay: 1s}\n"))
		d.KnownFields(true)
		require.NoError(t, d.Decode(&cfg))
		require.NoError(t, cfg.Validate())
		require.Equal(t, 500*time.Millisecond, cfg.CallTimeout)
		require.Equal(t, time.Second, cfg.Breaker.OpenDelay)
		require.Equal(t, 20, cfg.Breaker.MinCalls)
		require.Equal(t, "s3cret", cfg.Token.Reveal())
	})
}

func TestNewReadsFiles(t *testing.T) {
	t.Parallel()
	write := func(text string) string {
		path := filepath.Join(t.TempDir(), "f")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	for name, c := range map[string]struct {
		change func(*oncehttp.Config)
		want   string
	}{
		"a token of two lines":          {func(c *oncehttp.Config) { c.Token = setting.NewSecret("a\nb") }, "must have one line"},
		"no ca file":                    {func(c *oncehttp.Config) { c.CAFile = "/does/not/exist" }, "ca_file"},
		"a certificate without its key": {func(c *oncehttp.Config) { c.CertFile = "/does/not/exist" }, "cert_file: must be set together with key_file"},
		"tokens of two kinds": {func(c *oncehttp.Config) {
			c.Token, c.OAuth2 = setting.NewSecret("a"), credentials("https://login.example")
		}, "token: must be empty with oauth2.token_url"},
		"fetched tokens in plain text": {func(c *oncehttp.Config) {
			c.URL, c.OAuth2 = "http://billing.example", credentials("https://login.example")
		}, "url: must be https:// because there is a token"},
		"a ca file of nothing": {func(c *oncehttp.Config) { c.CAFile = write("nothing") }, "contains no certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := oncehttp.DefaultConfig()
			cfg.URL = "http://127.0.0.1:1"
			c.change(&cfg)
			require.ErrorContains(t, oncehttp.New(&cfg, billing()).Open(nil), c.want)
		})
	}
}
