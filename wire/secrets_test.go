package wire_test

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/httpclient"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/token"
	"github.com/millrace-io/millrace/wire"
)

// secretsIn returns the settings below a type that are secrets or files of them, with NAME for the key of a map. What
// several plugins have in common, such as the certificates of a client, is one setting, because it has one row.
func secretsIn(t reflect.Type, at string) (found []string) {
	switch t {
	case reflect.TypeFor[setting.Secret](), reflect.TypeFor[setting.ServerTLS](), reflect.TypeFor[[]token.KeyConfig]():
		return []string{at}
	case reflect.TypeFor[setting.TLS]():
		return []string{"tls.ca_file", "tls.cert_file", "tls.key_file"}
	case reflect.TypeFor[httpclient.Config]():
		return []string{"oauth2.client_secret"}
	case reflect.TypeFor[redis.ClientConfig]():
		return []string{"plugins.redis.password", "sentinel_password"}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return secretsIn(t.Elem(), at)
	case reflect.Map:
		return secretsIn(t.Elem(), at+".NAME")
	case reflect.Slice:
		return secretsIn(t.Elem(), at)
	case reflect.String:
		if strings.HasSuffix(at, "_file") {
			return []string{at}
		}
	case reflect.Struct:
		for i := range t.NumField() {
			key, options, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ",")
			switch {
			case options == "inline":
				found = append(found, secretsIn(t.Field(i).Type, at)...)
			case key != "" && key != "-":
				found = append(found, secretsIn(t.Field(i).Type, at+"."+key)...)
			}
		}
	}
	return found
}

// Whoever rotates a credential finds in one table when it is read again. A setting that is new there also needs a test
// that rotates it under load.
func TestTheTableOfRotationsHasEverySecret(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/operating.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(page), "\n## Rotating credentials\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	var secrets []string
	for _, p := range wire.New().Plugins() {
		if c, ok := p.(pipeline.Configurable); ok {
			secrets = append(secrets, secretsIn(reflect.TypeOf(c.Settings()), "plugins."+p.Name())...)
		}
	}
	require.Greater(t, len(secrets), 20)
	type further struct {
		Shown  string                    `yaml:"shown"`
		Hidden map[string]setting.Secret `yaml:"hidden"`
		Keys   []struct {
			File string `yaml:"pem_file"`
		} `yaml:"keys"`
	}
	require.Equal(t, []string{"plugins.x.hidden.NAME", "plugins.x.keys.pem_file"}, secretsIn(reflect.TypeFor[*further](), "plugins.x"))
	for _, secret := range secrets {
		require.Contains(t, section, "`"+secret+"`")
	}
}
