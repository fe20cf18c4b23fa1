package redis_test

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis"
)

// keysOf returns the setting keys of a struct, nested ones with their path.
func keysOf(t reflect.Type, prefix string) (keys []string) {
	for f := range t.Fields() {
		tag := f.Tag.Get("yaml")
		switch {
		case tag == ",inline":
			keys = append(keys, keysOf(f.Type, prefix)...)
		case f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() == reflect.Struct:
			keys = append(keys, keysOf(f.Type.Elem(), prefix+tag+"[].")...)
		case f.Type.Kind() == reflect.Struct && !strings.Contains(f.Type.String(), "Secret"):
			keys = append(keys, keysOf(f.Type, prefix+tag+".")...)
		default:
			keys = append(keys, prefix+tag)
		}
	}
	return keys
}

func undocumented(readme string, names []string) (missing []string) {
	for _, n := range names {
		if !regexp.MustCompile("`" + regexp.QuoteMeta(n) + "(\\{[a-z,]+\\})?`").MatchString(readme) {
			missing = append(missing, n)
		}
	}
	return missing
}

func TestReadmeNamesEverySettingAndMetric(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	names := keysOf(reflect.TypeFor[redis.Config](), "")
	require.Subset(t, names, []string{"tls.ca_file", "domains[].shards"})
	descs := make(chan *prometheus.Desc, 100)
	registry, err := pipeline.NewRegistry(pipeline.Env{}, redis.New())
	require.NoError(t, err)
	for _, c := range registry.Collectors() {
		c.Describe(descs)
	}
	close(descs)
	for d := range descs {
		name := regexp.MustCompile(`fqName: "millrace_(?:redis_)?([a-z_]+)"`).FindStringSubmatch(fmt.Sprint(d))
		require.Len(t, name, 2)
		names = append(names, name[1])
	}
	require.Empty(t, undocumented(string(readme), names))
	require.Equal(t, []string{"no_such_key"}, undocumented(string(readme), []string{"no_such_key"}), "the check must be able to fail")
}
